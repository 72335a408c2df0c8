"""The contrastive loss of SimCSE (Gao et al. 2021), unsupervised and supervised.

Pure functions first; :class:`SimCSELoss` embeds and delegates.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

from sentsmith.encoders.chunked import Chunking, Features, forward, join
from sentsmith.encoders.gathering import gather_features, gather_rows, process_count


def cosine_matrix(first: Tensor, second: Tensor) -> Tensor:
    """Return the cosines of all pairs, ``[n, m]``, at least float32; a zero vector has cosine 0 with everything.

    Half-precision vectors are widened first, and autocast (which would narrow the product again) is off: bf16 cosines
    have about three digits, which makes ties.
    """
    with torch.autocast(first.device.type, enabled=False):
        return unit_vectors(first) @ unit_vectors(second).T


def unit_vectors(vectors: Tensor) -> Tensor:
    """Return the vectors scaled to length 1, at least float32; a zero vector stays zero."""
    return functional.normalize(at_least_float32(vectors), dim=-1, eps=1e-8)


def at_least_float32(vectors: Tensor) -> Tensor:
    """Return the vectors in float32, or as they are where they are wider: half precision makes ties."""
    return vectors.to(torch.promote_types(vectors.dtype, torch.float32))


def info_nce(
    anchors: Tensor,
    positives: Tensor,
    negatives: Tensor | None = None,
    *,
    temperature: float,
    keep: Tensor | None = None,
    hard_negative_log_weight: float = 0.0,
) -> Tensor:
    """Return the mean InfoNCE loss of a batch (SimCSE, Eqs. 1 and 5).

    ``L_i = LSE over the candidates of cos(h_i, ·)/τ − cos(h_i, h_i⁺)/τ``. The candidates are every positive of the
    batch and, if given, every hard negative.

    Args:
        anchors: ``[B, d]``.
        positives: ``[B, d]``; row i belongs to anchor i, the others are its in-batch negatives.
        negatives: ``[B, d]`` hard negatives, if any.
        temperature: τ, above 0; cosines are divided by it.
        keep: Bool ``[B, B]``, or ``[B, 2B]`` with negatives; False removes a candidate. The anchor's own positive is
            never removed: without it the loss has no meaning.
        hard_negative_log_weight: Added to the logit of the anchor's own hard negative (log of its weight; SimCSE's
            supervised training uses 0).

    Returns:
        A scalar, at least float32.

    Raises:
        ValueError: Shapes that do not fit, or a temperature that is not positive.
    """
    _check(anchors, positives, negatives, temperature, keep)
    logits = cosine_matrix(anchors, positives if negatives is None else torch.cat([positives, negatives])) / temperature
    own = torch.arange(len(anchors), device=logits.device)
    if negatives is not None and hard_negative_log_weight != 0.0:
        weight = torch.zeros_like(logits)
        weight[own, own + len(anchors)] = hard_negative_log_weight
        logits = logits + weight
    if keep is not None:
        removed = ~keep
        removed[own, own] = False
        # −inf and not a factor of 0: a masked candidate must vanish from the sum, not act as a cosine of 0.
        logits = logits.masked_fill(removed, float("-inf"))
    loss: Tensor = functional.cross_entropy(logits, own)
    return loss


def _check(
    anchors: Tensor, positives: Tensor, negatives: Tensor | None, temperature: float, keep: Tensor | None
) -> None:
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    if anchors.dim() != 2 or anchors.shape != positives.shape:
        raise ValueError(
            f"anchors and positives must both be [B, d], not {list(anchors.shape)} and {list(positives.shape)}"
        )
    if negatives is not None and negatives.shape != anchors.shape:
        raise ValueError(f"negatives must be {list(anchors.shape)} like the anchors, not {list(negatives.shape)}")
    candidates = len(anchors) * (1 if negatives is None else 2)
    if keep is not None and (keep.dtype != torch.bool or keep.shape != (len(anchors), candidates)):
        raise ValueError(f"keep must be bool [{len(anchors)}, {candidates}], not {keep.dtype} {list(keep.shape)}")


def distinct(features: Features, rows: int) -> Tensor:
    """Return which candidates of :func:`info_nce` are no copies of the anchor or of its positive.

    Args:
        features: The joined columns: ``rows`` anchors, ``rows`` positives and possibly ``rows`` negatives.
        rows: B.

    Returns:
        Bool ``[B, B]``, or ``[B, 2B]`` with negatives; False where the candidate's text (its token ids) equals the
        anchor's or the positive's. The own positive is True.
    """
    ids = features["input_ids"] * features["attention_mask"] - (1 - features["attention_mask"])
    _, text = torch.unique(ids, dim=0, return_inverse=True)
    anchors, candidates = text[:rows, None], text[None, rows:]
    keep: Tensor = (candidates != anchors) & (candidates != text[rows : 2 * rows, None])
    own = torch.arange(rows, device=keep.device)
    keep[own, own] = True
    return keep


class SimCSELoss(nn.Module):
    """SimCSE as a loss that sentence-transformers' trainer accepts.

    One column trains unsupervised: each sentence is encoded twice, and only dropout tells the two apart. Two columns
    are (anchor, positive); three are (anchor, positive, hard negative), the supervised form.

    Args:
        model: The model to train.
        temperature: τ of the equation.
        chunking: How a batch is cut for the forward pass.
        hard_negative_log_weight: See :func:`info_nce`.
        mask_duplicates: Do not count a text that equals the anchor or its positive as a negative (see
            :func:`distinct`). The paper counts it.
        pad_token_id: The tokenizer's, see :func:`sentsmith.encoders.chunked.join`.
        gather_across_devices: In training on several processes, compute the loss over the rows of all of them
            (:mod:`sentsmith.encoders.gathering`): P processes with B rows each then train like one with P·B rows.
            Off, each process has its own rows as negatives only.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        temperature: float = 0.05,
        chunking: Chunking | None = None,
        hard_negative_log_weight: float = 0.0,
        mask_duplicates: bool = True,
        pad_token_id: int = 0,
        gather_across_devices: bool = True,
    ) -> None:
        super().__init__()
        self.model = model
        self.temperature = temperature
        self.chunking = chunking or Chunking()
        self.hard_negative_log_weight = hard_negative_log_weight
        self.mask_duplicates = mask_duplicates
        self.pad_token_id = pad_token_id
        self.gather_across_devices = gather_across_devices

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the scalar loss of one batch; ``sentence_features`` has one entry per column."""
        vectors, keep = self.embedded(sentence_features, labels)
        return self.contrast(*vectors, keep=keep)

    def embedded(
        self, sentence_features: Iterable[Features], labels: Tensor | None = None
    ) -> tuple[tuple[Tensor, ...], Tensor | None]:
        """Return what the loss of one batch is computed from.

        Returns:
            The vectors of all processes, ``[B, d]`` for each column (one column gives two); and which candidates
            count, see :meth:`kept`.
        """
        columns = list(sentence_features)
        if len(columns) == 1:
            columns = [columns[0], columns[0]]
        if len(columns) > 3:
            raise ValueError(f"SimCSE takes one, two or three text columns, not {len(columns)}")
        features = join(columns, pad_token_id=self.pad_token_id)
        vectors = forward(self.model, features, self.chunking)
        # [row, column, d]: a row travels with all its columns, in one exchange.
        vectors = vectors.reshape(len(columns), -1, vectors.shape[1]).transpose(0, 1)
        if self.gather_across_devices:
            vectors = gather_rows(vectors)
        return vectors.unbind(dim=1), self.kept(columns, features, labels)

    def kept(self, columns: list[Features], features: dict[str, Tensor], labels: Tensor | None) -> Tensor | None:  # noqa: ARG002 - a loss with a mask of its own looks rows up by them
        """Return which candidates count, as :func:`info_nce` takes it; None where all do.

        Args:
            columns: The text columns of this process's rows.
            features: The same, joined.
            labels: int64 ``[B]`` of this process's rows, where the data have some.
        """
        if not self.mask_duplicates:
            return None
        texts = self._texts(columns, features)
        return distinct(texts, len(texts["input_ids"]) // len(columns))

    def contrast(
        self, anchors: Tensor, positives: Tensor, negatives: Tensor | None = None, *, keep: Tensor | None
    ) -> Tensor:
        """Return the loss of the vectors of all processes; see :func:`info_nce`."""
        return info_nce(
            anchors,
            positives,
            negatives,
            temperature=self.temperature,
            keep=keep,
            hard_negative_log_weight=self.hard_negative_log_weight,
        )

    def _texts(self, columns: list[Features], joined: dict[str, Tensor]) -> dict[str, Tensor]:
        """Return the joined columns of all processes whose vectors are in the loss."""
        if not self.gather_across_devices or process_count() == 1:
            return joined
        everyones = [gather_features(column, pad_token_id=self.pad_token_id) for column in columns]
        return join(everyones, pad_token_id=self.pad_token_id)

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the loss."""
        return {
            "temperature": self.temperature,
            "hard_negative_log_weight": self.hard_negative_log_weight,
            "mask_duplicates": self.mask_duplicates,
            "gather_across_devices": self.gather_across_devices,
        }
