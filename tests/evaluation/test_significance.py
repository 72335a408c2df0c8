"""Bootstrap intervals, t-test, spread."""

import numpy as np
import pytest
import scipy.stats

from sentsmith.errors import InputError
from sentsmith.evaluation.significance import paired_bootstrap, paired_t_test, spread

A = [79.4, 91.0, 86.5, 89.2, 87.4, 89.0, 81.1]
B = [78.4, 89.9, 84.8, 88.5, 86.0, 87.9, 81.1]


def test_t_test_of_the_worked_example():
    result = paired_t_test(A, B)
    assert (result.t, result.df) == (pytest.approx(4.885042, abs=1e-6), 6)
    assert result.p == pytest.approx(0.002752, abs=1e-6)
    assert paired_t_test(B, A).t == pytest.approx(-4.885042, abs=1e-6)


def test_t_test_without_spread():
    assert paired_t_test([1, 2], [1, 2]) == paired_t_test([5, 5], [5, 5])
    assert (paired_t_test([1, 2], [1, 2]).t, paired_t_test([1, 2], [1, 2]).p) == (0.0, 1.0)
    assert (paired_t_test([1, 2], [2, 3]).t, paired_t_test([1, 2], [2, 3]).p) == (-np.inf, 0.0)
    with pytest.raises(InputError, match="two pairs or more"):
        paired_t_test([1], [2])


def test_bootstrap_agrees_with_scipy():
    generator = np.random.default_rng(0)
    before = generator.normal(size=400)
    after = before + generator.normal(0.1, 0.5, size=400)
    ours = paired_bootstrap(before, after, seed=1)
    theirs = scipy.stats.bootstrap(
        (after - before,), np.mean, n_resamples=10_000, method="percentile", rng=np.random.default_rng(2)
    ).confidence_interval
    assert ours.difference == pytest.approx((after - before).mean())
    assert (ours.low, ours.high) == (
        pytest.approx(theirs.low, abs=3e-3),
        pytest.approx(theirs.high, abs=3e-3),
    )
    assert (ours.items, ours.resamples, ours.confidence) == (400, 10_000, 0.95)


def test_bootstrap_is_paired():
    """What both models share (easy and hard items) must not widen the interval."""
    before = np.linspace(0, 100, 50)
    interval = paired_bootstrap(before, before + 1, seed=0)
    assert (interval.low, interval.difference, interval.high) == pytest.approx((1, 1, 1))


def test_bootstrap_covers_the_truth_as_often_as_it_says():
    generator = np.random.default_rng(4)
    hits = 0
    for seed in range(200):
        difference = generator.normal(0.3, 1, size=60)
        interval = paired_bootstrap(np.zeros(60), difference, resamples=400, confidence=0.8, seed=seed)
        hits += interval.low <= 0.3 <= interval.high
    assert 0.7 < hits / 200 < 0.9


def test_bootstrap_repeats_by_seed_and_widens_with_confidence():
    intervals = [
        paired_bootstrap(B, A, seed=seed, confidence=c, resamples=50)
        for seed, c in ((1, 0.95), (1, 0.95), (2, 0.95), (1, 0.5))
    ]
    assert intervals[0] == intervals[1] != intervals[2]
    assert intervals[3].high - intervals[3].low < intervals[0].high - intervals[0].low


def test_bootstrap_in_blocks_of_large_data():
    generator = np.random.default_rng(0)
    difference = generator.normal(size=2_000_000)
    interval = paired_bootstrap(np.zeros_like(difference), difference, resamples=5, seed=0)
    assert interval.low < interval.high
    assert abs(interval.high) < 0.01


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ([1, 2], [1], "given 2 and 1"),
        ([], [], "no first values"),
        ([1, np.nan], [1, 2], "first values hold a number that is not finite, at index 1"),
    ],
)
def test_wrong_items_are_errors(before, after, message):
    with pytest.raises(InputError, match=message):
        paired_bootstrap(before, after, seed=0)
    with pytest.raises(InputError):
        paired_t_test(after, before)


@pytest.mark.parametrize("wrong", [{"resamples": 0}, {"confidence": 1.0}, {"confidence": 0.0}])
def test_wrong_settings_are_errors(wrong):
    with pytest.raises(InputError, match="give 1 or more, and a share between 0 and 1"):
        paired_bootstrap(A, B, seed=0, **wrong)


def test_spread_over_seeds():
    result = spread([79.8, 79.9, 80.3])
    assert (result.mean, result.sd, result.count) == (pytest.approx(80), pytest.approx(0.264575, abs=1e-6), 3)
    assert spread([79.8]).sd is None
    with pytest.raises(InputError, match="no values given"):
        spread([])
