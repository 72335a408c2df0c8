"""What a quickstart did."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from sentsmith.quickstart.measures import Comparison
from sentsmith.search.compare import Hit


@dataclass
class Outcome:
    """What a quickstart did, for the page and for ``quickstart.json``.

    Attributes:
        record: The run record of the training.
        comparisons: Each measure before and after.
        questions: What was searched for.
        searched: How many sentences were searched.
        text: What they are.
        hits: What the start model and the trained one found.
        suites: Results of the start model and the trained one on the STS tests, if a data folder was given.
        cosines: Cosines to look at: group → values, before and after.
        positions: Mean cosine by list position, before and after; empty for the user's own text.
        seconds: Of the whole job.
    """

    record: dict[str, Any]
    comparisons: list[Comparison]
    questions: Sequence[str]
    searched: int
    text: str
    hits: tuple[list[list[Hit]], list[list[Hit]]]
    suites: tuple[dict[str, Any], dict[str, Any]] | None = None
    cosines: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    positions: tuple[list[float], list[float]] | None = None
    seconds: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return what ``quickstart.json`` holds."""
        result: dict[str, Any] = {
            "measures": [comparison.as_dict() for comparison in self.comparisons],
            "seconds": round(self.seconds, 1),
            "searched": self.searched,
            "model": self.record,
        }
        if self.suites is not None:
            result["sts"] = {"before": self.suites[0], "after": self.suites[1]}
        return result
