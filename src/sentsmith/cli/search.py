"""``sentsmith search``: the sentences nearest to a question."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli.console import Json, Quiet, show_json, show_table, start


def search(
    index: Annotated[Path, typer.Argument(help="The folder that `sentsmith index` wrote.")],
    question: Annotated[str, typer.Argument(help="What to look for.")],
    *,
    k: Annotated[int, typer.Option("--k", "-k", min=1, help="How many sentences to show.")] = 5,
    model: Annotated[
        str | None, typer.Option("--model", "-m", help="Where the index's model lies now, if it was moved.")
    ] = None,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Show the sentences of an index that are nearest to a question."""
    from dataclasses import asdict

    from sentsmith.search.index import Index

    start(quiet=quiet)
    opened = Index.open(index)

    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load

    encoder = as_encoder(load(model or opened.facts.model))
    opened.check_model(encoder)
    (hits,) = opened.search(encoder.encode([question]), k)
    if as_json:
        show_json(
            {
                "question": question,
                "model": model or opened.facts.model,
                "hits": [asdict(hit) for hit in hits],
            }
        )
    else:
        show_table(question, ("sentence", "cosine"), [(hit.sentence, f"{hit.score:.3f}") for hit in hits])
