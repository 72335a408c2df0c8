"""From lists to files: the whole ones are rows, the dropped ones are listed with their reasons, the rest is counted."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from sentsmith.corpus.writing import write_rows
from sentsmith.errors import SentsmithError
from sentsmith.llm.ledger import kind_of
from sentsmith.llm.outputs import Beside, Tally, quarantine, write_record
from sentsmith.methods.ranking.advancing import Draft
from sentsmith.methods.ranking.validation import REPETITION

COLUMNS = ("sentences",)


@dataclass(frozen=True, slots=True)
class Finished:
    """A list as it is at the end of a run; ``pending``: not whole, and not dropped."""

    draft: Draft
    pending: bool = False


class _NothingWrittenError(SentsmithError):
    """No seed gave a list."""


def write_lists(
    files: Beside, job: str, lists: Iterable[Finished], facts: Mapping[str, Any], *, asks: bool = True
) -> Tally:
    """Write the whole lists, in order, with the record; and the dropped ones to the quarantine.

    Args:
        files: Those of the output.
        job: What the record calls it.
        lists: One a seed.
        facts: What the lists were written from and with.
        asks: Whether a language model was asked.

    Raises:
        SentsmithError: Not one list is whole, and none is pending.
    """
    tally = Tally()

    def rows() -> Iterator[dict[str, Any]]:
        with quarantine(files.quarantine) as left_out:
            for number, finished in enumerate(lists, start=1):
                _count(tally, finished)
                draft = finished.draft
                if draft.reason is not None:
                    left_out(
                        {"row": number, "reason": draft.reason, "sentences": draft.sentences, "answer": draft.answer}
                    )
                elif not finished.pending:
                    yield {"sentences": draft.sentences}
        if not tally.complete:
            circles = asks and 2 * tally.reasons[REPETITION] > tally.rows
            draw = "; greedy decoding runs in circles with many models: --temperature 0.7 draws" if circles else ""
            raise _NothingWrittenError(f"none of {tally.rows} seeds gave a list {tally.why_none(files)}{draw}")
        write_record(files, job, facts, tally, asks=asks)

    try:
        write_rows(files.output, rows(), columns=COLUMNS)
    except _NothingWrittenError:
        if not tally.pending:
            raise
    return tally


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
