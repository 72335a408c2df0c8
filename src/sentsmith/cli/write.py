"""``sentsmith write``: sentences → more data, written by a model."""

from __future__ import annotations

from typing import Annotated

import typer

from sentsmith.cli import console

write = typer.Typer(no_args_is_help=True, add_completion=False, rich_markup_mode=None)


@write.callback()
def _write() -> None:
    """Let a model write more training data."""


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
