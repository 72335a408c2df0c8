"""``sentsmith write``: sentences → more data, written by a model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli import asking, console
from sentsmith.cli.write_rankings import rankings

write = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@write.callback()
def _write() -> None:
    """Let a model write more training data."""


write.command("rankings")(rankings)


@write.command("triplets")
def triplets(
    sentences: Annotated[str, typer.Argument(help="File or folder of sentences, or - for standard input.")],
    out: Annotated[str, typer.Argument(help="What to write: .parquet, .jsonl, .csv or .tsv, also with .gz.")],
    *,
    llm: asking.Llm,
    prompts: asking.Prompts = "multicsr",
    omega: Annotated[
        float, typer.Option(help="How strongly answers are steered away from the noise; 0 writes plainly.")
    ] = 0.3,
    noise: Annotated[
        str, typer.Option(help="The instruction to steer away from: opposite, reordered, masked, truncated or none.")
    ] = "opposite",
    floor: Annotated[float, typer.Option(help="Guided tokens must reach this share of the likeliest one.")] = 0.0,
    demonstrations: Annotated[int, typer.Option(min=0, help="Show so many nearest gold triplets as examples.")] = 0,
    demonstration_threshold: Annotated[float, typer.Option(help="The cosine a shown premise must reach.")] = 0.6,
    demonstration_pool: Annotated[Path | None, typer.Option(help="File of gold triplets to show from.")] = None,
    demonstration_model: Annotated[str, typer.Option(help="The model that finds the nearest premises.")] = "minilm",
    min_characters: Annotated[int, typer.Option(help="The shortest sentence to keep.")] = 3,
    max_characters: Annotated[int, typer.Option(help="The longest sentence to keep.")] = 600,
    min_ratio: Annotated[float, typer.Option(help="The shortest, as a share of the input's characters.")] = 0.1,
    max_ratio: Annotated[float, typer.Option(help="The longest, as a multiple of the input's characters.")] = 5.0,
    column: Annotated[str | None, typer.Option(help="Text column, where the file has several.")] = None,
    limit: asking.Limit = None,
    seed: asking.Seed = 0,
    temperature: asking.Temperature = 0.0,
    top_p: asking.TopP = 1.0,
    max_new_tokens: asking.MaxNewTokens = 256,
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
    """Write an entailment and a contradiction of each sentence; a run that was stopped goes on where it was."""
    console.start(quiet=quiet)
    from sentsmith import settings
    from sentsmith.llm.outputs import beside
    from sentsmith.methods.multicsr.generation import WritingSettings, estimate_triplets, write_triplets

    values = {
        "prompts": prompts,
        "omega": omega,
        "noise": noise,
        "floor": floor,
        "demonstrations": demonstrations,
        "demonstration_threshold": demonstration_threshold,
        "demonstration_pool": None if demonstration_pool is None else str(demonstration_pool),
        "demonstration_model": demonstration_model,
        "length": {
            "min_characters": min_characters,
            "max_characters": max_characters,
            "min_ratio": min_ratio,
            "max_ratio": max_ratio,
        },
        "column": column,
        "limit": limit,
        "seed": seed,
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": max_new_tokens,
    }
    chosen = settings.resolve(WritingSettings, values)
    price, most = asking.price_of(price_in, price_out), asking.budget_of(budget)
    backend = asking.opener(
        llm,
        device=device,
        batch=batch,
        concurrency=concurrency,
        timeout=timeout,
        attempts=attempts,
        key_env=key_env,
    )
    if dry_run:
        found = estimate_triplets(sentences, out, backend, chosen, ledger=ledger, price=price)
        asking.show_estimate(found, as_json=as_json)
        return
    with console.progress("writing", quiet=quiet, unit="answers") as bar:
        done = write_triplets(
            sentences,
            out,
            backend,
            chosen,
            ledger=ledger,
            budget=most,
            price=price,
            retry_quarantined=retry_quarantined,
            overwrite=overwrite,
            advance=bar,
            expect=bar.expect,
        )
    asking.show_written(done, beside(out, ledger), read="sentences", wrote="triplets", one="triplet", as_json=as_json)


@write.command("translations")
def translations(
    sentences: Annotated[str, typer.Argument(help="File or folder of sentences, or - for standard input.")],
    out: Annotated[str, typer.Argument(help="What to write: .jsonl, .csv, .tsv or .parquet, also with .gz.")],
    llm: Annotated[
        str,
        typer.Option(
            help="THERE,BACK: two translation models, folders or hub names; or marian:en-fr-en, "
            "short for Helsinki-NLP/opus-mt-en-fr,Helsinki-NLP/opus-mt-fr-en."
        ),
    ],
    column: Annotated[str | None, typer.Option(help="Text column, where the file has several.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many sentences, from the start.")] = None,
    batch_tokens: Annotated[int, typer.Option(min=1, help="Source tokens in a batch, padding and beams included.")] = (
        4096
    ),
    beams: Annotated[int, typer.Option(min=1, help="Beams of the search; 1 is greedy.")] = 1,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished output.")] = False,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Translate sentences there and back, and write each beside its echo."""
    console.start(quiet=quiet)
    from dataclasses import asdict

    from sentsmith.llm.echoes import translate_path

    with console.progress("translating", quiet=quiet) as advance:
        done = translate_path(
            sentences,
            out,
            llm,
            column=column,
            limit=limit,
            batch_tokens=batch_tokens,
            num_beams=beams,
            overwrite=overwrite,
            advance=advance,
        )
    if as_json:
        console.show_json({"output": out, **asdict(done)})
        return
    console.say(
        f"{out}: {done.echoes} echoes of {done.sentences} sentences; "
        f"left out: {done.unchanged} unchanged, {done.empty} empty or without an end"
    )
