"""BERT-whitening (Su et al. 2021): a linear map that gives the vectors of a corpus mean 0 and covariance I."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

_FLOOR = 1e-12


class Whitening(NamedTuple):
    """``z = (x − mean) · matrix``.

    Attributes:
        mean: ``[d]`` float64.
        matrix: ``[d, k]`` float64.
        eigenvalues: ``[k]`` float64, of the covariance, descending.
    """

    mean: NDArray[np.float64]
    matrix: NDArray[np.float64]
    eigenvalues: NDArray[np.float64]


def fit_whitening(vectors: ArrayLike, *, dimension: int | None = None) -> Whitening:
    """Fit the whitening of ``vectors``: Σ = UΛUᵀ, matrix = U·Λ^(−1/2), leading columns.

    Eigenvalues are floored at 1e-12. The map is unique only up to a rotation.

    Args:
        vectors: ``[N, d]``, computed in float64.
        dimension: k, how many leading directions to keep; all d by default.

    Raises:
        ValueError: Fewer than 2 vectors, or k outside 1…d.
    """
    x = np.asarray(vectors, dtype=np.float64)
    if x.ndim != 2 or len(x) < 2:
        raise ValueError(f"vectors must be [N, d] with N at least 2, not {list(x.shape)}")
    keep = x.shape[1] if dimension is None else dimension
    if not 1 <= keep <= x.shape[1]:
        raise ValueError(f"dimension must lie in 1…{x.shape[1]}, not {keep}")
    mean = x.mean(axis=0)
    covariance = np.cov(x, rowvar=False, ddof=0).reshape(x.shape[1], x.shape[1])
    values, directions = np.linalg.eigh(covariance)
    order = np.argsort(values)[::-1][:keep]
    eigenvalues = np.maximum(values[order], _FLOOR)
    return Whitening(mean, directions[:, order] / np.sqrt(eigenvalues), eigenvalues)


def whiten(vectors: ArrayLike, whitening: Whitening) -> NDArray[np.float64]:
    """Return ``[N, k]`` float64."""
    return (np.asarray(vectors, dtype=np.float64) - whitening.mean) @ whitening.matrix
