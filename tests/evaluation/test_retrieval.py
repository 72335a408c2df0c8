"""Average precision and nDCG of one list."""

import numpy as np
import pytest
from sklearn.metrics import ndcg_score

from sentsmith.errors import InputError
from sentsmith.evaluation.retrieval import average_precision, ndcg


def test_worked_example():
    values = [average_precision([1, 0, 1, 0]), average_precision([0, 0, 1])]
    assert values == pytest.approx([0.833333, 0.333333], abs=1e-6)
    assert np.mean(values) == pytest.approx(0.583333, abs=1e-6)
    assert ndcg([0, 2, 1, 0]) == pytest.approx(0.669672, abs=1e-6)


def test_ndcg_agrees_with_scikit_learn_on_long_lists():
    gains = np.random.default_rng(0).integers(0, 4, 40)
    for k in (1, 10, 100):
        assert ndcg(gains, k=k) == pytest.approx(ndcg_score([gains], [-np.arange(40)], k=k))


def test_relevant_items_that_were_not_found_count():
    assert ndcg([1, 0], judged=[1, 1, 1]) == pytest.approx(1 / (1 + 1 / np.log2(3) + 0.5))


def test_nothing_relevant_is_zero():
    assert average_precision([0, 0]) == average_precision([]) == 0.0
    assert ndcg([0, 0]) == ndcg([]) == 0.0


def test_wrong_values_are_errors():
    with pytest.raises(InputError, match="0 and 1 only"):
        average_precision([2, 0])
    for gains, k in (([-1.0], 10), ([np.nan], 10), ([1.0], 0)):
        with pytest.raises(InputError, match="finite gains"):
            ndcg(gains, k=k)
