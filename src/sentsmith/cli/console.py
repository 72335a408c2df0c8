"""What the verbs share: where lines go, how a run ends, how tables print."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import sys
from collections.abc import Iterator, Sequence
from typing import Annotated, Any

import typer

from sentsmith.training.processes import is_first

Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Only warnings, errors and the result.")]
Json = Annotated[bool, typer.Option("--json", help="Print the result as JSON on standard output.")]


def start(*, quiet: bool) -> None:
    """Send the library's log to standard error; ``quiet`` keeps warnings and errors only."""
    # The bars of reading and writing weights say nothing that our own lines do not.
    os.environ.setdefault("HF_HUB_DISABLE_PROGRESS_BARS", "1")
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(logging.Formatter("%(message)s"))
    root = logging.getLogger("sentsmith")
    root.handlers[:] = [handler]
    root.propagate = False
    if not is_first():
        # Of several processes that train together one speaks; the others say what stops them.
        root.setLevel(logging.CRITICAL)
        return
    root.setLevel(logging.WARNING if quiet else logging.INFO)


def progress_wanted(*, quiet: bool) -> bool:
    """Whether to draw a progress bar: not when quiet, not when standard error is no terminal."""
    return not quiet and sys.stderr.isatty()


def show_json(value: Any) -> None:
    """Print one JSON document on standard output, once if there are several processes."""
    if not is_first():
        return
    sys.stdout.write(json.dumps(value, indent=2, ensure_ascii=False) + "\n")


def show_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a table on standard output; the first column is text, the others numbers.

    A table too wide for the terminal is printed with rows and columns exchanged, where that is narrower.
    """
    from rich.console import Console
    from rich.table import Table

    # A sentence may hold what rich takes for markup.
    console = Console(highlight=False, markup=False)
    cells = [list(columns), *(list(row) for row in rows)]
    turned = [list(row) for row in zip(*cells, strict=True)]
    if _width(cells) > console.width and _width(turned) < _width(cells):
        cells = turned
    table = Table(title=title, title_justify="left", title_style="bold")
    for index, column in enumerate(cells[0]):
        table.add_column(column, justify="left" if index == 0 else "right", overflow="fold")
    for row in cells[1:]:
        table.add_row(*row)
    console.print(table)


def _width(cells: Sequence[Sequence[str]]) -> int:
    # Each column is padded by one space on either side and followed by a line.
    return sum(max(map(len, column)) + 3 for column in zip(*cells, strict=True)) + 1


def say(line: str) -> None:
    """Print one line of result on standard output, once if there are several processes."""
    if not is_first():
        return
    sys.stdout.write(line + "\n")


class Progress:
    """A bar: called with a count it advances; told what to expect it shows the time that remains."""

    def __init__(self, bar: Any = None) -> None:
        self._bar = bar

    def __call__(self, count: int) -> None:
        """Advance by so many."""
        if self._bar is not None:
            self._bar.update(count)

    def expect(self, total: int) -> None:
        """Set the count at which the work is done."""
        if self._bar is not None:
            self._bar.total = total
            self._bar.refresh()


@contextlib.contextmanager
def progress(what: str, *, quiet: bool, unit: str = "rows") -> Iterator[Progress]:
    """Draw one bar with count, rate and time on standard error; yields what advances it."""
    if not progress_wanted(quiet=quiet):
        yield Progress()
        return
    from tqdm import tqdm

    with tqdm(desc=what, unit=f" {unit}", file=sys.stderr, dynamic_ncols=True) as bar:
        yield Progress(bar)
