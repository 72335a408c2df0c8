"""``sentsmith words``: the word that a decoder would say for each sentence."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli import console

_EXAMPLES = 10


def words(
    sentences: Annotated[str, typer.Argument(help="File or folder of sentences, or - for standard input.")],
    *,
    model: Annotated[str, typer.Option("--model", "-m", help="A decoder, or a BeLLM model: folder or hub name.")],
    template: Annotated[str | None, typer.Option(help="Another prompt, with {sentence}; its end asks.")] = None,
    both_ways_from: Annotated[
        str | None, typer.Option(help="The first layer that looks both ways: a number, n-1, n/2, …, or none.")
    ] = None,
    head: Annotated[
        str | None, typer.Option(help="The language model whose head says the words, where MODEL has none.")
    ] = None,
    column: Annotated[str | None, typer.Option(help="The column that holds the sentences.")] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only so many sentences, from the start.")] = None,
    output: Annotated[Path | None, typer.Option("--output", "-o", help="Write all words here, e.g. .jsonl.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace the output.")] = False,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Let a decoder say the word that stands for each sentence, and count how many are no frequent words."""
    console.start(quiet=quiet)
    from dataclasses import asdict
    from itertools import islice

    from sentsmith.corpus.reading import read_sentences
    from sentsmith.corpus.writing import new_table, write_rows
    from sentsmith.methods.bellm.words import open_speaker, representative_words, summary

    if output is not None:
        output = new_table(output, source=sentences, replace=overwrite)
    texts = list(islice(read_sentences(sentences, column=column), limit))
    speaker, layer = open_speaker(model, head=head, template=template, both_ways_from=both_ways_from)
    with console.progress("saying", quiet=quiet) as advance:
        advance.expect(len(texts))
        found = representative_words(speaker, layer, texts, advance=advance)
    counts = summary(found)
    rows = [asdict(each) for each in found]
    if output is not None:
        write_rows(output, rows, columns=("sentence", "word", "frequent", "in_sentence"))
    if as_json:
        console.show_json({"model": model, **counts, "examples": rows[:_EXAMPLES]})
        return
    console.show_table(model, ("sentence", "word"), [(each.sentence, each.word) for each in found[:_EXAMPLES]])
    console.say(
        f"{counts['sentences']:,} sentences: {counts['infrequent']:.2%} no frequent word, "
        f"{counts['in_sentence']:.2%} a word of the sentence, {counts['no_word']:.2%} no word; "
        f"{counts['different']:,} different words"
    )
