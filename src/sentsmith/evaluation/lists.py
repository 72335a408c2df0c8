"""The suite ``lists``: how the ranked lists of a file drift, beside their own sentences in no order."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentsmith.corpus.reading import read_rankings
from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.drift import Drift, drift_of, shuffled_across
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.naming import task_name
from sentsmith.evaluation.ordering import plain_lists

LISTS = "lists"
SEED = 0
"""Shuffles the sentences of the random reference."""

COLUMNS = {
    "lists": ("rows", 0),
    "length": ("sentences_per_list", 1),
    "distinct": ("distinct_per_list", 1),
    "τ": ("score", 2),
    "in order": ("in_order", 2),
    "first row": ("in_order_first", 2),
}
"""Of tables of lists: the column's name → the name in a result's details, and digits after the point."""


@dataclass(frozen=True, eq=False)
class ListsTask:
    """The ranked lists of one file.

    Attributes:
        name: The file's, without its ending.
        lists: Each three sentences or more, the nearest to the first one first.
    """

    name: str
    lists: tuple[tuple[str, ...], ...]

    def texts(self) -> Iterator[str]:
        """Yield every sentence of every list."""
        for sentences in self.lists:
            yield from sentences

    def score(self, embedded: Embedded) -> dict[str, Any]:
        """Return the task's score (the mean of Kendall's τ times 100) and how it came about.

        ``"random"`` holds the same of the same sentences shuffled across the lists.
        """
        reference = drift_of(shuffled_across(self.lists, seed=SEED), embedded)
        return {
            **_summary(drift_of(self.lists, embedded)),
            "distinct_sentences": len(set(self.texts())),
            "random": {"seed": SEED, **_summary(reference)},
        }


def _summary(found: Drift) -> dict[str, Any]:
    return {
        "score": 100 * float(found.tau.mean()),
        "rows": len(found.lengths),
        "sentences_per_list": float(found.lengths.mean()),
        "distinct_per_list": float(found.distinct.mean()),
        "in_order": 100 * float(found.in_order.mean()),
        "in_order_first": 100 * float(found.in_order_first.mean()),
        "positions": found.positions.tolist(),
    }


def load_lists(files: Sequence[str | Path]) -> dict[str, ListsTask]:
    """Read ranked lists, one task for each file, under the file's name without its ending.

    Args:
        files: As :func:`sentsmith.corpus.reading.read_rankings` reads them; repetitions count once.

    Raises:
        SettingsError: No file is given.
        InputError: A file cannot be read, holds no list, or one of fewer than three sentences.
    """
    if not files:
        raise SettingsError(
            f"suite {LISTS!r} has nothing to measure: give --lists FILE (.jsonl or .parquet), or several"
        )
    tasks: dict[str, ListsTask] = {}
    for file in dict.fromkeys(map(str, files)):
        lists = tuple(entry.sentences for entry in read_rankings(file))
        try:
            plain_lists(lists)
        except InputError as error:
            raise InputError(str(error), path=file) from error
        name = task_name(file, tasks, otherwise=LISTS)
        tasks[name] = ListsTask(name, lists)
    return tasks


def lists_of(result: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return what a model's result holds of the suite ``lists``: name → details, ``"score"`` among them."""
    tasks = result["details"]["tasks"]
    return {
        name: {"score": result["scores"][name], **details} for name, details in tasks.items() if "positions" in details
    }


def table(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table of results: two for each file, the second of its random reference."""
    rows = []
    for result in results:
        model = f"{result['model']}: " if len(results) > 1 else ""
        for name, details in lists_of(result).items():
            rows.append([f"{model}{name}", *_cells(details)])
            rows.append([f"{model}{name}, random", *_cells(details["random"])])
    return ["file", *COLUMNS], rows


def _cells(details: Mapping[str, Any]) -> list[str]:
    return [f"{details[key]:,.{digits}f}" for key, digits in COLUMNS.values()]
