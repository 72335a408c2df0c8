"""Pictures of ranked lists: how alike each two positions are on average, and how far each is from the first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentsmith.evaluation.lists import lists_of
from sentsmith.files import write_text
from sentsmith.report.pictures import curve, heat_map

FIRST_ROW = "first-row.svg"
_LARGEST = 64  # positions in a heat map
_LABELS = 17  # along a side of it
_SMALL = 3.2  # inches, the side of a map that stands beside another
_SMALL_LABELS = 9


def draw(result: Mapping[str, Any], folder: str | Path) -> list[Path]:
    """Write the pictures of a model's result of the suite ``lists``.

    For each file ``NAME.positions.svg`` and, of its sentences at random, ``NAME.random.positions.svg``, all on one
    scale; and ``first-row.svg``, a curve for each file.

    Args:
        result: As :func:`sentsmith.evaluation.suite.measure` returns it.
        folder: Where they go.

    Returns:
        The files.

    Raises:
        InputError: One of them is a folder.
    """
    found = lists_of(result)
    maps = {name: mean_positions(details) for name, details in found.items()}
    references = {name: mean_positions(details["random"]) for name, details in found.items()}
    limits = scale([*maps.values(), *references.values()])
    place, files = Path(folder), []
    for name, matrix in maps.items():
        for kind, values in (("", matrix), ("random", references[name])):
            file = place / ".".join(part for part in (name, kind, "positions.svg") if part)
            write_text(file, positions_map(values, name=f"{name}, random sentences" if kind else name, limits=limits))
            files.append(file)
    files.append(place / FIRST_ROW)
    write_text(files[-1], first_rows(maps, references))
    return files


def positions_map(positions: ArrayLike, *, name: str, limits: tuple[float, float], small: bool = False) -> str:
    """Draw the mean cosine of each two positions of a list.

    Args:
        positions: ``[n, n]``. Of more than 64 positions only the first 64 are drawn, and the picture says so.
        name: Of the lists.
        limits: Values of the faintest and the strongest shade; maps to be compared need the same.
        small: Half as wide, to stand beside another; the name alone is its title.
    """
    values = np.asarray(positions, dtype=np.float64)
    count = len(values)
    shown = min(count, _LARGEST)
    part = f" (the first {shown} of {count} positions)" if shown < count else ""
    labels = [str(position) for position in range(1, shown + 1)]
    return heat_map(
        values[:shown, :shown],
        row_labels=labels,
        column_labels=labels,
        title=f"{name}{part}" if small else f"Mean similarity of list positions: {name}{part}",
        x_label="position, mean cosine",
        y_label="position",
        limits=limits,
        label_every=-(-shown // (_SMALL_LABELS if small else _LABELS)),
        side=_SMALL / shown if small else None,
    )


def first_rows(
    maps: Mapping[str, ArrayLike], references: Mapping[str, ArrayLike], *, title: str = "How far the lists drift"
) -> str:
    """Draw the mean cosine to the first sentence, by position: the lists of each file, and one curve for chance.

    Args:
        maps: Name → ``[n, n]`` mean cosines of positions.
        references: Name → the same of random sentences; their mean over the names is drawn.
        title: The picture's title.
    """
    rows = {name: np.asarray(matrix, dtype=np.float64)[0] for name, matrix in maps.items()}
    chance = [np.asarray(matrix, dtype=np.float64)[0] for matrix in references.values()]
    mean = [
        float(np.mean([row[position] for row in chance if len(row) > position]))
        for position in range(max(map(len, chance)))
    ]
    label = "random sentences" if len(chance) == 1 else "random sentences (mean)"
    # The first position is the first sentence itself, whose cosine is 1 whatever the lists are.
    series = {
        name: [(position, float(value)) for position, value in enumerate(row, start=1)][1:]
        for name, row in [*rows.items(), (label, mean)]
    }
    return curve(series, x_label="position in the list", y_label="mean cosine to the first", title=title)


def scale(matrices: Sequence[NDArray[np.float64]]) -> tuple[float, float]:
    """Return the limits of maps that are to be compared: the least and the largest of their values."""
    return min(float(matrix.min()) for matrix in matrices), max(float(matrix.max()) for matrix in matrices)


def mean_positions(details: Mapping[str, Any]) -> NDArray[np.float64]:
    """Return the mean cosines of positions, float64 ``[n, n]``, out of what ``results.json`` holds of a file."""
    return np.asarray(details["positions"], dtype=np.float64)
