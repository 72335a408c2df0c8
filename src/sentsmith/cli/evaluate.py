"""``sentsmith evaluate``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli import console


def evaluate(
    models: Annotated[list[str], typer.Argument(metavar="MODEL...", help="Folders, hub names, or minilm.")],
    *,
    output: Annotated[
        Path, typer.Option(help="Folder for results.json (of several models: one folder below it for each).")
    ],
    suite: Annotated[
        str,
        typer.Option(
            help="Suites, separated by commas: sts, transfer, bitext; nothing of the tests: sts-dev, diagnostics."
        ),
    ] = "sts",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder that holds sts/, transfer/ and bitext/; without it sts comes from the hub."),
    ] = None,
    sentence: Annotated[
        str | None, typer.Option(help="With diagnostics: the sentence whose attention is drawn.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="With diagnostics: the length of the sentence whose cost is counted; 32 if not given."),
    ] = None,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Measure models on STS12-16, STS-B, SICK-R, the transfer tasks, bitext; diagnose them; write results.json."""
    console.start(quiet=quiet)
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load
    from sentsmith.evaluation import diagnostics
    from sentsmith.evaluation.suite import evaluate_models, table
    from sentsmith.report.diagnosis import draw

    results = evaluate_models(
        models,
        lambda name: as_encoder(load(name)),
        suites=[name.strip() for name in suite.split(",") if name.strip()],
        data_dir=data_dir,
        output=output,
        diagnostics=diagnostics.asked_for(sentence=sentence, tokens=tokens),
        draw=draw,
    )
    if as_json:
        console.show_json(results[0] if len(results) == 1 else results)
    else:
        columns, rows = table(results)
        console.show_table("Spearman (STS) and accuracy (transfer, bitext), times 100", columns, rows)
        columns, rows = diagnostics.table(results)
        if rows:
            console.show_table("Diagnostics, over STS-B's dev part", columns, rows)
