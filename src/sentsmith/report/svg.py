"""From a matplotlib figure to an inline SVG that takes its colours from the page around it.

matplotlib draws with placeholder colours (:data:`INK`); afterwards each becomes a CSS variable with a
fallback, so one picture serves a light page, a dark page and a file opened on its own. The same figure always
gives the same text: ids come from a hash, and nothing is dated.
"""

from __future__ import annotations

import hashlib
import io
import logging
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from xml.etree import ElementTree as ET

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

# name → (what matplotlib draws with, what the page reads; its hex is for an SVG opened on its own)
_INK = {
    "text": ("#000101", "currentColor"),
    "muted": ("#000102", "var(--muted, #5c6675)"),
    "line": ("#000103", "var(--line, #d9dee6)"),
    "before": ("#000104", "var(--before, #8a6d3b)"),
    "after": ("#000105", "var(--after, #2458c5)"),
    "gain": ("#000106", "var(--gain, #12734a)"),
    "loss": ("#000107", "var(--loss, #b3261e)"),
    "page": ("#000108", "var(--paper, #ffffff)"),
    "series-1": ("#000111", "var(--series-1, #2458c5)"),
    "series-2": ("#000112", "var(--series-2, #b45309)"),
    "series-3": ("#000113", "var(--series-3, #0f766e)"),
    "series-4": ("#000114", "var(--series-4, #9d2c7f)"),
    "series-5": ("#000115", "var(--series-5, #5b6472)"),
    "series-6": ("#000116", "var(--series-6, #6d42c7)"),
}
INK = {name: placeholder for name, (placeholder, _) in _INK.items()}
"""Colours to draw with, by role."""
SERIES = tuple(INK[f"series-{number}"] for number in range(1, 7))
"""Colours of curves and groups, in the order they are given out."""
DASHES = ("-", (0, (5, 2)), (0, (1.5, 1.5)), (0, (6, 2, 1.5, 2)))
"""Line styles given out beside the colours: no two series differ by colour only."""

_VALUE = dict(_INK.values())
_COLOUR = re.compile("|".join(_VALUE))
_FONT = re.compile(r"font-family: [^;]*;?\s*")
_REFERENCE = re.compile(r"url\(#([^)]+)\)")
_SVG = "http://www.w3.org/2000/svg"
_HREF = "{http://www.w3.org/1999/xlink}href"
_STYLE: dict[Any, Any] = {
    "svg.fonttype": "none",
    "svg.hashsalt": "sentsmith",
    "text.parse_math": False,  # a sentence may hold dollar signs
    "text.color": INK["text"],
    "font.size": 10.5,
    "axes.labelcolor": INK["muted"],
    "axes.labelsize": 10,
    "axes.edgecolor": INK["line"],
    "axes.linewidth": 1.0,
    "axes.grid": True,
    "axes.axisbelow": True,
    "axes.facecolor": "none",
    "axes.spines.top": False,
    "axes.spines.right": False,
    "grid.color": INK["line"],
    "grid.linewidth": 0.7,
    "xtick.color": INK["line"],
    "ytick.color": INK["line"],
    "xtick.labelcolor": INK["muted"],
    "ytick.labelcolor": INK["muted"],
    "xtick.major.size": 0,
    "ytick.major.size": 0,
    "figure.facecolor": "none",
    "legend.frameon": False,
    "legend.labelcolor": INK["text"],
    "legend.handlelength": 2.2,
    "lines.solid_capstyle": "round",
}


@contextmanager
def drawing() -> Iterator[None]:
    """Set the style of our pictures: every figure is made and turned into SVG inside such a block."""
    import matplotlib as mpl

    # Letters that matplotlib's own font lacks only cost us their exact width: the browser draws them.
    fonts = logging.getLogger("matplotlib.font_manager")
    level = fonts.level
    fonts.setLevel(logging.ERROR)
    try:
        with mpl.rc_context(), warnings.catch_warnings():
            mpl.rcdefaults()  # a matplotlibrc of the user's must not change our pictures
            mpl.rcParams.update(_STYLE)
            warnings.filterwarnings("ignore", message="Glyph .* missing from font")
            yield
    finally:
        fonts.setLevel(level)


def figure(width: float, height: float, *, title: str, rows: int = 1, columns: int = 1) -> tuple[Figure, list[Axes]]:
    """Return a figure of ``width`` × ``height`` inches with its title, and its axes (sharing both scales)."""
    from matplotlib.figure import Figure

    picture = Figure(figsize=(width, height), layout="constrained")
    picture.suptitle(short(title, 90), x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    axes = picture.subplots(rows, columns, squeeze=False, sharex=True, sharey=True)
    return picture, [axis for row in axes for axis in row]


def short(text: str, limit: int) -> str:
    """Return ``text`` on one line, cut to ``limit`` characters with an ellipsis."""
    line = " ".join(str(text).split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def to_svg(picture: Figure, *, title: str, description: str) -> str:
    """Return the figure as SVG text for inlining in HTML.

    Args:
        picture: Made with :func:`figure`, inside :func:`drawing`.
        title: What the picture shows, in a few words (its accessible name).
        description: The picture in words, with its main numbers, for readers who cannot see it.
    """
    from matplotlib.backends.backend_svg import FigureCanvasSVG

    FigureCanvasSVG(picture)
    stream = io.StringIO()
    picture.savefig(stream, format="svg", transparent=True, metadata={"Date": None})
    root = ET.fromstring(stream.getvalue())  # noqa: S314 (matplotlib wrote it a line above)
    _clean(root)
    digest = hashlib.sha256(ET.tostring(root) + description.encode()).hexdigest()[:10]
    _rename_ids(root, f"p{digest}-")
    width = float(root.attrib.pop("width").removesuffix("pt"))
    root.attrib.pop("height")
    root.set("class", "picture")
    root.set("role", "img")
    root.set("aria-label", f"{title}. {description}")
    root.set("style", f"width: 100%; max-width: {width * 4 / 3:.0f}px; height: auto")
    root.insert(0, _element("title", title))
    root.insert(1, _element("desc", description))
    return ET.tostring(root, encoding="unicode").replace(
        "<svg ", f'<svg xmlns="{_SVG}" stroke-linejoin="round" font-family="var(--font, sans-serif)" ', 1
    )


def _element(name: str, text: str) -> ET.Element:
    element = ET.Element(name)
    element.text = text
    return element


def _clean(root: ET.Element) -> None:
    """Drop metadata and global styles, namespaces, white space; placeholders become the page's colours."""
    for element in root.iter():
        for child in list(element):
            name = child.tag.rpartition("}")[2]
            # The style sheet that matplotlib adds is for `*`: inlined, it would restyle the whole page.
            if name in {"metadata", "style"}:
                element.remove(child)
        element.tag = element.tag.rpartition("}")[2]
        element.tail = None
        if element.tag != "text":
            element.text = None
        if _HREF in element.attrib:
            element.set("href", element.attrib.pop(_HREF))
        if "d" in element.attrib:
            element.set("d", " ".join(element.attrib["d"].split()))
        if "style" in element.attrib:
            style = _FONT.sub("", element.attrib["style"])
            element.set("style", _COLOUR.sub(lambda match: _VALUE[match.group()], style))


def _rename_ids(root: ET.Element, prefix: str) -> None:
    """Prefix the ids that something points to, for one page holds many pictures; drop the rest."""
    used = {reference[1:] for element in root.iter() if (reference := element.get("href"))}
    used |= {
        found for element in root.iter() for value in element.attrib.values() for found in _REFERENCE.findall(value)
    }
    for element in root.iter():
        for key, value in list(element.attrib.items()):
            if key == "id":
                del element.attrib["id"]
                if value in used:
                    element.set("id", prefix + value)
            elif key == "href":
                element.set("href", f"#{prefix}{value[1:]}")
            else:
                element.set(key, _REFERENCE.sub(lambda match: f"url(#{prefix}{match.group(1)})", value))
