"""MultiCSR's third stage: the contrastive loss without the candidates that a frozen model finds too like the anchor.

In a batch of triplets every positive and every hard negative of another row counts as a negative. Some of them mean the
same as the anchor. A frozen model P_η finds them: where its cosine reaches σ the candidate is taken out of the sum
(MultiCSR, Eqs. 6 and 7). Pure functions first; :class:`MultiCSRLoss` asks the masker and delegates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

from sentsmith.encoders.chunked import Chunking, Features
from sentsmith.encoders.gathering import gather_rows
from sentsmith.methods.simcse.objective import SimCSELoss, at_least_float32, cosine_matrix


def false_negative_keep(anchors: Tensor, positives: Tensor, negatives: Tensor, *, threshold: float) -> Tensor:
    """Return which candidates are kept as negatives (MultiCSR, Eq. 6).

    The equation exempts a candidate whose *premise* equals the anchor's, and with it a second copy of the premise in
    the batch; here the anchor's own row alone is exempt.

    Args:
        anchors: ``[B, d]`` of the frozen model; of any float dtype, the cosines are at least float32.
        positives: ``[B, d]``.
        negatives: ``[B, d]``.
        threshold: σ; a candidate whose cosine with the anchor is σ or more is not kept.

    Returns:
        Bool ``[B, 2B]``, positives first. The own positive and the own hard negative are True. No gradient.

    Raises:
        ValueError: Shapes that differ.
    """
    return keep_below(_cosines(anchors, positives, negatives), threshold=threshold)


def keep_below(cosines: Tensor, *, threshold: float) -> Tensor:
    """Return :func:`false_negative_keep` of cosines that are known, ``[B, 2B]``."""
    # A cosine that is no number tells nothing: such a candidate stays.
    keep = ~(cosines >= threshold)
    own = torch.arange(len(keep), device=keep.device)
    keep[own, own] = True
    keep[own, own + len(keep)] = True
    return keep


def released_keep(anchors: Tensor, positives: Tensor, negatives: Tensor, *, threshold: float) -> Tensor:
    """Return the mask of the authors' code, which differs from Eq. 6: see :func:`released_keep_of`.

    Takes, returns and raises what :func:`false_negative_keep` does.
    """
    return released_keep_of(_cosines(anchors, positives, negatives), threshold=threshold)


def released_keep_of(cosines: Tensor, *, threshold: float) -> Tensor:
    """Return the mask of the authors' code for cosines ``[B, 2B]``.

    A cosine of exactly σ is kept, and the own hard negative is masked like any other candidate.
    """
    keep = cosines <= threshold
    own = torch.arange(len(keep), device=keep.device)
    keep[own, own] = True
    return keep


def _cosines(anchors: Tensor, positives: Tensor, negatives: Tensor) -> Tensor:
    shapes = [list(part.shape) for part in (anchors, positives, negatives)]
    if anchors.dim() != 2 or any(shape != shapes[0] for shape in shapes):
        raise ValueError(f"anchors, positives and negatives must all be [B, d] of one shape, not {shapes}")
    # Widened before they are joined: autocast on a processor cannot join fp16.
    candidates = torch.cat([at_least_float32(part.detach()) for part in (positives, negatives)])
    return cosine_matrix(anchors.detach(), candidates)


def bce_logit_zero(
    anchors: Tensor, positives: Tensor, negatives: Tensor, *, temperature: float, keep: Tensor
) -> Tensor:
    """Return the loss of the authors' code, which is not the paper's Eq. 7.

    A masked candidate's *logit* becomes 0, so that it counts as a cosine of 0, and the loss is the binary cross-entropy
    between the softmax matrix and the identity, averaged over all of its entries: about 1/(2B) of Eq. 7's gradient.

    Args:
        anchors: ``[B, d]``.
        positives: ``[B, d]``.
        negatives: ``[B, d]``.
        temperature: τ.
        keep: Bool ``[B, 2B]``, see :func:`released_keep`.

    Returns:
        A scalar, at least float32.
    """
    # Binary cross-entropy refuses half precision, into which autocast would turn its input.
    with torch.autocast(anchors.device.type, enabled=False):
        logits = cosine_matrix(anchors, torch.cat([positives, negatives])) / temperature
        own = torch.eye(*logits.shape, dtype=logits.dtype, device=logits.device)
        shares = logits.masked_fill(~keep, 0.0).softmax(dim=1)
        loss: Tensor = functional.binary_cross_entropy(shares, own)
    return loss


class Masker(Protocol):
    """The frozen model's vectors of a batch (:mod:`sentsmith.methods.multicsr.masking`)."""

    def __call__(self, features: Mapping[str, Tensor], labels: Tensor | None) -> Tensor:
        """Return ``[B, 3, d]`` of this process's rows: anchor, positive, negative.

        Args:
            features: The joined columns as the model in training reads them: ``3B`` rows.
            labels: int64 ``[B]``, the rows' numbers in the training set.
        """
        ...


class MultiCSRLoss(SimCSELoss):
    """MultiCSR's masked loss as a loss that sentence-transformers' trainer accepts; takes triplets.

    Args:
        model: The model to train.
        masker: Gives the frozen model's vectors. It is no submodule, so that neither optimiser nor checkpoint sees it.
        threshold: σ of :func:`false_negative_keep`.
        bce_logit_zero: The loss and the mask of the authors' code (:func:`bce_logit_zero`, :func:`released_keep`).
        temperature: τ.
        chunking: How a batch is cut for the forward pass.
        hard_negative_log_weight: See :func:`sentsmith.methods.simcse.objective.info_nce`; 0 with ``bce_logit_zero``.
        mask_duplicates: Also mask a text of another row that equals the anchor or its positive.
        pad_token_id: The tokenizer's.
        gather_across_devices: Compute loss and mask over the rows of all processes.
    """

    def __init__(
        self,
        model: nn.Module,
        masker: Masker | None,
        *,
        threshold: float = 0.9,
        bce_logit_zero: bool = False,
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
        if bce_logit_zero and hard_negative_log_weight != 0.0:
            raise ValueError("the authors' loss (bce_logit_zero) knows no hard_negative_log_weight; leave it at 0")
        # In a tuple: an nn.Module that is assigned would become a part of the loss, and its weights would be trained.
        self._masker = (masker,)
        self.threshold = threshold
        self.bce_logit_zero = bce_logit_zero

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the scalar loss of one batch.

        Args:
            sentence_features: Three entries: anchors, positives, negatives.
            labels: int64 ``[B]``, the rows' numbers in the training set, for a masker that looks vectors up.

        Raises:
            ValueError: Not three columns.
        """
        columns = list(sentence_features)
        if len(columns) != 3:
            raise ValueError(f"MultiCSR takes three text columns (anchor, positive, negative), not {len(columns)}")
        return super().forward(columns, labels)

    def kept(self, columns: list[Features], features: dict[str, Tensor], labels: Tensor | None) -> Tensor | None:
        """Return which candidates count: what the masker keeps, less the duplicates where those are masked."""
        keep = super().kept(columns, features, labels)
        if keep is not None:
            # An own hard negative that repeats its anchor or positive is what the data says is none, as in Eq. 6.
            own = torch.arange(len(keep), device=keep.device)
            keep[own, own + len(keep)] = True
        (masker,) = self._masker
        if masker is None:
            return keep
        with torch.no_grad():
            vectors = masker(features, labels)
            if self.gather_across_devices:
                vectors = gather_rows(vectors)
            rule = released_keep if self.bce_logit_zero else false_negative_keep
            alike = rule(*vectors.unbind(dim=1), threshold=self.threshold)
        return alike if keep is None else alike & keep

    def contrast(
        self, anchors: Tensor, positives: Tensor, negatives: Tensor | None = None, *, keep: Tensor | None
    ) -> Tensor:
        """Return Eq. 7, or the loss of the authors' code."""
        if not self.bce_logit_zero or negatives is None:
            return super().contrast(anchors, positives, negatives, keep=keep)
        if keep is None:
            keep = torch.ones(len(anchors), 2 * len(anchors), dtype=torch.bool, device=anchors.device)
        return bce_logit_zero(anchors, positives, negatives, temperature=self.temperature, keep=keep)

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the loss."""
        return super().get_config_dict() | {
            "mask": self._masker[0] is not None,
            "threshold": self.threshold,
            "bce_logit_zero": self.bce_logit_zero,
        }
