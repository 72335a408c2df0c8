"""MultiCSR's second stage: which of the written triplets are kept, by the scores of their two pairs.

The model that wrote them scores (anchor, positive) as ``a`` and (anchor, negative) as ``b``, from 0 to 5; a triplet is
kept if ``a ≥ α``, ``b ≤ β`` and ``a ≥ b + γ``.
"""

from __future__ import annotations

from typing import Literal, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import Field, model_validator

from sentsmith.llm.outputs import AskingSettings

# Scores have one decimal and binary floats do not: 3.3 ≥ 2.2 + 1.1 must hold.
_ROUNDING = 1e-9
_HIGHEST = 5.0
# The released code wants the lower score of a pair at most this.
_LOWER_AT_MOST = 4.0

Verdict = Literal["keep", "keep_swapped", "drop"]


class CurationSettings(AskingSettings):
    """Which triplets are kept, and how they are scored."""

    alpha: float = Field(default=3.0, ge=0.0, le=5.0, description="α, the positive pair's lowest score")
    beta: float = Field(default=3.0, ge=0.0, le=5.0, description="β, the negative pair's highest score")
    gamma: float = Field(default=1.0, ge=-5.0, le=5.0, description="γ, how far the positive's is above the negative's")
    swap_and_neq: bool = Field(
        default=False, description="The released code's rule: the better of the two is the positive, γ is not used"
    )
    max_new_tokens: int = Field(default=16, ge=1, description="The longest answer, its end sign included")

    @model_validator(mode="after")
    def _one_rule(self) -> Self:
        if self.swap_and_neq and self.gamma != type(self).model_fields["gamma"].default:
            raise ValueError("gamma belongs to the paper's rule; swap_and_neq asks for no margin: give one of the two")
        return self


def accept(positive_score: float, negative_score: float, *, alpha: float, beta: float, gamma: float) -> bool:
    """Tell whether a triplet is kept: ``a ≥ α`` and ``b ≤ β`` and ``a ≥ b + γ`` (MultiCSR §3.2).

    Args:
        positive_score: a, the score of anchor and positive, 0 to 5.
        negative_score: b, the score of anchor and negative, 0 to 5.
        alpha: α.
        beta: β.
        gamma: γ.
    """
    return positive_score >= alpha and negative_score <= beta and positive_score - negative_score >= gamma - _ROUNDING


def swap_and_neq(positive_score: float, negative_score: float, *, alpha: float, beta: float) -> Verdict:
    """Return what MultiCSR's released code does with a triplet.

    The higher score counts as the positive's; if it is the negative's, the two change places. The lower one must be 4
    or less; then ``a ≥ α``, ``b ≤ β`` and ``a ≠ b``. (That code also lets answers from 5.1 to 5.9 pass; here they are
    no scores, and their triplets go to quarantine.)
    """
    high, low = max(positive_score, negative_score), min(positive_score, negative_score)
    if not (low <= _LOWER_AT_MOST and high >= alpha and low <= beta and high != low):
        return "drop"
    return "keep_swapped" if negative_score > positive_score else "keep"


def verdict(positive_score: float, negative_score: float, settings: CurationSettings) -> Verdict:
    """Return what becomes of a triplet under the rule of ``settings``."""
    if settings.swap_and_neq:
        return swap_and_neq(positive_score, negative_score, alpha=settings.alpha, beta=settings.beta)
    kept = accept(positive_score, negative_score, alpha=settings.alpha, beta=settings.beta, gamma=settings.gamma)
    return "keep" if kept else "drop"


def thresholds(step: float = 0.5) -> list[float]:
    """Return the values that α and β take in a table: 0, step … 5."""
    return [place * step for place in range(round(_HIGHEST / step) + 1)]


def kept_by_threshold(
    positive_scores: ArrayLike, negative_scores: ArrayLike, *, steps: ArrayLike, settings: CurationSettings
) -> NDArray[np.int64]:
    """Count the triplets that each pair of thresholds would keep (MultiCSR's Table 6).

    Args:
        positive_scores: ``[n]``.
        negative_scores: ``[n]``.
        steps: ``[t]``, the values that α and β take.
        settings: Gives γ, or the released code's rule.

    Returns:
        int64 ``[t, t]``: α by row, β by column.
    """
    a, b = np.asarray(positive_scores, np.float64), np.asarray(negative_scores, np.float64)
    limits = np.asarray(steps, np.float64)
    if settings.swap_and_neq:
        a, b = np.maximum(a, b), np.minimum(a, b)
        possible = (b <= _LOWER_AT_MOST) & (a != b)
    else:
        possible = a - b >= settings.gamma - _ROUNDING
    a, b = a[possible], b[possible]
    above = a[None, :] >= limits[:, None]
    below = b[None, :] <= limits[:, None]
    counts: NDArray[np.int64] = above.astype(np.float64) @ below.T.astype(np.float64)
    return counts.astype(np.int64)
