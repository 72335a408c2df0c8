"""One self-contained HTML page: nothing on it needs a network.

Everything that comes from outside (sentences, names, warnings) is escaped by the template; only pictures,
which :mod:`sentsmith.report.pictures` drew, go in as they are.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from sentsmith.files import write_text
from sentsmith.report.tables import NOT_RECORDED, Delta, Marked, Score, Table, cell_text, number

if TYPE_CHECKING:
    from jinja2 import Template
    from markupsafe import Markup


@dataclass(frozen=True)
class Callout:
    """A line that must not be missed: plain information, good news, or a warning."""

    kind: Literal["note", "good", "warning"]
    text: str


@dataclass(frozen=True)
class Picture:
    """An SVG from :mod:`sentsmith.report.pictures` and what to say below it; a small one may stand beside another."""

    svg: str
    caption: str = ""
    small: bool = False


@dataclass(frozen=True)
class Headline:
    """One of the few numbers that a reader wants first, for example ``STS average 79.9, +1.0``."""

    label: str
    value: str
    delta: Delta | None = None
    note: str = ""


@dataclass(frozen=True)
class Section:
    """A part of the page; in its text, blank lines part paragraphs and backticks mark code."""

    title: str
    text: str = ""
    callouts: Sequence[Callout] = ()
    pictures: Sequence[Picture] = ()
    tables: Sequence[Table] = ()
    notes: Sequence[str] = ()


@dataclass(frozen=True)
class Page:
    """The page: a title, what the reader should take away, the main numbers, and the sections."""

    title: str
    lead: str = ""
    headlines: Sequence[Headline] = ()
    sections: Sequence[Section] = ()
    footer: str = ""


def render(page: Page) -> str:
    """Return the page as HTML; the same page always gives the same text."""
    anchors = _anchors([section.title for section in page.sections])
    return _template().render(page=page, sections=list(zip(anchors, page.sections, strict=True))) + "\n"


def write_page(page: Page, path: str | Path) -> None:
    """Write the page as UTF-8 HTML, whole or not at all.

    Raises:
        InputError: ``path`` is a folder, or a parent of it is a file.
    """
    write_text(path, render(page))


@cache
def _template() -> Template:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("sentsmith.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters.update(cell=cell_text, number=number, prose=_prose, paragraphs=_paragraphs)
    environment.tests.update(
        delta=lambda cell: isinstance(cell, Delta),
        score=lambda cell: isinstance(cell, Score),
        missing=lambda cell: cell is None or cell == NOT_RECORDED,
        marked=lambda cell: isinstance(cell, Marked),
    )
    return environment.get_template("page.html.j2")


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]


def _prose(text: str) -> Markup:
    """Escape text; then what stands between backticks is code."""
    from markupsafe import Markup, escape

    # The text is escaped first, so the tags added here are the only ones.
    return Markup(re.sub(r"`([^`]+)`", r"<code>\1</code>", str(escape(text))))  # noqa: S704


def _anchors(titles: Sequence[str]) -> list[str]:
    """Return an id for each title, all different."""
    anchors: list[str] = []
    for place, title in enumerate(titles, start=1):
        slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
        while slug in anchors:
            slug = f"{slug}-{place}"
        anchors.append(slug)
    return anchors
