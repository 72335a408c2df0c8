"""Exact search in memory: a few thousand sentences, no index on disk, nothing beyond numpy.

For more sentences, or to search the same ones again, build an index (:mod:`sentsmith.search.index`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.errors import InputError

_CELLS = 1 << 22  # similarities held at a time


@dataclass(frozen=True)
class Hit:
    """A sentence found: its text, its cosine to the question, its place (0-based) among those searched."""

    sentence: str
    score: float
    row: int


def nearest(encoder: Encoder, sentences: Sequence[str], questions: Sequence[str], k: int) -> list[list[Hit]]:
    """Return for each question the ``k`` sentences of the highest cosine, best first.

    Args:
        encoder: Encodes sentences and questions alike.
        sentences: What is searched.
        questions: What is looked for.
        k: How many to return; all, where there are fewer sentences. Ties go to the earlier sentence.

    Raises:
        InputError: ``k`` is below 1, there is no sentence to search, or the model has a similarity of its own.
    """
    check_k(k)
    check_searchable(encoder)
    if not sentences:
        raise InputError("there is no sentence to search in")
    if not questions:
        return []
    corpus = unit(encoder.encode(list(sentences)))
    asked = unit(encoder.encode(list(questions)))
    found: list[list[Hit]] = []
    block = max(1, _CELLS // len(corpus))
    for start in range(0, len(asked), block):
        scores = asked[start : start + block] @ corpus.T
        # A stable sort of the negated scores leaves ties in the order of the sentences.
        best = np.argsort(-scores, axis=1, kind="stable")[:, :k]
        for row, places in zip(scores, best, strict=True):
            found.append([Hit(sentences[place], float(row[place]), int(place)) for place in places])
    return found


def check_k(k: int) -> None:
    """Raise InputError unless at least one hit is asked for."""
    if k < 1:
        raise InputError(f"{k} hits were asked for; ask for 1 or more")


def check_searchable(encoder: Encoder) -> None:
    """Raise InputError unless the cosine of two of an encoder's vectors is how alike it finds the two sentences."""
    if getattr(encoder, "pair_scores", None) is not None:
        raise InputError(
            "this model cannot be searched with: its similarity is not the product of two vectors; train with "
            "freeze.head nonnegative for one that can"
        )


def unit(vectors: Vectors) -> Vectors:
    """Return float32 rows of length 1 (a row of zeros stays as it is), so that an inner product is a cosine.

    Raises:
        InputError: The array is not ``[n, d]``, or a row holds a number that is not finite.
    """
    array = np.ascontiguousarray(vectors, dtype=np.float32)
    if array.ndim != 2 or not array.shape[1]:
        raise InputError(f"vectors of shape {array.shape} were given; [sentences, dimension] is needed")
    wrong = ~np.isfinite(array).all(axis=1)
    if wrong.any():
        raise InputError(f"the vector of sentence {int(wrong.argmax()) + 1} holds numbers that are not finite")
    length = np.linalg.norm(array, axis=1, keepdims=True)
    return np.asarray(array / np.where(length > 0, length, 1), dtype=np.float32)
