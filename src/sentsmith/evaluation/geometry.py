"""Alignment and uniformity of vectors on the unit sphere.

Wang and Isola 2020, "Understanding Contrastive Representation Learning through Alignment and Uniformity on
the Hypersphere", section 4.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentsmith.errors import InputError

if TYPE_CHECKING:
    import torch

_BLOCK = 1024  # rows compared with all later ones at a time


def alignment(x: ArrayLike | torch.Tensor, y: ArrayLike | torch.Tensor) -> float:
    """Return the mean squared distance between the unit vectors of positive pairs; 0 is best, 4 is worst.

    ``mean_i |f(x_i) − f(y_i)|²``; pairs are, by convention, STS-B pairs with a gold score above 4.

    Args:
        x: ``[n, d]``, numpy or torch, any float type; computed in float64.
        y: ``[n, d]``, the partners.

    Raises:
        InputError: The shapes differ, or are not ``[n ≥ 1, d]``.
    """
    first, second = _unit(x, "x"), _unit(y, "y")
    if first.shape != second.shape or not len(first):
        raise InputError(f"alignment needs two [n, d] arrays of one shape, given {first.shape} and {second.shape}")
    return float(((first - second) ** 2).sum(axis=1).mean())


def uniformity(x: ArrayLike | torch.Tensor) -> float:
    """Return how evenly unit vectors cover the sphere; lower is more even, 0 means that all are one.

    ``log mean_{i<j} exp(−2 |f(x_i) − f(x_j)|²)``; blocks of rows, so memory grows with n and not with n².

    Args:
        x: ``[n, d]``, numpy or torch, any float type; computed in float64.

    Raises:
        InputError: There are fewer than two vectors.
    """
    vectors = _unit(x, "x")
    count = len(vectors)
    if count < 2:
        raise InputError(f"uniformity needs two vectors or more, given {count}")
    total = 0.0
    for start in range(0, count, _BLOCK):
        block = vectors[start : start + _BLOCK]
        # |a − b|² = |a|² + |b|² − 2ab; the norms are 1, or 0 for a zero vector.
        later = vectors[start:]
        squared = (block**2).sum(axis=1)[:, None] + (later**2).sum(axis=1) - 2 * block @ later.T
        total += np.triu(np.exp(-2 * np.maximum(squared, 0)), k=1).sum()
    return float(np.log(total / (count * (count - 1) / 2)))


def _unit(x: Any, name: str) -> NDArray[np.float64]:
    if hasattr(x, "detach"):  # a torch tensor; bfloat16 has no numpy type
        x = x.detach().double().cpu().numpy()
    vectors = np.asarray(x, dtype=np.float64)
    if vectors.ndim != 2:
        raise InputError(f"{name} must be [n, d], given shape {vectors.shape}")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms == 0, 1.0, norms))
