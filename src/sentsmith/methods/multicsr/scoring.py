"""Curated triplets: scored by a language model, by an embedding model's cosine, or by columns that are there."""

from __future__ import annotations

import itertools
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.lines import STDIN
from sentsmith.corpus.reading import read_triplets
from sentsmith.corpus.rows import Triplet
from sentsmith.corpus.writing import write_rows
from sentsmith.errors import InputError, SentsmithError, SettingsError
from sentsmith.llm.answering import Outcome, ask
from sentsmith.llm.backend import Backend
from sentsmith.llm.estimating import Estimate, estimate
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.outputs import (
    Asked,
    Beside,
    Tally,
    checked_output,
    complete_rows,
    made_by,
    quarantine,
    read_record,
    write_record,
)
from sentsmith.llm.prompts import load_prompts
from sentsmith.llm.questions import Question
from sentsmith.llm.spending import Budget, Price
from sentsmith.methods.multicsr.curation import CurationSettings, verdict
from sentsmith.methods.multicsr.scored import COLUMNS, SCORES, Scored, Scorer, by_cosine, has_scores, read_scored

JOB = "curate"
"""What the record calls it."""
TASK = "score"


@dataclass(slots=True)
class Curated:
    """What came of the triplets.

    Attributes:
        tally: Of the triplets: those with scores, in quarantine, still to be asked.
        kept: How many were written, those that changed places included; where it is 0, no output was.
        removed: None was kept, and the output of earlier thresholds was removed.
        swapped: How many changed places (the released code's rule).
        positive_scores: Of the triplets that have scores, in order.
        negative_scores: As many.
        scores: The file of all scored triplets: the input itself, where it had scores.
        outcome: What was asked in this run; None where no language model was.
    """

    tally: Tally
    scores: Path
    kept: int = 0
    swapped: int = 0
    removed: bool = False
    positive_scores: array[float] = field(default_factory=lambda: array("d"))
    negative_scores: array[float] = field(default_factory=lambda: array("d"))
    outcome: Outcome | None = None


def scores_file(output: str | Path) -> Path:
    """Return where :func:`curate` writes all scored triplets."""
    return Path(f"{output}.scores.parquet")


def curate(
    triplets: str | Path,
    output: str | Path,
    settings: CurationSettings | None = None,
    *,
    backend: Callable[[], Backend] | None = None,
    scorer: Callable[[], Scorer] | None = None,
    ledger: str | Path | None = None,
    budget: Budget | None = None,
    price: Price | None = None,
    retry_quarantined: bool = False,
    overwrite: bool = False,
    advance: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> Curated:
    """Keep the triplets whose scores say that they are what they should be.

    Rows come in the order of the input, with the columns of :data:`COLUMNS`. All scored triplets, kept or not, are
    written to ``OUT.scores.parquet``, unless the input itself holds scores: curating that file with other thresholds
    asks nobody. Where none is kept, there is no output: one that this job wrote before is removed.

    Args:
        triplets: What :func:`~sentsmith.corpus.reading.read_triplets` reads.
        output: A table to write.
        settings: The rule, and how a language model is asked.
        backend: Opens the language model that scores; called once the input is known to be good.
        scorer: Opens an embedding model that scores in its place: 5 · max(0, cosine).
        ledger: Another ledger than ``OUT.ledger.sqlite``.
        budget: Where to stop asking; what is scored by then is curated, a later run goes on.
        price: What tokens cost.
        retry_quarantined: Ask again what is in quarantine.
        overwrite: Replace an output, or scores, that are not this job's own.
        advance: Called with the number of scores since the last call.
        expect: Called once with the number of scores there will be.

    Raises:
        InputError: The triplets cannot be read, a score is no number from 0 to 5, or the output cannot be written.
        SettingsError: There is nothing to score with, or too much.
        SentsmithError: The model fails, or no triplet has scores.
    """
    chosen = settings or CurationSettings()
    if backend is not None and scorer is not None:
        raise SettingsError("a language model and an embedding model are both to score; give --llm or --scorer")
    files = _checked(triplets, output, ledger, overwrite=overwrite)
    source = Path(triplets)
    if backend is not None or scorer is not None:
        _check_scores(files, overwrite=overwrite)
    result = Curated(Tally(), scores_file(output))
    facts: dict[str, Any] = {
        "data": {"path": str(source), "sha256": data_hash(source)},
        "settings": chosen.model_dump(mode="json"),
    }
    record = _Recorder(files, facts, result, asks=backend is not None)
    if backend is not None:
        plan = _Plan(source, chosen)
        expect(len(SCORES) * plan.rows_in_all)
        model = backend()
        facts["model"] = model.name
        with Ledger(files.ledger) as answers:
            result.outcome = ask(
                plan.questions(),
                model,
                answers,
                chosen.decoding(),
                budget=budget,
                price=price,
                retry_quarantined=retry_quarantined,
                advance=advance,
            )
            _write_scores(plan.scored(answers, files, model.name, result.tally), result, record)
    elif scorer is not None:
        expect(len(SCORES) * sum(1 for _ in _triplets(source, chosen)))
        opened = scorer()
        facts["scorer"] = {"name": opened.name, "sha256": opened.sha256}
        _write_scores(by_cosine(_triplets(source, chosen), opened.encoder, advance=advance), result, record)
    else:
        _need_scores(source)
        result.scores = source
    if not result.tally.pending or result.tally.complete:
        _keep(itertools.islice(read_scored(result.scores), chosen.limit), files, chosen, result, record)
    return result


def estimate_scores(
    triplets: str | Path,
    output: str | Path,
    backend: Callable[[], Backend],
    settings: CurationSettings | None = None,
    *,
    ledger: str | Path | None = None,
    price: Price | None = None,
) -> Estimate:
    """Return what :func:`curate` would ask, and about how long that takes and what it costs.

    Raises:
        InputError: See :func:`curate`, as for the others. An output that exists is no error here.
    """
    chosen = settings or CurationSettings()
    files = _checked(triplets, output, ledger, overwrite=True)
    plan = _Plan(Path(triplets), chosen)
    model = backend()
    with Ledger(files.ledger) as answers:
        return estimate(plan.questions(), model, answers, chosen.decoding(), price=price)


def _need_scores(path: Path) -> None:
    if not has_scores(path):
        raise SettingsError(
            "has no columns positive_score and negative_score, so something has to score it: --llm SPEC (a language "
            "model), --scorer MODEL (an embedding model, by cosine), or give a file with these columns, such as the "
            "OUT.scores.parquet of an earlier run",
            path=path,
        )


def _checked(triplets: str | Path, output: str | Path, ledger: str | Path | None, *, overwrite: bool) -> Beside:
    if str(triplets) == STDIN:
        raise InputError("triplets are read more than once; give a file or a folder, not standard input")
    files = checked_output(output, triplets, JOB, ledger=ledger, overwrite=overwrite)
    if scores_file(output).resolve() == Path(triplets).resolve() and not has_scores(triplets):
        raise InputError("is where the scores of this output go; give another name", path=triplets)
    return files


def _check_scores(files: Beside, *, overwrite: bool) -> None:
    path = scores_file(files.output)
    # A record without an output is one too: of scores of which none was kept.
    if path.exists() and not overwrite and read_record(JOB, files) is None:
        raise InputError("exists, and is where the scores go; give another name, or --overwrite", path=path)


class _Plan:
    """The triplets and the questions about them, to be gone through more than once."""

    def __init__(self, path: Path, settings: CurationSettings) -> None:
        self.path, self.settings = path, settings
        self.prompts = load_prompts(settings.prompts).need(TASK, name=settings.prompts)
        # Read to the end before anything is asked: a bad row far below must not stop a run of days.
        self.rows_in_all = sum(1 for _ in _triplets(path, settings))

    def rows(self) -> Iterator[tuple[Triplet, Asked]]:
        for row in _triplets(self.path, self.settings):
            yield (
                row,
                {
                    name: self.prompts.question(TASK, (row.anchor, text), seed=self.settings.seed)
                    for name, text in zip(SCORES, (row.positive, row.negative), strict=True)
                },
            )

    def questions(self) -> Iterator[Question]:
        for _, asked in self.rows():
            yield from asked.values()

    def scored(self, ledger: Ledger, files: Beside, model: str, tally: Tally) -> Iterator[Scored]:
        decoding = self.settings.decoding()
        with quarantine(files.quarantine) as left_out:
            rows = complete_rows(self.rows(), ledger, left_out, model=model, decoding=decoding, tally=tally)
            for row, scores in rows:
                yield Scored(row, *(float(scores[name]) for name in SCORES))
        if not (tally.complete or tally.pending):
            raise SentsmithError(f"none of {tally.rows} triplets has both scores {tally.why_none(files.quarantine)}")


class _Recorder:
    """Writes the record before each file, so that a file of ours is known as such wherever the job ends."""

    def __init__(self, files: Beside, facts: Mapping[str, Any], result: Curated, *, asks: bool) -> None:
        self._files, self._facts, self._result, self._asks = files, facts, result, asks
        self.owned = made_by(JOB, files)

    def scores(self) -> None:
        self._write({}, written=self.owned)

    def output(self) -> None:
        result = self._result
        # Somebody else's file that was not replaced after all, because nothing was kept, stays somebody else's.
        self._write({"kept": result.kept, "swapped": result.swapped}, written=result.kept > 0)

    def _write(self, counts: Mapping[str, int], *, written: bool) -> None:
        facts = {**self._facts, **counts}
        write_record(self._files, JOB, facts, self._result.tally, asks=self._asks, written=written)


class _NothingKeptError(Exception):
    """No triplet is kept."""


def _triplets(path: Path, settings: CurationSettings) -> Iterator[Triplet]:
    return itertools.islice(read_triplets(path), settings.limit)


def _write_scores(rows: Iterator[Scored], result: Curated, record: _Recorder) -> None:
    def scored() -> Iterator[dict[str, Any]]:
        for row in itertools.chain(first, rows):
            yield row.as_row()
        record.scores()

    first = list(itertools.islice(rows, 1))
    # A file without rows would be one that nothing can read; a budget can end before the first triplet is scored.
    if first:
        write_rows(result.scores, scored(), columns=COLUMNS)


def _keep(
    rows: Iterable[Scored], files: Beside, settings: CurationSettings, result: Curated, record: _Recorder
) -> None:
    def kept() -> Iterator[dict[str, Any]]:
        for row in rows:
            result.positive_scores.append(row.positive_score)
            result.negative_scores.append(row.negative_score)
            decision = verdict(row.positive_score, row.negative_score, settings)
            if decision != "drop":
                result.kept += 1
                result.swapped += decision == "keep_swapped"
                yield row.as_row(swapped=decision == "keep_swapped")
        if not result.tally.rows:
            result.tally.rows = result.tally.complete = len(result.positive_scores)
        if not result.kept:
            raise _NothingKeptError
        record.output()

    try:
        write_rows(files.output, kept(), columns=COLUMNS)
    except _NothingKeptError:
        # A file without rows would be one that nothing can read, and one of other thresholds would pass for these.
        if record.owned:
            result.removed = files.output.exists()
            files.output.unlink(missing_ok=True)
        record.output()
