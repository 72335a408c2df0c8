"""Bars that begin at zero: scores of several things side by side, and numbers with a sign, one for each layer."""

from __future__ import annotations

import math
from collections.abc import Mapping

from sentsmith.errors import InputError
from sentsmith.report.svg import INK, SERIES, drawing, figure, short, to_svg

_WIDTH = 8.4  # inches
_THICK = 0.36  # of a bar, where the distance from one name to the next is 1


def score_bars(scores: Mapping[str, Mapping[str, float]], *, x_label: str, title: str) -> str:
    """Draw for each name its scores, one bar below the other, with their numbers.

    Args:
        scores: Name → measure → score; two measures at most, and of every name the same.
        x_label: What the scores are.
        title: The picture's title.

    Raises:
        InputError: There is nothing to draw, a score is not finite, or the measures differ.
    """
    measures = list(next(iter(scores.values()), {}))
    values = [each.get(measure, math.nan) for each in scores.values() for measure in measures]
    if not measures or len(measures) > 2 or not all(map(math.isfinite, values)):
        raise InputError(f"nothing to draw for {title!r}: each name needs the same one or two finite scores")
    with drawing():
        picture, (axis,) = figure(_WIDTH, 1.3 + (0.3 + 0.24 * len(measures)) * len(scores), title=title)
        for index, measure in enumerate(measures):
            heights = [each[measure] for each in scores.values()]
            places = [place + (index - (len(measures) - 1) / 2) * (_THICK + 0.04) for place in range(len(scores))]
            ink = SERIES[index % len(SERIES)]
            axis.barh(places, heights, height=_THICK, color=ink, alpha=0.3 + 0.4 * (index == 0), label=measure)
            for place, value in zip(places, heights, strict=True):
                axis.annotate(
                    _number(value), (max(value, 0.0), place), xytext=(5, 0), textcoords="offset points",
                    va="center", ha="left", fontsize=9.5,
                )  # fmt: skip
        low, high = min(0.0, *values), max(0.0, *values)
        axis.set(xlim=(1.1 * low, 1.12 * high or 1.0), ylim=(len(scores) - 0.4, -0.6), xlabel=short(x_label, 60))
        axis.set_yticks(range(len(scores)), [short(name, 36) for name in scores])
        axis.tick_params(axis="y", labelcolor=INK["text"])
        axis.grid(visible=False, axis="y")
        axis.spines["left"].set_visible(False)
        if len(measures) > 1:
            axis.legend(loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=2, fontsize=9.5, borderpad=0.2)
        told = "; ".join(
            f"{name}: {', '.join(f'{measure} {_number(value)}' for measure, value in each.items())}"
            for name, each in scores.items()
        )
        return to_svg(picture, title=title, description=f"Bars of {x_label}. {told}.")


def signed_bars(panels: Mapping[str, Mapping[int, float]], *, x_label: str, y_label: str, title: str) -> str:
    """Draw a number for each count (of layers, say) as a bar up or down from zero, one panel for each name.

    All panels share both scales, so that they can be compared.

    Args:
        panels: Name → count → number.
        x_label: What is counted.
        y_label: What the numbers are.
        title: The picture's title.

    Raises:
        InputError: There is nothing to draw, or a number is not finite.
    """
    values = [value for panel in panels.values() for value in panel.values()]
    if not all(panels.values()) or not values or not all(map(math.isfinite, values)):
        raise InputError(f"nothing to draw for {title!r}: each name needs at least one number, and finite ones only")
    counts = sorted({count for panel in panels.values() for count in panel})
    with drawing():
        picture, axes = figure(_WIDTH, 1.1 + 1.7 * len(panels), title=title, rows=len(panels))
        for axis, (name, panel) in zip(axes, panels.items(), strict=True):
            for ink, wanted in (("after", True), ("loss", False)):
                some = {count: value for count, value in panel.items() if (value >= 0) == wanted}
                axis.bar(list(some), list(some.values()), width=0.7, color=INK[ink], alpha=0.7)
            axis.axhline(0, color=INK["muted"], linewidth=1)
            axis.set_ylabel(f"{short(name, 24)}\n{short(y_label, 24)}" if len(panels) > 1 else short(y_label, 40))
            axis.grid(visible=False, axis="x")
        every = max(1, math.ceil(len(counts) / 24))
        axes[-1].set_xticks(counts[::every])
        axes[-1].set_xlabel(short(x_label, 60))
        told = "; ".join(f"{name}: {_extremes(panel, x_label)}" for name, panel in panels.items())
        return to_svg(picture, title=title, description=f"{y_label} by {x_label}. {told}.")


def _extremes(panel: Mapping[int, float], what: str) -> str:
    high, low = max(panel, key=lambda count: panel[count]), min(panel, key=lambda count: panel[count])
    below = sum(value < 0 for value in panel.values())
    return (
        f"{len(panel)} of them, highest {_number(panel[high])} at {what} {high}, lowest {_number(panel[low])} at "
        f"{what} {low}, {below} below zero"
    )


def _number(value: float) -> str:
    return f"{value:.2f}".replace("-", "−")
