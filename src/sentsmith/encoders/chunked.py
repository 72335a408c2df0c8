"""The chunked forward pass: the same vectors and gradients, a fraction of the padding.

A contrastive loss wants many sentences in one batch; a transformer that gets them padded to the longest one spends
most of its time on padding. So: sort the batch by length, run it in chunks that are trimmed to their own longest
row, put the rows back in order. The loss sees one ``[batch, dimension]`` matrix and cannot tell the difference.

The same door carries gradient caching (GradCache, Gao et al. 2021): with ``recompute=True`` a chunk keeps only its
token ids, and its activations are computed again, with the same dropout, when the backward pass reaches it. Memory
is then that of one chunk, however large the batch.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

Features = Mapping[str, Tensor]
"""Tokenised sentences: ``input_ids``, ``attention_mask`` and the like, each int64 ``[rows, width]``; a tensor of one
dimension (``prompt_length``) holds for all rows."""

# What fills the columns that a narrower tensor lacks when tensors of different width are joined.
_FILL = {"attention_mask": 0, "token_type_ids": 0, "sentence_mask": 0}


@dataclass(frozen=True)
class Chunking:
    """How a batch is cut.

    Attributes:
        tokens: A chunk holds about this many tokens, padding included. Measured by ``benchmarks/chunks.py``: small
            chunks stay in the processor's cache and pad less, large ones keep its arithmetic units busy.
        min_rows: A chunk has at least this many rows, whatever its width. Under bf16 on some processors a chunk of
            16 rows was seen to train 6 times slower than one of 32.
        recompute: Keep no activations; compute each chunk again in the backward pass (gradient caching).
    """

    tokens: int = 1024
    min_rows: int = 8
    recompute: bool = False

    def __post_init__(self) -> None:
        if self.tokens < 1 or self.min_rows < 1:
            raise ValueError(f"tokens and min_rows must be at least 1, not {self.tokens} and {self.min_rows}")


def plan(lengths: Tensor, chunking: Chunking) -> list[Tensor]:
    """Cut rows into chunks of similar length.

    Args:
        lengths: int64 ``[rows]``, tokens per row without padding.
        chunking: How to cut.

    Returns:
        Row indices (int64) per chunk, longest rows first; together a permutation of all rows. The order within equal
        lengths is that of the batch, so the plan is a function of the lengths alone.
    """
    order = torch.argsort(lengths, descending=True, stable=True)
    chunks, start = [], 0
    while start < len(order):
        width = max(int(lengths[order[start]]), 1)
        rows = max(chunking.tokens // width, chunking.min_rows)
        chunks.append(order[start : start + rows])
        start += rows
    return chunks


def join(columns: Sequence[Features], *, pad_token_id: int = 0) -> dict[str, Tensor]:
    """Stack the rows of several columns (anchors, positives, …) into one set of features.

    Columns may be padded to different widths; the narrower ones are padded further, on the side that is padded already.

    Args:
        columns: Features per column; keys other than 2-d tensors are dropped.
        pad_token_id: Fills ``input_ids``. Masked positions are never read; the id matters only to models that find
            padding by it (RoBERTa numbers positions that way).
    """
    width = max(column["attention_mask"].shape[1] for column in columns)
    left = any(pads_left(column) for column in columns)
    wide = [widen(column, width, left=left, pad_token_id=pad_token_id) for column in columns]
    return {key: torch.cat([column[key] for column in wide]) for key in wide[0]}


def pads_left(features: Features) -> bool:
    """Whether rows are padded in front of their first token rather than behind their last."""
    return bool((features["attention_mask"][:, :1] == 0).any())


def widen(features: Features, width: int, *, left: bool, pad_token_id: int = 0) -> dict[str, Tensor]:
    """Return the 2-d tensors of ``features``, padded to ``width`` columns on the side given."""

    def pad(key: str, value: Tensor) -> Tensor:
        missing = width - value.shape[1]
        sides = (missing, 0) if left else (0, missing)
        return nn.functional.pad(value, sides, value=_FILL.get(key, pad_token_id))

    return {key: pad(key, value) for key, value in features.items() if isinstance(value, Tensor) and value.dim() == 2}


def forward(model: nn.Module, features: Features, chunking: Chunking, *, output: str = "sentence_embedding") -> Tensor:
    """Return the sentence vectors of a batch, computed chunk by chunk.

    Equals ``model(features)["sentence_embedding"]``: with dropout off the loss and every parameter's gradient agree
    to float32 rounding; with dropout on, each row still draws its own mask.

    Args:
        model: Maps features to a dictionary with ``sentence_embedding`` (any ``SentenceTransformer``).
        features: Padded on either side, ``[rows, width]`` each.
        chunking: How to cut, and whether to recompute.
        output: Which entry of that dictionary is wanted.

    Returns:
        ``[rows, dimension]`` in the model's dtype, rows in the order given.
    """
    mask = features["attention_mask"]
    # One transfer for a batch on an accelerator: the plan is made on the processor.
    chunks = plan(mask.sum(dim=1).cpu(), chunking)

    def run(rows: Tensor) -> Tensor:
        part = trim({key: value[rows] if value.dim() == 2 else value for key, value in features.items()})
        vectors: Tensor = model(part)[output]
        return vectors

    parts = []
    for chunk in chunks:
        rows = chunk.to(mask.device)
        if chunking.recompute and torch.is_grad_enabled():
            # Restores random state and autocast, so the second pass repeats the first one's dropout exactly.
            parts.append(checkpoint(run, rows, use_reentrant=False, preserve_rng_state=True))
        else:
            parts.append(run(rows))
    restore = torch.argsort(torch.cat(chunks)).to(mask.device)
    return torch.cat(parts)[restore]


def trim(features: Features) -> dict[str, Tensor]:
    """Drop the columns that are padding in every row, on either side; positions inside stay as they are."""
    used = features["attention_mask"].any(dim=0).nonzero()
    if len(used) == 0:
        return dict(features)
    first, last = int(used[0]), int(used[-1]) + 1
    return {key: value[:, first:last] if value.dim() == 2 else value for key, value in features.items()}
