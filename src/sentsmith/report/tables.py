"""Tables of the report: cells that know how to be written, in markdown and on the page."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeGuard

NOT_RECORDED = "not recorded"
"""What stands where a record says nothing."""

Tone = Literal["gain", "loss", "even"]


@dataclass(frozen=True)
class Delta:
    """A change from before to after; written with its sign, so that nobody needs the colour.

    Args:
        value: After minus before.
        digits: Digits after the point.
        low: Lower end of its confidence interval, if known.
        high: Upper end.
        higher_is_better: Whether a positive change is a gain.
    """

    value: float
    digits: int = 2
    low: float | None = None
    high: float | None = None
    higher_is_better: bool = True

    @property
    def tone(self) -> Tone:
        """Gain or loss; even when it is written as zero, or when its interval holds zero."""
        uncertain = self.low is not None and self.high is not None and self.low <= 0 <= self.high
        if uncertain or round(self.value, self.digits) == 0:
            return "even"
        return "gain" if (self.value > 0) == self.higher_is_better else "loss"

    def __str__(self) -> str:
        text = _signed(self.value, self.digits)
        if self.low is None or self.high is None:
            return text
        return f"{text} [{_signed(self.low, self.digits)}, {_signed(self.high, self.digits)}]"


@dataclass(frozen=True)
class Score:
    """A number with what it changed by, in one cell."""

    value: float
    delta: Delta | None = None
    digits: int = 2

    def __str__(self) -> str:
        text = number(self.value, self.digits)
        return text if self.delta is None else f"{text} ({self.delta})"


@dataclass(frozen=True)
class Marked:
    """Text that stands out, and what the mark says, for example ``"only here"``."""

    text: str
    mark: str

    def __str__(self) -> str:
        return f"{self.text} [{self.mark}]" if self.text else f"[{self.mark}]"


Cell = str | int | float | None | Delta | Score | Marked
"""What may stand in a table; None is an empty cell."""


@dataclass(frozen=True)
class Table:
    """Columns, rows of as many cells, and a caption.

    Args:
        columns: Names of the columns.
        rows: Cells, as many in each row as there are columns.
        caption: What the table shows.
        folded: Show only the caption until the reader opens it.

    Raises:
        ValueError: A row has another number of cells.
    """

    columns: Sequence[str]
    rows: Sequence[Sequence[Cell]]
    caption: str = ""
    folded: bool = False

    def __post_init__(self) -> None:
        for place, row in enumerate(self.rows):
            if len(row) != len(self.columns):
                raise ValueError(f"row {place} has {len(row)} cells for {len(self.columns)} columns")

    def numeric(self, column: int) -> bool:
        """Whether a column holds numbers only (it is then set flush right)."""
        cells = [row[column] for row in self.rows if row[column] not in (None, NOT_RECORDED)]
        return bool(cells) and all(isinstance(cell, (int, float, Delta, Score)) for cell in cells)


def number(value: float, digits: int = 2) -> str:
    """Write a number: integers with a thin space every three digits, others with ``digits`` digits."""
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\N{NARROW NO-BREAK SPACE}").replace("-", "−")
    return f"{value:.{digits}f}".replace("-", "−")


def are_numbers(values: Any) -> TypeGuard[Sequence[float]]:
    """Whether something that a record holds is a list of finite numbers, at least one."""
    try:
        return len(values) > 0 and all(map(math.isfinite, values))
    except TypeError:
        return False


def cell_text(cell: Cell) -> str:
    """Write one cell as plain text."""
    if cell is None:
        return "–"
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    return number(cell) if isinstance(cell, (int, float)) else str(cell)


def to_markdown(table: Table) -> str:
    """Write the table as a markdown table, its caption above it."""
    rule = ["---:" if table.numeric(index) else "---" for index in range(len(table.columns))]
    rows = [list(table.columns), rule, *([cell_text(cell) for cell in row] for row in table.rows)]
    lines = ["| " + " | ".join(_markdown(text) for text in row) + " |" for row in rows]
    return "\n".join(([table.caption, ""] if table.caption else []) + lines) + "\n"


def _markdown(text: str) -> str:
    line = " ".join(text.split())
    for character in "\\|<":
        line = line.replace(character, f"\\{character}")
    return line


def _signed(value: float, digits: int) -> str:
    text = f"{value:+.{digits}f}"
    # "+0.00" would claim a direction that the digits do not show.
    return f"±{text[1:]}" if float(text) == 0 else text.replace("-", "−")
