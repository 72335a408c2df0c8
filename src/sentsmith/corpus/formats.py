"""One file → rows with named columns: .txt, .jsonl, .csv, .tsv and .parquet, each also gzipped."""

from __future__ import annotations

import csv
import itertools
import json
import logging
import re
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from sentsmith.corpus.lines import MAX_LINE, STDIN, label, open_bytes, read_lines, reading_errors
from sentsmith.errors import InputError

log = logging.getLogger(__name__)

KINDS = (".txt", ".jsonl", ".csv", ".tsv", ".parquet")
"""The suffixes that can be read and written; each may be followed by ``.gz``."""

Row = dict[str, Any]
Numbered = tuple[int, Row]

_SAMPLE = 100
_BATCH = 4096

# fmt: off
_KNOWN_COLUMNS = frozenset(
    (
        "id", "_id", "text", "texts", "sentence", "sentences", "anchor", "positive", "negative",
        "sentence1", "sentence2", "sentence_a", "sentence_b", "sent0", "sent1", "sent2", "hard_neg",
        "premise", "hypothesis", "entailment", "contradiction", "ranking", "query", "title", "score",
        "relatedness_score", "label", "source", "split", "pair_id",
    )
)
# fmt: on
# One name as people write it into the first line of a table: "anchor", "hard_neg", "#1 String".
_NAME = re.compile(r"(#\d+ )?[^\W\d][\w.-]{0,40}")


@dataclass(frozen=True)
class Table:
    """An opened file: its column names, its first rows, and its rows as a stream.

    Attributes:
        path: The file, or ``-``.
        columns: Names from the header, from the first JSON object or the parquet schema; ``("text",)`` for
            plain text; ``("1", "2", …)`` for a table without a header.
        named: False for a table without a header.
        sample: The first rows (at most 100).
        schema: The arrow schema of a parquet file, else None.
    """

    path: str
    columns: tuple[str, ...]
    named: bool
    sample: tuple[Row, ...]
    stream: Callable[[Sequence[str] | None], Iterator[Numbered]]
    schema: Any = None

    def rows(self, only: Sequence[str] | None = None) -> Iterator[Numbered]:
        """Yield ``(row number, row)``; call it once. ``only`` spares parquet the reading of other columns."""
        return self.stream(only)


def kind_of(path: str | Path) -> str | None:
    """Return the suffix in :data:`KINDS` that ``path`` has before any ``.gz``, or None; ``-`` is text."""
    if str(path) == STDIN:
        return ".txt"
    suffix = Path(Path(path).name.lower().removesuffix(".gz")).suffix
    return suffix if suffix in KINDS else None


def open_table(path: str | Path, *, wanted: Sequence[str] = ()) -> Table:
    """Open a file and look at its first rows.

    Args:
        path: The file, or ``-`` for lines of text on standard input.
        wanted: Columns that the caller will ask for; a first row that holds them all is a header.

    Raises:
        InputError: It is missing, empty, of an unknown kind, or damaged.
    """
    kind = kind_of(path)
    if kind is None:
        known = ", ".join(KINDS)
        raise InputError(f"is of an unknown kind; readable are {known}, each also with .gz", path=path)
    if kind == ".parquet":
        return _open_parquet(path)
    if kind == ".jsonl":
        return _table(path, None, _json_rows(path))
    if kind == ".txt":
        return _table(path, ("text",), ((row, {"text": line}) for row, line in read_lines(path) if line.strip()))
    return _open_cells(path, kind, wanted)


def _table(path: str | Path, columns: tuple[str, ...] | None, rows: Iterator[Numbered], *, named: bool = True) -> Table:
    first = list(itertools.islice(rows, _SAMPLE))
    if not first:
        raise InputError("is empty; give at least one row", path=label(path))
    whole = itertools.chain(first, rows)
    return Table(
        path=str(path),
        columns=columns if columns is not None else tuple(first[0][1]),
        named=named,
        sample=tuple(row for _, row in first),
        stream=lambda only: whole,  # noqa: ARG005 - whole lines are read in any case
    )


def _json_rows(path: str | Path) -> Iterator[Numbered]:
    for row, line in read_lines(path):
        if not line.strip():
            continue
        try:
            value = json.loads(line)
            if "\\u" in line:
                json.dumps(value, ensure_ascii=False).encode("utf-8")
        except UnicodeEncodeError as error:
            raise InputError("holds half a surrogate pair, which is no character", path=label(path), row=row) from error
        except (ValueError, RecursionError) as error:
            reason = error.msg if isinstance(error, json.JSONDecodeError) else "a value out of bounds"
            raise InputError(
                f"is not JSON ({reason}); each line holds one object", path=label(path), row=row
            ) from error
        if not isinstance(value, dict):
            raise InputError(
                f'holds a JSON {type(value).__name__}; each line holds one object, such as {{"text": "…"}}',
                path=label(path),
                row=row,
            )
        yield row, value


def _open_cells(path: str | Path, kind: str, wanted: Sequence[str]) -> Table:
    cells = _csv_cells(path) if kind == ".csv" else _tsv_cells(path)
    first = list(itertools.islice(cells, 20))
    if not first:
        raise InputError("is empty; give at least one row", path=label(path))
    named = is_header([row for _, row in first], wanted)
    columns = tuple(first[0][1]) if named else tuple(str(i + 1) for i in range(len(first[0][1])))
    if named:
        log.info("%s: the first row is a header: %s", label(path), ", ".join(columns))
        if len(first) == 1:
            raise InputError("holds a header and no rows", path=label(path))
    rest = itertools.chain(first[named:], cells)
    return _table(path, columns, _cell_rows(path, columns, rest), named=named)


def _cell_rows(
    path: str | Path, columns: tuple[str, ...], cells: Iterator[tuple[int, list[str]]]
) -> Iterator[Numbered]:
    for row, values in cells:
        if len(values) != len(columns):
            raise InputError(
                f"has {len(values)} cells where the first row has {len(columns)}", path=label(path), row=row
            )
        yield row, dict(zip(columns, values, strict=True))


def _tsv_cells(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    # No quoting: in a tab-separated file a quotation mark is a quotation mark.
    for row, line in read_lines(path):
        if line.strip():
            yield row, line.split("\t")


def _csv_cells(path: str | Path) -> Iterator[tuple[int, list[str]]]:
    csv.field_size_limit(max(csv.field_size_limit(), MAX_LINE))
    reader = csv.reader((line + "\n" for _, line in read_lines(path)), strict=True)
    while True:
        row = reader.line_num + 1
        try:
            values = next(reader, None)
        except csv.Error as error:
            raise InputError(f"is not CSV ({error}); is a quote left open?", path=label(path), row=row) from error
        if values is None:
            return
        if any(value.strip() for value in values):
            yield row, values


def is_header(first: Sequence[Sequence[str]], wanted: Sequence[str] = ()) -> bool:
    """Tell whether the first of these rows names the columns.

    It does when it holds every wanted name, or a name that everybody uses (``sentence1``, ``text`` …), or
    when all its cells look like names while a column below it holds only numbers or only texts of several
    words.
    """
    names = [cell.strip() for cell in first[0]]
    if len(set(names)) < len(names):
        return False
    if wanted and set(wanted) <= set(names):
        return True
    if not all(_NAME.fullmatch(name) for name in names):
        return False
    if any(name.casefold() in _KNOWN_COLUMNS for name in names):
        return True
    below = [row for row in first[1:] if len(row) == len(names)]
    return (
        len(names) > 1
        and bool(below)
        and any(
            all(_is_number(row[column]) or len(row[column].split()) > 2 for row in below)
            for column in range(len(names))
        )
    )


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _open_parquet(path: str | Path) -> Table:
    file = _parquet_file(path)
    schema = file.schema_arrow
    if not file.metadata.num_rows:
        raise InputError("is empty; give at least one row", path=label(path))

    def stream(only: Sequence[str] | None) -> Iterator[Numbered]:
        return _parquet_rows(path, file, only, _BATCH)

    sample = tuple(row for _, row in itertools.islice(_parquet_rows(path, file, None, _SAMPLE), _SAMPLE))
    return Table(str(path), tuple(schema.names), named=True, sample=sample, stream=stream, schema=schema)


def _parquet_file(path: str | Path) -> Any:
    import pyarrow as pa
    import pyarrow.parquet as pq

    source: Path | IO[bytes] = Path(path)
    with reading_errors(path):
        if str(path).lower().endswith(".gz"):
            # Parquet is read from its end, gzip only from its start: unpack to an unnamed file on disk.
            source = tempfile.TemporaryFile()  # noqa: SIM115 - lives as long as the reader
            with open_bytes(path) as packed:
                shutil.copyfileobj(packed, source)
            source.seek(0)
        else:
            with open_bytes(path):  # says what is wrong with the file in the operating system's words
                pass
    try:
        return pq.ParquetFile(source)
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        raise InputError("is not a parquet file, or is damaged", path=label(path)) from error


def _parquet_rows(path: str | Path, file: Any, only: Sequence[str] | None, batch: int) -> Iterator[Numbered]:
    import pyarrow as pa

    row = 0
    batches = file.iter_batches(batch_size=batch, columns=None if only is None else list(only))
    while True:
        try:
            table = next(batches, None)
            values: list[Row] = [] if table is None else table.to_pylist()
        except (pa.ArrowException, OSError, ValueError, KeyError) as error:
            raise InputError("is damaged: parquet cannot unpack it", path=label(path), row=row + 1) from error
        if table is None:
            return
        for value in values:
            row += 1
            yield row, value


def has_columns(table: Table, columns: Sequence[str]) -> None:
    """Check that a table has these columns.

    Raises:
        InputError: One is missing; names those that were found.
    """
    missing = [name for name in columns if name not in table.columns]
    if missing:
        found = ", ".join(table.columns)
        header = "" if table.named else " (no header; columns are called by their number)"
        raise InputError(f"has no column {missing[0]!r}; it has: {found}{header}", path=label(table.path))


def texts_in(row: Mapping[str, Any], columns: Sequence[str]) -> Iterator[str]:
    """Yield the texts that the row holds in these columns; a list gives its members."""
    for name in columns:
        value = row.get(name)
        if isinstance(value, str):
            yield value
        elif isinstance(value, list):
            yield from (item for item in value if isinstance(item, str))


def text_columns(columns: Sequence[str], sample: Sequence[Mapping[str, Any]]) -> list[str]:
    """Choose the columns that hold sentences rather than labels, scores or names.

    Those whose texts have two words or more on average over the sample; without any, the one with the longest
    texts. Empty when no column holds text.
    """
    words: dict[str, float] = {}
    lengths: dict[str, float] = {}
    for name in columns:
        texts = [text for row in sample for text in texts_in(row, [name]) if text.strip() and not _is_number(text)]
        if texts:
            words[name] = sum(len(text.split()) for text in texts) / len(texts)
            lengths[name] = sum(map(len, texts)) / len(texts)
    chosen = [name for name in columns if words.get(name, 0) >= 2]
    return chosen or ([max(lengths, key=lambda name: lengths[name])] if lengths else [])
