"""The user's own text for the quickstart: read, split, cleaned, and its end kept apart."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from sentsmith.corpus.cleaning import clean, tidy
from sentsmith.corpus.formats import kind_of
from sentsmith.corpus.lines import read_lines
from sentsmith.corpus.normalising import normal_form
from sentsmith.corpus.reading import read_sentences
from sentsmith.corpus.splitting import split_sentences
from sentsmith.errors import InputError
from sentsmith.evaluation.continuity import paragraphs_of_lines

_LEAST_TRAINED, _LEAST_HELD_OUT = 64, 20


@dataclass(frozen=True)
class OwnText:
    """What is trained on and what is kept apart.

    Attributes:
        train: Cleaned sentences, none of which (after normalising) stands in the held-out part.
        held_out: The end of the text: paragraphs of sentences.
    """

    train: list[str]
    held_out: list[list[str]]


def read_own_text(path: str | Path, *, column: str | None = None) -> OwnText:
    """Read a text and keep its last tenth apart.

    Lines (or rows) are split into sentences. In a .txt file blank lines part paragraphs; elsewhere a row that holds
    several sentences is a paragraph of its own, and rows of one sentence each follow one another.

    Args:
        path: Any format that :func:`sentsmith.corpus.reading.read_sentences` reads.
        column: The text column, where there are several.

    Raises:
        InputError: The text cannot be read, or is too short to train on and measure.
    """
    paragraphs = [paragraph for paragraph in _paragraphs(path, column) if paragraph]
    total = sum(map(len, paragraphs))
    if not total:
        raise InputError("is empty: it holds no sentence", path=path)
    held_out = _end_of(paragraphs, max(total // 10, _LEAST_HELD_OUT))
    kept = {normal_form(sentence) for paragraph in held_out for sentence in paragraph}
    trained = sum(len(paragraph) for paragraph in paragraphs) - sum(map(len, held_out))
    rest = [sentence for paragraph in paragraphs for sentence in paragraph][:trained]
    train = [sentence for sentence in clean(rest) if normal_form(sentence) not in kept]
    if len(train) < _LEAST_TRAINED:
        raise InputError(
            f"holds {total} sentences, of which {len(train)} different ones are left to train on; the quickstart needs "
            f"at least {_LEAST_TRAINED + _LEAST_HELD_OUT}",
            path=path,
        )
    return OwnText(train, held_out)


def _paragraphs(path: str | Path, column: str | None) -> Iterator[list[str]]:
    if kind_of(path) == ".txt" and not Path(path).is_dir():
        if column is not None:
            raise InputError("is plain text and has no columns; leave --column away", path=path)
        for lines in paragraphs_of_lines(line for _, line in read_lines(path)):
            yield [sentence for line in lines for sentence in _split(line)]
        return
    run: list[str] = []
    for row in read_sentences(path, column=column):
        sentences = _split(row)
        if len(sentences) == 1:
            run += sentences
            continue
        yield run
        run = []
        yield sentences
    yield run


def _split(text: str) -> list[str]:
    return [sentence for part in split_sentences(text) if (sentence := tidy(part))]


def _end_of(paragraphs: Sequence[list[str]], count: int) -> list[list[str]]:
    """Return the last ``count`` sentences in their paragraphs; the first paragraph taken may be cut."""
    end: list[list[str]] = []
    for paragraph in reversed(paragraphs):
        end.insert(0, paragraph[-count:])
        count -= len(end[0])
        if count <= 0:
            break
    return end
