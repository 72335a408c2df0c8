"""Curated triplets: scored by a language model, by an embedding model's cosine, or by columns that are there."""

from __future__ import annotations

import contextlib
import itertools
import logging
import math
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.lines import STDIN, label
from sentsmith.corpus.reading import numbered_rows, open_tables, read_triplets
from sentsmith.corpus.rows import Triplet
from sentsmith.corpus.writing import write_rows
from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError, SentsmithError, SettingsError
from sentsmith.llm.answering import Outcome, ask
from sentsmith.llm.backend import Backend
from sentsmith.llm.estimating import Estimate, estimate
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.outputs import Asked, Beside, Tally, checked_output, complete_rows, write_record
from sentsmith.llm.prompts import load_prompts
from sentsmith.llm.questions import Question
from sentsmith.llm.spending import Budget, Price
from sentsmith.methods.multicsr.curation import CurationSettings, verdict

logger = logging.getLogger(__name__)

TASK = "score"
TEXTS = ("anchor", "positive", "negative")
SCORES = ("positive_score", "negative_score")
COLUMNS = (*TEXTS, *SCORES)
_HIGHEST = 5.0
# Triplets whose texts are embedded together.
_BLOCK = 2048


@dataclass(frozen=True, slots=True)
class Scored:
    """A triplet and the scores of its two pairs, 0 to 5."""

    triplet: Triplet
    positive_score: float
    negative_score: float

    def as_row(self, *, swapped: bool = False) -> dict[str, Any]:
        """Return the row to write; ``swapped`` makes the negative the positive."""
        texts = (self.triplet.positive, self.triplet.negative)
        scores = (self.positive_score, self.negative_score)
        if swapped:
            texts, scores = texts[::-1], scores[::-1]
        return dict(zip(COLUMNS, (self.triplet.anchor, *texts, *scores), strict=True))


@dataclass(slots=True)
class Curated:
    """What came of the triplets.

    Attributes:
        tally: Of the triplets: those with scores, in quarantine, still to be asked.
        kept: How many were written, those that changed places included; where it is 0, no output was.
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
    scorer: Callable[[], Encoder] | None = None,
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
    asks nobody.

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
        overwrite: Replace an output that is not this job's own.
        advance: Called with the number of scores since the last call.
        expect: Called once with the number of scores there will be.

    Raises:
        InputError: The triplets cannot be read, a score is no number from 0 to 5, or the output cannot be written.
        SettingsError: There is nothing to score with, or too much.
        SentsmithError: The model fails, or no triplet has scores.
    """
    chosen = settings or CurationSettings()
    files = _checked(triplets, output, ledger, overwrite=overwrite)
    source = Path(triplets)
    result = Curated(Tally(), scores_file(output))
    facts: dict[str, Any] = {
        "data": {"path": str(source), "sha256": data_hash(source)},
        "settings": chosen.model_dump(mode="json"),
    }
    if backend is not None and scorer is not None:
        raise SettingsError("a language model and an embedding model are both to score; give --llm or --scorer")
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
            _write_scores(plan.scored(answers, files, model.name, result.tally), result)
    elif scorer is not None:
        expect(len(SCORES) * sum(1 for _ in _triplets(source, chosen)))
        _write_scores(by_cosine(_triplets(source, chosen), scorer(), advance=advance), result)
    else:
        _need_scores(source)
        result.scores = source
    if not result.tally.pending or result.tally.complete:
        _keep(itertools.islice(read_scored(result.scores), chosen.limit), files, chosen, result, facts)
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


def by_cosine(
    triplets: Iterable[Triplet], encoder: Encoder, *, advance: Callable[[int], None] = lambda _: None
) -> Iterator[Scored]:
    """Score triplets by an embedding model: 5 · max(0, cosine) of each pair.

    Args:
        triplets: A stream.
        encoder: Embeds each different text of a block of triplets once.
        advance: Called with the number of scores since the last call.
    """
    from sentsmith.evaluation.embedded import Embedded
    from sentsmith.evaluation.similarity import cosine

    stream = iter(triplets)
    while block := list(itertools.islice(stream, _BLOCK)):
        columns = [[getattr(row, name) for row in block] for name in TEXTS]
        vectors = Embedded(itertools.chain.from_iterable(columns), encoder)
        anchors, positives, negatives = (vectors.rows(column) for column in columns)
        positive = _HIGHEST * cosine(anchors, positives).clip(0.0)
        negative = _HIGHEST * cosine(anchors, negatives).clip(0.0)
        for row, first, second in zip(block, positive.tolist(), negative.tolist(), strict=True):
            yield Scored(row, first, second)
        advance(len(SCORES) * len(block))


def has_scores(path: str | Path) -> bool:
    """Tell whether a file of triplets has the columns ``positive_score`` and ``negative_score``.

    Raises:
        InputError: It cannot be read.
    """
    table = next(open_tables(path))
    return set(COLUMNS) <= set(table.columns)


def read_scored(path: str | Path) -> Iterator[Scored]:
    """Read triplets with their scores: the columns of :data:`COLUMNS`.

    Raises:
        InputError: The input cannot be read, lacks a column, a text is empty, or a score is no number from 0 to 5
            (names file and row).
    """
    for file, number, row in numbered_rows(path, columns=COLUMNS):
        try:
            triplet = Triplet(*(row[name] for name in TEXTS))
            yield Scored(triplet, *(_score(row[name], name) for name in SCORES))
        except ValueError as error:
            raise InputError(str(error), path=label(file), row=number) from error


def _score(value: Any, name: str) -> float:
    try:
        score = float(value)
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} {str(value)[:40]!r} is not a number") from error
    if not (math.isfinite(score) and 0.0 <= score <= _HIGHEST):
        raise ValueError(f"{name} {score:g} is out of range; scores lie in [0, 5]")
    return score


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
    files = checked_output(output, triplets, ledger=ledger, overwrite=overwrite)
    if scores_file(output).resolve() == Path(triplets).resolve() and not has_scores(triplets):
        raise InputError("is where the scores of this output go; give another name", path=triplets)
    return files


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
        for row, scores in complete_rows(self.rows(), ledger, files, model=model, decoding=decoding, tally=tally):
            yield Scored(row, *(float(scores[name]) for name in SCORES))
        if not (tally.complete or tally.pending):
            reasons = ", ".join(f"{count} {reason}" for reason, count in tally.reasons.most_common(3))
            raise SentsmithError(
                f"none of {tally.rows} triplets has both scores ({reasons}); {files.quarantine} holds the answers. "
                "Does the model follow these prompts?"
            )


class _NothingKeptError(Exception):
    """No triplet is kept."""


def _triplets(path: Path, settings: CurationSettings) -> Iterator[Triplet]:
    return itertools.islice(read_triplets(path), settings.limit)


def _write_scores(rows: Iterator[Scored], result: Curated) -> None:
    first = list(itertools.islice(rows, 1))
    # A file without rows would be one that nothing can read; a budget can end before the first triplet is scored.
    if first:
        write_rows(result.scores, (row.as_row() for row in itertools.chain(first, rows)), columns=COLUMNS)


def _keep(
    rows: Iterable[Scored], files: Beside, settings: CurationSettings, result: Curated, facts: Mapping[str, Any]
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
        write_record(files, "curate", {**facts, "kept": result.kept, "swapped": result.swapped}, result.tally)

    # A file without rows would be one that nothing can read.
    with contextlib.suppress(_NothingKeptError):
        write_rows(files.output, kept(), columns=COLUMNS)
