"""Do ranked lists drift: is each sentence further in meaning from the first than the one before it?

The measure behind Figure 1 of the ranking paper (METHODS §6): the mean similarity of list positions, which is a
picture, and numbers for what is seen in it. A list that drifts perfectly has its neighbours nearest: along every row
of its similarities, cosines fall from the diagonal outwards (the paper's Eq. 5).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentsmith.corpus.rows import Ranking
from sentsmith.encoders.protocol import Encoder
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.ordering import plain_lists

_DECIMALS = 6
"""Cosines that differ by less are one number: the same vector, but for rounding (float32 has seven digits)."""
_ELEMENTS = 1 << 23  # float64 of vectors held at a time (64 MB)

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class Drift:
    """What :func:`drift` found; every array ``[lists]`` is in the order of the lists.

    Attributes:
        positions: float64 ``[n, n]``, n the longest list's length: the mean cosine of position j and position k over
            the lists that have both.
        lengths: int64 ``[lists]``, the sentences of each list.
        distinct: int64 ``[lists]``, how many of them are different, letter by letter.
        tau: float64 ``[lists]``, Kendall's τ-b of the cosine to the first sentence and the intended order, the first
            sentence itself not ranked; 0 where all of a list's cosines are equal. Without ties it is the share of
            pairs in the intended order less the share in the other one, so it can be read beside ``in_order``.
            :func:`sentsmith.evaluation.ordering.ranking_correlation`, which judges checkpoints, is Spearman's
            coefficient of the same orders: in most lists the larger number, not to be compared with this one.
        in_order: float64 ``[lists]``, the share of neighbouring pairs in the right order: for every row j and every
            k, k+1 to the right of j, is k nearer to j than k+1, and likewise to the left; (n − 1)(n − 2) pairs, a tie
            is not in order.
        in_order_first: float64 ``[lists]``, the same of the first row alone: n − 2 pairs.
    """

    positions: Floats
    lengths: NDArray[np.int64]
    distinct: NDArray[np.int64]
    tau: Floats
    in_order: Floats
    in_order_first: Floats


def drift(encoder: Encoder, lists: Sequence[Ranking | Sequence[str]]) -> Drift:
    """Measure how ranked lists drift, in the eyes of a model; every sentence is embedded once.

    Args:
        encoder: Measures similarity.
        lists: Rows of the corpus, or plain sequences; each three sentences or more.

    Raises:
        InputError: There is no list, or one has fewer than three sentences.
    """
    plain = plain_lists(lists)
    return drift_of(plain, Embedded((text for sentences in plain for text in sentences), encoder))


def drift_of(lists: Sequence[Sequence[str]], embedded: Embedded) -> Drift:
    """Measure what :func:`drift` does, over sentences that are embedded already.

    Args:
        lists: At least one, each three sentences or more.
        embedded: Holds all of their sentences.
    """
    lengths = np.array([len(sentences) for sentences in lists], dtype=np.int64)
    longest = int(lengths.max())
    sums = np.zeros((longest, longest))
    tau, in_order, in_order_first = (np.zeros(len(lists)) for _ in range(3))
    for length in np.unique(lengths).tolist():
        places = np.flatnonzero(lengths == length)
        width = embedded.rows(lists[places[0]]).shape[1]
        step = max(1, _ELEMENTS // (length * max(width, length)))
        for start in range(0, len(places), step):
            block = places[start : start + step]
            cosines = _cosines([lists[place] for place in block], embedded)
            sums[:length, :length] += cosines.sum(axis=0)
            tau[block] = _kendall(cosines[:, 0, 1:])
            in_order[block], in_order_first[block] = _neighbours(cosines)
    # How many lists reach position j; those that reach the further one of two have both.
    reach = (lengths[:, None] > np.arange(longest)).sum(axis=0)
    return Drift(
        positions=sums / np.minimum.outer(reach, reach),
        lengths=lengths,
        distinct=np.array([len(set(sentences)) for sentences in lists], dtype=np.int64),
        tau=tau,
        in_order=in_order,
        in_order_first=in_order_first,
    )


def shuffled_across(lists: Sequence[Ranking | Sequence[str]], *, seed: int) -> list[tuple[str, ...]]:
    """Return lists of the same lengths, with all sentences shuffled across them: what no order at all measures.

    Args:
        lists: Rows of the corpus, or plain sequences.
        seed: The same seed gives the same lists.
    """
    plain = [entry.sentences if isinstance(entry, Ranking) else entry for entry in lists]
    texts = [text for sentences in plain for text in sentences]
    shuffled = iter(np.random.default_rng(seed).permutation(len(texts)).tolist())
    return [tuple(texts[next(shuffled)] for _ in sentences) for sentences in plain]


def _cosines(lists: Sequence[Sequence[str]], embedded: Embedded) -> Floats:
    """Return float64 ``[lists, n, n]`` of lists of one length; a vector of zeros has cosine 0, even with itself."""
    flat = embedded.rows([text for sentences in lists for text in sentences]).astype(np.float64)
    lengths = np.linalg.norm(flat, axis=1, keepdims=True)
    unit = (flat / np.where(lengths == 0, 1.0, lengths)).reshape(len(lists), len(lists[0]), -1)
    products: Floats = unit @ unit.transpose(0, 2, 1)
    return np.clip(np.round(products, _DECIMALS), -1.0, 1.0) + 0.0  # no −0


def _kendall(cosines: Floats) -> Floats:
    """Return Kendall's τ-b of each row of ``[lists, n]`` and the order it stands in, largest first.

    (scipy's takes a millisecond a row; here the other side is a strict order, so that only ties of one side count.)
    """
    first, second = np.triu_indices(cosines.shape[1], k=1)
    signs = np.sign(cosines[:, first] - cosines[:, second])
    untied = np.abs(signs).sum(axis=1)
    result: Floats = signs.sum(axis=1) / np.sqrt(np.where(untied == 0, 1.0, untied) * signs.shape[1])
    return result


def _neighbours(cosines: Floats) -> tuple[Floats, Floats]:
    """Return the share of neighbouring pairs in order of each of ``[lists, n, n]``, of all rows and of the first."""
    size = cosines.shape[1]
    row, column = np.indices((size, size - 1))
    falls = cosines[:, :, :-1] > cosines[:, :, 1:]
    rises = cosines[:, :, :-1] < cosines[:, :, 1:]
    # Column k stands for the pair (k, k+1): right of j where k > j, left of it where k+1 < j.
    right = (falls & (column > row)).sum(axis=(1, 2))
    left = (rises & (column + 1 < row)).sum(axis=(1, 2))
    return (right + left) / ((size - 1) * (size - 2)), falls[:, 0, 1:].mean(axis=1)
