"""``sentsmith evaluate``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentsmith.cli import asking, console
from sentsmith.errors import SettingsError

if TYPE_CHECKING:
    from sentsmith.methods.multicsr.direct import Direct


# The options of other language models' jobs that this one has not: it decodes greedily.
_OF_A_LLM = tuple(name for name in asking.OF_A_LLM if name not in ("seed", "temperature", "top_p"))


def evaluate(
    context: typer.Context,
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
            help="Suites, separated by commas: sts, transfer, bitext, captions; nothing of the tests: sts-dev, "
            "diagnostics, dependency, layers, errors, degradation (of sts where that is given too); of given files: "
            "lists, conditional."
        ),
    ] = "sts",
    data_dir: Annotated[
        Path | None,
        typer.Option(
            help="Folder that holds sts/, transfer/, bitext/ and captions/; without it sts comes from the hub."
        ),
    ] = None,
    lists: Annotated[
        list[Path] | None,
        typer.Option(help="With lists: a file of ranked lists (.jsonl, .parquet); may be given several times."),
    ] = None,
    conditional: Annotated[
        list[Path] | None,
        typer.Option(
            help="With conditional: a file of C-STS (sentence1, sentence2, condition, label); may be given several "
            "times."
        ),
    ] = None,
    trained_on: Annotated[
        list[Path] | None,
        typer.Option(
            help="With sts, sts-dev: a file that MODEL was trained on; the scores without the sentences that are in it "
            "are told too. May be given several times."
        ),
    ] = None,
    sentence: Annotated[
        str | None, typer.Option(help="With diagnostics: the sentence whose attention is drawn.")
    ] = None,
    tokens: Annotated[
        int | None,
        typer.Option(help="With diagnostics: the length of the sentence whose cost is counted; 32 if not given."),
    ] = None,
    llm: Annotated[
        str | None,
        typer.Option(
            help=f"{asking.SPEC} It scores the pairs of sts or sts-dev in place of MODEL; --prompts to --key-env are "
            "for it."
        ),
    ] = None,
    prompts: asking.Prompts = "multicsr",
    max_new_tokens: asking.MaxNewTokens = 16,
    ledger: Annotated[
        Path | None, typer.Option(help="Where answers are kept; OUTPUT/ledger.sqlite if not given.")
    ] = None,
    budget: asking.BudgetOption = None,
    price_in: asking.PriceIn = None,
    price_out: asking.PriceOut = None,
    dry_run: asking.DryRun = False,
    retry_quarantined: asking.RetryQuarantined = False,
    device: asking.Device = None,
    batch: asking.Batch = None,
    concurrency: asking.Concurrency = 16,
    timeout: asking.Timeout = 60.0,
    attempts: asking.Attempts = 6,
    key_env: asking.KeyEnv = None,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Measure models on STS (also conditional), transfer tasks, bitext and lists; diagnose them; write results.json."""
    console.start(quiet=quiet)
    suites = [name.strip() for name in suite.split(",") if name.strip()]
    if llm is None:
        why = "is for a language model: give --llm SPEC in place of MODEL, or leave it out"
        asking.refuse(context, (*_OF_A_LLM, "device"), why)
        if not models:
            raise SettingsError("nothing to measure: give a MODEL (a folder, a hub name, or minilm), or --llm SPEC")
        given: dict[str, Any] = {"lists": lists or (), "conditional": conditional or ()}
        given["trained_on"] = trained_on or ()
        _measure(models, suites, data_dir, output, given, sentence=sentence, tokens=tokens, as_json=as_json)
        return
    if models:
        raise SettingsError(f"--llm and {' '.join(models)}: measure one or the other, a language model or MODEL")
    asking.refuse(context, ("sentence", "tokens"), "is for the suite diagnostics, which --llm has not")
    asking.refuse(context, ("lists",), "is for the suite lists, which --llm has not")
    asking.refuse(context, ("conditional",), "is for the suite conditional, which --llm has not")
    asking.refuse(context, ("trained_on",), "is for a MODEL: give one in place of --llm, or leave it out")
    from sentsmith.methods.multicsr import direct

    price, most = asking.price_of(price_in, price_out), asking.budget_of(budget)
    options = {"device": device, "batch": batch, "concurrency": concurrency, "timeout": timeout, "attempts": attempts}
    backend = asking.opener(llm, **options, key_env=key_env)
    shared: dict[str, Any] = {"suites": suites, "data_dir": data_dir, "output": output, "prompts": prompts}
    shared |= {"max_new_tokens": max_new_tokens, "ledger": ledger, "price": price}
    if dry_run:
        asking.show_estimate(direct.estimate_directly(backend, **shared), as_json=as_json)
        return
    with console.progress("scoring", quiet=quiet, unit="pairs") as bar:
        done = direct.evaluate_directly(
            backend, **shared, budget=most, retry_quarantined=retry_quarantined, advance=bar, expect=bar.expect
        )
    _show(done, as_json=as_json)


def _show(done: Direct, *, as_json: bool) -> None:
    from sentsmith.evaluation.suite import table
    from sentsmith.methods.multicsr.direct import unreadable_lines

    if as_json:
        stopped = {"pairs": done.pairs, "pending": done.pending, **asking.outcome_as_json(done.outcome)}
        console.show_json(stopped if done.result is None else done.result)
        return
    if done.result is None:
        asking.say_stopped(f"{done.pending:,} of {done.pairs:,} pairs")
        console.say("no results.json yet: it needs all pairs")
    else:
        console.show_table("Spearman of the model's own scores, times 100", *table([done.result]))
        for line in unreadable_lines(done.result):
            console.say(line)
    asking.say_asked(done.outcome)


def _measure(
    models: list[str],
    suites: list[str],
    data_dir: Path | None,
    output: Path,
    given: Mapping[str, Any],
    *,
    sentence: str | None,
    tokens: int | None,
    as_json: bool,
) -> None:
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load
    from sentsmith.evaluation import degradation, dependency, diagnostics, largest_errors, layers, shared
    from sentsmith.evaluation import lists as ranked
    from sentsmith.evaluation.conditional import submission_lines
    from sentsmith.evaluation.suite import evaluate_models, table
    from sentsmith.report.beside import draw
    from sentsmith.report.inside import draw_boxes

    results = evaluate_models(
        models,
        lambda name: as_encoder(load(name)),
        suites=suites,
        data_dir=data_dir,
        output=output,
        diagnostics=diagnostics.asked_for(sentence=sentence, tokens=tokens),
        **given,
        draw=draw,
    )
    draw_boxes(results, output)
    if as_json:
        console.show_json(results[0] if len(results) == 1 else results)
        return
    columns, rows = table(results)
    if set(suites) != {ranked.LISTS} and len(columns) > 1:
        title = "Spearman (STS, conditional), accuracy (transfer, bitext, captions) and Kendall's τ (lists), times 100"
        console.show_table(title, columns, rows)
    for result in results:
        for line in submission_lines(result):
            console.say(line)
    for title, found in {
        "Spearman without the sentences it was trained on (pairs left)": shared.table(results),
        "Diagnostics, over STS-B's dev part": diagnostics.table(results),
        "Dependency of a sentence's tokens on the one it is read from, over STS-B's dev part": dependency.table(
            results
        ),
        "Average score by number of layers": degradation.table(results),
        "The best single layer, over STS-B's dev part": layers.table(results),
        "Ranked lists: Kendall's τ times 100; neighbours in order in %": ranked.table(results),
    }.items():
        if found[1]:
            console.show_table(title, *found)
    for line in [*degradation.turning_lines(results), *largest_errors.lines(results)]:
        console.say(line)
