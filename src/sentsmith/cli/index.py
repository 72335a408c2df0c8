"""``sentsmith index``: embed sentences into an index to search."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli.console import Json, Quiet, say, show_json, start


def index(
    sentences: Annotated[
        str,
        typer.Argument(help="A file or folder of sentences (.txt .jsonl .csv .tsv .parquet), or - for stdin."),
    ],
    out: Annotated[Path, typer.Argument(help="The index, a folder to write.")],
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="A folder, a hub name, or minilm.")] = "minilm",
    column: Annotated[str | None, typer.Option(help="The column that holds the sentences.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace an index that is there.")] = False,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Embed sentences and write an index that `sentsmith search` reads."""
    from sentsmith.corpus.reading import read_sentences
    from sentsmith.errors import require
    from sentsmith.search.compare import check_searchable
    from sentsmith.search.index import build, check_free, model_name

    start(quiet=quiet)
    require("faiss", extra="search")
    check_free(out, overwrite=overwrite)
    texts = list(read_sentences(sentences, column=column))

    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load

    encoder = as_encoder(load(model))
    check_searchable(encoder)
    vectors = encoder.encode(texts)
    facts = build(texts, vectors, out, model=model_name(model), overwrite=overwrite)
    if as_json:
        show_json(facts.model_dump())
    elif not quiet:
        say(f"wrote {out}: {facts.count} sentences, dimension {facts.dimension}, model {facts.model}")
