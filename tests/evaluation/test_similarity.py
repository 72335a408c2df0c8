"""Cosine and correlations, and what becomes of NaN, ties and constants."""

import logging

import numpy as np
import pytest
import scipy.stats

from sentsmith.errors import InputError
from sentsmith.evaluation.similarity import cosine, pearson, spearman


def test_spearman_agrees_with_scipy_on_ties():
    generator = np.random.default_rng(0)
    predicted, gold = generator.normal(size=300).round(1), generator.integers(0, 6, 300)
    assert spearman(predicted, gold) == pytest.approx(scipy.stats.spearmanr(predicted, gold).statistic)
    assert pearson(predicted, gold) == pytest.approx(scipy.stats.pearsonr(predicted, gold).statistic)


def test_spearman_sees_order_only_and_pearson_does_not():
    assert spearman([1, 2, 3, 4], [1, 10, 100, 1000]) == pytest.approx(1)
    assert pearson([1, 2, 3, 4], [1, 10, 100, 1000]) < 0.9


@pytest.mark.parametrize("measure", [spearman, pearson])
def test_constant_predictions_count_as_zero_and_say_so(measure, caplog):
    with caplog.at_level(logging.WARNING):
        assert measure([0.5, 0.5, 0.5], [1, 2, 3]) == 0.0
    assert "predictions are all the same" in caplog.text


def test_constant_gold_and_a_single_row_count_as_zero():
    assert spearman([1, 2, 3], [2, 2, 2]) == 0.0
    assert spearman([1], [2]) == 0.0


def test_nan_predictions_count_as_zero(caplog):
    assert spearman([np.nan, 1.0, -1.0], [0.0, 1.0, -1.0]) == pytest.approx(1)
    assert "1 of 3 predictions are NaN" in caplog.text


def test_wrong_lengths_and_gold_that_is_not_finite_are_errors():
    with pytest.raises(InputError, match="given 2 for 3"):
        spearman([1, 2], [1, 2, 3])
    with pytest.raises(InputError, match="gold score 1 is not"):
        spearman([1, 2], [1, np.nan])


def test_cosine_of_zero_and_of_nan_vectors_is_zero(caplog):
    a = np.array([[1, 0], [0, 0], [np.nan, 1], [1, 1]], dtype=np.float32)
    b = np.array([[1, 1], [1, 1], [1, 1], [-2, -2]], dtype=np.float32)
    np.testing.assert_allclose(cosine(a, b), [0.5**0.5, 0, 0, -1], atol=1e-12)
    assert "1 of 4 cosines are not finite" in caplog.text


def test_cosine_works_in_blocks_and_wide():
    generator = np.random.default_rng(1)
    a, b = (generator.normal(size=(9000, 3)).astype(np.float32) for _ in range(2))
    wide = a.astype(np.float64), b.astype(np.float64)
    expected = (wide[0] * wide[1]).sum(1) / np.linalg.norm(wide[0], axis=1) / np.linalg.norm(wide[1], axis=1)
    result = cosine(a, b)
    assert result.dtype == np.float64
    np.testing.assert_allclose(result, expected, rtol=1e-12)


def test_cosine_of_different_shapes_is_an_error():
    with pytest.raises(ValueError, match="one shape"):
        cosine(np.ones((2, 3)), np.ones((2, 4)))
