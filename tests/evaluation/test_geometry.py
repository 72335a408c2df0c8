"""Alignment and uniformity."""

import numpy as np
import pytest
import torch

from sentsmith.errors import InputError
from sentsmith.evaluation.geometry import alignment, uniformity

X = [[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]]
POSITIVES = [[0.8, 0.6], [0.0, 1.0], [1.0, 0.0]]


@pytest.mark.parametrize("kind", [np.array, lambda rows: torch.tensor(rows, requires_grad=True), list])
def test_worked_example(kind):
    assert alignment(kind(X), kind(POSITIVES)) == pytest.approx(0.4, abs=1e-6)
    assert uniformity(kind(X)) == pytest.approx(-1.499775, abs=1e-6)


def test_length_does_not_matter():
    longer = np.array(X) * [[3], [0.1], [50]]
    assert alignment(longer, POSITIVES) == pytest.approx(0.4, abs=1e-6)
    assert uniformity(longer) == pytest.approx(-1.499775, abs=1e-6)


def test_blocks_give_what_one_matrix_gives():
    x = np.random.default_rng(0).normal(size=(2500, 8)).astype(np.float32)
    unit = torch.nn.functional.normalize(torch.from_numpy(x).double(), dim=1)
    expected = torch.pdist(unit).pow(2).mul(-2).exp().mean().log()
    assert uniformity(x) == pytest.approx(float(expected), abs=1e-9)


def test_low_precision_is_widened():
    rows = torch.tensor(X, dtype=torch.bfloat16)
    assert uniformity(rows) == pytest.approx(-1.499775, abs=0.01)


def test_equal_vectors_are_aligned_and_not_uniform():
    same = np.ones((5, 3))
    assert alignment(same, same) == pytest.approx(0)
    assert uniformity(same) == pytest.approx(0)


def test_zero_vectors_stay_finite():
    assert alignment([[0.0, 0.0]], [[1.0, 0.0]]) == pytest.approx(1)
    assert np.isfinite(uniformity([[0.0, 0.0], [1.0, 0.0]]))


def test_wrong_shapes_are_errors():
    with pytest.raises(InputError, match="one shape"):
        alignment(X, X[:2])
    with pytest.raises(InputError, match="two vectors or more, given 1"):
        uniformity(X[:1])
    with pytest.raises(InputError, match=r"must be \[n, d\], given shape \(2,\)"):
        uniformity([1.0, 2.0])
