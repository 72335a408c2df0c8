"""Sentence pairs with a gold score: the file layouts they come in, told apart by their first line."""

from __future__ import annotations

import csv
import itertools
import logging
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from sentsmith.errors import InputError
from sentsmith.evaluation.lines import read_lines, rejoin

logger = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class ScoredPairs:
    """Pairs of sentences and how alike people found them.

    Attributes:
        sentences1: ``[n]``.
        sentences2: ``[n]``.
        gold: float64 ``[n]``, on the scale of the file.
        skipped: How many rows of the file had no gold score.
    """

    sentences1: tuple[str, ...]
    sentences2: tuple[str, ...]
    gold: NDArray[np.float64]
    skipped: int = 0

    def __len__(self) -> int:
        return len(self.gold)

    def texts(self) -> Iterator[str]:
        """Yield every sentence of either side."""
        yield from self.sentences1
        yield from self.sentences2


@dataclass(frozen=True)
class Layout:
    """Where a row keeps its two sentences and its score.

    Attributes:
        name: For messages.
        columns: The indices of sentence 1, sentence 2 and the score.
        low: The least gold score allowed.
        high: The greatest gold score allowed.
        header: Whether the first row names the columns.
    """

    name: str
    columns: tuple[int, int, int]
    low: float = 0.0
    high: float = 5.0
    header: bool = False


_HEADERS = (
    ("SICK", ("sentence_A", "sentence_B", "relatedness_score"), 1.0),
    ("scored pairs", ("sentence1", "sentence2", "score"), 0.0),
)


def read_scored_pairs(path: str | Path) -> ScoredPairs:
    """Read a file of scored pairs, whichever of the usual layouts it has.

    - SICK: tab-separated, a header with ``sentence_A``, ``sentence_B``, ``relatedness_score`` (1–5);
    - csv or tab-separated with a header ``sentence1``, ``sentence2``, ``score`` (any order, 0–5 or 0–1);
    - csv or tab-separated without a header: sentence 1, sentence 2, score (0–5), for example STS-B as csv;
    - STS-B as its makers publish it: tab-separated, seven columns or more, score fifth (0–5).

    Rows with an empty score are skipped and counted.

    Raises:
        InputError: The file is missing, binary or empty, has another layout, or a row has no two sentences or
            a score that is no number in range; the message names the row.
    """
    lines = read_lines(path).lines
    if not any(line.strip() for line in lines):
        raise InputError("is empty; sentence pairs with a score are needed", path=path)
    delimiter = "\t" if "\t" in next(line for line in lines if line.strip()) else ","
    rows = _rows(lines, delimiter, path)
    first_row = next(rows, (1, [""]))
    layout = find_layout(first_row[1], delimiter, path)
    sentences: list[tuple[str, str]] = []
    gold: list[float] = []
    skipped = 0
    for row, fields in rows if layout.header else itertools.chain([first_row], rows):
        if len(fields) <= max(layout.columns):
            needed = f"has {len(fields)} columns; {layout.name} needs at least {max(layout.columns) + 1}"
            raise InputError(needed, path=path, row=row)
        first, second, text = (fields[index] for index in layout.columns)
        if not text.strip():
            skipped += 1
            continue
        gold.append(parse_gold(text, low=layout.low, high=layout.high, path=path, row=row))
        sentences.append((rejoin(first), rejoin(second)))
    if not gold:
        raise InputError("has no row with a gold score", path=path)
    if skipped:
        logger.info("%s: %d rows without a gold score are skipped", path, skipped)
    return ScoredPairs(
        tuple(a for a, _ in sentences),
        tuple(b for _, b in sentences),
        np.array(gold, dtype=np.float64),
        skipped,
    )


def find_layout(first: Sequence[str], delimiter: str, path: str | Path) -> Layout:
    """Tell the layout of a file by the fields of its first row.

    Raises:
        InputError: It is none of those that :func:`read_scored_pairs` knows.
    """
    fields = [field.strip() for field in first]
    for name, wanted, low in _HEADERS:
        if all(column in fields for column in wanted):
            one, two, score = (fields.index(column) for column in wanted)
            return Layout(name, (one, two, score), low=low, header=True)
    if delimiter == "\t" and len(fields) >= 7 and _is_number(fields[4]):
        return Layout("STS-B", (5, 6, 4))
    if len(fields) >= 3 and (_is_number(fields[2]) or not fields[2]):
        return Layout("sentence1, sentence2, score", (0, 1, 2))
    raise InputError(
        "is no file of scored pairs; its first line must name sentence1, sentence2, score (or SICK's "
        "sentence_A, sentence_B, relatedness_score), or be two sentences and a number",
        path=path,
        row=1,
    )


def parse_gold(text: str, *, low: float, high: float, path: str | Path, row: int) -> float:
    """Return a gold score.

    Raises:
        InputError: It is no number, or lies outside ``low`` to ``high``.
    """
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not low <= value <= high:
        raise InputError(f"gold score {text.strip()!r} is no number from {low:g} to {high:g}", path=path, row=row)
    return value


def _rows(lines: Sequence[str], delimiter: str, path: str | Path) -> Iterator[tuple[int, list[str]]]:
    """Yield (row number, fields) of every row that is not blank; quotes mean something only in csv."""
    if delimiter == "\t":
        for row, line in enumerate(lines, start=1):
            if line.strip():
                yield row, line.split("\t")
        return
    reader = csv.reader((line + "\n" for line in lines), strict=True)
    try:
        for fields in reader:
            if any(field.strip() for field in fields):
                yield reader.line_num, fields
    except csv.Error as error:
        raise InputError(f"is not valid csv: {error}", path=path, row=reader.line_num) from error


def _is_number(text: str) -> bool:
    try:
        return math.isfinite(float(text))
    except ValueError:
        return False
