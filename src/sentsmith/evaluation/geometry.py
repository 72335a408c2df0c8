"""Alignment and uniformity of vectors on the unit sphere, and similarities in bands of gold score.

Wang and Isola 2020, "Understanding Contrastive Representation Learning through Alignment and Uniformity on
the Hypersphere", section 4.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.pairs import ScoredPairs

if TYPE_CHECKING:
    import torch

ALIKE = 4.0
"""A pair with a gold score above this (of 5) is a positive pair."""
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


@dataclass(frozen=True)
class PairGeometry:
    """How a model places scored pairs.

    Attributes:
        alignment: Over the positive pairs.
        uniformity: Over all distinct sentences.
        positives: How many pairs the alignment is over.
        sentences: How many sentences the uniformity is over.
    """

    alignment: float
    uniformity: float
    positives: int
    sentences: int


def pair_geometry(embedded: Embedded, pairs: ScoredPairs, *, above: float = ALIKE) -> PairGeometry:
    """Return the alignment of the pairs that people found alike and the uniformity of all sentences.

    The paper's convention (METHODS §8): positives are STS-B pairs with a gold score above 4.

    Args:
        embedded: Holds every sentence of the pairs: ``Embedded(pairs.texts(), encoder)``.
        pairs: Gold scores from 0 to 5.
        above: A pair is positive if its gold score is greater.

    Raises:
        InputError: No pair has a gold score above ``above``, or there is only one sentence.
    """
    positive = np.flatnonzero(pairs.gold > above)
    if not len(positive):
        raise InputError(f"no pair has a gold score above {above:g}; alignment needs such pairs, scored from 0 to 5")
    first, second = (
        embedded.rows([sentences[row] for row in positive]) for sentences in (pairs.sentences1, pairs.sentences2)
    )
    distinct = list(dict.fromkeys(pairs.texts()))
    return PairGeometry(alignment(first, second), uniformity(embedded.rows(distinct)), len(positive), len(distinct))


def similarity_bands(
    cosines: ArrayLike, gold: ArrayLike, *, bands: int = 5, highest: float = 5.0
) -> dict[str, NDArray[np.float64]]:
    """Sort the cosines of scored pairs into bands of gold score of equal width.

    A band holds its upper end and not its lower one (the first holds both), so that of five bands the last is just
    the positive pairs of :func:`pair_geometry`.

    Args:
        cosines: ``[n]``.
        gold: ``[n]``, from 0 to ``highest``.
        bands: How many.
        highest: The greatest gold score possible.

    Returns:
        Band (``"0–1"`` … ``"4–5"``) → float64 ``[its pairs]``, possibly none.

    Raises:
        InputError: The lengths differ, or a gold score lies outside 0 to ``highest``.
    """
    values, scores = np.asarray(cosines, dtype=np.float64), np.asarray(gold, dtype=np.float64)
    if values.shape != scores.shape or values.ndim != 1:
        raise InputError(f"bands need one cosine for each gold score, given {values.shape} and {scores.shape}")
    if not ((scores >= 0) & (scores <= highest)).all():
        raise InputError(f"a gold score lies outside 0 to {highest:g}; bands need that scale")
    edges = np.linspace(0, highest, bands + 1)
    place = np.searchsorted(edges[1:-1], scores, side="left")
    return {f"{edges[band]:g}–{edges[band + 1]:g}": values[place == band] for band in range(bands)}


def _unit(x: Any, name: str) -> NDArray[np.float64]:
    if hasattr(x, "detach"):  # a torch tensor; bfloat16 has no numpy type
        x = x.detach().double().cpu().numpy()
    vectors = np.asarray(x, dtype=np.float64)
    if vectors.ndim != 2:
        raise InputError(f"{name} must be [n, d], given shape {vectors.shape}")
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.asarray(vectors / np.where(norms == 0, 1.0, norms))
