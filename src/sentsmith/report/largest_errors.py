"""The pairs on which each model and people are farthest apart, as tables of the report."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from sentsmith.evaluation.largest_errors import ERRORS
from sentsmith.report.page import Section
from sentsmith.report.tables import Cell, Score, Table

_TITLE = "Largest errors"
_TEXT = """\
The pairs of STS-B's dev part on which each model and people are farthest apart, on the scale of the gold scores (0 to
5), after the best straight line through the model's scores."""

Found = Mapping[str, Any]


def section(results: Mapping[str, Found]) -> Section | None:
    """Return the report's section, None where no run has the suite ``errors``.

    Args:
        results: Run → its ``results.json``; what does not look like findings of this suite is passed over.
    """
    found = {run: result[ERRORS] for run, result in results.items() if _is_errors(result.get(ERRORS))}
    if not found:
        return None
    tables = [table for run, each in found.items() for table in _of_errors(run, each, folded=len(found) > 1)]
    notes = [
        f"`{run}`: off by {each['spread']:.2f} of 5 over {each['rows']} pairs (root mean square)."
        for run, each in found.items()
    ]
    return Section(_TITLE, text=_TEXT, tables=tables, notes=notes)


def _of_errors(run: str, found: Found, *, folded: bool) -> Iterator[Table]:
    for side, words in (("too_high", "more"), ("too_low", "less")):
        rows: list[list[Cell]] = [
            [miss["sentence1"], miss["sentence2"], *(Score(miss[key], digits=1) for key in ("gold", "fitted"))]
            for miss in found[side]
        ]
        if rows:
            columns = ("sentence 1", "sentence 2", "gold", "model")
            yield Table(columns, rows, caption=f"{run} finds them {words} alike than people do", folded=folded)


def _is_errors(found: Any) -> bool:
    try:
        return all(
            isinstance(miss["sentence1"], str)
            and isinstance(miss["sentence2"], str)
            and math.isfinite(miss["gold"])
            and math.isfinite(miss["fitted"])
            for side in ("too_high", "too_low")
            for miss in found[side]
        ) and math.isfinite(found["spread"] + found["rows"])
    except (KeyError, TypeError):
        return False
