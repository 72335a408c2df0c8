"""Measures of one ranked list: average precision, nDCG."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike

from sentsmith.errors import InputError


def average_precision(relevant: ArrayLike) -> float:
    """Return the mean, over the relevant items of a list, of the precision at the rank of each.

    All relevant items must be in the list (as in reranking); 0 where there is none.

    Args:
        relevant: ``[n]`` of 0 and 1, best rank first.

    Raises:
        InputError: A value is neither 0 nor 1.
    """
    hits = np.asarray(relevant, dtype=np.float64).ravel()
    if not np.isin(hits, (0.0, 1.0)).all():
        raise InputError("average precision needs 0 and 1 only; use ndcg for graded judgements")
    if not hits.any():
        return 0.0
    precision = np.cumsum(hits) / np.arange(1, len(hits) + 1)
    return float((precision * hits).sum() / hits.sum())


def ndcg(gains: ArrayLike, *, k: int = 10, judged: ArrayLike | None = None) -> float:
    """Return nDCG@k with linear gains, as trec_eval: ``Σ gain / log2(rank + 1)`` over the best possible.

    Args:
        gains: ``[n]``, not negative, the gain of the item at each rank, best rank first.
        k: How many ranks count.
        judged: All gains of the query, in any order, where the list does not hold all relevant items; the
            best possible order is made from them. By default the list's own.

    Returns:
        In [0, 1]; 0 where nothing is relevant.

    Raises:
        InputError: A gain is negative or not finite, or k is less than 1.
    """
    given = np.asarray(gains, dtype=np.float64).ravel()
    every = given if judged is None else np.asarray(judged, dtype=np.float64).ravel()
    if k < 1 or not all(np.isfinite(values).all() and (values >= 0).all() for values in (given, every)):
        raise InputError("ndcg needs k of 1 or more, and finite gains of 0 or more")
    best = _dcg(np.sort(every)[::-1], k)
    return _dcg(given, k) / best if best else 0.0


def _dcg(gains: np.ndarray[tuple[int], np.dtype[np.float64]], k: int) -> float:
    top = gains[:k]
    return float((top / np.log2(np.arange(2, len(top) + 2))).sum())
