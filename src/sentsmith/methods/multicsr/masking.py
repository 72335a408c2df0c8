"""The frozen model P_η behind the mask: its vectors of all texts, made once and looked up in training.

``<key>.npy`` holds one vector per distinct text, ``<key>.json`` what they were made of. The key is a hash of the model,
of how it reads, and of the texts, so that the file serves every later run over the same data, whatever its seed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sentsmith.encoders.chunked import Chunking, forward
from sentsmith.errors import InputError, SettingsError
from sentsmith.files import make_folder, write_json
from sentsmith.methods.multicsr.objective import false_negative_keep, released_keep
from sentsmith.training import processes
from sentsmith.training.teachers import Teacher, read_once

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.training.data import TrainingRows

logger = logging.getLogger(__name__)

COLUMNS = ("anchor", "positive", "negative")
# The share of masked candidates is measured on at most so many batches: the third digit does not move any more.
_MOST_BATCHES = 200
_PROBED_TEXTS = 64


@dataclass(frozen=True, eq=False)
class CachedMasker:
    """The frozen model's vectors of the training rows; a :class:`~sentsmith.methods.multicsr.objective.Masker`.

    Attributes:
        path: The file they lie in.
        vectors: float32 ``[texts, d]``, read through the operating system's cache, never as a whole.
        rows: int64 ``[n, 3]``: where the texts of a training row stand in ``vectors``.
        seconds: What the pass over the texts took, in this run or an earlier one.
        found: Whether an earlier run had made them.
    """

    path: Path
    vectors: NDArray[np.float32]
    rows: NDArray[np.int64]
    seconds: float
    found: bool

    def __call__(self, features: Mapping[str, Tensor], labels: Tensor | None) -> Tensor:
        """Return the vectors of the rows ``labels``, float32 ``[B, 3, d]``, on the device of ``features``.

        Raises:
            ValueError: There are no labels.
        """
        if labels is None:
            raise ValueError("the mask looks rows up by their number; the training rows need it as their label")
        found = np.asarray(self.vectors[self.rows[labels.cpu().numpy()]])
        return torch.from_numpy(found).to(features["input_ids"].device)


class DropoutMasker:
    """The frozen model run on each batch with its dropout on, as in the authors' code: a mask that is noisy.

    Args:
        model: P_η; it reads the token ids of the model in training.
        chunking: How a batch is cut.
    """

    def __init__(self, model: SentenceTransformer, chunking: Chunking) -> None:
        self.model = model.train()
        self.chunking = chunking

    @torch.no_grad()
    def __call__(self, features: Mapping[str, Tensor], labels: Tensor | None) -> Tensor:  # noqa: ARG002 - a Masker
        """Return the vectors of the joined columns, ``[B, 3, d]``; the labels are not read."""
        if self.model.device != features["input_ids"].device:
            self.model.to(features["input_ids"].device)
        vectors = forward(self.model, features, self.chunking)
        return vectors.reshape(len(COLUMNS), -1, vectors.shape[1]).transpose(0, 1)


def cached_masker(teacher: Teacher | None, rows: TrainingRows, folder: Path, *, progress: bool = False) -> CachedMasker:
    """Embed the texts of the training rows, each distinct one once, or find the vectors that an earlier run left.

    A pass that was killed is gone on with. Several processes of one run wait for the first; a second run over the same
    data waits for the one that is embedding (but on Windows, where two such runs need a folder each).

    Args:
        teacher: The frozen model; not read, and None, in a process that is not the first of its run.
        rows: Triplets. The held-out ones are embedded too: which rows are held out depends on the seed, and the file
            is to serve runs with others.
        folder: Where the file lies, or is to lie.
        progress: Draw a bar.

    Raises:
        InputError: The folder cannot be written, or the file in it is damaged.
    """
    columns = [list(rows.train[name]) for name in COLUMNS]
    held_out = (text for name in COLUMNS for text in rows.held_out[name])
    texts = sorted({text for column in columns for text in column} | set(held_out))
    # The first process has it.
    embed_or_find = partial(_embed_or_find, cast("Teacher", teacher), texts, folder, progress=progress)
    path, found = processes.on_first(embed_or_find)
    place = {text: number for number, text in enumerate(texts)}
    numbers = np.array([[place[text] for text in column] for column in columns], dtype=np.int64).T
    return CachedMasker(path, _opened(path, len(texts)), numbers, _seconds(path), found)


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        # With its length before it, no text can pass for two.
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(encoded)} ".encode() + encoded)
    return digest.hexdigest()


def _embed_or_find(teacher: Teacher, texts: Sequence[str], folder: Path, *, progress: bool) -> tuple[Path, bool]:
    """Return the file of the vectors, and whether it was there."""
    key = {**teacher.key, "texts": _hash(texts)}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / f"{name}.npy"
    if path.exists():
        logger.info("%s holds the vectors of %s already", path, teacher.name)
        return path, True
    make_folder(folder)
    with _alone(path):
        if path.exists():
            return path, True
        begun = time.perf_counter()
        read_once(teacher, texts, path, key=key, progress=progress)
        seconds = round(time.perf_counter() - begun, 2)
        write_json(path.with_suffix(".json"), {**key, "rows": len(texts), "seconds": seconds})
    return path, False


@contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Keep a second run that shares the folder from writing the same file; the lock dies with its process."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks, and does without
        yield
        return
    lock = path.with_suffix(".lock")
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Not by closing alone: a process that was forked meanwhile has the file open too, and would hold the lock.
            fcntl.flock(stream, fcntl.LOCK_UN)
    lock.unlink(missing_ok=True)


def _opened(path: Path, texts: int) -> NDArray[np.float32]:
    try:
        vectors: NDArray[np.float32] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError("holds no vectors; delete it, and they are made again", path=path) from error
    if vectors.ndim != 2 or len(vectors) != texts or vectors.dtype != np.float32:
        reason = f"holds {vectors.dtype} {list(vectors.shape)} instead of the vectors of {texts} texts; delete it"
        raise InputError(reason, path=path)
    return vectors


def _seconds(path: Path) -> float:
    note = path.with_suffix(".json")
    # Absent where the run that embedded was killed right after.
    return float(json.loads(note.read_text(encoding="utf-8"))["seconds"]) if note.exists() else 0.0


def masked_share(
    masker: CachedMasker, *, threshold: float, batch_size: int, seed: int, released: bool = False
) -> float:
    """Return which share of the candidates the mask removes, measured before the training, on batches drawn at random.

    All positives and hard negatives of other rows of a batch are counted, over the batches of one epoch, at most 200.

    Args:
        masker: Its vectors.
        threshold: σ.
        batch_size: B, the rows of all processes; at least 2.
        seed: Draws the batches.
        released: By the mask of the authors' code.
    """
    order = np.random.default_rng(seed).permutation(len(masker.rows))
    batches = min(len(order) // batch_size, _MOST_BATCHES)
    rule = released_keep if released else false_negative_keep
    removed = 0
    for number in range(batches):
        drawn = masker.rows[order[number * batch_size : (number + 1) * batch_size]]
        vectors = torch.from_numpy(np.asarray(masker.vectors[drawn]))
        removed += int((~rule(*vectors.unbind(dim=1), threshold=threshold)).sum())
    return removed / (batches * batch_size * 2 * (batch_size - 1))


def check_one_tokenizer(student: SentenceTransformer, masker: Teacher, texts: Sequence[str]) -> None:
    """Say that the masker cannot read the token ids of the model in training.

    Raises:
        SettingsError: Vocabularies or the ids of the first texts differ.
    """
    probed = list(texts[:_PROBED_TEXTS])
    same = student.tokenizer.get_vocab() == masker.model.tokenizer.get_vocab()
    if same:
        ids = [model.preprocess(probed)["input_ids"] for model in (student, masker.model)]
        # Cut to the shorter limit: that one of them reads less of a long sentence is no difference.
        width = min(part.shape[1] for part in ids) - 1
        same = torch.equal(ids[0][:, :width], ids[1][:, :width])
    if not same:
        raise SettingsError(
            f"multicsr.eta_dropout runs {masker.name} on the token ids of the model in training, whose tokenizer is "
            "another; use a masker with the same tokenizer, or set multicsr.eta_dropout to false"
        )
