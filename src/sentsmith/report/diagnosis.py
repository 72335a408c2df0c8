"""Pictures of a diagnosis: the attention of a sentence layer by layer, similarities by band of gold score."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from sentsmith.errors import InputError
from sentsmith.evaluation.diagnostics import Diagnosis
from sentsmith.files import write_text
from sentsmith.report.pictures import histogram_panels
from sentsmith.report.svg import INK, drawing, figure, short, to_svg

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ATTENTION = "attention.svg"
SIMILARITIES = "similarities.svg"
_WIDTH = 8.4  # inches
_LARGEST = 24  # tokens whose labels can still be read
_SHADES = 20


def draw(diagnosis: Diagnosis, folder: str | Path) -> None:
    """Write the pictures of a diagnosis into a folder: ``similarities.svg`` and, where it was read, ``attention.svg``.

    Raises:
        InputError: One of them is a folder.
    """
    place = Path(folder)
    write_text(place / SIMILARITIES, similarity_bands(diagnosis.bands))
    if diagnosis.maps:
        single = len(diagnosis.maps) == 1
        panels = {
            f"layer {layer}" if single else f"tower {tower}, layer {layer}": weights.mean(axis=0)
            for tower, found in enumerate(diagnosis.maps, start=1)
            for layer, weights in enumerate(found.weights, start=1)
        }
        first = diagnosis.maps[0]
        across = _across(len(first.weights), len(first.tokens))
        write_text(place / ATTENTION, attention_panels(panels, tokens=first.tokens, across=across))
    else:
        # That of an earlier model would be taken for this one's.
        (place / ATTENTION).unlink(missing_ok=True)


def similarity_bands(bands: Mapping[str, Sequence[float] | NDArray[np.float64]]) -> str:
    """Draw the distribution of cosines in each band of gold score, the highest band on top.

    Args:
        bands: Band (``"0–1"``) → cosines, from the lowest band.

    Raises:
        InputError: No band holds a finite value.
    """
    panels = {f"gold {band}": {"pairs": np.asarray(values).tolist()} for band, values in bands.items()}
    return histogram_panels(
        dict(reversed(panels.items())),
        x_label="cosine similarity",
        title="Similarity of pairs, by how alike people found them",
        panel_height=0.95,
    )


def attention_panels(
    panels: Mapping[str, ArrayLike],
    *,
    tokens: Sequence[str],
    title: str = "Attention, mean over heads",
    across: int = 4,
) -> str:
    """Draw one small heat map for each layer, all on one scale; a column that is dark throughout is a sink.

    Args:
        panels: Name (``"layer 1"``) → ``[T, T]`` weights; row i is how token i spreads its attention.
        tokens: ``[T]``. Of more than 24 only the first 24 are drawn, and the picture says so.
        title: The picture's title.
        across: Panels side by side.

    Raises:
        InputError: There is no panel, or one has another shape.
    """
    maps = {name: np.asarray(weights, dtype=np.float64) for name, weights in panels.items()}
    count = len(tokens)
    if not maps or not count or any(weights.shape != (count, count) for weights in maps.values()):
        shapes = ", ".join(str(weights.shape) for weights in maps.values()) or "none"
        raise InputError(f"attention panels need weights [T, T] for {count} tokens, at least one, given {shapes}")
    shown = min(count, _LARGEST)
    labels = [short(token, 12) for token in tokens[:shown]]
    part = "" if shown == count else f" (the first {shown} of {count} tokens)"
    across = min(across, len(maps))
    down = -(-len(maps) // across)
    cut = {name: weights[:shown, :shown] for name, weights in maps.items()}
    strongest = max(float(weights.max()) for weights in cut.values()) or 1.0
    side = (_WIDTH - 1.1) / across - 0.15
    with drawing():
        height = 1.3 + down * (min(side, 4.0) + 0.3)
        picture, axes = figure(_WIDTH, height, title=title + part, rows=down, columns=across)
        size = min(9.0, 0.85 * 72 * min(side, 4.0) / shown)
        for place, axis in enumerate(axes):
            if place >= len(maps):
                axis.set_visible(False)
                continue
            name = list(cut)[place]
            _panel(axis, cut[name], strongest=strongest)
            axis.set_title(short(name, 30), fontsize=9.5, loc="left", pad=3)
            axis.set_xticks(range(shown), labels, rotation=90, fontsize=size)
            axis.set_yticks(range(shown), labels, fontsize=size)
            # A column's last panel names the tokens, whether or not a panel stands beside it.
            axis.tick_params(labelbottom=place + across >= len(maps), labelleft=place % across == 0)
        picture.supxlabel(f"token attended to (strongest shade: {strongest:.2f})", fontsize=10, color=INK["muted"])
        picture.supylabel("token that attends", fontsize=10, color=INK["muted"])
        return to_svg(picture, title=title + part, description=_in_words(maps, tokens))


def _across(layers: int, tokens: int) -> int:
    """As many panels side by side as let each tower start a new row; fewer where many tokens want room."""
    most = 4 if tokens <= 16 else 3
    return next((columns for columns in range(most, 1, -1) if layers % columns == 0), min(most, layers))


def _panel(axis: Axes, weights: NDArray[np.float64], *, strongest: float) -> None:
    from matplotlib.patches import PathPatch
    from matplotlib.path import Path as Outline

    count = len(weights)
    shades = np.rint(_SHADES * np.clip(weights / strongest, 0, 1)).astype(int)
    square = np.array([(-0.5, -0.5), (0.5, -0.5), (0.5, 0.5), (-0.5, 0.5), (-0.5, -0.5)])
    codes = [Outline.MOVETO, Outline.LINETO, Outline.LINETO, Outline.LINETO, Outline.CLOSEPOLY]
    # One outline for all cells of a shade: a picture of cell after cell would be many times as large.
    for shade in range(1, _SHADES + 1):
        cells = np.argwhere(shades == shade)
        if len(cells):
            corners = np.concatenate([square + np.array([column, row]) for row, column in cells])
            outline = Outline(corners, codes * len(cells))
            axis.add_patch(PathPatch(outline, facecolor=INK["after"], alpha=0.9 * shade / _SHADES, lw=0))
    edges = np.arange(count + 1) - 0.5
    axis.set(xlim=(-0.5, count - 0.5), ylim=(count - 0.5, -0.5), aspect="equal")
    axis.grid(visible=False)
    axis.hlines(edges, -0.5, count - 0.5, color=INK["line"], linewidth=0.4)
    axis.vlines(edges, -0.5, count - 0.5, color=INK["line"], linewidth=0.4)
    axis.spines[:].set_visible(False)


def _in_words(maps: Mapping[str, NDArray[np.float64]], tokens: Sequence[str]) -> str:
    told = []
    for name, weights in maps.items():
        received = weights.mean(axis=0)
        most = int(received.argmax())
        told.append(f"{name}: most attention goes to token {most + 1}, {tokens[most]} ({received[most]:.2f} of it)")
    return f"Which token attends to which, {len(tokens)} tokens. {'; '.join(told)}."
