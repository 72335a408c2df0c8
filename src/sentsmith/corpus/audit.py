"""Overlap between a training set and test sets: found, counted, recorded, and left out on demand.

A model measured on sentences that it was trained on is measured wrongly. :func:`audit` compares every text of
every training row with every text of the test sets: exact copies, copies under the normal form
(:mod:`sentsmith.corpus.normalising`) and near duplicates (:mod:`sentsmith.corpus.neighbours`). Its record
lies beside the data, where training looks for it (:func:`find_record`).
"""

from __future__ import annotations

import json
import logging
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.formats import Row, Table, has_columns, text_columns, texts_in
from sentsmith.corpus.lines import STDIN, label
from sentsmith.corpus.overlap import FileTally, OverlapIndex, Tally
from sentsmith.corpus.reading import open_tables
from sentsmith.corpus.testsets import SourceText, read_test_texts
from sentsmith.corpus.writing import check_writable, write_rows
from sentsmith.errors import InputError
from sentsmith.files import write_json

log = logging.getLogger(__name__)

_BLOCK = 8192
_EXAMPLES = 5


@dataclass(frozen=True)
class AuditReport:
    """What an audit found.

    Attributes:
        data: The training data, as it was named.
        data_sha256: Its hash; None for standard input.
        against: For each test folder: its name, hash and number of texts.
        rows: Rows of training data.
        texts: Texts in them.
        overlapping: Rows that overlap, by the closest kind: ``exact``, ``normalised``, ``near``.
        files: Counts of each test file.
        examples: A few pairs of each kind.
        near: Whether near duplicates were looked for.
        output: The file written without the overlapping rows, if any.
        seconds: Time taken.
        record: Where the record was written, if anywhere.
    """

    data: str
    data_sha256: str | None
    against: list[dict[str, Any]]
    rows: int
    texts: int
    overlapping: dict[str, int]
    files: dict[str, FileTally]
    examples: dict[str, list[dict[str, str]]]
    near: bool
    output: str | None
    seconds: float
    record: str | None

    @property
    def affected(self) -> int:
        """Rows that overlap in any way."""
        return sum(self.overlapping.values())

    def as_dict(self) -> dict[str, Any]:
        """Return the report as JSON can hold it: the record."""
        values = asdict(self)
        del values["record"]
        return {"data": values.pop("data"), "clean": self.affected == 0, "affected": self.affected, **values}


def audit(
    train_path: str | Path,
    against: str | Path | Sequence[str | Path],
    *,
    column: str | None = None,
    output: str | Path | None = None,
    record: str | Path | None = None,
    near: bool = True,
) -> AuditReport:
    """Compare training data with test sets.

    A row overlaps when any of its texts does, so sentences, triplets, pairs and ranked lists are all served.

    Args:
        train_path: The training data: a file, a folder, or ``-``.
        against: A folder (or file) of test sets, or several.
        column: The column that holds the text; None compares every column with texts of several words.
        output: Writes the rows that do not overlap here; the suffix decides the format.
        record: Where to write the record; None means beside the data, as ``<DATA>.audit.json``. With
            ``output`` one more lies beside it, as ``<OUTPUT>.audit.json``.
        near: Whether to look for near duplicates.

    Raises:
        InputError: Something cannot be read, or the output cannot be written in that format.
    """
    started = time.perf_counter()
    folders = [against] if isinstance(against, str | Path) else list(against)
    if not folders:
        raise InputError("no test sets were given; name at least one folder to audit against")
    _check_output(train_path, output)
    sha256 = None if str(train_path) == STDIN else data_hash(train_path)
    tests = _Tests(folders, leave_out=train_path)
    tally = Tally(OverlapIndex(tests.texts(), near=near))
    log.info("%s distinct test texts; looking for them in %s", f"{len(tally.index.texts):,}", label(train_path))
    _compare(train_path, column, tally, output)
    report = AuditReport(
        data=str(train_path),
        data_sha256=sha256,
        against=tests.described(),
        rows=tally.rows,
        texts=tally.texts,
        overlapping=tally.overlapping,
        files=tally.files(),
        examples=tally.examples,
        near=near,
        output=None if output is None else str(output),
        seconds=round(time.perf_counter() - started, 2),
        record=None,
    )
    return _recorded(report, record)


def look_for(texts: Iterable[SourceText], train_paths: Sequence[str | Path]) -> Tally:
    """Look for texts in training data, as :func:`audit` does, with no record of it.

    Args:
        texts: Of the test sets, without space around them.
        train_paths: Files or folders.

    Raises:
        InputError: One of them cannot be read, or holds no text.
    """
    tally = Tally(OverlapIndex(texts))
    for path in train_paths:
        _compare(path, None, tally, None)
    return tally


def _check_output(train_path: str | Path, output: str | Path | None) -> None:
    if output is None:
        return
    check_writable(output)
    if Path(output).exists() and Path(train_path).exists() and Path(output).samefile(train_path):
        raise InputError("is the training data itself; give another output", path=output)


class _Tests:
    """The texts of the test folders, counted as they pass."""

    def __init__(self, folders: Sequence[str | Path], *, leave_out: str | Path) -> None:
        self._counts = {str(folder): 0 for folder in folders}
        self._leave_out = None if str(leave_out) == STDIN else leave_out

    def texts(self) -> Iterator[SourceText]:
        several = len(self._counts) > 1
        for folder in self._counts:
            for text in read_test_texts(folder, leave_out=self._leave_out):
                self._counts[folder] += 1
                yield text._replace(source=f"{Path(folder).name}/{text.source}") if several else text

    def described(self) -> list[dict[str, Any]]:
        return [{"path": path, "sha256": data_hash(path), "texts": count} for path, count in self._counts.items()]


def _compare(path: str | Path, column: str | None, tally: Tally, output: str | Path | None) -> None:
    tables = open_tables(path, wanted=() if column is None else (column,))
    first = next(tables)
    kept = _kept_rows(first, tables, column, tally)
    if output is None:
        for _ in kept:
            pass
        return
    write_rows(output, kept, columns=first.columns, header=first.named, schema=first.schema)


def _kept_rows(first: Table, others: Iterator[Table], column: str | None, tally: Tally) -> Iterator[Row]:
    yield from _kept_of(first, column, tally)
    for table in others:
        if table.columns != first.columns:
            log.warning(
                "%s: has the columns %s where %s has %s",
                table.path,
                ", ".join(table.columns),
                first.path,
                ", ".join(first.columns),
            )
        yield from _kept_of(table, column, tally)


def _kept_of(table: Table, column: str | None, tally: Tally) -> Iterator[Row]:
    columns = _columns(table, column)
    block: list[Row] = []
    for _, row in table.rows():
        block.append(row)
        if len(block) == _BLOCK:
            yield from _kept_in(block, columns, tally)
            block = []
    yield from _kept_in(block, columns, tally)


def _kept_in(block: Sequence[Row], columns: Sequence[str], tally: Tally) -> Iterator[Row]:
    texts: list[str] = []
    row_of: list[int] = []
    for place, row in enumerate(block):
        for text in texts_in(row, columns):
            texts.append(text)
            row_of.append(place)
    overlapping = tally.add_block(texts, row_of, len(block), most_examples=_EXAMPLES)
    for place, row in enumerate(block):
        if place not in overlapping:
            yield row


def _columns(table: Table, column: str | None) -> list[str]:
    if column is not None:
        has_columns(table, (column,))
        return [column]
    chosen = text_columns(table.columns, table.sample)
    if not chosen:
        raise InputError(f"no column holds text; it has: {', '.join(table.columns)}", path=label(table.path))
    log.info("%s: compared column(s): %s", label(table.path), ", ".join(chosen))
    return chosen


def record_path(data_path: str | Path) -> Path:
    """Return where the audit record of a data file (or folder) lies: beside it, as ``<DATA>.audit.json``."""
    path = Path(data_path)
    return path.with_name(path.name + ".audit.json")


def find_record(data_path: str | Path) -> dict[str, Any] | None:
    """Return the audit record of a data file, or None.

    None when there is none, or (with a warning) when it cannot be read or is of other data: the file has
    changed since.

    Raises:
        InputError: The data itself cannot be read.
    """
    place = record_path(data_path)
    if not place.is_file():
        return None
    try:
        record = json.loads(place.read_text(encoding="utf-8"))
        sha256 = record["data_sha256"]
    except (OSError, ValueError, TypeError, KeyError):
        log.warning("%s: is no readable audit record; run sentsmith audit again", place)
        return None
    if sha256 != data_hash(data_path):
        log.warning("%s: the data has changed since this audit; run sentsmith audit again", place)
        return None
    return dict(record)


def _recorded(report: AuditReport, record: str | Path | None) -> AuditReport:
    values = report.as_dict()
    written: str | None = None
    if record is not None:
        write_json(record, values)
        written = str(record)
    elif report.data != STDIN:
        place = record_path(report.data)
        try:
            write_json(place, values)
            written = str(place)
        except (OSError, InputError) as error:
            log.warning("%s: the audit record cannot be written here (%s); give --record PATH", place, error)
    if report.output is not None:
        _record_output(report, values)
    return AuditReport(**{**vars(report), "record": written})


def _record_output(report: AuditReport, values: dict[str, Any]) -> None:
    output = str(report.output)
    cleaned = {
        **values,
        "data": output,
        "clean": True,
        "affected": 0,
        "data_sha256": data_hash(output),
        "made_from": {"data": report.data, "sha256": report.data_sha256, "rows": report.rows},
        "rows": report.rows - report.affected,
        "removed": report.overlapping,
    }
    for name in ("texts", "overlapping", "files", "examples", "output"):
        cleaned.pop(name)
    write_json(record_path(output), cleaned)
