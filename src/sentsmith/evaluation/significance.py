"""Whether a difference is more than chance: paired bootstrap over items, paired t-test, spread over seeds."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentsmith.errors import InputError

_ELEMENTS = 1 << 22  # random indices drawn at a time (32 MB)


@dataclass(frozen=True)
class Interval:
    """A mean difference and its bootstrap interval, on the scale of the items.

    Attributes:
        difference: Mean of after − before.
        low: Lower end.
        high: Upper end.
        confidence: Share of resamples between the ends.
        resamples: How many were drawn.
        items: How many pairs there were.
    """

    difference: float
    low: float
    high: float
    confidence: float
    resamples: int
    items: int


@dataclass(frozen=True)
class TTest:
    """A paired t-test: the statistic, its degrees of freedom and the two-sided p value."""

    t: float
    df: int
    p: float


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation (n − 1); ``sd`` is None for a single value."""

    mean: float
    sd: float | None
    count: int


def paired_bootstrap(
    before: ArrayLike, after: ArrayLike, *, resamples: int = 10_000, confidence: float = 0.95, seed: int
) -> Interval:
    """Return the percentile bootstrap interval of the mean of ``after − before`` over items (Efron 1979).

    Items are drawn with replacement, each with both of its values, so what they share (an easy item is easy
    for both) does not widen the interval.

    Args:
        before: ``[n]``, one value for each item.
        after: ``[n]``, of the same items.
        resamples: How many times to draw.
        confidence: Between 0 and 1.
        seed: The same seed gives the same interval.

    Raises:
        InputError: The lengths differ, there are no items, a value is not finite, or a number is out of
            range.
    """
    difference = _differences(before, after)
    if resamples < 1 or not 0 < confidence < 1:
        raise InputError(f"resamples={resamples}, confidence={confidence}: give 1 or more, and a share between 0 and 1")
    generator = np.random.default_rng(seed)
    means = np.empty(resamples)
    step = max(1, _ELEMENTS // len(difference))
    for start in range(0, resamples, step):
        count = min(step, resamples - start)
        rows = generator.integers(0, len(difference), size=(count, len(difference)))
        means[start : start + count] = difference[rows].mean(axis=1)
    low, high = np.quantile(means, [(1 - confidence) / 2, (1 + confidence) / 2])
    return Interval(float(difference.mean()), float(low), float(high), confidence, resamples, len(difference))


def paired_t_test(a: ArrayLike, b: ArrayLike) -> TTest:
    """Return Student's paired t-test of ``a − b``.

    Where all differences are one number there is no spread to compare with: t is 0 (p 1) if that number is 0,
    else infinite (p 0).

    Raises:
        InputError: The lengths differ, there are fewer than two pairs, or a value is not finite.
    """
    from scipy.stats import t as student

    difference = _differences(b, a)
    count = len(difference)
    if count < 2:
        raise InputError(f"a paired t-test needs two pairs or more, given {count}")
    mean, sd = float(difference.mean()), float(difference.std(ddof=1))
    if np.ptp(difference) == 0:
        return TTest(0.0 if mean == 0 else float(np.copysign(np.inf, mean)), count - 1, float(mean == 0))
    t = mean / (sd / np.sqrt(count))
    return TTest(float(t), count - 1, float(2 * student.sf(abs(t), count - 1)))


def spread(values: ArrayLike) -> Spread:
    """Return mean and standard deviation, for example over seeds.

    Raises:
        InputError: There is no value, or one is not finite.
    """
    numbers = _finite(values, "values")
    sd = float(numbers.std(ddof=1)) if len(numbers) > 1 else None
    return Spread(float(numbers.mean()), sd, len(numbers))


def _differences(before: ArrayLike, after: ArrayLike) -> NDArray[np.float64]:
    first, second = _finite(before, "first values"), _finite(after, "second values")
    if len(first) != len(second):
        raise InputError(f"pairs need as many first values as second ones, given {len(first)} and {len(second)}")
    return second - first


def _finite(values: ArrayLike, what: str) -> NDArray[np.float64]:
    numbers = np.asarray(values, dtype=np.float64).ravel()
    if not len(numbers):
        raise InputError(f"no {what} given")
    if not np.isfinite(numbers).all():
        raise InputError(
            f"the {what} hold a number that is not finite, at index {int(np.argmin(np.isfinite(numbers)))}"
        )
    return numbers
