"""``sentsmith curate``: written triplets → those that are what they should be."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentsmith.cli import asking, console
from sentsmith.errors import SentsmithError, SettingsError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sentsmith.methods.multicsr.scoring import Curated

# The paper's Table 6 names whole numbers; the picture has the steps between them too.
_STEP = 0.5


def curate(
    context: typer.Context,
    triplets: Annotated[str, typer.Argument(help="Triplets: a file or a folder, with or without scores.")],
    out: Annotated[str, typer.Argument(help="What to write: .parquet, .jsonl, .csv or .tsv, also with .gz.")],
    *,
    alpha: Annotated[float, typer.Option(help="The positive pair's lowest score.")] = 3.0,
    beta: Annotated[float, typer.Option(help="The negative pair's highest score.")] = 3.0,
    gamma: Annotated[float, typer.Option(help="How far the positive's score is above the negative's.")] = 1.0,
    swap_and_neq: Annotated[
        bool, typer.Option("--swap-and-neq", help="The released code's rule: swap where the negative is the nearer.")
    ] = False,
    llm: Annotated[
        str | None, typer.Option(help=f"{asking.SPEC} It scores each pair; without it, the file's scores count.")
    ] = None,
    scorer: Annotated[
        str | None, typer.Option(help="Score by the cosine of an embedding model instead: a folder, hub name, minilm.")
    ] = None,
    prompts: asking.Prompts = "multicsr",
    limit: asking.Limit = None,
    seed: asking.Seed = 0,
    temperature: asking.Temperature = 0.0,
    top_p: asking.TopP = 1.0,
    max_new_tokens: asking.MaxNewTokens = 16,
    ledger: asking.Ledger = None,
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
    overwrite: asking.Overwrite = False,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Score triplets and keep the good ones; show how many each threshold keeps."""
    console.start(quiet=quiet)
    from sentsmith import settings
    from sentsmith.llm.outputs import beside
    from sentsmith.methods.multicsr import scoring
    from sentsmith.methods.multicsr.curation import CurationSettings, kept_by_threshold, thresholds
    from sentsmith.methods.multicsr.scored import open_scorer

    _refuse_idle(context, llm, scorer)
    values = {
        "alpha": alpha,
        "beta": beta,
        "gamma": gamma,
        "swap_and_neq": swap_and_neq,
        "prompts": prompts,
        "limit": limit,
        "seed": seed,
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": max_new_tokens,
    }
    chosen = settings.resolve(CurationSettings, values)
    price, most = asking.price_of(price_in, price_out), asking.budget_of(budget)
    options = {"device": device, "batch": batch, "concurrency": concurrency, "timeout": timeout, "attempts": attempts}
    backend = None if llm is None else asking.opener(llm, **options, key_env=key_env)
    if dry_run and backend is not None:
        found = scoring.estimate_scores(triplets, out, backend, chosen, ledger=ledger, price=price)
        asking.show_estimate(found, as_json=as_json)
        return
    with console.progress("scoring", quiet=quiet, unit="scores") as bar:
        done = scoring.curate(
            triplets,
            out,
            chosen,
            backend=backend,
            scorer=None if scorer is None else partial(open_scorer, scorer, device=device),
            ledger=ledger,
            budget=most,
            price=price,
            retry_quarantined=retry_quarantined,
            overwrite=overwrite,
            advance=bar,
            expect=bar.expect,
        )
    steps = thresholds(_STEP)
    counts = kept_by_threshold(done.positive_scores, done.negative_scores, steps=steps, settings=chosen)
    rule = "the released code's rule" if chosen.swap_and_neq else f"γ = {gamma:g}"
    pictures = _pictures(done, counts, steps, rule, out)
    files, tally = beside(out, ledger), done.tally
    if as_json:
        result: dict[str, Any] = {
            "output": out if done.kept else None,
            "triplets": tally.rows,
            "scored": tally.complete,
            "kept": done.kept,
            "swapped": done.swapped,
            **asking.as_json_of(tally, done.outcome, files),
            "scores": str(done.scores) if done.positive_scores else None,
            "thresholds": {"alpha": steps, "beta": steps, "kept": counts.tolist()},
            "pictures": pictures,
        }
        console.show_json(result)
    else:
        if done.positive_scores:
            _show_counts(steps, counts, rule)
            swapped = f", {done.swapped:,} of them with positive and negative exchanged" if done.swapped else ""
            kept = f"{done.kept:,} of {tally.complete:,} scored triplets kept{swapped}"
            console.say(f"{out}: {kept}; scores: {done.scores}")
        else:
            console.say(f"{out}: nothing written yet, none of {tally.rows:,} triplets has its scores")
        for path in pictures:
            console.say(f"picture: {path}")
        asking.say_rest(tally, done.outcome, files)
    if done.positive_scores and not done.kept:
        what = f"{out}, which an earlier run wrote, was removed" if done.removed else f"{out} was not written"
        raise SentsmithError(
            f"none of {tally.complete} triplets is kept by these thresholds, so {what}; {done.scores} holds the "
            "scores: curate it with others"
        )


def _refuse_idle(context: typer.Context, llm: str | None, scorer: str | None) -> None:
    if llm is not None and scorer is not None:
        raise SettingsError("--llm and --scorer are both to score; give --llm or --scorer")
    if llm is None:
        asking.refuse(context, asking.OF_A_LLM, "is for a language model: give --llm SPEC, or leave it out")
    if llm is None and scorer is None:
        asking.refuse(context, ("device",), "is for a model that scores: give --llm or --scorer, or leave it out")


def _pictures(done: Curated, counts: NDArray[Any], steps: list[float], rule: str, out: str) -> list[str]:
    if not done.positive_scores:
        return []
    from sentsmith.report.curation import draw

    first, second = done.positive_scores, done.negative_scores
    return [str(path) for path in draw(first, second, counts, thresholds=steps, rule=rule, output=out)]


def _show_counts(steps: list[float], counts: NDArray[Any], rule: str) -> None:
    whole = [place for place, value in enumerate(steps) if float(value).is_integer()]
    rows = [[f"α {steps[row]:g}", *(f"{counts[row, column]:,}" for column in whole)] for row in whole]
    console.show_table(f"Triplets kept, {rule}", ["", *(f"β {steps[column]:g}" for column in whole)], rows)
