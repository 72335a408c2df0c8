"""What the verbs share that ask a language model: their options, and how what was asked is told."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from sentsmith.cli import console
from sentsmith.errors import SettingsError

if TYPE_CHECKING:
    from sentsmith.llm.answering import Outcome
    from sentsmith.llm.backend import Backend
    from sentsmith.llm.estimating import Estimate
    from sentsmith.llm.outputs import Beside, Tally, Written
    from sentsmith.llm.spending import Budget, Price

SPEC = (
    "The language model: a folder or hub name, openai:MODEL, or http://host:port/v1#MODEL for any endpoint that speaks "
    "OpenAI's protocol."
)

Llm = Annotated[str, typer.Option(help=SPEC)]
Prompts = Annotated[str, typer.Option(help="Prompt file (YAML), or one that ships: multicsr, nli-lm-8m.")]
Ledger = Annotated[
    Path | None,
    typer.Option(help="Where answers are kept; OUT.ledger.sqlite if not given. Several outputs may share one."),
]
BudgetOption = Annotated[
    str | None,
    typer.Option(
        "--budget",
        help="Stop before answers pass it: tokens (200k, 1.5M) or money (2.50usd). What an endpoint bills for attempts "
        "that fail is not in it.",
    ),
]
PriceIn = Annotated[float | None, typer.Option(min=0, help="Price of a million prompt tokens.")]
PriceOut = Annotated[float | None, typer.Option(min=0, help="Price of a million answer tokens.")]
DryRun = Annotated[
    bool, typer.Option("--dry-run", help="Only estimate requests, tokens, time and price; a local model tries a few.")
]
RetryQuarantined = Annotated[
    bool, typer.Option("--retry-quarantined", help="Ask again what an earlier run could not get an answer to.")
]
Limit = Annotated[int | None, typer.Option(min=1, help="Only so many rows, from the start.")]
Seed = Annotated[int, typer.Option(min=0, help="Chooses instructions, and draws where temperature is above 0.")]
Temperature = Annotated[float, typer.Option(min=0, help="0 is greedy.")]
TopP = Annotated[float, typer.Option(help="Draw from the likeliest tokens that reach this share.")]
MaxNewTokens = Annotated[int, typer.Option(min=1, help="The longest answer.")]
Device = Annotated[str | None, typer.Option(help="Of a local model: cpu, cuda …; the fastest present if not given.")]
Batch = Annotated[int | None, typer.Option(min=1, help="Of a local model: prompts answered together.")]
Concurrency = Annotated[int, typer.Option(min=1, help="Of an endpoint: requests under way at a time.")]
Timeout = Annotated[float, typer.Option(min=0.001, help="Of an endpoint: seconds that a request may take.")]
Attempts = Annotated[int, typer.Option(min=1, help="Of an endpoint: tries of a request before it is given up.")]
KeyEnv = Annotated[
    str | None,
    typer.Option(
        help="Of an endpoint: the environment variable that holds the key; if not given, OPENAI_API_KEY for OpenAI and "
        "this machine, and no key for others."
    ),
]
OF_A_LLM = (
    "prompts", "seed", "temperature", "top_p", "max_new_tokens", "ledger", "budget", "price_in", "price_out", "dry_run",
    "retry_quarantined", "batch", "concurrency", "timeout", "attempts", "key_env",
)  # fmt: skip
"""The options, by their parameters' names, that do nothing where no language model is asked."""
Overwrite = Annotated[bool, typer.Option("--overwrite", help="Replace an output that is not this job's own.")]


def opener(llm: str, **options: Any) -> Callable[[], Backend]:
    """Return what opens the language model, when it is its turn; an option that is None is left to it."""

    def opened() -> Backend:
        from sentsmith.llm.opening import open_backend

        return open_backend(llm, **{name: value for name, value in options.items() if value is not None})

    return opened


def refuse(context: typer.Context, names: Iterable[str], why: str) -> None:
    """Refuse options, by their parameters' names, that stand on the command line though they would do nothing.

    Raises:
        SettingsError: One of them was given.
    """
    for name in names:
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE":
            raise SettingsError(f"--{name.replace('_', '-')} {why}")


def price_of(price_in: float | None, price_out: float | None) -> Price | None:
    """Return the price of tokens, or None where none is given.

    Raises:
        SettingsError: Only one of the two is given.
    """
    if price_in is None and price_out is None:
        return None
    if price_in is None or price_out is None:
        raise SettingsError("--price-in and --price-out need each other: of a million prompt and answer tokens")
    from sentsmith.llm.spending import Price

    return Price(price_in, price_out)


def budget_of(text: str | None) -> Budget | None:
    """Return the budget, or None where none is given.

    Raises:
        SettingsError: It is neither tokens nor money.
    """
    if text is None:
        return None
    from sentsmith.llm.spending import parse_budget

    return parse_budget(text)


def show_estimate(estimate: Estimate, *, as_json: bool) -> None:
    """Print what a run would ask."""
    if as_json:
        console.show_json({"dry_run": True, **asdict(estimate)})
        return
    at_most = "at most " if estimate.bound else "about "
    dropped = f"; {estimate.dropped:,} lists were dropped by their answers" if estimate.dropped else ""
    parts = [
        f"{estimate.requests:,} requests ({estimate.known:,} more are in the ledger already{dropped})",
        f"about {estimate.prompt_tokens:,} prompt tokens",
        f"{at_most}{estimate.answer_tokens:,} answer tokens",
        "time unknown (the ledger has no such answers yet)"
        if estimate.seconds is None
        else f"about {estimate.seconds:,.0f} s",
    ]
    if estimate.money is not None:
        parts.append(f"{at_most}{estimate.money:,.2f} at these prices")
    console.say("; ".join(parts))


def show_written(done: Written, files: Beside, *, read: str, wrote: str, one: str, as_json: bool) -> None:
    """Print what became of the rows of a job that writes the complete ones.

    Args:
        done: What came of the job.
        files: Those of the output.
        read: What it reads: sentences.
        wrote: What it writes: triplets.
        one: One of those.
        as_json: Print JSON.
    """
    tally = done.tally
    if as_json:
        console.show_json(
            {
                "output": str(files.output) if tally.complete else None,
                "left_as_it_was": str(files.output) if done.stands else None,
                read: tally.rows,
                wrote: tally.complete,
                **as_json_of(tally, done.outcome, files, stands=done.stands),
            }
        )
        return
    if tally.complete:
        console.say(f"{files.output}: {tally.complete:,} {wrote} of {tally.rows:,} {read}")
    else:
        stands = "; the file still holds what was there before" if done.stands else ""
        console.say(f"{files.output}: nothing written yet, none of {tally.rows:,} {read} has its {one}{stands}")
    say_rest(tally, done.outcome, files, stands=done.stands)


def as_json_of(tally: Tally, outcome: Outcome | None, files: Beside, *, stands: bool = False) -> dict[str, Any]:
    """Return what became of the rows, and what was asked for it, as JSON can hold it.

    ``stands``: what is left out is in no quarantine, which is an earlier run's, as the output is.
    """
    result: dict[str, Any] = {
        "quarantined": tally.quarantined,
        "pending": tally.pending,
        "reasons": dict(tally.reasons.most_common()),
        "quarantine": str(files.quarantine) if tally.quarantined and not stands else None,
    }
    if outcome is not None:
        result |= outcome_as_json(outcome) | {"ledger": str(files.ledger)}
    return result


def outcome_as_json(outcome: Outcome) -> dict[str, Any]:
    """Return what was asked as JSON can hold it."""
    names = ("asked", "skipped", "prompt_tokens", "answer_tokens", "seconds", "money", "stopped")
    return {name: getattr(outcome, name) for name in names}


def say_rest(tally: Tally, outcome: Outcome | None, files: Beside, *, stands: bool = False) -> None:
    """Print what was left out and why, what is still to be asked, and what was asked; ``stands`` as above."""
    if tally.quarantined:
        from sentsmith.llm.outputs import asks_again

        reasons = ", ".join(f"{count:,} {reason}" for reason, count in tally.reasons.most_common())
        lost = f". {asks_again(tally.lost)}" if tally.lost else ""
        place = files.ledger if stands else files.quarantine
        console.say(f"{place}: {tally.quarantined:,} rows left out ({reasons}){lost}")
    if tally.pending:
        say_stopped(f"{tally.pending:,} rows")
    if outcome is not None:
        say_asked(outcome)


def say_stopped(pending: str) -> None:
    """Print that the budget ended before so many rows were asked."""
    console.say(f"the budget is used up, {pending} are still to be asked: run the same command again")


def say_asked(outcome: Outcome) -> None:
    """Print what was asked in this run."""
    money = "" if outcome.money is None else f", {outcome.money:,.2f} at these prices"
    console.say(
        f"{outcome.asked:,} questions asked, {outcome.skipped:,} answered before; {outcome.prompt_tokens:,} prompt "
        f"and {outcome.answer_tokens:,} answer tokens, {outcome.seconds:,.0f} s{money}"
    )
