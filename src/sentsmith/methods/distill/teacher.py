"""The teachers: read once, fused, and kept on disk for as long as the run goes on.

``work/teacher-<k>.npy`` are the vectors of one teacher each, ``work/teacher.npy`` what the student learns, and
``work/target.json``, written last, vouches for it. The rows are those of the training set, then the held-out ones.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.errors import InputError
from sentsmith.files import atomic_path, write_json
from sentsmith.methods.distill.objective import fuse, vector_mse
from sentsmith.training.teachers import Teacher, read_once, same_teachers

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sklearn.decomposition import PCA
    from torch import nn

TARGET = "teacher.npy"
_DONE = "target.json"
_BLOCK = 4096
# Directions fitted on more vectors than this are the same to the digits that matter; memory is not.
_PCA_ROWS = 100_000


@dataclass(frozen=True)
class Target:
    """What the student learns.

    Attributes:
        path: ``.npy``, float32 ``[rows, width]``.
        explained_variance: Share of the teachers' variance that a PCA kept; None without one.
    """

    path: Path
    explained_variance: float | None


def width(model: SentenceTransformer) -> int:
    """Return how long the model's vectors are, by looking at one."""
    return int(as_encoder(model).encode(["."]).shape[1])


def read_teachers(
    teachers: Sequence[Teacher],
    sentences: Sequence[str],
    work: Path,
    *,
    pca: int | None = None,
    fit_rows: int,
    progress: bool = False,
) -> Target:
    """Embed the sentences with each teacher and fuse the vectors into one file; goes on where a killed run was.

    Args:
        teachers: Of one width.
        sentences: ``n`` of them; the vectors keep their order.
        work: The run's work folder.
        pca: Project the fused vectors to so many dimensions; None keeps them.
        fit_rows: The PCA is fitted on the first so many rows (evenly thinned to 100,000), the training set.
        progress: Draw a bar per teacher.

    Raises:
        InputError: A teacher is not the one that the run was begun with, or there are fewer rows than dimensions.
    """
    same_teachers(teachers, work)
    path, done = work / TARGET, work / _DONE
    if not done.exists():
        parts = [work / f"teacher-{number}.npy" for number in range(1, len(teachers) + 1)]
        for teacher, part in zip(teachers, parts, strict=True):
            if not part.exists():
                read_once(teacher, sentences, part, progress=progress)
        share = _fuse_files(parts, [teacher.weight for teacher in teachers], path, pca=pca, fit_rows=fit_rows)
        write_json(done, {"explained_variance": share})
        for part in parts:
            part.unlink()
    return Target(path, json.loads(done.read_text(encoding="utf-8"))["explained_variance"])


def _fuse_files(
    parts: Sequence[Path], weights: Sequence[float], output: Path, *, pca: int | None, fit_rows: int
) -> float | None:
    files = [np.load(part, mmap_mode="r", allow_pickle=False) for part in parts]

    def fused(rows: slice) -> Vectors:
        return fuse([torch.from_numpy(np.array(file[rows])) for file in files], weights).numpy()

    fitted = None if pca is None else _fit(fused(slice(0, fit_rows, -(-fit_rows // _PCA_ROWS))), pca)
    size, wide = files[0].shape
    with atomic_path(output) as temporary, temporary.open("wb") as stream:
        header = {"descr": "<f4", "fortran_order": False, "shape": (size, pca or wide)}
        np.lib.format.write_array_header_1_0(stream, header)
        for block in _blocks(size):
            vectors: NDArray[Any] = fused(block) if fitted is None else fitted.transform(fused(block))
            stream.write(np.ascontiguousarray(vectors, dtype="<f4").tobytes())
    return None if fitted is None else float(fitted.explained_variance_ratio_.sum())


def _fit(vectors: Vectors, dimensions: int) -> PCA:
    from sklearn.decomposition import PCA

    if len(vectors) < dimensions:
        raise InputError(
            f"{len(vectors)} training rows are too few to fit a PCA of {dimensions} dimensions; bring more"
        )
    # The solver that is exact and draws no random numbers; in float64 since it squares.
    return PCA(dimensions, svd_solver="covariance_eigh").fit(vectors.astype(np.float64))


def _blocks(rows: int) -> Iterator[slice]:
    return (slice(start, start + _BLOCK) for start in range(0, rows, _BLOCK))


class DistanceJudge:
    """Minus the mean squared error to the teachers, on rows kept apart from the training data.

    Args:
        sentences: ``m`` of them.
        targets: ``[m, d]``, the teachers' vectors.
        projection: Maps the student's vectors to the teachers' width; the one in training, if there is any.
    """

    metric = "negated mean squared error to the teacher"

    def __init__(self, sentences: Sequence[str], targets: Vectors, projection: nn.Module | None = None) -> None:
        self.source = f"{len(sentences)} held-out training rows"
        self.sentences = sentences
        self.targets = targets
        self.projection = projection

    @torch.no_grad()
    def score(self, encoder: Encoder) -> float:
        """Return minus the error; 0 is the teacher itself."""
        vectors = torch.from_numpy(encoder.encode(self.sentences))
        if self.projection is not None:
            device = next(self.projection.parameters()).device
            vectors = self.projection({"sentence_embedding": vectors.to(device)})["sentence_embedding"].cpu()
        return -float(vector_mse(vectors, torch.from_numpy(self.targets)))
