"""Low-resource retrieval: for each sentence, is the nearest sentence of the other language its translation?

The protocol of LASER's similarity search on Tatoeba (METHODS §3, Tagalog): among all sentences of the other side, the
one with the greatest cosine is retrieved, in both directions. Two things that scripts leave open are decided here:

- Some translations occur several times. A retrieved sentence counts as right if its text is the aligned one's
  (LASER's own ``--textual``); ``mteb`` compares line numbers, which calls a copy of the right answer wrong, so
  ``"accuracy_by_line"`` beside the score is what to hold against its numbers.
- Sentences that are equally near (cosines within 1e-6: the same vector, but for rounding) share the answer: a query
  scores the part of them that is right, which is what picking one at random gives on average. Scripts take the first,
  so that a model which maps everything to one vector is judged by how the file is sorted.
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

_NAME = re.compile(r"tatoeba\.(?P<first>\w+)-(?P<second>\w+)\.(?P<side>\w+)")
_LAYOUT = (
    "--data-dir must hold bitext/ in LASER's layout: tatoeba.tgl-eng.tgl and tatoeba.tgl-eng.eng (or other languages), "
    "one sentence a line, aligned"
)
_TIE = 1e-6
_BLOCK = 512  # queries at a time


@dataclass(frozen=True, eq=False)
class BitextTask:
    """One direction of one pair of languages.

    Attributes:
        name: ``"tgl-eng"``: sentences of ``tgl`` look for their translations among those of ``eng``.
        sources: ``[n]``, the sentences that are looked up.
        targets: ``[n]``, their translations in the same order, which are looked among.
    """

    name: str
    sources: tuple[str, ...]
    targets: tuple[str, ...]

    def texts(self) -> Iterator[str]:
        """Yield every sentence of either side."""
        yield from self.sources
        yield from self.targets

    def score(self, embedded: Embedded) -> dict[str, Any]:
        """Return the task's score (accuracy times 100) and how it came about."""
        queries, candidates = embedded.rows(self.sources), embedded.rows(self.targets)
        numbers = {text: number for number, text in enumerate(dict.fromkeys(self.targets))}
        texts = np.array([numbers[text] for text in self.targets])
        return {
            "score": 100 * accuracy(queries, candidates, texts),
            "accuracy_by_line": 100 * accuracy(queries, candidates),
            "rows": len(self.targets),
            "repeated_targets": len(self.targets) - len(numbers),
        }


def accuracy(queries: Vectors, candidates: Vectors, answers: NDArray[np.int64] | None = None) -> float:
    """Return the share of queries whose nearest candidate, by cosine, is a right one.

    Args:
        queries: float ``[n, d]``.
        candidates: float ``[n, d]``; row i answers query i.
        answers: int64 ``[n]``, candidates of one number are the same answer; by default every row is its own.

    Returns:
        In [0, 1]. A query with several nearest candidates counts as the part of them that is right; a vector of zeros
        is as near to everything.

    Raises:
        ValueError: The shapes differ.
    """
    if queries.ndim != 2 or queries.shape != candidates.shape:
        raise ValueError(f"retrieval needs two [n, d] arrays of one shape, given {queries.shape}, {candidates.shape}")
    answers = np.arange(len(candidates)) if answers is None else answers
    sources, targets = unit_rows(queries), unit_rows(candidates)
    right = 0.0
    for start in range(0, len(sources), _BLOCK):
        cosines = sources[start : start + _BLOCK] @ targets.T
        nearest = cosines >= cosines.max(axis=1, keepdims=True) - _TIE
        wanted = answers[start : start + _BLOCK, None] == answers[None, :]
        right += float(((nearest & wanted).sum(axis=1) / nearest.sum(axis=1)).sum())
    return right / len(sources)


def load_bitext(data_dir: str | Path) -> dict[str, BitextTask]:
    """Read every pair of languages below ``data_dir/bitext``.

    Returns:
        Two tasks for each pair (``tgl-eng`` and ``eng-tgl``), the pairs in the order of their names.

    Raises:
        InputError: The folder is missing or holds no pair, a pair lacks a side or is there twice, its files have
            different numbers of lines, or a line is empty or not UTF-8.
    """
    root = Path(data_dir) / "bitext"
    if not root.is_dir():
        raise InputError(f"no such folder; {_LAYOUT}", path=root)
    tasks: dict[str, BitextTask] = {}
    for first, second in _pairs(root):
        if f"{first}-{second}" in tasks:
            raise InputError(f"holds {second}-{first} and {first}-{second}; keep one of them", path=root)
        one, two = _read_pair(root, first, second)
        tasks[f"{first}-{second}"] = BitextTask(f"{first}-{second}", one, two)
        tasks[f"{second}-{first}"] = BitextTask(f"{second}-{first}", two, one)
    if not tasks:
        raise InputError(f"holds no pair of languages; {_LAYOUT}", path=root)
    return tasks


def _pairs(root: Path) -> list[tuple[str, str]]:
    matches = [match for file in root.iterdir() if (match := _NAME.fullmatch(file.name))]
    return sorted({(m["first"], m["second"]) for m in matches if m["first"] != m["second"]})


def _read_pair(root: Path, first: str, second: str) -> tuple[tuple[str, ...], tuple[str, ...]]:
    files = [root / f"tatoeba.{first}-{second}.{side}" for side in (first, second)]
    missing = [file.name for file in files if not file.is_file()]
    if missing:
        raise InputError(f"missing {', '.join(missing)}; {_LAYOUT}", path=root)
    one, two = map(read_sentences, files)
    if len(one) != len(two):
        longer, shorter = files if len(one) > len(two) else reversed(files)
        raise InputError(
            f"has no line beside it in {shorter.name}, which has {min(len(one), len(two))} lines against "
            f"{max(len(one), len(two))}; they must match line by line",
            path=longer,
            row=min(len(one), len(two)) + 1,
        )
    return one, two
