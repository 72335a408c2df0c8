"""Whitening against worked numbers; it is unique only up to a rotation, so what is tested does not turn with it."""

from __future__ import annotations

import numpy as np
import pytest

from sentsmith.methods.whitening.objective import fit_whitening, whiten

X = np.array([[1.0, 2.0], [3.0, 0.0], [5.0, 4.0], [7.0, 1.0]])


def test_worked_numbers():
    fitted = fit_whitening(X)
    assert fitted.mean == pytest.approx([4.0, 1.75])
    assert fitted.eigenvalues == pytest.approx([5.022049, 2.165451], abs=1e-6)
    z = whiten(X, fitted)
    assert np.cov(z, rowvar=False, ddof=0) == pytest.approx(np.eye(2), abs=1e-9)
    units = z / np.linalg.norm(z, axis=1, keepdims=True)
    cosines = [
        [1.0, 0.169793, -0.091667, -0.974252],
        [0.169793, 1.0, -0.996895, 0.056766],
        [-0.091667, -0.996895, 1.0, -0.135205],
        [-0.974252, 0.056766, -0.135205, 1.0],
    ]
    assert units @ units.T == pytest.approx(np.array(cosines), abs=1e-5)


@pytest.fixture
def cloud():
    dice = np.random.default_rng(0)
    return dice.normal(size=(200, 8)) @ dice.normal(size=(8, 8)) + dice.normal(size=8)


@pytest.mark.parametrize("dimension", [None, 8, 5, 1])
def test_the_result_has_mean_zero_and_covariance_one(cloud, dimension):
    z = whiten(cloud, fit_whitening(cloud, dimension=dimension))
    assert z.shape == (200, dimension or 8)
    assert z.mean(axis=0) == pytest.approx(0, abs=1e-9)
    assert z.T @ z / 200 == pytest.approx(np.eye(dimension or 8), abs=1e-9)


def test_the_leading_directions_are_kept(cloud):
    whole, part = fit_whitening(cloud), fit_whitening(cloud, dimension=3)
    assert (np.diff(whole.eigenvalues) <= 0).all()
    assert part.eigenvalues == pytest.approx(whole.eigenvalues[:3])
    assert whiten(cloud, part) == pytest.approx(whiten(cloud, whole)[:, :3])


def test_fewer_vectors_than_dimensions_stay_finite():
    few = np.random.default_rng(0).normal(size=(3, 8)).astype(np.float32)
    fitted = fit_whitening(few)
    assert fitted.eigenvalues[-1] == 1e-12
    assert np.isfinite(whiten(few, fitted)).all()


def test_one_dimension():
    z = whiten([[1.0], [3.0]], fit_whitening([[1.0], [3.0]]))
    assert np.abs(z).ravel() == pytest.approx([1, 1])


@pytest.mark.parametrize(
    ("vectors", "dimension", "message"),
    [
        ([[1.0, 2.0]], None, r"N at least 2, not \[1, 2\]"),
        ([1.0, 2.0], None, r"must be \[N, d\]"),
        (X, 0, "dimension must lie in 1…2, not 0"),
        (X, 3, "dimension must lie in 1…2, not 3"),
    ],
)
def test_what_does_not_fit_is_refused(vectors, dimension, message):
    with pytest.raises(ValueError, match=message):
        fit_whitening(vectors, dimension=dimension)
