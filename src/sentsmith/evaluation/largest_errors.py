"""The pairs on which a model and people are farthest apart (FREEZE's error analysis), over STS-B's dev part.

A model's scores have a scale of their own: a cosine is no grade from 0 to 5, and a loss such as FREEZE's log-variance
leaves scale and offset open on purpose. So the gold scores are first fitted by the best straight line through the
model's scores (least squares), and a pair's error is what remains: gold − fitted.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.sts import StsTask

ERRORS = "errors"
MOST = 20
"""Pairs that are kept of either side."""


@dataclass(frozen=True)
class Miss:
    """A pair, its gold score and what the model says, fitted to the scale of the gold scores."""

    sentence1: str
    sentence2: str
    gold: float
    fitted: float


@dataclass(frozen=True)
class Misses:
    """What :func:`largest_errors` found.

    Attributes:
        too_high: Pairs that the model finds more alike than people do, the farthest apart first.
        too_low: Pairs that it finds less alike, in the same order.
        slope: Of the line fitted = slope · score + offset.
        offset: Of the line.
        spread: Root of the mean squared error of all pairs, on the scale of the gold scores.
        rows: How many pairs there were.
    """

    too_high: tuple[Miss, ...]
    too_low: tuple[Miss, ...]
    slope: float
    offset: float
    spread: float
    rows: int

    def summary(self) -> dict[str, Any]:
        """Return what ``results.json`` holds."""
        return {
            "rows": self.rows,
            "line": {"slope": self.slope, "offset": self.offset},
            "spread": self.spread,
            "too_high": [vars(miss) for miss in self.too_high],
            "too_low": [vars(miss) for miss in self.too_low],
        }


def fitted_line(scores: ArrayLike, gold: ArrayLike) -> tuple[float, float]:
    """Return slope and offset of the line ``gold ≈ slope · score + offset`` with the least squared error.

    Args:
        scores: ``[n ≥ 1]``, finite. All the same, they say nothing: the line is then flat.
        gold: ``[n]``, finite.
    """
    x, y = np.asarray(scores, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    away = x - x.mean()
    # Summing rounds: scores that are all the same may lie beside their mean.
    slope = float(away @ (y - y.mean()) / (away @ away)) if np.ptp(x) > 0 else 0.0
    return slope, float(y.mean() - slope * x.mean())


def largest_errors(scores: ArrayLike, pairs: ScoredPairs, *, most: int = MOST) -> Misses:
    """Return the pairs that lie farthest from the best line through a model's scores.

    Args:
        scores: The model's, ``[n]``, finite.
        pairs: The n pairs.
        most: How many to return of either side; fewer where fewer lie on it.

    Raises:
        InputError: There is no pair, or not one score for each.
    """
    values = np.asarray(scores, dtype=np.float64)
    if values.shape != (len(pairs),) or not len(pairs):
        raise InputError(f"errors need one score for each of one pair or more, given {values.shape} for {len(pairs)}")
    slope, offset = fitted_line(values, pairs.gold)
    fitted = slope * values + offset
    errors = pairs.gold - fitted
    order = np.argsort(errors, kind="stable")
    return Misses(
        too_high=_misses(pairs, fitted, [row for row in order[:most].tolist() if errors[row] < 0]),
        too_low=_misses(pairs, fitted, [row for row in order[::-1][:most].tolist() if errors[row] > 0]),
        slope=slope,
        offset=offset,
        spread=float(np.sqrt(np.mean(errors**2))),
        rows=len(pairs),
    )


def measure_errors(encoder: Encoder, task: StsTask) -> Misses:
    """Find the largest errors of a model on an STS task, by its own similarity where it has one.

    Args:
        encoder: Any.
        task: Its subsets count as one.
    """
    parts = [subset.pairs for subset in task.subsets]
    embedded = Embedded(task.texts(), encoder)
    scores = [embedded.similarity(pairs.sentences1, pairs.sentences2) for pairs in parts]
    whole = ScoredPairs(
        tuple(text for pairs in parts for text in pairs.sentences1),
        tuple(text for pairs in parts for text in pairs.sentences2),
        np.concatenate([pairs.gold for pairs in parts]),
    )
    return largest_errors(np.concatenate(scores), whole)


def lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in words how far each result's model is off, and which pair is the worst of either side."""
    return [
        f"{result['model']}: off by {found['spread']:.2f} of 5 (root mean square, after the best straight line); "
        + "; ".join(_worst(found, side) for side in ("too_high", "too_low") if found[side])
        for result in results
        if (found := result.get(ERRORS)) is not None
    ]


def _worst(found: Mapping[str, Any], side: str) -> str:
    miss = found[side][0]
    return (
        f"most {side.replace('_', ' ')}: “{miss['sentence1']}” / “{miss['sentence2']}”, gold {miss['gold']:.1f}, "
        f"fitted {miss['fitted']:.1f}"
    )


def _misses(pairs: ScoredPairs, fitted: NDArray[np.float64], rows: Sequence[int]) -> tuple[Miss, ...]:
    return tuple(
        Miss(pairs.sentences1[row], pairs.sentences2[row], float(pairs.gold[row]), float(fitted[row])) for row in rows
    )
