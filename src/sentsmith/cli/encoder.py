"""``sentsmith encoder``: a decoder → a sentence encoder, without training."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli import console


def encoder(
    decoder: Annotated[str, typer.Argument(help="A decoder or a BeLLM model: folder or hub name.")],
    output: Annotated[Path, typer.Argument(help="Folder for the model.")],
    *,
    both_ways_from: Annotated[
        str | None, typer.Option(help="The first layer that looks both ways: a number, n-1, n/2, …, or none.")
    ] = None,
    readout: Annotated[
        str | None, typer.Option(help="last (the prompt's end), mean (of the sentence's tokens), or all (all tokens).")
    ] = None,
    template: Annotated[
        str | None, typer.Option(help="The prompt, with {sentence}, and {condition} if it is conditional.")
    ] = None,
    full_stop: Annotated[
        bool | None, typer.Option("--full-stop/--no-full-stop", help="End each sentence with a full stop.")
    ] = None,
    layers: Annotated[int | None, typer.Option(min=1, help="Keep the first layers only.")] = None,
    final_norm: Annotated[
        bool | None, typer.Option("--final-norm/--no-final-norm", help="Whether the norm behind the last layer stays.")
    ] = None,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Make a sentence encoder of a decoder, or change one of ours; an adapter is merged into the weights."""
    console.start(quiet=quiet)
    from sentsmith.methods.bellm.encoder import write_encoder

    facts = write_encoder(
        decoder,
        output,
        both_ways_from=both_ways_from,
        readout=readout,
        template=template,
        full_stop=full_stop,
        layers=layers,
        final_norm=final_norm,
    )
    if as_json:
        console.show_json(facts)
        return
    first = facts["both_ways_from"]
    looking = "none of which looks" if first is None else f"those from {first} on looking"
    console.say(f"{output}: {facts['layers']} layers, {looking} both ways, readout {facts['readout']}")
