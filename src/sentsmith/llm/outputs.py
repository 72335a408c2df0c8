"""From the ledger to files: which rows have all their answers, which are in quarantine, which are still to be asked.

Beside an output ``OUT`` stand ``OUT.quarantine.jsonl`` (the rows that were left out, with their reasons and raw
answers), ``OUT.record.json`` (what was asked of which model, and what came of it) and, unless another one is named, the
ledger ``OUT.ledger.sqlite``.
"""

from __future__ import annotations

import contextlib
import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from pydantic import Field

from sentsmith.corpus.writing import new_table, write_rows
from sentsmith.errors import SentsmithError
from sentsmith.files import atomic_path, write_json
from sentsmith.llm.answering import Outcome
from sentsmith.llm.backend import Decoding
from sentsmith.llm.ledger import Ledger, Record, kind_of
from sentsmith.llm.parsing import TOO_SHORT_OR_LONG
from sentsmith.llm.questions import Question, Unreadable, key_of
from sentsmith.settings import Settings
from sentsmith.versions import versions

T = TypeVar("T")


class AskingSettings(Settings):
    """What every job has that asks a language model."""

    prompts: str = Field(default="multicsr", description="Prompt file, or the name of one that ships")
    seed: int = Field(default=0, ge=0, description="Chooses each sentence's instruction, and the draws of sampling")
    max_new_tokens: int = Field(default=256, ge=1, description="The longest answer, its end sign included")
    temperature: float = Field(default=0.0, ge=0.0, description="0 is greedy")
    top_p: float = Field(
        default=1.0, gt=0.0, le=1.0, description="Draw from the likeliest tokens that reach this share"
    )
    limit: int | None = Field(default=None, ge=1, description="Only so many rows, from the start")

    def decoding(self) -> Decoding:
        """Return how answers are decoded."""
        return Decoding(
            max_new_tokens=self.max_new_tokens, temperature=self.temperature, top_p=self.top_p, seed=self.seed
        )


@dataclass(frozen=True, slots=True)
class Beside:
    """The files that belong to an output."""

    output: Path
    ledger: Path
    quarantine: Path
    record: Path


def beside(output: str | Path, ledger: str | Path | None = None) -> Beside:
    """Return the files that belong to ``output``; the ledger is the given one, or stands beside it too."""
    target = Path(output)
    own = target.with_name(target.name + ".ledger.sqlite")
    return Beside(
        output=target,
        ledger=own if ledger is None else Path(ledger),
        quarantine=target.with_name(target.name + ".quarantine.jsonl"),
        record=target.with_name(target.name + ".record.json"),
    )


def checked_output(
    output: str | Path, source: str | Path, job: str, *, ledger: str | Path | None = None, overwrite: bool = False
) -> Beside:
    """Return the files of an output that can be written; a folder for it is made.

    An output may be written again, without ``overwrite``, where its record says that this job made it
    (:func:`made_by`). What was paid for is in the ledger.

    Args:
        output: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``, also with ``.gz``.
        source: What is read.
        job: What the record calls this job.
        ledger: Another ledger than ``OUT.ledger.sqlite``.
        overwrite: Replace any file.

    Raises:
        InputError: Another suffix, a folder, the source itself or in it, or a file that is not this job's to replace.
    """
    files = beside(output, ledger)
    new_table(output, source=source, replace=overwrite or made_by(job, files))
    return files


def made_by(job: str, files: Beside) -> bool:
    """Tell whether the output's record says that this job wrote it, from this ledger or from none."""
    record = read_record(job, files)
    return record is not None and bool(record.get("written", False))


def read_record(job: str, files: Beside) -> dict[str, Any] | None:
    """Return the record of this job, where it asked this ledger or none; None where there is no such record."""
    try:
        record = json.loads(files.record.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    if not isinstance(record, dict) or record.get("job") != job:
        return None
    named = record.get("ledger")
    same = named is None or (isinstance(named, str) and Path(named).resolve() == files.ledger.resolve())
    return record if same else None


@dataclass(slots=True)
class Tally:
    """What became of the rows.

    Attributes:
        rows: All of them.
        complete: All their questions have an answer.
        quarantined: A question of theirs has no answer that can be read, for good.
        pending: Still to be asked (a budget was reached).
        lost: Of those in quarantine: because no answer came at all to one of their questions.
        reasons: Why, over the questions in quarantine.
    """

    rows: int = 0
    complete: int = 0
    quarantined: int = 0
    pending: int = 0
    lost: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def why_none(self, answers: Path) -> str:
        """Return why no row at all is complete, in the most frequent reasons, and what to do about it."""
        return f"{self.top_reasons()}; {answers} holds the answers. {advice(self.quarantined, self.lost)}"

    def top_reasons(self) -> str:
        """Return the most frequent reasons, in parentheses."""
        return f"({', '.join(f'{count} {reason}' for reason, count in self.reasons.most_common(3))})"


@dataclass(frozen=True, slots=True)
class Written:
    """What came of a job that writes the complete rows.

    Attributes:
        tally: Of the rows.
        outcome: What was asked in this run; None where no language model writes.
        stands: Nothing was written, and the output is left as it was, with its record and its quarantine.
    """

    tally: Tally
    outcome: Outcome | None
    stands: bool = False


def advice(unreadable: int, lost: int) -> str:
    """Return what to do where not one answer could be read; so many of them were lost, and never came."""
    advices = [] if lost == unreadable else ["Does the model follow these prompts?"]
    return " ".join(advices + ([asks_again(lost)] if lost else []))


def asks_again(lost: int) -> str:
    """Return what to do about so many rows, or questions, that were lost."""
    return f"No answer came to {lost:,} of them: --retry-quarantined asks again"


LeftOut = Callable[[Mapping[str, Any]], None]
"""Takes a row that is left out, for the quarantine."""
Asked = Mapping[str, Question]
"""The questions about one row, each under a name."""


def complete_rows(
    rows: Iterable[tuple[T, Asked]],
    ledger: Ledger,
    left_out: LeftOut,
    *,
    model: str,
    decoding: Decoding,
    tally: Tally,
) -> Iterator[tuple[T, dict[str, str | float]]]:
    """Yield the rows whose questions all have an answer, with their answers, in order.

    Args:
        rows: (row, its questions); a row is anything, and its questions name its texts.
        ledger: Where the answers are.
        left_out: Is called with what the quarantine says of a row that is in it.
        model: The backend's name.
        decoding: As it was asked.
        tally: Is counted up.
    """
    for number, (row, questions) in enumerate(rows, start=1):
        tally.rows += 1
        records = {name: ledger.get(key_of(question, model, decoding)) for name, question in questions.items()}
        answers: dict[str, str | float] = {}
        reasons: dict[str, str] = {}
        for name, record in records.items():
            try:
                answer = answer_of(record, questions[name])
            except Unreadable as error:
                reasons[name] = str(error)
            else:
                if answer is not None:
                    answers[name] = answer
        if reasons:
            tally.quarantined += 1
            tally.lost += any(record is not None and was_lost(record) for record in records.values())
            tally.reasons.update(f"{name}: {kind_of(reason)}" for name, reason in reasons.items())
            left_out(
                {
                    "row": number,
                    "given": {name: list(question.given) for name, question in questions.items()},
                    "reasons": reasons,
                    "answers": {name: record.answer for name, record in records.items() if record},
                }
            )
        elif len(answers) < len(questions):
            tally.pending += 1
        else:
            tally.complete += 1
            yield row, answers


def answer_of(record: Record | None, question: Question) -> str | float | None:
    """Return what an answer in the ledger says; None where the question is still to be asked.

    Raises:
        Unreadable: It is in quarantine, with this reason.
    """
    if record is None or record.state == "retry":
        return None
    # Read once more: how long a sentence may be is not part of the request, and may have changed since.
    if record.state == "quarantined" and record.reason not in TOO_SHORT_OR_LONG:
        raise Unreadable(record.reason or "")
    return question.parse(record.answer)


def was_lost(record: Record) -> bool:
    """Tell whether a question is in quarantine though no answer ever came that could be unreadable."""
    return record.state == "quarantined" and record.attempts == 0


@contextlib.contextmanager
def quarantine(path: Path) -> Iterator[LeftOut]:
    """Yield what takes the rows that are left out; the file is whole, or absent where there is no such row."""
    count = 0
    with atomic_path(path) as temporary, temporary.open("w", encoding="utf-8", newline="\n") as stream:

        def left_out(row: Mapping[str, Any]) -> None:
            nonlocal count
            count += 1
            stream.write(json.dumps(row, ensure_ascii=False) + "\n")

        yield left_out
    if not count:
        path.unlink()


class _NothingWrittenError(Exception):
    """No row is complete."""


def write_complete(
    files: Beside,
    job: str,
    rows: Callable[[LeftOut], Iterable[Mapping[str, Any]]],
    *,
    columns: Sequence[str],
    facts: Mapping[str, Any],
    tally: Tally,
    none: Callable[[Path], str],
    asks: bool = True,
) -> bool:
    """Write the complete rows, with the quarantine and the record that belong to them.

    Where no row is complete, an output that is there already is left as it was, and so is what stands beside it; where
    there is none, the quarantine is written alone.

    Args:
        files: Those of the output.
        job: What the record calls it.
        rows: Called once; yields the complete rows, hands over those that are left out, and counts up ``tally``.
        columns: Of the output.
        facts: What the rows were written from and with.
        tally: Of the rows, once they are at their end.
        none: What to say where no row is complete and none is pending; called with the file that holds the answers.
        asks: Whether a language model was asked.

    Returns:
        Whether an output that was there already was left as it was.

    Raises:
        SentsmithError: No row is complete, and none is pending.
    """
    stands = files.output.exists()

    def complete() -> Iterator[Mapping[str, Any]]:
        with quarantine(files.quarantine) as left_out:
            yield from rows(left_out)
            if stands and not tally.complete:
                # The quarantine that is there tells of the output that stays.
                raise _NothingWrittenError
        if not tally.complete:
            raise _NothingWrittenError
        write_record(files, job, facts, tally, asks=asks)

    try:
        write_rows(files.output, complete(), columns=columns)
    except _NothingWrittenError:
        if not tally.pending:
            message = none(files.ledger if stands else files.quarantine)
            raise SentsmithError(f"{files.output} is left as it was: {message}" if stands else message) from None
        return stands
    return False


def write_record(
    files: Beside, job: str, facts: Mapping[str, Any], tally: Tally, *, asks: bool = True, written: bool = True
) -> None:
    """Write ``OUT.record.json``: the job, its facts, the ledger, what became of the rows, the versions.

    Written before the output, so that an output of ours is known as such even if the job ends between the two.

    Args:
        files: Those of the output.
        job: Its name.
        facts: What it was done from and with.
        tally: What became of the rows.
        asks: Whether a language model was asked; without one there is no ledger.
        written: Whether the output is this job's; nothing may be worth writing.
    """
    counts = asdict(tally) | {"reasons": dict(tally.reasons.most_common())}
    ledger = str(files.ledger) if asks else None
    write_json(
        files.record,
        {"job": job, **facts, "ledger": ledger, "written": written, "counts": counts, "versions": versions()},
    )
