"""``sentsmith evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli import asking, console
from sentsmith.errors import SettingsError


def evaluate(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL", help="Folders, hub names, or minilm; none with --llm.")
    ] = None,
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
    llm: Annotated[
        str | None, typer.Option(help=f"{asking.SPEC} It scores the pairs of sts or sts-dev, in place of MODEL.")
    ] = None,
    prompts: Annotated[
        str | None,
        typer.Option(
            help="With --llm: prompt file (YAML), or one that ships: multicsr (if not given), score-examples, "
            "nli-lm-8m."
        ),
    ] = None,
    ledger: Annotated[
        Path | None, typer.Option(help="With --llm: where answers are kept; OUTPUT/ledger.sqlite if not given.")
    ] = None,
    retry_quarantined: Annotated[
        bool, typer.Option("--retry-quarantined", help="With --llm: ask again what an earlier run got no score for.")
    ] = False,
    batch: Annotated[int | None, typer.Option(min=1, help="With a local --llm: prompts answered together.")] = None,
    concurrency: Annotated[
        int | None, typer.Option(min=1, help="With an endpoint: requests under way at a time; 16 if not given.")
    ] = None,
    key_env: Annotated[
        str | None,
        typer.Option(help="With an endpoint: environment variable of the key; OPENAI_API_KEY if not given."),
    ] = None,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Measure models on STS12-16, STS-B, SICK-R, the transfer tasks, bitext; diagnose them; write results.json."""
    console.start(quiet=quiet)
    suites = [name.strip() for name in suite.split(",") if name.strip()]
    options = {"batch": batch, "concurrency": concurrency, "key_env": key_env}
    with_llm = {"prompts": prompts, "ledger": ledger, "retry_quarantined": retry_quarantined or None, **options}
    if llm is None:
        _refuse(with_llm, "asks a language model: give --llm SPEC in place of MODEL, or leave it out")
        if not models:
            raise SettingsError("nothing to measure: give a MODEL (a folder, a hub name, or minilm), or --llm SPEC")
        _measure(models, suites, data_dir, output, sentence=sentence, tokens=tokens, as_json=as_json)
        return
    if models:
        raise SettingsError(f"--llm and {' '.join(models)}: measure one or the other, a language model or MODEL")
    _refuse({"sentence": sentence, "tokens": tokens}, "is for the suite diagnostics, which --llm has not")
    from sentsmith.evaluation.suite import table
    from sentsmith.methods.multicsr.direct import evaluate_directly, unreadable_lines

    with console.progress("scoring", quiet=quiet, unit="pairs") as bar:
        result = evaluate_directly(
            asking.opener(llm, **{name: value for name, value in options.items() if value is not None}),
            suites=suites,
            data_dir=data_dir,
            output=output,
            prompts=prompts or "multicsr",
            ledger=ledger,
            retry_quarantined=retry_quarantined,
            advance=bar,
            expect=bar.expect,
        )
    if as_json:
        console.show_json(result)
        return
    console.show_table("Spearman of the model's own scores, times 100", *table([result]))
    for line in unreadable_lines(result):
        console.say(line)


def _refuse(options: Mapping[str, object], why: str) -> None:
    for name, value in options.items():
        if value is not None:
            raise SettingsError(f"--{name.replace('_', '-')} {why}")


def _measure(
    models: list[str],
    suites: list[str],
    data_dir: Path | None,
    output: Path,
    *,
    sentence: str | None,
    tokens: int | None,
    as_json: bool,
) -> None:
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load
    from sentsmith.evaluation import diagnostics
    from sentsmith.evaluation.suite import evaluate_models, table
    from sentsmith.report.diagnosis import draw

    results = evaluate_models(
        models,
        lambda name: as_encoder(load(name)),
        suites=suites,
        data_dir=data_dir,
        output=output,
        diagnostics=diagnostics.asked_for(sentence=sentence, tokens=tokens),
        draw=draw,
    )
    if as_json:
        console.show_json(results[0] if len(results) == 1 else results)
        return
    console.show_table("Spearman (STS) and accuracy (transfer, bitext), times 100", *table(results))
    columns, rows = diagnostics.table(results)
    if rows:
        console.show_table("Diagnostics, over STS-B's dev part", columns, rows)
