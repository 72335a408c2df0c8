"""Every text of a folder of test sets, whatever its layout: what a training set is audited against.

The evaluation reads each task exactly as its protocol says. Here it matters only that no text is missed:
scores, labels and ids are left aside, everything else is a text. Known are the layouts of SentEval (STS,
SICK, transfer), BEIR, the formats of :mod:`sentsmith.corpus.formats`, and any text file as lines of
tab-separated cells.
"""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from sentsmith.corpus.formats import Table, is_header, kind_of, open_table, text_columns, texts_in
from sentsmith.corpus.lines import MAX_LINE, open_bytes, reading_errors
from sentsmith.errors import InputError

log = logging.getLogger(__name__)

_GOLD = re.compile(r"(^|\.)gs\.", re.IGNORECASE)
_JUDGEMENTS = "qrels"
_NO_TEST_SET = re.compile(
    r"^(readme|licen[cs]e|notice|changelog|copying)|\.(json|md|ya?ml|html?|py|sh|pdf|rst)$", re.IGNORECASE
)
# TREC's questions begin with their class: "NUM:dist How far …".
_TREC = re.compile(r"^[A-Z]{2,}:\w+ ")
_SAMPLE = 100


class SourceText(NamedTuple):
    """A text of a test set: the file (relative to the folder), the row in it, the text."""

    source: str
    row: int
    text: str


def read_test_texts(path: str | Path, *, leave_out: str | Path | None = None) -> Iterator[SourceText]:
    """Yield every text of a test set or of a folder of them.

    Gold scores (``*.gs.*``), BEIR's judgements, notes (README, LICENSE, ``.md``, ``.json`` …) and files that
    are no text are passed over, with a line in the log.

    Args:
        path: A file or a folder (read with all folders below it, sorted).
        leave_out: A file or folder that is no test set though it may lie there: the training data itself.

    Raises:
        InputError: The path does not exist, or holds no text.
    """
    root = Path(path)
    with reading_errors(root):
        if not root.exists():
            raise InputError("does not exist; give the folder of the test sets", path=root)
        files = sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]
    below = root if root.is_dir() else root.parent
    found = False
    for file in files:
        name = file.relative_to(below).as_posix()
        if file != root and _passed_over(file, name, leave_out):
            continue
        for row, text in _file_texts(file, alone=file == root):
            found = True
            yield SourceText(name, row, text)
    if not found:
        raise InputError("holds no test set: no file with text in it", path=root)


def _passed_over(file: Path, name: str, leave_out: str | Path | None) -> bool:
    if any(part.startswith(".") for part in Path(name).parts):
        return True
    if leave_out is not None and Path(leave_out).exists():
        data = Path(leave_out).resolve()
        if file.resolve() == data or data in file.resolve().parents:
            log.info("%s: is the training data itself and passed over", file)
            return True
    return bool(_GOLD.search(file.name) or _NO_TEST_SET.search(file.name) or _JUDGEMENTS in Path(name).parent.parts)


def _file_texts(file: Path, *, alone: bool) -> Iterator[tuple[int, str]]:
    try:
        if kind_of(file) in {".jsonl", ".csv", ".parquet"}:
            yield from _table_texts(open_table(file))
        else:
            yield from _line_texts(file)
    except InputError as error:
        if alone:
            raise
        log.warning("%s; passed over", error)


def _table_texts(table: Table) -> Iterator[tuple[int, str]]:
    columns = text_columns(table.columns, table.sample)
    for row, values in table.rows(columns):
        for text in texts_in(values, columns):
            if text.strip():
                yield row, text.strip()


def _line_texts(file: Path) -> Iterator[tuple[int, str]]:
    encoding = _encoding(file)
    lines = _lines(file, encoding)
    sample = list(itertools.islice(lines, _SAMPLE))
    rows = [line.split("\t") for _, line in sample]
    if not rows:
        return
    header = len(rows[0]) > 1 and is_header(rows[:20])
    columns = _text_cells(rows[header:])
    label = bool(rows) and all(_TREC.match(row[0]) for row in rows)
    for row, line in itertools.chain(sample[header:], lines):
        cells = line.split("\t")
        for column in columns:
            text = cells[column].strip() if column < len(cells) else ""
            if label and column == 0:
                text = _TREC.sub("", text, count=1)
            if text:
                yield row, text


def _text_cells(rows: Sequence[list[str]]) -> list[int]:
    width = max(map(len, rows), default=1)
    named = [{str(place): row[place] for place in range(len(row))} for row in rows]
    return [int(name) for name in text_columns([str(place) for place in range(width)], named)]


def _encoding(file: Path) -> str:
    """Return ``utf-8`` when the whole file is, else ``latin-1``, as some of SentEval's transfer files are."""
    with reading_errors(file), open_bytes(file) as stream:
        encoding = "utf-8"
        row = 0
        while line := stream.readline(MAX_LINE):
            if b"\0" in line:
                raise InputError("holds a NUL byte: a binary file, not text", path=file, row=row + 1)
            try:
                line.decode("utf-8")
            except UnicodeDecodeError:
                encoding = "latin-1"
            row += line.endswith(b"\n")
    return encoding


def _lines(file: Path, encoding: str) -> Iterator[tuple[int, str]]:
    with reading_errors(file), open_bytes(file) as stream:
        row = 0
        while line := stream.readline(MAX_LINE):
            row += 1
            text = line.decode(encoding, errors="replace").strip("\r\n").removeprefix("\ufeff")
            if text.strip():
                yield row, text
