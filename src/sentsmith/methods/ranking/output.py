"""From lists to files: the whole ones are rows, the dropped ones are listed with their reasons, the rest is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentsmith.llm.answering import Outcome
from sentsmith.llm.ledger import kind_of
from sentsmith.llm.outputs import Beside, LeftOut, Tally, Written, write_complete
from sentsmith.methods.ranking.advancing import Draft
from sentsmith.methods.ranking.validation import REPETITION

COLUMNS = ("sentences",)


@dataclass(frozen=True, slots=True)
class Finished:
    """A list as it is at the end of a run; ``pending``: not whole, and not dropped."""

    draft: Draft
    pending: bool = False


def write_lists(
    files: Beside, job: str, lists: Iterable[Finished], facts: Mapping[str, Any], outcome: Outcome | None
) -> Written:
    """Write the whole lists, in order, with the record; and the dropped ones to the quarantine.

    Args:
        files: Those of the output.
        job: What the record calls it.
        lists: One a seed.
        facts: What the lists were written from and with.
        outcome: What was asked; None where no language model was.

    Raises:
        SentsmithError: Not one list is whole, and none is pending.
    """
    tally = Tally()

    def rows(left_out: LeftOut) -> Iterator[dict[str, Any]]:
        for number, finished in enumerate(lists, start=1):
            _count(tally, finished)
            draft = finished.draft
            if draft.reason is not None:
                left_out({"row": number, "reason": draft.reason, "sentences": draft.sentences, "answer": draft.answer})
            elif not finished.pending:
                yield {"sentences": draft.sentences}

    def none(answers: Path) -> str:
        return f"none of {tally.rows} seeds gave a list {_why_none(tally, None if outcome is None else answers)}"

    stands = write_complete(
        files, job, rows, columns=COLUMNS, facts=facts, tally=tally, none=none, asks=outcome is not None
    )
    return Written(tally, outcome, stands)


def _why_none(tally: Tally, answers: Path | None) -> str:
    """Return why no list is whole, and what to do about it; no answers: a control wrote them, and no model."""
    if answers is None:
        return (
            f"{tally.top_reasons()}: the sentences hold too few words to keep changing; give more sentences, or a "
            "smaller --count, or a larger --repeats"
        )
    circles = 2 * tally.reasons[REPETITION] > tally.rows
    draw = "; greedy decoding runs in circles with many models: --temperature 0.7 draws" if circles else ""
    return tally.why_none(answers) + draw


def _count(tally: Tally, finished: Finished) -> None:
    draft = finished.draft
    tally.rows += 1
    if draft.reason is not None:
        tally.quarantined += 1
        tally.lost += draft.lost
        tally.reasons[kind_of(draft.reason)] += 1
    elif finished.pending:
        tally.pending += 1
    else:
        tally.complete += 1
