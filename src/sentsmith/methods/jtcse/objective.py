"""The losses of JTCSE: contrast within and across two towers, and the constraint on the length of their vectors.

Every stream (a tower's sentence vectors, its pooled vectors, its cross stream) is ``[2B, d]`` with the two dropout
views of a sentence in neighbouring rows: x₀, x₀⁺, x₁, x₁⁺, … All of it is computed in float32 or wider.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn
from torch.nn import functional

from sentsmith.encoders.chunked import Chunking, Features, forward, join
from sentsmith.encoders.gathering import gather_rows, shared_bit
from sentsmith.methods.jtcse.cross import CrossPlan, layers_of
from sentsmith.methods.jtcse.settings import Views
from sentsmith.methods.jtcse.towers import Joint, require_poolers, tower_pair
from sentsmith.methods.simcse.objective import at_least_float32, cosine_matrix

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

FLOOR = 1e-4
"""Similarities below it count as it does in the coefficient of :func:`modulus_loss`."""
_TINY = 1e-12


@dataclass(frozen=True)
class Parts:
    """Which parts of the loss are computed, and in which form.

    Attributes:
        nce: Contrast within each tower.
        icnce: Contrast across the towers.
        ictm: The modulus constraint across the towers.
        cross: Whether ICNCE has its second half, over the cross streams.
        views: The form of the contrastive losses, see :func:`nce`.
        half_tmc: Halve the modulus constraint, as the released code does (``compat``).
    """

    nce: bool = True
    icnce: bool = True
    ictm: bool = True
    cross: bool = True
    views: Views = "interleaved"
    half_tmc: bool = False

    @property
    def needs_cross(self) -> bool:
        """Whether the cross streams are read."""
        return self.icnce and self.cross


def modulus_constraint(u: Tensor, v: Tensor) -> Tensor:
    """Return ``|u − v| / (|u| + |v|)`` for each row: 0 where the vectors are equal, 1 where they are opposite.

    With k = |v|/|u| and t = cos(u, v) this is ``sqrt(1 + k² − 2kt) / (1 + k)``, the same for k and 1/k (JTCSE's L_TMC).
    The gradient is finite everywhere, at equal vectors and at zero vectors too.

    Args:
        u: ``[B, d]``.
        v: ``[B, d]``.

    Returns:
        ``[B]``, at least float32, in [0, 1].
    """
    u, v = at_least_float32(u), at_least_float32(v)
    return _norm(u - v) / (_norm(u) + _norm(v)).clamp_min(_TINY)


def log_coefficient(similarity: Tensor, *, floor: float = FLOOR) -> Tensor:
    """Return ``−log(clamp(similarity, floor, 1))``: 0 for the same direction, 9.21 for a right angle and beyond."""
    return -torch.log(similarity.clamp(floor, 1.0))


def modulus_loss(cls_1: Tensor, cls_2: Tensor, pooler_1: Tensor, pooler_2: Tensor) -> Tensor:
    """Return the modulus constraint across the towers, ICTM (JTCSE, Eqs. 13 and 14).

    ``mean −log cos(h_I, h_II⁺) · TMC(p_I, p_II⁺) + mean −log cos(h_II, h_I⁺) · TMC(p_II, p_I⁺)``: the coefficient is
    read off the sentence vectors, the constraint off the pooled ones, from first views to second views only.

    Args:
        cls_1: ``[2B, d]`` sentence vectors of the first tower, views interleaved.
        cls_2: The second tower's.
        pooler_1: ``[2B, d]`` pooled vectors of the first tower.
        pooler_2: The second tower's.
    """
    return _one_way(cls_1, cls_2, pooler_1, pooler_2) + _one_way(cls_2, cls_1, pooler_2, pooler_1)


def nce(queries: Tensor, keys: Tensor | None = None, *, temperature: float, views: Views = "interleaved") -> Tensor:
    """Return the contrastive loss between two streams, or within one (no ``keys``), ``[2B, d]``, views interleaved.

    ``interleaved``: each of the 2B queries looks for the other view of its sentence among the keys; the key of its own
    row is left out, which leaves 2B − 2 negatives (the form of the released code). ``literal``: the first views look
    for their partners among B keys, as Eqs. 11 and 12 are printed: within one stream the keys are the second views,
    across streams they are the other one's first views.

    Args:
        queries: ``[2B, d]``.
        keys: ``[2B, d]``; None compares the queries with themselves.
        temperature: τ, above 0; cosines are divided by it.
        views: The form.

    Returns:
        A scalar, at least float32.
    """
    if views == "literal":
        others = queries[1::2] if keys is None else keys[0::2]
        logits = cosine_matrix(queries[0::2], others) / temperature
        return functional.cross_entropy(logits, torch.arange(len(logits), device=logits.device))
    logits = cosine_matrix(queries, queries if keys is None else keys) / temperature
    rows = torch.arange(len(logits), device=logits.device)
    # −inf, not 0: the own row must vanish from the sum.
    logits = logits.masked_fill(rows[:, None] == rows[None, :], float("-inf"))
    return functional.cross_entropy(logits, rows ^ 1)


def joint_loss(
    cls_1: Tensor,
    cls_2: Tensor,
    pooler_1: Tensor | None,
    pooler_2: Tensor | None,
    cross_1: Tensor | None,
    cross_2: Tensor | None,
    *,
    temperature: float,
    first_queries_second: bool,
    parts: Parts | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return JTCSE's loss of a batch and its named parts.

    Args:
        cls_1: ``[2B, d]`` sentence vectors of the first tower, views interleaved.
        cls_2: The second tower's.
        pooler_1: ``[2B, d]`` pooled vectors of the first tower; None only without ICTM.
        pooler_2: The second tower's.
        cross_1: ``[2B, d]`` cross stream of the first tower (its attention over the second's values); None where there
            is no cross-attention, which is TNCSE.
        cross_2: The second tower's.
        temperature: τ, above 0.
        first_queries_second: The batch's random bit R: whether tower I queries tower II in ICNCE, or II queries I.
        parts: Which parts; all of them by default.

    Returns:
        The sum of the parts (weight 1 each), and by name those that were computed: ``nce_1``, ``nce_2``, ``icnce``,
        ``ictm``.

    Raises:
        ValueError: Streams of different shape, an odd number of rows or none, a part without the streams that it reads,
            no part at all, or a temperature that is not positive.
    """
    wanted = parts or Parts(cross=cross_1 is not None)
    _check((cls_1, cls_2, pooler_1, pooler_2, cross_1, cross_2), temperature, wanted)
    contrast = partial(nce, temperature=temperature, views=wanted.views)
    found: dict[str, Tensor] = {}
    if wanted.nce:
        found["nce_1"], found["nce_2"] = contrast(cls_1), contrast(cls_2)
    if wanted.icnce:
        pairs = [(cls_1, cls_2)]
        if cross_1 is not None and cross_2 is not None and wanted.cross:
            pairs.append((cross_1, cross_2))
        found["icnce"] = torch.stack(
            [contrast(one, two) if first_queries_second else contrast(two, one) for one, two in pairs]
        ).sum()
    if wanted.ictm and pooler_1 is not None and pooler_2 is not None:
        found["ictm"] = modulus_loss(cls_1, cls_2, pooler_1, pooler_2) * (0.5 if wanted.half_tmc else 1.0)
    return torch.stack(list(found.values())).sum(), found


def _one_way(cls_1: Tensor, cls_2: Tensor, pooler_1: Tensor, pooler_2: Tensor) -> Tensor:
    similarity = functional.cosine_similarity(
        at_least_float32(cls_1)[0::2], at_least_float32(cls_2)[1::2], dim=-1, eps=1e-8
    )
    return (log_coefficient(similarity) * modulus_constraint(pooler_1[0::2], pooler_2[1::2])).mean()


def _norm(vectors: Tensor) -> Tensor:
    # The gradient of a norm at 0 is 0/0: there both are 0.
    squared = (vectors * vectors).sum(dim=-1)
    return torch.where(squared > _TINY**2, squared.clamp_min(_TINY**2).sqrt(), 0.0)


def _check(streams: tuple[Tensor | None, ...], temperature: float, parts: Parts) -> None:
    if temperature <= 0:
        raise ValueError(f"temperature must be above 0, not {temperature}")
    shapes = [list(stream.shape) for stream in streams if stream is not None]
    first = shapes[0]
    if len(first) != 2 or not first[0] or first[0] % 2 or any(shape != first for shape in shapes):
        raise ValueError(f"all streams must be [2B, d] with two views of each sentence, not {shapes}")
    if parts.ictm and (streams[2] is None or streams[3] is None):
        raise ValueError("the modulus constraint (ictm) reads pooler_1 and pooler_2; give them, or switch it off")
    if parts.needs_cross and (streams[4] is None or streams[5] is None):
        raise ValueError("parts.cross reads cross_1 and cross_2; give them, or switch it off")
    if not (parts.nce or parts.icnce or parts.ictm):
        raise ValueError("no part of the loss is left: switch on nce, icnce or ictm")


class JTCSELoss(nn.Module):
    """JTCSE as a loss that sentence-transformers' trainer accepts: sentences in one column, both views by dropout.

    Args:
        model: Of two towers (:class:`~sentsmith.methods.jtcse.towers.TwinTower`), which a pass in training mode makes
            return its streams.
        temperature: τ of the equations.
        parts: Which parts of the loss.
        cross: Where attention crosses; None without it, which is TNCSE.
        chunking: How a batch is cut for the forward pass.
        pad_token_id: The tokenizer's, see :func:`sentsmith.encoders.chunked.join`.

    Raises:
        SettingsError: The model has no two towers, no poolers (and ICTM reads them), or no layers that can cross.
        ValueError: The parts ask for cross streams, and ``cross`` is None.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        temperature: float = 0.05,
        parts: Parts | None = None,
        cross: CrossPlan | None = None,
        chunking: Chunking | None = None,
        pad_token_id: int = 0,
    ) -> None:
        super().__init__()
        pair = tower_pair(model)
        self.parts = parts or Parts(cross=cross is not None)
        if self.parts.needs_cross and cross is None:
            raise ValueError("parts.cross reads cross streams; say where attention crosses (cross), or switch it off")
        if self.parts.ictm:
            require_poolers(pair)
        if cross is not None:
            for encoder in pair.encoders:
                layers_of(encoder)
        # In a tuple, so that its weights are not listed twice.
        self._pair = (pair,)
        # Streams that no part reads are not computed.
        self.joint = Joint(pooled=self.parts.ictm, cross=cross if self.parts.needs_cross else None)
        self.model = model
        self.temperature = temperature
        self.chunking = chunking or Chunking()
        self.pad_token_id = pad_token_id

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> dict[str, Tensor]:  # noqa: ARG002 - the trainer passes labels
        """Return the parts of the loss of one batch by name; the trainer adds them up and logs each."""
        columns = list(sentence_features)
        if len(columns) != 1:
            raise ValueError(f"JTCSE takes one column of sentences, not {len(columns)}")
        if not self.model.training:
            raise ValueError(
                "the two views differ by dropout alone: put the model in training mode, and judge it by an evaluator"
            )
        features = join(columns, pad_token_id=self.pad_token_id)
        views = {key: value.repeat_interleave(2, dim=0) for key, value in features.items()}
        # Drawn from torch's own state, which a checkpoint keeps: a resumed run sees the same bits.
        first_queries_second = shared_bit(features["attention_mask"].device)
        # Said at each call: another loss may have asked the same model for other streams.
        self._pair[0].joint = self.joint
        # One tensor of all streams: each chunk is one call of the model, and processes exchange once.
        streams = gather_rows(forward(self.model, views, self.chunking, output="streams"))
        present = [True, True, *[self.parts.ictm] * 2, *[self.parts.needs_cross] * 2]
        cut = iter(streams.chunk(sum(present), dim=1))
        _, found = joint_loss(
            *(next(cut) if there else None for there in present),  # type: ignore[arg-type]
            temperature=self.temperature,
            first_queries_second=first_queries_second,
            parts=self.parts,
        )
        return found
