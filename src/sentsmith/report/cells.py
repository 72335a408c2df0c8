"""The cells of a heat map: shades of one colour, of a second one for what is negative, and numbers where they fit."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from sentsmith.report.svg import INK

if TYPE_CHECKING:
    from matplotlib.axes import Axes

_CORNERS = np.array([(-0.48, -0.46), (0.48, -0.46), (0.48, 0.46), (-0.48, 0.46), (-0.48, -0.46)])


def draw_cells(
    axis: Axes, values: NDArray[np.float64], *, low: float, high: float, decimals: int | None = None
) -> None:
    """Draw one cell for each value, at its column and row; one that is not finite stays empty.

    Args:
        axis: Where.
        values: ``[rows, columns]``.
        low: Has the faintest shade; below 0, the shades stand for the distance from 0 instead, in two colours.
        high: Has the strongest shade.
        decimals: Of the number in each cell; None writes none, and rounds the shades to one of 60.
    """
    opacities = _opacities(values, low=low, high=high)
    # What is negative has the colour of a loss only where the scale says that there are negative values.
    losses = (values < 0) & (low < 0)
    if decimals is None:
        _shades(axis, np.round(opacities, 2), losses)
        return
    for (row, column), value in np.ndenumerate(values):
        shown = math.isfinite(value)
        if shown:
            ink = INK["loss" if losses[row, column] else "after"]
            _outline(axis, np.array([[row, column]]), ink, float(opacities[row, column]))
        text = f"{value:,.{decimals}f}".replace("-", "−") if shown else "–"
        axis.text(column, row, text, ha="center", va="center", fontsize=9)


def _opacities(values: NDArray[np.float64], *, low: float, high: float) -> NDArray[np.float64]:
    """Return the shade of each value, NaN where there is none.

    A shade is the colour at some opacity over the page: it fits a dark page too, text stays readable.
    """
    finite = np.where(np.isfinite(values), values, np.nan)
    if low < 0:
        shares = np.abs(finite) / max(abs(low), abs(high))
    elif high > low:
        shares = (finite - low) / (high - low)
    else:
        shares = np.where(np.isnan(finite), np.nan, 1.0)
    opacities: NDArray[np.float64] = 0.05 + 0.6 * np.clip(shares, 0.0, 1.0)
    return opacities


def _shades(axis: Axes, opacities: NDArray[np.float64], losses: NDArray[np.bool_]) -> None:
    """Draw all cells of a shade as one: cell after cell, a large map would be slow and several times as long."""
    for ink, mine in (("after", ~losses), ("loss", losses)):
        for opacity in np.unique(opacities[mine & ~np.isnan(opacities)]).tolist():
            _outline(axis, np.argwhere(mine & (opacities == opacity)), INK[ink], opacity)


def _outline(axis: Axes, cells: NDArray[np.int64], colour: str, opacity: float) -> None:
    """Fill the cells ``[n, 2]`` (row, column) as one shape."""
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    corners = (cells[:, None, ::-1] + _CORNERS).reshape(-1, 2)
    patch = PathPatch(Outline(corners, codes * len(cells)), facecolor=colour, alpha=opacity, lw=0)
    axis.add_artist(patch)  # not add_patch: it measures every shape, and the limits are set anyway
