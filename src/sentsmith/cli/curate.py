"""``sentsmith curate``: written triplets → those that are what they should be."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentsmith.cli import asking, console

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from sentsmith.encoders.protocol import Encoder

# The paper's Table 6 names whole numbers; the picture has the steps between them too.
_STEP = 0.5


def curate(
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
    key_env: asking.KeyEnv = "OPENAI_API_KEY",
    overwrite: asking.Overwrite = False,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Score triplets and keep the good ones; show how many each threshold keeps."""
    console.start(quiet=quiet)
    from sentsmith import settings
    from sentsmith.errors import SentsmithError, SettingsError
    from sentsmith.llm.outputs import beside
    from sentsmith.methods.multicsr import scoring
    from sentsmith.methods.multicsr.curation import CurationSettings, kept_by_threshold, thresholds
    from sentsmith.report.curation import draw

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
    if dry_run:
        if backend is None:
            raise SettingsError("--dry-run estimates what a language model is asked; give --llm SPEC")
        found = scoring.estimate_scores(triplets, out, backend, chosen, ledger=ledger, price=price)
        asking.show_estimate(found, as_json=as_json)
        return
    with console.progress("scoring", quiet=quiet, unit="scores") as bar:
        done = scoring.curate(
            triplets,
            out,
            chosen,
            backend=backend,
            scorer=None if scorer is None else _encoder(scorer, device),
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
    pictures = (
        draw(done.positive_scores, done.negative_scores, counts, thresholds=steps, rule=rule, output=out)
        if done.positive_scores
        else []
    )
    files, tally = beside(out, ledger), done.tally
    if as_json:
        result: dict[str, Any] = {
            "output": out,
            "triplets": tally.rows,
            "scored": tally.complete,
            "kept": done.kept,
            "swapped": done.swapped,
            **asking.as_json_of(tally, done.outcome, files),
            "scores": str(done.scores),
            "thresholds": {"alpha": steps, "beta": steps, "kept": counts.tolist()},
            "pictures": [str(path) for path in pictures],
        }
        console.show_json(result)
    else:
        _show_counts(steps, counts, rule)
        swapped = f", {done.swapped:,} of them with positive and negative exchanged" if done.swapped else ""
        console.say(f"{out}: {done.kept:,} of {tally.complete:,} scored triplets kept{swapped}; scores: {done.scores}")
        for path in pictures:
            console.say(f"picture: {path}")
        asking.say_rest(tally, done.outcome, files)
    if done.positive_scores and not done.kept:
        raise SentsmithError(
            f"none of {tally.complete} triplets is kept by these thresholds, so {out} was not written; {done.scores} "
            "holds the scores: curate it with others"
        )


def _encoder(name: str, device: str | None) -> Any:
    def opened() -> Encoder:
        from sentsmith.encoders.embedding import as_encoder
        from sentsmith.encoders.loading import load

        return as_encoder(load(name, device=device))

    return opened


def _show_counts(steps: list[float], counts: NDArray[Any], rule: str) -> None:
    whole = [place for place, value in enumerate(steps) if float(value).is_integer()]
    rows = [[f"α {steps[row]:g}", *(f"{counts[row, column]:,}" for column in whole)] for row in whole]
    console.show_table(f"Triplets kept, {rule}", ["", *(f"β {steps[column]:g}" for column in whole)], rows)
