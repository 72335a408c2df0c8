"""Cosine and correlation, with the cases that libraries leave as NaN decided."""

from __future__ import annotations

import logging
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentsmith.errors import InputError

logger = logging.getLogger(__name__)

_BLOCK = 8192  # rows turned into float64 at a time


def cosine(a: ArrayLike, b: ArrayLike) -> NDArray[np.float64]:
    """Return the cosine of each row of ``a`` with the same row of ``b``.

    Args:
        a: ``[n, d]``, any float type; computed in float64.
        b: ``[n, d]``.

    Returns:
        float64 ``[n]`` in [-1, 1]. 0 where either row is all zeros or not finite (SentEval's convention); the
        latter is logged.

    Raises:
        ValueError: The shapes differ or are not two-dimensional.
    """
    first, second = np.asarray(a), np.asarray(b)
    if first.ndim != 2 or first.shape != second.shape:
        raise ValueError(f"cosine needs two [n, d] arrays of one shape, given {first.shape} and {second.shape}")
    result = np.empty(len(first), dtype=np.float64)
    for start in range(0, len(first), _BLOCK):
        rows = slice(start, start + _BLOCK)
        x, y = first[rows].astype(np.float64), second[rows].astype(np.float64)
        norms = np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1)
        dots = np.einsum("nd,nd->n", x, y)
        with np.errstate(invalid="ignore"):
            result[rows] = dots / np.where(norms == 0, 1.0, norms)
    bad = ~np.isfinite(result)
    if bad.any():
        logger.warning("%d of %d cosines are not finite numbers; they count as 0", bad.sum(), len(result))
        result[bad] = 0.0
    return np.clip(result, -1.0, 1.0)


def unit_rows(vectors: ArrayLike) -> NDArray[np.float64]:
    """Return each row of ``[n, d]`` with length 1, float64; a row of zeros stays one."""
    rows = np.asarray(vectors).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    return rows / np.where(lengths == 0, 1.0, lengths)


def spearman(predicted: ArrayLike | Sequence[float], gold: ArrayLike | Sequence[float]) -> float:
    """Return Spearman's rank correlation; ties get their average rank.

    Predictions that are all the same have no ranks: the result is then 0.0, with a warning in the log.
    Predictions that are NaN count as 0.

    Args:
        predicted: ``[n]``.
        gold: ``[n]``, finite.

    Raises:
        InputError: The lengths differ, or a gold score is not finite.
    """
    from scipy.stats import rankdata

    x, y = _checked(predicted, gold, "Spearman")
    return _correlation(rankdata(x), rankdata(y), "Spearman")


def pearson(predicted: ArrayLike | Sequence[float], gold: ArrayLike | Sequence[float]) -> float:
    """Return Pearson's correlation, with the conventions of :func:`spearman`."""
    return _correlation(*_checked(predicted, gold, "Pearson"), "Pearson")


def _checked(predicted: ArrayLike, gold: ArrayLike, what: str) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    x = np.asarray(predicted, dtype=np.float64).ravel()
    y = np.asarray(gold, dtype=np.float64).ravel()
    if x.shape != y.shape:
        raise InputError(f"{what} needs one prediction for each gold score, given {x.size} for {y.size}")
    if not np.isfinite(y).all():
        raise InputError(f"{what}: gold score {int(np.argmin(np.isfinite(y)))} is not a finite number")
    if np.isnan(x).any():
        logger.warning("%s: %d of %d predictions are NaN; they count as 0", what, np.isnan(x).sum(), x.size)
        x = np.nan_to_num(x, nan=0.0, posinf=np.inf, neginf=-np.inf)
    return x, y


def _correlation(x: NDArray[np.float64], y: NDArray[np.float64], what: str) -> float:
    for values, name in ((x, "predictions"), (y, "gold scores")):
        if values.size < 2 or np.ptp(values) == 0:
            reason = "are all the same" if values.size > 1 else "are fewer than two"
            logger.warning("%s: the %s %s; the correlation counts as 0", what, name, reason)
            return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(np.clip(x @ y / np.sqrt((x @ x) * (y @ y)), -1.0, 1.0))
