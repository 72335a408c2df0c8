"""The losses of BeLLM: SimCSE's supervised one, AnglE's terms beside it, and that of conditional STS.

BeLLM (Li and Li 2024) trains by SimCSE's supervised loss; its released code by AnglE's (Li and Li 2023), whose other
two terms are an option here. How it trains for C-STS is not said: that loss is the one of C-STS's own bi-encoder
(Deshpande et al. 2023).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sentsmith.encoders.chunked import Chunking, Features
from sentsmith.methods.simcse.objective import SimCSELoss, unit_vectors

SCALE = 20.0
"""What AnglE multiplies its similarities by, 1/τ."""


def cosent(scores: Tensor, labels: Tensor, *, scale: float = SCALE) -> Tensor:
    """Return the CoSENT loss: ``log(1 + Σ exp(scale·(s_p − s_q)))`` over all p, q with a lower label for p.

    Args:
        scores: ``[n]``, the similarities of n pairs.
        labels: ``[n]``, how alike the pairs are meant to be; only their order is read.
        scale: Above 0.

    Returns:
        A scalar, at least float32; 0 where all labels are the same.

    Raises:
        ValueError: Shapes that do not fit, or a scale that is not positive.
    """
    if scale <= 0:
        raise ValueError(f"scale must be above 0, not {scale}")
    if scores.dim() != 1 or labels.shape != scores.shape:
        raise ValueError(f"scores and labels must both be [n], not {list(scores.shape)} and {list(labels.shape)}")
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    excess = scale * (scores[:, None] - scores[None, :])
    # −inf and not a factor of 0, as in info_nce; the 0 in front is the 1 inside the logarithm.
    wrong = excess.masked_fill(labels[:, None] >= labels[None, :], float("-inf")).flatten()
    return torch.cat([wrong.new_zeros(1), wrong]).logsumexp(dim=0)


def cosines_of_pairs(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosine of each row with the same row of the other, ``[B]``, at least float32.

    Raises:
        ValueError: They are not both ``[B, d]``.
    """
    _check_pairs(first, second)
    return (unit_vectors(first) * unit_vectors(second)).sum(dim=1)


def angle_similarity(first: Tensor, second: Tensor) -> Tensor:
    """Return |δ| of each pair of rows (AnglE; METHODS.md §2 has the form of its code).

    A vector is read as d/2 complex numbers, its first half the real parts and its second half the imaginary ones:
    ``|Σ Re(z·w̄) + Σ Im(z·w̄)| / (|u|·|v|)``.

    Args:
        first: ``[B, d]``, d even.
        second: ``[B, d]``.

    Returns:
        ``[B]`` in [0, √2], at least float32; 0 where a vector is zero.

    Raises:
        ValueError: Shapes that do not fit, or an odd d.
    """
    _check_pairs(first, second)
    if first.shape[1] % 2:
        raise ValueError(f"vectors are read as complex numbers and need an even length, not {first.shape[1]}")
    a, b = unit_vectors(first).chunk(2, dim=1)
    c, d = unit_vectors(second).chunk(2, dim=1)
    return (a * c + b * d + b * c - a * d).sum(dim=1).abs()


def angle_loss(first: Tensor, second: Tensor, labels: Tensor, *, scale: float = SCALE) -> Tensor:
    """Return the CoSENT loss over :func:`angle_similarity`; ``[B, d]``, ``[B, d]`` and ``[B]``."""
    return cosent(angle_similarity(first, second), labels, scale=scale)


def _check_pairs(first: Tensor, second: Tensor) -> None:
    if first.dim() != 2 or first.shape != second.shape:
        raise ValueError(f"both must be [B, d], not {list(first.shape)} and {list(second.shape)}")


def squared_error(cosines: Tensor, scores: Tensor) -> Tensor:
    """Return the mean squared difference of cosines and scores, those brought from 1…5 to 0…1; ``[N]`` each."""
    return functional.mse_loss(cosines, (scores.to(cosines.dtype) - 1) / 4)


def quadruplet_hinge(cosines: Tensor, scores: Tensor, pairs: Tensor) -> Tensor:
    """Return the mean of ``max(0, 1 + (1 − cos⁺) − (1 − cos⁻))`` over the quadruplets of a batch; 0 without one.

    Two conditions of one pair of sentences are a quadruplet: the vectors of the two sentences under the one and under
    the other. The condition with the higher score is the positive. With equal scores there is neither (the authors'
    code takes one by chance); of three conditions, each two are a quadruplet.

    Args:
        cosines: ``[N]``, of the two sentences under a condition.
        scores: ``[N]``.
        pairs: ``[N]``, the same number for the same pair of sentences.
    """
    better = (pairs[:, None] == pairs[None, :]) & (scores[:, None] > scores[None, :])
    positives, negatives = better.nonzero(as_tuple=True)
    if not len(positives):
        return cosines.new_zeros(())
    return (1 - cosines[positives] + cosines[negatives]).clamp_min(0).mean()


def conditional_parts(
    first: Tensor, second: Tensor, scores: Tensor, *, hinge_weight: float = 1.0, pairs: Tensor
) -> dict[str, Tensor]:
    """Return the loss of conditional STS in its parts, whose sum it is: squared error of the cosines, and the hinge.

    Source: the ``triplet_mse`` objective of C-STS's bi-encoder (Deshpande et al. 2023). That one leaves out pairs of
    sentences that have one condition only; here they are in the squared error.

    Args:
        first: ``[N, d]``, the first sentence under the condition.
        second: ``[N, d]``.
        scores: ``[N]``, from 1 to 5.
        hinge_weight: Of :func:`quadruplet_hinge`; the squared error has 1.
        pairs: int64 ``[N]``, the same number for the conditions of the same two sentences.

    Returns:
        ``mse`` and (its weight above 0) ``hinge``, weighted; scalars, at least float32.

    Raises:
        ValueError: Shapes that do not fit, or a negative weight.
    """
    if scores.shape != first.shape[:1] or pairs.shape != scores.shape:
        raise ValueError(
            f"scores and pairs must be [{len(first)}] like the vectors, not {list(scores.shape)} and "
            f"{list(pairs.shape)}"
        )
    if hinge_weight < 0:
        raise ValueError(f"hinge_weight must be 0 or more, not {hinge_weight}")
    with torch.autocast(first.device.type, enabled=False):
        cosines = cosines_of_pairs(first, second)
        parts = {"mse": squared_error(cosines, scores)}
        if hinge_weight:
            parts["hinge"] = hinge_weight * quadruplet_hinge(cosines, scores, pairs)
        return parts


class BellmLoss(SimCSELoss):
    """SimCSE's supervised loss, with AnglE's terms beside it where their weights are above 0.

    The two terms order the pairs (anchor, positive), which are alike, and (anchor, hard negative), which are not, of
    the whole batch: every one of the former above every one of the latter.

    Args:
        model: The model to train.
        contrastive_weight: Of SimCSE's loss (AnglE's ``ibn``). With 1, and the other two 0, this is
            :class:`~sentsmith.methods.simcse.objective.SimCSELoss`.
        cosine_weight: Of :func:`cosent` over cosines.
        angle_weight: Of :func:`angle_loss`.
        temperature: τ of SimCSE's loss; the others have their own scale.
        chunking: How a batch is cut for the forward pass.
        hard_negative_log_weight: See :func:`~sentsmith.methods.simcse.objective.info_nce`.
        mask_duplicates: Do not count a text that equals the anchor or its positive as a negative in SimCSE's loss.
        pad_token_id: The tokenizer's.
        gather_across_devices: Compute the loss over the rows of all processes.

    Raises:
        ValueError: A weight is negative, or all are 0.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        contrastive_weight: float = 1.0,
        cosine_weight: float = 0.0,
        angle_weight: float = 0.0,
        temperature: float = 0.05,
        chunking: Chunking | None = None,
        hard_negative_log_weight: float = 0.0,
        mask_duplicates: bool = True,
        pad_token_id: int = 0,
        gather_across_devices: bool = True,
    ) -> None:
        super().__init__(
            model,
            temperature=temperature,
            chunking=chunking,
            hard_negative_log_weight=hard_negative_log_weight,
            mask_duplicates=mask_duplicates,
            pad_token_id=pad_token_id,
            gather_across_devices=gather_across_devices,
        )
        self.weights = {"contrastive": contrastive_weight, "cosine": cosine_weight, "angle": angle_weight}
        if min(self.weights.values()) < 0 or not any(self.weights.values()):
            raise ValueError(f"weights must be 0 or more, and one of them above 0, not {self.weights}")

    def forward(  # type: ignore[override]  # the trainer takes parts too
        self, sentence_features: Iterable[Features], labels: Tensor | None = None
    ) -> Tensor | dict[str, Tensor]:
        """Return the scalar loss of one batch, or its parts by name, whose sum it is, where AnglE's terms are in it.

        Raises:
            ValueError: Columns that do not fit; AnglE's terms need three (anchor, positive, negative).
        """
        columns = list(sentence_features)
        angle = bool(self.weights["cosine"] or self.weights["angle"])
        if angle and len(columns) != 3:
            raise ValueError(f"AnglE's terms take three text columns (anchor, positive, negative), not {len(columns)}")
        vectors, keep = self.embedded(columns, labels)
        parts = {}
        if self.weights["contrastive"]:
            parts["contrastive"] = self.weights["contrastive"] * self.contrast(*vectors, keep=keep)
        if not angle:
            return parts["contrastive"]
        return parts | self.angle_terms(*vectors)

    def angle_terms(self, anchors: Tensor, positives: Tensor, negatives: Tensor) -> dict[str, Tensor]:
        """Return AnglE's terms whose weight is above 0, weighted; ``[B, d]`` each."""
        with torch.autocast(anchors.device.type, enabled=False):
            first, second = torch.cat([anchors, anchors]), torch.cat([positives, negatives])
            labels = torch.arange(2, device=first.device).flip(0).repeat_interleave(len(anchors))
            parts = {}
            if self.weights["cosine"]:
                parts["cosine"] = self.weights["cosine"] * cosent(cosines_of_pairs(first, second), labels)
            if self.weights["angle"]:
                parts["angle"] = self.weights["angle"] * angle_loss(first, second, labels)
            return parts

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the loss."""
        return super().get_config_dict() | {f"{name}_weight": weight for name, weight in self.weights.items()}
