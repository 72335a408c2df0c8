"""What two models find for the same questions, side by side."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from sentsmith.report.page import Section
from sentsmith.report.tables import Cell, Marked, Table, number


class Found(Protocol):
    """A sentence that a search found (:class:`sentsmith.search.compare.Hit` is one)."""

    @property
    def sentence(self) -> str:
        """The sentence."""
        ...

    @property
    def score(self) -> float:
        """Its cosine to the question."""
        ...


def side_by_side(
    questions: Sequence[str],
    before: Sequence[Sequence[Found]],
    after: Sequence[Sequence[Found]],
    *,
    title: str = "Nearest sentences, side by side",
    text: str = "",
    names: tuple[str, str] = ("before", "after"),
) -> Section:
    """Return a section with one table a question; a sentence that one model alone found is marked.

    Args:
        questions: What was searched for.
        before: For each question what the first model found, best first.
        after: The same of the second model.
        title: Title of the section.
        text: What to say above the tables.
        names: How to call the two models.

    Raises:
        ValueError: The three do not have the same length.
    """
    tables = [
        Table(("#", names[0], "cosine", names[1], "cosine"), _rows(left, right, names), caption=f"“{question}”")
        for question, left, right in zip(questions, before, after, strict=True)
    ]
    only = sum(isinstance(row[3], Marked) for table in tables for row in table.rows)
    total = sum(len(hits) for hits in after)
    note = f"{only} of the {total} sentences that “{names[1]}” puts on top are not in the list of “{names[0]}”."
    return Section(title, text=text, tables=tables, notes=(note,))


def _rows(left: Sequence[Found], right: Sequence[Found], names: tuple[str, str]) -> list[list[Cell]]:
    known = [{hit.sentence for hit in hits} for hits in (left, right)]
    rows: list[list[Cell]] = []
    for place in range(max(len(left), len(right))):
        row: list[Cell] = [place + 1]
        for hits, other, name in ((left, known[1], names[0]), (right, known[0], names[1])):
            if place >= len(hits):
                row += [None, None]
                continue
            hit = hits[place]
            alone = hit.sentence not in other
            row += [Marked(hit.sentence, f"only {name}") if alone else hit.sentence, number(hit.score, 3)]
        rows.append(row)
    return rows
