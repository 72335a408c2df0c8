"""Measures on written data held out from training: lists ranked, triplets ordered as they were meant?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from sentsmith.corpus.rows import Ranking, Triplet
from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.similarity import cosine, spearman


def ranking_correlation(encoder: Encoder, lists: Sequence[Ranking | Sequence[str]]) -> NDArray[np.float64]:
    """Return how well each list is ranked: Spearman of cosine to its first sentence and intended order.

    A list begins with a sentence and drifts away from it step by step; the intended order of the others is
    the order they stand in, nearest first. The first sentence itself is not ranked (its cosine is always 1).

    :func:`sentsmith.evaluation.drift.drift` gives Kendall's τ-b of the same two orders, which says in how many pairs
    of sentences they agree. Spearman's coefficient weighs a sentence by how many places it is off, and is the larger
    of the two in most lists; numbers of the one cannot be compared with numbers of the other. Also, drift takes
    cosines as equal that differ by less than rounding does.

    Args:
        encoder: What is measured.
        lists: Rows of the corpus, or plain sequences; each three sentences or more.

    Returns:
        float64 ``[len(lists)]`` in [-1, 1]; 1 is the intended order, 0 where all cosines of a list are equal.

    Raises:
        InputError: There is no list, or one has fewer than three sentences.
    """
    plain = plain_lists(lists)
    embedded = Embedded((text for sentences in plain for text in sentences), encoder)
    values = []
    for sentences in plain:
        vectors = embedded.rows(sentences)
        cosines = cosine(np.broadcast_to(vectors[0], vectors[1:].shape), vectors[1:])
        values.append(spearman(cosines, -np.arange(len(cosines))))
    return np.array(values, dtype=np.float64)


def plain_lists(lists: Sequence[Ranking | Sequence[str]]) -> list[Sequence[str]]:
    """Return the sentences of each list, once all of them can be ranked.

    Raises:
        InputError: There is no list, or one has fewer than three sentences.
    """
    if not lists:
        raise InputError("no ranked lists given")
    plain = [entry.sentences if isinstance(entry, Ranking) else entry for entry in lists]
    for row, sentences in enumerate(plain, start=1):
        if len(sentences) < 3:
            raise InputError(f"ranked list {row} has {len(sentences)} sentences; three or more are needed")
    return plain


def triplet_accuracy(encoder: Encoder, triplets: Sequence[Triplet | tuple[str, str, str]]) -> NDArray[np.float64]:
    """Return, for each (anchor, positive, negative), whether the anchor is nearer to its positive.

    Args:
        encoder: What is measured.
        triplets: Rows of the corpus, or plain tuples.

    Returns:
        float64 ``[len(triplets)]``: 1.0 where ``cos(anchor, positive) > cos(anchor, negative)``, else 0.0 (a
        tie is not in order).

    Raises:
        InputError: There is no triplet.
    """
    if not triplets:
        raise InputError("no triplets given")
    plain = [(row.anchor, row.positive, row.negative) if isinstance(row, Triplet) else row for row in triplets]
    embedded = Embedded((text for triplet in plain for text in triplet), encoder)
    anchors, positives, negatives = (embedded.rows([row[side] for row in plain]) for side in range(3))
    return (cosine(anchors, positives) > cosine(anchors, negatives)).astype(np.float64)
