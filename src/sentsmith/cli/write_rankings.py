"""``sentsmith write rankings``: sentences → lists that drift away from them."""

from __future__ import annotations

from typing import Annotated

import typer

from sentsmith.cli import asking, console


def rankings(
    context: typer.Context,
    sentences: Annotated[str, typer.Argument(help="File or folder of sentences, or - for standard input.")],
    out: Annotated[str, typer.Argument(help="What to write: .parquet or .jsonl, also with .gz.")],
    *,
    llm: Annotated[str | None, typer.Option(help=f"{asking.SPEC} Not for --writer corruption.")] = None,
    writer: Annotated[
        str,
        typer.Option(
            help="directional: step by step, steered away from the sentence before the last; stepwise: from the last "
            "sentence alone; single-shot: the whole list at once; corruption: without a language model."
        ),
    ] = "directional",
    prompts: Annotated[
        str, typer.Option(help="Prompt file (YAML), or one that ships: ranking, nli-lm-8m.")
    ] = "ranking",
    task: Annotated[
        str | None, typer.Option(help="Task of the prompt file; by the writer rewrite, change or list.")
    ] = None,
    count: Annotated[int, typer.Option(min=1, help="Sentences that follow the seed in each list.")] = 32,
    direction: Annotated[
        float, typer.Option(help="How strongly a sentence is steered away from the one before the last; 0 is plain.")
    ] = 0.5,
    floor: Annotated[float, typer.Option(help="Guided tokens must reach this share of the likeliest one.")] = 0.0,
    repeats: Annotated[
        int, typer.Option(min=2, help="Drop a list that holds its last sentence, or the one before it, so often.")
    ] = 3,
    together: Annotated[int, typer.Option(min=1, help="Lists under way at a time.")] = 64,
    clusters: Annotated[
        int | None, typer.Option(min=1, help="Draw seeds from so many clusters; without it every sentence is one.")
    ] = None,
    per_cluster: Annotated[int, typer.Option(min=1, help="Seeds from each cluster.")] = 20,
    seed_model: Annotated[str, typer.Option(help="The model whose vectors are clustered.")] = "minilm",
    min_characters: Annotated[int, typer.Option(help="The shortest sentence to keep.")] = 3,
    max_characters: Annotated[int, typer.Option(help="The longest sentence to keep.")] = 600,
    column: Annotated[str | None, typer.Option(help="Text column, where the file has several.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many seeds, from the start.")] = None,
    seed: asking.Seed = 0,
    temperature: asking.Temperature = 0.0,
    top_p: asking.TopP = 1.0,
    max_new_tokens: Annotated[
        int, typer.Option(min=1, help="The longest sentence; a list written at once may take that for each.")
    ] = 100,
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
    """Write a list that drifts away from each sentence; a run that was stopped goes on inside its lists."""
    console.start(quiet=quiet)
    from sentsmith import settings
    from sentsmith.errors import SettingsError
    from sentsmith.llm.outputs import beside
    from sentsmith.methods.ranking.writing import WritingSettings, estimate_rankings, write_rankings

    values = {
        "writer": writer,
        "prompts": prompts,
        "task": task,
        "count": count,
        "direction": direction,
        "floor": floor,
        "repeats": repeats,
        "together": together,
        "clusters": clusters,
        "per_cluster": per_cluster,
        "seed_model": seed_model,
        "min_characters": min_characters,
        "max_characters": max_characters,
        "column": column,
        "limit": limit,
        "seed": seed,
        "temperature": temperature,
        "top_p": top_p,
        "max_new_tokens": max_new_tokens,
    }
    chosen = settings.resolve(WritingSettings, values)
    opened = None
    if writer == "corruption":
        idle = [name for name in (*asking.OF_A_LLM, "llm", "device") if name != "seed"]
        asking.refuse(context, idle, "does nothing with --writer corruption, which asks no language model")
    elif llm is None:
        raise SettingsError(f"--writer {writer} needs --llm, the language model that writes; corruption needs none")
    else:
        opened = asking.opener(
            llm,
            device=device,
            batch=batch,
            concurrency=concurrency,
            timeout=timeout,
            attempts=attempts,
            key_env=key_env,
        )
    price, most = asking.price_of(price_in, price_out), asking.budget_of(budget)
    bars = console.progress_wanted(quiet=quiet)
    if dry_run and opened is not None:
        found = estimate_rankings(sentences, out, opened, chosen, ledger=ledger, price=price, progress=bars)
        asking.show_estimate(found, as_json=as_json)
        return
    with console.progress("writing", quiet=quiet, unit="answers" if opened else "lists") as bar:
        done = write_rankings(
            sentences,
            out,
            opened,
            chosen,
            ledger=ledger,
            budget=most,
            price=price,
            retry_quarantined=retry_quarantined,
            overwrite=overwrite,
            progress=bars,
            advance=bar,
            expect=bar.expect,
        )
    asking.show_written(done, beside(out, ledger), read="seeds", wrote="lists", one="list", as_json=as_json)
