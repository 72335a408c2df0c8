"""The part of the report on ranked lists: their measures in a table, their pictures, the runs beside each other."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from sentsmith.evaluation.lists import COLUMNS, lists_of
from sentsmith.report.drift import first_rows, mean_positions, positions_map, scale
from sentsmith.report.page import Picture, Section
from sentsmith.report.tables import Cell, Delta, Score, Table

MOST_MAPS = 8
"""Maps on a page: one of 33 positions is 120 kB of it."""

_TEXT = """\
How the lists of each file drift away from their first sentence, in the eyes of each run's model. τ is Kendall's
coefficient, times 100, of the cosine to the first sentence and the intended order. In order: the share in % of
neighbouring pairs, along all rows of a list's similarities, of which the nearer one is the more similar; first row: the
same along the row of the first sentence. The random lists are the same sentences shuffled across the lists: what no
order at all measures.

A cell of a map is the mean cosine of two positions, and all maps of a run have one scale. Where lists drift, cells
pale away from the diagonal."""

_COMPARED = {"score", "in_order", "in_order_first"}  # the rest tells of the file, not of the run

Details = Mapping[str, Any]
Found = Mapping[str, Mapping[str, Details]]
"""Run → file → details."""


def section(results: Mapping[str, Mapping[str, Any]]) -> Section | None:
    """Return the section, or None where no run measured ranked lists.

    Args:
        results: Run → its ``results.json``; the first run is what the others are compared with. What does not look
            like a result of the suite ``lists`` is passed over.
    """
    found = {run: dict(_sound(result)) for run, result in results.items()}
    if not any(found.values()):
        return None
    maps, left_out = _maps(found)
    notes = []
    if left_out:
        notes.append(
            f"{left_out} more maps are not shown, to keep the page small; all stand beside each run's `results.json`, "
            "as `NAME.positions.svg` and `NAME.random.positions.svg`."
        )
    return Section("Ranked lists", text=_TEXT, pictures=[*_curves(found), *maps], tables=[_table(found)], notes=notes)


def _sound(result: Mapping[str, Any]) -> Iterator[tuple[str, Details]]:
    """Yield name and details of what can be shown."""
    try:
        tasks = lists_of(result)
    except (KeyError, TypeError, AttributeError):
        return
    for name, details in tasks.items():
        try:
            sound = _complete(details) and _complete(details["random"])
        except (KeyError, TypeError, ValueError):
            continue
        if sound:
            yield name, details


def _complete(details: Details) -> bool:
    matrix = mean_positions(details)
    square = matrix.ndim == 2 and matrix.shape[0] == matrix.shape[1] >= 3
    return (
        square
        and bool(np.isfinite(matrix).all())
        and all(math.isfinite(details[measure]) for measure, _ in COLUMNS.values())
    )


def _files(found: Found) -> Iterator[tuple[str, dict[str, Details]]]:
    """Yield each file's name and what the runs found there, run → details."""
    for name in dict.fromkeys(name for tasks in found.values() for name in tasks):
        yield name, {run: tasks[name] for run, tasks in found.items() if name in tasks}


def _table(found: Found) -> Table:
    several = len(found) > 1
    base = found[next(iter(found))]
    rows: list[list[Cell]] = []
    for name, runs in _files(found):
        for run, details in runs.items():
            compared = base[name] if name in base and details is not base[name] else None
            rows.append([name, *([run] if several else []), *_cells(details, compared)])
        for run, details in runs.items():
            rows.append([f"{name}, random", *([run] if several else []), *_cells(details["random"], None)])
    return Table(("file", *(["run"] if several else []), *COLUMNS), rows)


def _cells(details: Details, compared: Details | None) -> Iterator[Cell]:
    for measure, digits in COLUMNS.values():
        value = details[measure]
        if digits == 0:
            yield int(value)
        else:
            delta = Delta(value - compared[measure]) if compared and measure in _COMPARED else None
            yield Score(value, delta, digits)


def _curves(found: Found) -> Iterator[Picture]:
    """Yield for each run a picture with a curve for each file: models' cosines are no common measure."""
    for run, tasks in found.items():
        if tasks:
            title = "How far the lists drift" if len(found) == 1 else f"How far the lists drift: {run}"
            maps = {name: mean_positions(details) for name, details in tasks.items()}
            references = {name: mean_positions(details["random"]) for name, details in tasks.items()}
            yield Picture(first_rows(maps, references, title=title))


def _maps(found: Found) -> tuple[list[Picture], int]:
    """Return the maps, for each file one of each run, then those of random sentences; and how many were left out."""
    limits = {
        run: scale([mean_positions(part) for details in tasks.values() for part in (details, details["random"])])
        for run, tasks in found.items()
        if tasks
    }
    every = [
        (f"{run}: {name}{kind}" if len(found) > 1 else f"{name}{kind}", part(details), limits[run])
        for kind, part in (("", mean_positions), (", random", lambda details: mean_positions(details["random"])))
        for name, runs in _files(found)
        for run, details in runs.items()
    ]
    shown = [
        Picture(positions_map(matrix, name=name, limits=ends, small=True), small=True)
        for name, matrix, ends in every[:MOST_MAPS]
    ]
    return shown, len(every) - len(shown)
