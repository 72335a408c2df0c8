"""The loss of distillation to one tower (JTCSE, after TNCSE): mean squared error to the teachers' fused vectors.

Pure functions first; :class:`DistillLoss` embeds, looks the teachers' vectors up, and delegates.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from sentsmith.encoders.chunked import Chunking, Features, forward, join
from sentsmith.methods.simcse.objective import at_least_float32


def fuse(vectors: Sequence[Tensor], weights: Sequence[float]) -> Tensor:
    """Return the weighted sum of several models' vectors of the same sentences.

    Two towers are summed with weights 1, 1. The UC fusion of EDFSE and JTCSE is
    ``0.3·(h_I + h_II) + 0.7·h_UC``: weights 0.3, 0.3, 0.7. The vectors are raw: not divided by their length.

    Args:
        vectors: ``[n, d]`` per model, all of one shape.
        weights: One per model.

    Returns:
        ``[n, d]``, at least float32.

    Raises:
        ValueError: No vectors, another number of weights, or shapes that differ.
    """
    if not vectors or len(vectors) != len(weights):
        raise ValueError(f"fuse takes one weight per model, not {len(weights)} for {len(vectors)}")
    shapes = [list(part.shape) for part in vectors]
    if any(shape != shapes[0] or len(shape) != 2 for shape in shapes):
        raise ValueError(f"vectors to fuse must all be [n, d] of one shape, not {shapes}")
    total = weights[0] * at_least_float32(vectors[0])
    for part, weight in zip(vectors[1:], weights[1:], strict=True):
        total = total + weight * at_least_float32(part)
    return total


def vector_mse(student: Tensor, teacher: Tensor) -> Tensor:
    """Return the mean of ``(s(x) − t(x))²`` over the batch and the dimensions.

    Args:
        student: ``[B, d]``.
        teacher: ``[B, d]``; receives no gradient.

    Returns:
        A scalar, at least float32: differences of two near vectors have few digits left in half precision.

    Raises:
        ValueError: Shapes that are not ``[B, d]`` twice.
    """
    if student.dim() != 2 or student.shape != teacher.shape:
        raise ValueError(
            f"student and teacher must both be [B, d], not {list(student.shape)} and {list(teacher.shape)}"
        )
    with torch.autocast(student.device.type, enabled=False):
        return (at_least_float32(student) - at_least_float32(teacher.detach())).square().mean()


class DistillLoss(nn.Module):
    """Distillation as a loss that sentence-transformers' trainer accepts.

    A row is a sentence and, as its label, its row in the file of the teachers' vectors: the student is the only model
    that runs.

    Args:
        model: The student, with a projection to the targets' width if it has another.
        targets: ``.npy``, float32 ``[rows, d]``; read through the operating system's cache, never as a whole.
        chunking: How a batch is cut for the forward pass.
    """

    def __init__(self, model: nn.Module, targets: str | Path, *, chunking: Chunking | None = None) -> None:
        super().__init__()
        self.model = model
        self.targets = np.load(targets, mmap_mode="r", allow_pickle=False)
        self.chunking = chunking or Chunking()

    def forward(self, sentence_features: Iterable[Features], labels: Tensor | None = None) -> Tensor:
        """Return the scalar loss of one batch.

        Args:
            sentence_features: One entry: the sentences.
            labels: int64 ``[B]``, their rows in the file.

        Raises:
            ValueError: Several columns, or no labels.
        """
        columns = list(sentence_features)
        if len(columns) != 1 or labels is None:
            given = "no labels" if labels is None else "labels"
            raise ValueError(f"distillation takes one text column and row numbers, not {len(columns)} and {given}")
        vectors = forward(self.model, join(columns), self.chunking)
        wanted = torch.from_numpy(np.asarray(self.targets[labels.cpu().numpy()]))
        return vector_mse(vectors, wanted.to(vectors.device))

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the loss."""
        return {"targets": list(self.targets.shape)}
