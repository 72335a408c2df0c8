"""``sentsmith embed``: sentences → a file of vectors."""

from __future__ import annotations

from typing import Annotated

import typer

from sentsmith.cli import console


def embed(
    sentences: Annotated[str, typer.Argument(help="File or folder of sentences, or - for standard input.")],
    out: Annotated[str, typer.Argument(help="What to write: .npy (vectors) or .parquet (sentences and vectors).")],
    model: Annotated[str, typer.Option("--model", "-m", help="Folder, hub name, or minilm.")] = "minilm",
    column: Annotated[str | None, typer.Option(help="Text column, where the file has several.")] = None,
    precision: Annotated[str, typer.Option(help="fp32, or bf16 where the processor has it.")] = "fp32",
    backend: Annotated[
        str, typer.Option(help="torch, or openvino (an extra): fp32, faster on x86 processors.")
    ] = "torch",
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished output.")] = False,
    trust_remote_code: Annotated[bool, typer.Option("--trust-remote-code", help="Run code the model brings.")] = False,
    quiet: console.Quiet = False,
) -> None:
    """Embed a file of any size; a killed run goes on where it was."""
    console.start(quiet=quiet)
    from sentsmith.encoders.vectorfile import embed_path

    with console.progress("embedding", quiet=quiet) as advance:
        rows = embed_path(
            sentences,
            out,
            model,
            column=column,
            precision=precision,
            backend=backend,
            overwrite=overwrite,
            trust_remote_code=trust_remote_code,
            advance=advance,
        )
    console.say(f"{out}: {rows} vectors")
