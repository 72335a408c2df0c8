"""Triplets with the scores of their two pairs: what a row of them is, how they are read, and scored by cosines."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentsmith.corpus.lines import label
from sentsmith.corpus.reading import numbered_rows, open_tables
from sentsmith.corpus.rows import Triplet
from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError
from sentsmith.files import sha256

TEXTS = ("anchor", "positive", "negative")
SCORES = ("positive_score", "negative_score")
COLUMNS = (*TEXTS, *SCORES)
_HIGHEST = 5.0
# Triplets whose texts are embedded together.
_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Scored:
    """A triplet and the scores of its two pairs, 0 to 5."""

    triplet: Triplet
    positive_score: float
    negative_score: float

    def as_row(self, *, swapped: bool = False) -> dict[str, Any]:
        """Return the row to write; ``swapped`` makes the negative the positive."""
        texts = (self.triplet.positive, self.triplet.negative)
        scores = (self.positive_score, self.negative_score)
        if swapped:
            texts, scores = texts[::-1], scores[::-1]
        return dict(zip(COLUMNS, (self.triplet.anchor, *texts, *scores), strict=True))


def has_scores(path: str | Path) -> bool:
    """Tell whether a file of triplets has the columns ``positive_score`` and ``negative_score``.

    Raises:
        InputError: It cannot be read.
    """
    table = next(open_tables(path))
    return set(COLUMNS) <= set(table.columns)


def read_scored(path: str | Path) -> Iterator[Scored]:
    """Read triplets with their scores: the columns of :data:`COLUMNS`.

    Raises:
        InputError: The input cannot be read, lacks a column, a text is empty, or a score is no number from 0 to 5
            (names file and row).
    """
    for file, number, row in numbered_rows(path, columns=COLUMNS):
        try:
            triplet = Triplet(*(row[name] for name in TEXTS))
            yield Scored(triplet, *(_score(row[name], name) for name in SCORES))
        except ValueError as error:
            raise InputError(str(error), path=label(file), row=number) from error


def _score(value: Any, name: str) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} {str(value)[:40]!r} is not a number") from error
    if not (math.isfinite(score) and 0.0 <= score <= _HIGHEST):
        raise ValueError(f"{name} {score:g} is out of range; scores lie in [0, 5]")
    return score


@dataclass(frozen=True, slots=True)
class Scorer:
    """An embedding model that scores.

    Attributes:
        name: As it was given.
        sha256: Of its folder.
        encoder: Embeds.
    """

    name: str
    sha256: str
    encoder: Encoder


def open_scorer(name: str, *, device: str | None = None) -> Scorer:
    """Open an embedding model that scores, by folder, hub name or ``minilm``.

    Raises:
        InputError: It cannot be loaded.
        SentsmithError: The hub cannot be reached.
    """
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load, resolve

    return Scorer(name, sha256(resolve(name)), as_encoder(load(name, device=device)))


def by_cosine(
    triplets: Iterable[Triplet], encoder: Encoder, *, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Scored]:
    """Score triplets by an embedding model: 5 · max(0, cosine) of each pair.

    Args:
        triplets: A stream.
        encoder: Embeds each different text of a block of triplets once.
        advance: Called with the number of scores since the last call.
    """
    from sentsmith.evaluation.embedded import Embedded
    from sentsmith.evaluation.similarity import cosine

    stream = iter(triplets)
    while block := list(itertools.islice(stream, _BLOCK)):
        columns = [[getattr(row, name) for row in block] for name in TEXTS]
        vectors = Embedded(itertools.chain.from_iterable(columns), encoder)
        anchors, positives, negatives = (vectors.rows(column) for column in columns)
        positive = _HIGHEST * cosine(anchors, positives).clip(0.0)
        negative = _HIGHEST * cosine(anchors, negatives).clip(0.0)
        for row, first, second in zip(block, positive.tolist(), negative.tolist(), strict=True):
            yield Scored(row, first, second)
        advance(len(SCORES) * len(block))
