"""What the suites ``dependency`` and ``degradation`` found: box plots, curves by layer, sections of the report."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith.errors import InputError
from sentsmith.evaluation import degradation, dependency
from sentsmith.evaluation.degradation import DEGRADATION, NORMED, curves_of
from sentsmith.evaluation.dependency import DEPENDENCY
from sentsmith.files import write_text
from sentsmith.report.page import Picture, Section
from sentsmith.report.pictures import curve
from sentsmith.report.svg import INK, SERIES, drawing, figure, short, to_svg
from sentsmith.report.tables import Table

if TYPE_CHECKING:
    from matplotlib.axes import Axes

BOXES = "dependency.svg"
CURVE = "degradation.svg"
_WIDTH = 8.4  # inches
_BOX_TITLE = "Intra-sentence dependency"
_TITLE = "STS score by number of layers"

_DEPENDENCY = """\
How far the tokens of a sentence say the same as the token that its vector is read from, over STS-B's dev part. The
score of a token is Spearman's correlation, across the dimensions of the last layer, with the pivot: the first token of
an encoder, the last one of a decoder; that of a sentence is the mean over its other tokens. A box holds the middle half
of the sentences, its line is the median, the diamond the mean; whiskers end at the last sentence within 1.5 times the
box's length."""
_DEGRADATION = """\
The average STS score of each model's first layers, read as the model itself is read; with 0 layers, of its embedding
layer. A decoder's final norm was trained on the last layer's states only, so a model that is cut off is measured with
it and without."""

Found = Mapping[str, Any]


def draw_curve(result: Found, folder: str | Path) -> None:
    """Write ``degradation.svg`` of a model's result into a folder.

    Raises:
        InputError: It is a folder.
    """
    write_text(Path(folder) / CURVE, layer_curves({"": result[DEGRADATION]}))


def draw_boxes(results: Sequence[Found], folder: str | Path) -> None:
    """Write ``dependency.svg`` of all models' results into a folder; nothing where none of them measured it.

    Raises:
        InputError: It is a folder.
    """
    found = {str(result["model"]): result[DEPENDENCY] for result in results if DEPENDENCY in result}
    if found:
        write_text(Path(folder) / BOXES, box_plots(found))


def layer_curves(found: Mapping[str, Found]) -> str:
    """Draw the average score by the number of layers: of one model with its turning point and every curve it has.

    Args:
        found: Model → summary of the suite ``degradation``. Of several models each has one curve, with its final norm.

    Raises:
        InputError: There is no model.
    """
    if len(found) == 1:
        (only,) = found.values()
        series = {words: list(enumerate(each["average"])) for words, each in curves_of(only).items()}
        best: float | None = only[NORMED]["best"]
    else:
        series, best = {name: list(enumerate(each[NORMED]["average"])) for name, each in found.items()}, None
    return curve(
        series, x_label="layers", y_label="average score", title=_TITLE, chosen=best, mark="turning point"
    )  # fmt: skip


def box_plots(found: Mapping[str, Found], *, x_label: str = "Spearman with the pivot", title: str = _BOX_TITLE) -> str:
    """Draw box plots one below the other.

    Args:
        found: Name → ``mean``, ``median``, ``quartiles`` (two), ``whiskers`` (two).
        x_label: What the values are.
        title: The picture's title.

    Raises:
        InputError: There is nothing to draw, or a value is not finite.
    """
    if not found or not all(map(_is_box, found.values())):
        raise InputError(f"nothing to draw for {title!r}: it needs the finite numbers of at least one box")
    with drawing():
        picture, (axis,) = figure(_WIDTH, 1.2 + 0.5 * len(found), title=title)
        for place, box in enumerate(found.values()):
            _box(axis, place, box)
        axis.set(ylim=(len(found) - 0.4, -0.6), xlabel=short(x_label, 60))
        axis.set_yticks(range(len(found)), [short(name, 36) for name in found])
        axis.tick_params(axis="y", labelcolor=INK["text"])
        axis.grid(visible=False, axis="y")
        axis.spines["left"].set_visible(False)
        told = "; ".join(
            f"{name}: mean {box['mean']:.3f}, median {box['median']:.3f}, half of them from {box['quartiles'][0]:.3f} "
            f"to {box['quartiles'][1]:.3f}, whiskers from {box['whiskers'][0]:.3f} to {box['whiskers'][1]:.3f}"
            for name, box in found.items()
        )
        return to_svg(picture, title=title, description=f"Box plots of {x_label}. {told}.".replace("-0.", "−0."))


def _box(axis: Axes, place: int, box: Found) -> None:
    colour = SERIES[place % len(SERIES)]
    (low, high), (left, right), median = box["quartiles"], box["whiskers"], box["median"]
    axis.barh(place, high - low, left=low, height=0.5, color=colour, alpha=0.16)
    axis.barh(place, high - low, left=low, height=0.5, fill=False, edgecolor=colour, linewidth=1.6)
    for end, side in ((left, low), (right, high)):
        axis.plot([side, end], [place, place], color=colour, linewidth=1.4)
        axis.plot([end, end], [place - 0.12, place + 0.12], color=colour, linewidth=1.4)
    axis.plot([median, median], [place - 0.25, place + 0.25], color=colour, linewidth=2.6, solid_capstyle="butt")
    axis.plot([box["mean"]], [place], marker="D", markersize=5, color=INK["text"], linestyle="none")
    axis.annotate(
        f"{median:.2f}".replace("-", "−"), (median, place - 0.25), xytext=(0, 2), textcoords="offset points",
        ha="center", va="bottom", fontsize=9,
    )  # fmt: skip


def sections(results: Mapping[str, Found]) -> list[Section]:
    """Return the report's sections on what these suites found, none where no run measured it.

    Args:
        results: Run → its ``results.json``. What does not look like findings of these suites is passed over.
    """
    return [section for section in (_dependency(results), _degradation(results)) if section is not None]


def _dependency(results: Mapping[str, Found]) -> Section | None:
    found = {run: result[DEPENDENCY] for run, result in results.items() if _is_box(result.get(DEPENDENCY))}
    if not found:
        return None
    columns, rows = dependency.table([{"model": run, DEPENDENCY: box} for run, box in found.items()])
    picture = Picture(box_plots(found))
    return Section(
        _BOX_TITLE, text=_DEPENDENCY, pictures=[picture], tables=[Table(columns, [list(row) for row in rows])]
    )


def _degradation(results: Mapping[str, Found]) -> Section | None:
    found = {run: result[DEGRADATION] for run, result in results.items() if _is_by_layer(result.get(DEGRADATION))}
    if not found:
        return None
    named = [{"model": run, DEGRADATION: each} for run, each in found.items()]
    columns, rows = degradation.table(named)
    picture = Picture(layer_curves(found))
    table = Table(columns, [list(row) for row in rows])
    return Section(
        _TITLE, text=_DEGRADATION, pictures=[picture], tables=[table], notes=degradation.turning_lines(named)
    )


def _is_box(found: Any) -> bool:
    try:
        numbers = [found["mean"], found["median"], *found["quartiles"], *found["whiskers"], float(found["sentences"])]
        return len(numbers) == 7 and bool(found["pivot"]) and all(map(math.isfinite, numbers))
    except (KeyError, TypeError, ValueError):
        return False


def _is_by_layer(found: Any) -> bool:
    try:
        return all(
            len(each["average"]) > each["best"] >= 0
            and "falls_after" in each
            and all(map(math.isfinite, each["average"]))
            for each in curves_of(found).values()
        )
    except (KeyError, TypeError, ValueError, AttributeError):
        return False
