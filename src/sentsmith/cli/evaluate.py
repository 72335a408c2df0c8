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
        typer.Option(help="Suites, separated by commas: sts, transfer, sts-dev (nothing of the tests)."),
    ] = "sts",
    data_dir: Annotated[
        Path | None,
        typer.Option(help="Folder that holds sts/ and transfer/; without it sts comes from the hub."),
    ] = None,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Measure models on STS12-16, STS-B, SICK-R and the transfer tasks; write results.json."""
    console.start(quiet=quiet)
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load
    from sentsmith.evaluation.suite import evaluate_models, table

    results = evaluate_models(
        models,
        lambda name: as_encoder(load(name)),
        suites=[name.strip() for name in suite.split(",") if name.strip()],
        data_dir=data_dir,
        output=output,
    )
    if as_json:
        console.show_json(results[0] if len(results) == 1 else results)
    else:
        columns, rows = table(results)
        console.show_table("Spearman (STS) and accuracy (transfer), times 100", columns, rows)
