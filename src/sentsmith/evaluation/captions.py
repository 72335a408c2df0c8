"""Caption retrieval: does the first caption of an image find the other four among those of all images?

BeLLM's Flickr30k task (Li and Li 2024; METHODS §8). Strict accuracy counts an image as right only if the four nearest
captions, by cosine, are exactly its own; recall@4 counts how many of them are. The first captions are queries only, so
no query is found by itself. A tie is an error: a caption of another image that is as near (cosines within 1e-6: the
same text, or a model that gives everything one vector) stands before the image's own.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentsmith.encoders.protocol import Vectors
from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.lines import read_sentences
from sentsmith.evaluation.similarity import unit_rows

CAPTIONS = "captions"
PER_IMAGE = 5
OTHERS = PER_IMAGE - 1

_NAME = re.compile(r"(?P<name>.+)\.(?P<number>[1-5])\.en(\.gz)?")
_LAYOUT = (
    "--data-dir must hold captions/ with NAME.1.en.gz … NAME.5.en.gz (or unpacked), one caption a line, line n of "
    "each about image n"
)
_TIE = 1e-6
_BLOCK = 512  # queries at a time


@dataclass(frozen=True, eq=False)
class CaptionsTask:
    """The captions of a set of images.

    Attributes:
        name: What their files are called, without number and ending.
        captions: For each of five, ``[n]``: the captions of the n images, in one order.
    """

    name: str
    captions: tuple[tuple[str, ...], ...]

    def texts(self) -> Iterator[str]:
        """Yield every caption."""
        for texts in self.captions:
            yield from texts

    def score(self, embedded: Embedded) -> dict[str, Any]:
        """Return the task's score (strict accuracy times 100) and how it came about."""
        queries = embedded.rows(self.captions[0])
        others = [text for image in zip(*self.captions[1:], strict=True) for text in image]
        found = own_found(queries, embedded.rows(others))
        return {
            "score": 100 * float((found == OTHERS).mean()),
            "recall_at_4": 100 * float(found.mean()) / OTHERS,
            "rows": len(queries),
            "repeated_captions": len(others) - len(set(others)),
        }


def own_found(queries: Vectors, candidates: Vectors) -> NDArray[np.int64]:
    """Return, for each query, how many of its own four candidates are among the four nearest of all.

    Args:
        queries: float ``[n, d]``.
        candidates: float ``[4n, d]``; rows 4i to 4i + 3 are query i's own.

    Returns:
        int64 ``[n]`` from 0 to 4; of equally near candidates those that are not the query's own come first. A vector
        of zeros is as near to everything.

    Raises:
        ValueError: The shapes do not fit each other.
    """
    if queries.ndim != 2 or candidates.shape != (OTHERS * len(queries), queries.shape[1]):
        raise ValueError(f"captions need [n, d] queries and [4n, d] others, given {queries.shape}, {candidates.shape}")
    sources, targets = unit_rows(queries), unit_rows(candidates)
    found = np.empty(len(queries), dtype=np.int64)
    for start in range(0, len(sources), _BLOCK):
        cosines = sources[start : start + _BLOCK] @ targets.T
        rows = np.arange(len(cosines))
        columns = OTHERS * (start + rows)[:, None] + np.arange(OTHERS)
        own = -np.sort(-cosines[rows[:, None], columns], axis=1)
        cosines[rows[:, None], columns] = -np.inf
        # Nobody but the four nearest foreign ones can keep a caption out.
        kept = min(OTHERS, cosines.shape[1])
        foreign = np.partition(cosines, cosines.shape[1] - kept, axis=1)[:, -kept:]
        before = (foreign[:, None, :] >= own[:, :, None] - _TIE).sum(axis=2) + np.arange(OTHERS)
        found[start : start + _BLOCK] = (before < OTHERS).sum(axis=1)
    return found


def load_captions(data_dir: str | Path) -> dict[str, CaptionsTask]:
    """Read every set of captions below ``data_dir/captions``.

    Returns:
        One task for each set (``NAME.1.en.gz`` … ``NAME.5.en.gz``), in the order of their names.

    Raises:
        InputError: The folder is missing or holds no captions, one of a set's files is missing or there twice, its
            files have different numbers of lines, or a line is empty or not UTF-8.
    """
    root = Path(data_dir) / CAPTIONS
    if not root.is_dir():
        raise InputError(f"no such folder; {_LAYOUT}", path=root)
    sets: dict[str, dict[int, Path]] = {}
    for file in sorted(root.iterdir()):
        if match := _NAME.fullmatch(file.name):
            files, number = sets.setdefault(match["name"], {}), int(match["number"])
            if number in files:
                raise InputError(f"holds {files[number].name} and {file.name}; keep one of them", path=root)
            files[number] = file
    if not sets:
        raise InputError(f"holds no captions; {_LAYOUT}", path=root)
    return {name: CaptionsTask(name, _read_set(root, name, files)) for name, files in sets.items()}


def _read_set(root: Path, name: str, files: dict[int, Path]) -> tuple[tuple[str, ...], ...]:
    missing = [f"{name}.{number}.en" for number in range(1, PER_IMAGE + 1) if number not in files]
    if missing:
        raise InputError(f"missing {', '.join(missing)} (or .gz); {_LAYOUT}", path=root)
    captions = tuple(read_sentences(files[number]) for number in range(1, PER_IMAGE + 1))
    for number, texts in enumerate(captions[1:], start=2):
        if len(texts) != len(captions[0]):
            raise InputError(
                f"has {len(texts)} lines and {files[1].name} has {len(captions[0])}; they must match line by line",
                path=files[number],
            )
    return captions
