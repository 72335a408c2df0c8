"""Pictures for the report: data in, an inline SVG string out, for light and dark pages alike.

Every picture says in words (its ``<desc>``) what it shows, with the main numbers.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike

from sentsmith.errors import InputError
from sentsmith.report.cells import draw_cells
from sentsmith.report.svg import DASHES, INK, SERIES, drawing, figure, short, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_LARGEST_MAP = 64
_WIDTH = 8.4  # inches
_NUMBER = 0.35  # inches that a number in a cell needs


@dataclass(frozen=True)
class Difference:
    """One measure's change, with its confidence interval, all in the measure's own unit."""

    name: str
    difference: float
    low: float
    high: float


def curve(
    series: Mapping[str, Sequence[tuple[float, float]]],
    *,
    x_label: str,
    y_label: str,
    title: str,
    chosen: float | None = None,
    mark: str = "chosen",
    powers: bool = False,
) -> str:
    """Draw curves over training steps, or over anything else that is counted.

    Args:
        series: Name → (x, y) points in the order of x. Points that are not finite are left out.
        x_label: What x is, for example ``"step"``.
        y_label: What y is.
        title: The picture's title.
        chosen: The x to mark as the chosen one (the checkpoint that was kept).
        mark: What the mark is called.
        powers: Scale y by its logarithm; points that are not above 0 are left out.

    Raises:
        InputError: No series has a finite point.
    """
    kept = {name: _finite_points(points, above=0.0 if powers else -math.inf) for name, points in series.items()}
    kept = {name: points for name, points in kept.items() if points}
    _need(kept, title)
    with drawing():
        picture, (axis,) = figure(_WIDTH, 3.3, title=title)
        for index, (name, points) in enumerate(kept.items()):
            axis.plot(
                *zip(*points, strict=True),
                color=SERIES[index % len(SERIES)],
                linestyle=DASHES[index % len(DASHES)],
                linewidth=1.8,
                marker="o" if len(points) <= 40 else None,
                markersize=4,
                label=short(name, 40),
            )
        axis.set(xlabel=short(x_label, 60), ylabel=short(y_label, 40))
        if powers:
            # Its own labels are mathematics, which our style leaves as it is written.
            axis.set_yscale("log")
            axis.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axis.yaxis.set_minor_formatter(lambda *_: "")
        axis.margins(x=0.02)
        if chosen is not None:
            _mark_chosen(axis, kept, chosen, f"{mark}: {short(x_label, 20)} {_number(chosen)}")
        _legend(axis)
        told = "; ".join(_curve_words(name, points) for name, points in kept.items())
        mark = "" if chosen is None else f" {mark.capitalize()}: {x_label} {_number(chosen)}."
        return to_svg(picture, title=title, description=f"{y_label} by {x_label}. {told}.{mark}")


def heat_map(
    matrix: ArrayLike,
    *,
    row_labels: Sequence[str],
    column_labels: Sequence[str],
    title: str,
    x_label: str = "",
    y_label: str = "",
    limits: tuple[float, float] | None = None,
    decimals: int = 2,
    label_every: int = 1,
    side: float | None = None,
) -> str:
    """Draw a matrix as shades of one colour; negative values, if any, in a second one.

    Args:
        matrix: ``[rows, columns]`` numbers; one that is not finite leaves its cell empty.
        row_labels: One for each row.
        column_labels: One for each column.
        title: The picture's title.
        x_label: What the columns are.
        y_label: What the rows are.
        limits: Values of the faintest and the strongest shade; two maps to be compared need the same.
        decimals: Of the numbers in the cells, which stand there where there are at most 14 columns.
        label_every: Only every so many-th label is written, from the first, along either side.
        side: Of a cell, in inches, all cells being squares; where it is not given, they fill the page's width. Below
            0.35 there is no room for numbers in the cells.

    Raises:
        InputError: Labels and shape disagree, a side is over 64, or no value is finite.
    """
    values = np.asarray(matrix, dtype=np.float64)
    if values.shape != (len(row_labels), len(column_labels)):
        raise InputError(
            f"a heat map of shape {values.shape} needs as many labels as it has rows and columns, "
            f"not {len(row_labels)} and {len(column_labels)}"
        )
    if max(values.shape) > _LARGEST_MAP:
        raise InputError(f"a heat map holds at most {_LARGEST_MAP} rows and columns, not {values.shape}; draw a part")
    finite = values[np.isfinite(values)]
    _need(finite.tolist(), title)
    low, high = limits or (float(finite.min()), float(finite.max()))
    rows, columns = values.shape
    with drawing():
        picture, (axis,) = figure(*_map_size(rows, columns, side), title=title)
        room = columns <= 14 and (side is None or side >= _NUMBER)
        draw_cells(axis, values, low=low, high=high, decimals=decimals if room else None)
        axis.set(xlim=(-0.5, columns - 0.5), ylim=(rows - 0.5, -0.5), ylabel=short(y_label, 40))
        axis.grid(visible=False)
        axis.spines[:].set_visible(False)
        slant = max((len(label) for label in column_labels), default=0) > 6
        axis.set_xticks(
            range(0, columns, label_every),
            [short(label, 24) for label in column_labels[::label_every]],
            rotation=30 if slant else 0,
            ha="right" if slant else "center",
        )
        axis.set_yticks(range(0, rows, label_every), [short(label, 48) for label in row_labels[::label_every]])
        scale = f"faintest {low:,.{decimals}f}, strongest {high:,.{decimals}f}".replace("-", "−")
        axis.set_xlabel(f"{short(x_label, 60)} ({scale})" if x_label else scale)
        top_row, top_column = divmod(int(np.argmax(np.where(np.isfinite(values), values, -np.inf))), columns)
        told = (
            f"{rows} rows by {columns} columns, values from {_number(float(finite.min()))} to "
            f"{_number(float(finite.max()))}, mean {_number(float(finite.mean()))}; the highest is at "
            f"row {row_labels[top_row]}, column {column_labels[top_column]}."
        )
        return to_svg(picture, title=title, description=told)


def _map_size(rows: int, columns: int, side: float | None) -> tuple[float, float]:
    """Return width and height of a heat map with its labels, in inches."""
    if side is not None:
        return 1.1 + columns * side, 1.3 + rows * side
    return _WIDTH, max(1.8, 1.3 + rows * max(0.26, 0.62 * min(0.62, (_WIDTH - 2.2) / columns)))


def histograms(groups: Mapping[str, Sequence[float]], *, x_label: str, title: str) -> str:
    """Draw the distribution of each group over common bins, as shares of the group, with its median marked.

    Raises:
        InputError: No group has a finite value.
    """
    return histogram_panels({"": groups}, x_label=x_label, title=title)


def histogram_panels(
    panels: Mapping[str, Mapping[str, Sequence[float]]],
    *,
    x_label: str,
    title: str,
    bins: int = 36,
    panel_height: float = 1.75,
) -> str:
    """Draw :func:`histograms` in panels one above the other that share both scales.

    Args:
        panels: Panel name (say before, after) → group name → values. A group has one colour in all panels.
        x_label: What the values are, for example ``"cosine similarity"``.
        title: The picture's title.
        bins: How many bins cover the whole range.
        panel_height: Height of each of several panels, in inches.

    Raises:
        InputError: No group of any panel has a finite value.
    """
    kept = {
        panel: {name: _finite(values) for name, values in groups.items() if _finite(values).size}
        for panel, groups in panels.items()
    }
    kept = {panel: groups for panel, groups in kept.items() if groups}
    _need(kept, title)
    everything = np.concatenate([values for groups in kept.values() for values in groups.values()])
    low, high = float(everything.min()), float(everything.max())
    edges = np.linspace(low, high if high > low else low + 1.0, bins + 1)
    names = list(dict.fromkeys(name for groups in kept.values() for name in groups))
    with drawing():
        height = 3.2 if len(kept) == 1 else 1.0 + panel_height * len(kept)
        picture, axes = figure(_WIDTH, height, title=title, rows=len(kept))
        for axis, (panel, groups) in zip(axes, kept.items(), strict=True):
            for index, name in enumerate(names):
                if name in groups:
                    _histogram(axis, groups[name], edges, index, name)
            axis.set_ylabel(f"{short(panel, 20)}\nshare" if panel else "share")
            axis.yaxis.set_major_formatter(lambda share, _: f"{100 * share:.0f}%")
            axis.grid(visible=False, axis="x")
        axes[-1].set_xlabel(f"{short(x_label, 60)} (vertical lines: medians)")
        _legend(max(axes, key=lambda axis: len(axis.get_lines())), over=axes[0])
        told = "; ".join(
            f"{f'{panel}, ' if panel else ''}{name}: {values.size} values, median {_number(float(np.median(values)))}"
            for panel, groups in kept.items()
            for name, values in groups.items()
        )
        return to_svg(picture, title=title, description=f"Distribution of {x_label}. {told}.")


def positions(
    before: Sequence[float],
    after: Sequence[float],
    *,
    title: str = "Mean similarity by position in the list",
    x_label: str = "position in the list",
    y_label: str = "mean cosine",
    names: tuple[str, str] = ("before", "after"),
    first: int = 1,
) -> str:
    """Draw the mean cosine at each list position, before and after: the steeper the better ranked.

    Args:
        before: One value for each position.
        after: As many.
        title: The picture's title.
        x_label: What the positions are.
        y_label: What the values are.
        names: How to call the two.
        first: The number of the first position.

    Raises:
        InputError: Lengths differ, or a value is not finite.
    """
    lines = [[float(value) for value in values] for values in (before, after)]
    if len(lines[0]) != len(lines[1]) or not lines[0] or not all(map(math.isfinite, lines[0] + lines[1])):
        raise InputError(
            "positions need two lists of finite numbers of the same length, "
            f"not {len(lines[0])} and {len(lines[1])} of them"
        )
    places = range(first, first + len(lines[0]))
    with drawing():
        picture, (axis,) = figure(_WIDTH, 3.3, title=title)
        for name, values, ink, dash, marker in zip(
            names, lines, ("before", "after"), (DASHES[1], DASHES[0]), "so", strict=True
        ):
            axis.plot(places, values, color=INK[ink], linestyle=dash, marker=marker, linewidth=2, label=name)
            up = values[-1] >= max(line[-1] for line in lines)
            axis.annotate(
                f"{values[-1]:.2f}".replace("-", "−"), (places[-1], values[-1]), xytext=(8, 5 if up else -5),
                textcoords="offset points", va="center", color=INK[ink], fontweight="bold",
            )  # fmt: skip
        axis.set(xlabel=short(x_label, 60), ylabel=short(y_label, 40))
        axis.set_xticks(list(places))
        axis.margins(x=0.08)
        _legend(axis)
        told = "; ".join(
            f"{name}: {', '.join(map(_number, values))}" for name, values in zip(names, lines, strict=True)
        )
        return to_svg(picture, title=title, description=f"{y_label} by {x_label}. {told}.")


def bars_with_intervals(
    rows: Sequence[Difference],
    *,
    title: str = "Change from before to after",
    x_label: str = "difference (points)",
) -> str:
    """Draw each measure's difference with its confidence interval around a line at zero.

    A row is drawn as a gain (triangle up) or a loss (triangle down) only when its whole interval lies there.

    Raises:
        InputError: There is no row, a number is not finite, or an interval does not hold its difference.
    """
    _need(rows, title)
    for row in rows:
        if not all(map(math.isfinite, (row.low, row.difference, row.high))) or not row.low <= row.high:
            raise InputError(f"{row.name}: {row.difference} with interval [{row.low}, {row.high}] cannot be drawn")
    with drawing():
        picture, (axis,) = figure(_WIDTH, 1.3 + 0.36 * len(rows), title=title)
        reach = max(max(abs(row.low), abs(row.high), abs(row.difference)) for row in rows) or 1.0
        axis.axvline(0, color=INK["muted"], linewidth=1)
        for place, row in enumerate(rows):
            ink, marker = _verdict(row)
            axis.plot([row.low, row.high], [place, place], color=INK[ink], linewidth=2.4)
            axis.plot([row.difference], [place], color=INK[ink], marker=marker, markersize=8, linestyle="none")
            axis.text(1.22 * reach, place, _difference_words(row), va="center", ha="left", fontsize=9.5)
        axis.set(xlim=(-1.15 * reach, 1.15 * reach), ylim=(len(rows) - 0.4, -0.6), xlabel=short(x_label, 60))
        axis.set_yticks(range(len(rows)), [short(row.name, 36) for row in rows])
        axis.tick_params(axis="y", labelcolor=INK["text"])
        axis.grid(visible=False, axis="y")
        axis.spines["left"].set_visible(False)
        told = "; ".join(f"{row.name}: {_difference_words(row)}" for row in rows)
        return to_svg(picture, title=title, description=f"{x_label}, with intervals. {told}.")


def _verdict(row: Difference) -> tuple[str, str]:
    if row.low > 0:
        return "gain", "^"
    return ("loss", "v") if row.high < 0 else ("muted", "o")


def _difference_words(row: Difference) -> str:
    return f"{_signed(row.difference)} [{_signed(row.low)}, {_signed(row.high)}]"


def _signed(value: float) -> str:
    return f"{value:+.2f}".replace("-", "−")


def _number(value: float) -> str:
    text = f"{value:.0f}" if float(value).is_integer() and abs(value) < 1e6 else f"{value:.4g}"
    return text.replace("-", "−")


def _need(things: object, title: str) -> None:
    if not things:
        raise InputError(f"nothing to draw for {title!r}: it needs at least one finite number")


def _finite(values: Sequence[float]) -> np.ndarray[tuple[int, ...], np.dtype[np.float64]]:
    array = np.asarray(values, dtype=np.float64).ravel()
    return array[np.isfinite(array)]


def _finite_points(points: Sequence[tuple[float, float]], *, above: float = -math.inf) -> list[tuple[float, float]]:
    return [(float(x), float(y)) for x, y in points if math.isfinite(x) and math.isfinite(y) and y > above]


def _curve_words(name: str, points: list[tuple[float, float]]) -> str:
    first, last = points[0], points[-1]
    best = max(points, key=lambda point: point[1])
    return (
        f"{name}: {len(points)} points, {_number(first[1])} at {_number(first[0])}, {_number(last[1])} at "
        f"{_number(last[0])}, highest {_number(best[1])} at {_number(best[0])}"
    )


def _mark_chosen(axis: Axes, series: Mapping[str, list[tuple[float, float]]], chosen: float, label: str) -> None:
    axis.axvline(chosen, color=INK["muted"], linewidth=1.1, linestyle=(0, (3, 3)), label=label)
    for points in series.values():
        for x, y in points:
            if x == chosen:
                axis.plot([x], [y], marker="o", markersize=9, markerfacecolor="none", color=INK["text"])


def _histogram(
    axis: Axes,
    values: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    edges: np.ndarray[tuple[int, ...], np.dtype[np.float64]],
    index: int,
    name: str,
) -> None:
    counts, _ = np.histogram(values, bins=edges)
    colour, dash = SERIES[index % len(SERIES)], DASHES[index % len(DASHES)]
    shares = counts / values.size
    axis.stairs(shares, edges, fill=True, color=colour, alpha=0.16)
    axis.stairs(shares, edges, color=colour, linewidth=1.6)
    median = float(np.median(values))
    top = float(shares.max())
    axis.plot([median] * 2, [0, top], color=colour, linestyle=dash, linewidth=1.6, label=short(name, 40))


def _legend(axis: Axes, *, over: Axes | None = None) -> None:
    """Name the lines of ``axis`` above ``over`` (itself), out of every line's way; one needs no name."""
    handles, labels = axis.get_legend_handles_labels()
    if len(handles) > 1:
        (over or axis).legend(
            handles, labels, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=min(4, len(handles)),
            fontsize=9.5, borderaxespad=0.2, borderpad=0.2,
        )  # fmt: skip
