"""A teacher's vectors of all texts of a training, made once and looked up in it.

``<key>.npy`` holds one vector per distinct text, ``<key>.json`` what they were made of. The key is a hash of the model,
of how it reads, and of the texts, so that the file serves every later run over the same data, whatever its seed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sentsmith.errors import InputError
from sentsmith.files import alone, make_folder, write_json
from sentsmith.training import processes
from sentsmith.training.teachers import Teacher, read_once

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class TextVectors:
    """The vectors of distinct texts.

    Attributes:
        path: The file they lie in.
        vectors: ``[texts, d]``, in the teacher's dtype, read through the operating system's cache, never as a whole.
        places: Text → its row in ``vectors``.
        seconds: What the pass over the texts took, in this run or an earlier one.
        found: Whether an earlier run had made them.
    """

    path: Path
    vectors: NDArray[Any]
    places: Mapping[str, int]
    seconds: float
    found: bool

    def look_up(self, rows: NDArray[np.int64]) -> Tensor:
        """Return the vectors of these rows, ``[…, d]``, in the file's dtype."""
        return torch.from_numpy(np.asarray(self.vectors[rows]))


def text_vectors(teacher: Teacher | None, texts: Iterable[str], folder: Path, *, progress: bool = False) -> TextVectors:
    """Embed texts, each distinct one once, or find the vectors that an earlier run left.

    A pass that was killed is gone on with. Several processes of one run wait for the first; a second run over the same
    data waits for the one that is embedding (but on Windows, where two such runs need a folder each).

    Args:
        teacher: What embeds; not read, and None, in a process that is not the first of its run.
        texts: With repetitions, in any order. Held-out ones belong to them too: which rows are held out depends on the
            seed, and the file is to serve runs with others.
        folder: Where the file lies, or is to lie.
        progress: Draw a bar.

    Raises:
        InputError: The folder cannot be written, or the file in it is damaged.
    """
    distinct = sorted(set(texts))
    # The first process has it.
    embed_or_find = partial(_embed_or_find, cast("Teacher", teacher), distinct, folder, progress=progress)
    path, found = processes.on_first(embed_or_find)
    places = {text: number for number, text in enumerate(distinct)}
    return TextVectors(path, _opened(path, len(distinct)), places, _seconds(path), found)


def _hash(texts: Iterable[str]) -> str:
    digest = hashlib.sha256()
    for text in texts:
        # With its length before it, no text can pass for two.
        encoded = text.encode("utf-8", "surrogatepass")
        digest.update(f"{len(encoded)} ".encode() + encoded)
    return digest.hexdigest()


def _embed_or_find(teacher: Teacher, texts: Sequence[str], folder: Path, *, progress: bool) -> tuple[Path, bool]:
    """Return the file of the vectors, and whether it was there."""
    key = {**teacher.key, "texts": _hash(texts), "dtype": teacher.dtype}
    name = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:32]
    path = folder / f"{name}.npy"
    if path.exists():
        logger.info("%s holds the vectors of %s already", path, teacher.name)
        return path, True
    make_folder(folder)
    with alone(path):
        if path.exists():
            return path, True
        begun = time.perf_counter()
        read_once(teacher, texts, path, key=key, progress=progress)
        seconds = round(time.perf_counter() - begun, 2)
        write_json(path.with_suffix(".json"), {**key, "rows": len(texts), "seconds": seconds})
    return path, False


def _opened(path: Path, texts: int) -> NDArray[Any]:
    try:
        vectors: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError) as error:
        raise InputError("holds no vectors; delete it, and they are made again", path=path) from error
    if vectors.ndim != 2 or len(vectors) != texts or vectors.dtype not in (np.float32, np.float16):
        reason = f"holds {vectors.dtype} {list(vectors.shape)} instead of the vectors of {texts} texts; delete it"
        raise InputError(reason, path=path)
    return vectors


def _seconds(path: Path) -> float:
    note = path.with_suffix(".json")
    # Absent where the run that embedded was killed right after.
    return float(json.loads(note.read_text(encoding="utf-8"))["seconds"]) if note.exists() else 0.0
