"""Rows → a file: .txt, .jsonl, .csv, .tsv or .parquet, each also gzipped; whole or not at all."""

from __future__ import annotations

import csv
import gzip
import io
import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, TextIO, cast

from sentsmith.corpus.formats import KINDS, kind_of
from sentsmith.corpus.lines import STDIN
from sentsmith.errors import InputError
from sentsmith.files import atomic_path, make_folder

_BATCH = 4096

Rows = Iterable[Mapping[str, Any]]


def check_writable(path: str | Path) -> str:
    """Return the kind of file that ``path`` names.

    Raises:
        InputError: The suffix is of an unknown kind.
    """
    kind = None if str(path) == STDIN else kind_of(path)
    if kind is None:
        raise InputError(f"is of an unknown kind; writable are {', '.join(KINDS)}, each also with .gz", path=path)
    return kind


def new_table(output: str | Path, *, source: str | Path | None = None, replace: bool = False) -> Path:
    """Return the path of a table of several columns that can be written; a folder for it is made.

    Args:
        output: ``.jsonl``, ``.csv``, ``.tsv`` or ``.parquet``, also with ``.gz``.
        source: What is read, a file or a folder; None or ``-`` is nothing on disk.
        replace: Whether one that exists may be replaced.

    Raises:
        InputError: Another suffix, a folder, the source itself or in it, or it exists and may not be replaced.
    """
    target = Path(output)
    if check_writable(output) == ".txt":
        raise InputError("a .txt file holds one column; write .jsonl, .csv, .tsv or .parquet", path=target)
    if target.is_dir():
        raise InputError("is a folder; give the name of a file to write", path=target)
    if source is not None and str(source) != STDIN:
        read = Path(source).resolve()
        if target.resolve() == read or read in target.resolve().parents:
            # In the folder, the output (and what is unfinished of it) would count as data.
            raise InputError(f"lies in {source}, which is read; write it somewhere else", path=target)
    if target.exists() and not replace:
        raise InputError("exists; give another name, or --overwrite", path=target)
    make_folder(target.parent)
    return target


def write_rows(path: str | Path, rows: Rows, *, columns: Sequence[str], header: bool = True, schema: Any = None) -> int:
    """Write rows, as a stream, in the format that the suffix names.

    Args:
        path: The file; its folder is made.
        rows: Dictionaries that hold at least ``columns``.
        columns: The columns to write, in order. ``.txt`` holds one column only. JSON lines hold whole rows.
        header: Whether ``.csv`` and ``.tsv`` begin with the column names.
        schema: The arrow schema for parquet; without one the first rows decide the types.

    Returns:
        How many rows were written.

    Raises:
        InputError: The suffix is unknown, or a row does not fit the format.
    """
    kind = check_writable(path)
    if kind == ".txt" and len(columns) != 1:
        raise InputError(
            f"a .txt file holds one column, the data has {len(columns)}; write .jsonl, .csv or .tsv",
            path=path,
        )
    count = 0

    def counted() -> Iterator[Mapping[str, Any]]:
        nonlocal count
        for row in rows:
            count += 1
            yield row

    with atomic_path(path) as temporary:
        packed = str(path).lower().endswith(".gz")
        if kind == ".parquet":
            _write_parquet(temporary, counted(), columns, schema, packed=packed)
        else:
            with _text(temporary, packed=packed) as stream:
                _WRITERS[kind](stream, counted(), columns, header)
    return count


def _text(path: Path, *, packed: bool) -> TextIO:
    # mtime 0 and no name: the same rows give the same bytes, so the same hash.
    raw: IO[bytes] = path.open("wb")
    if packed:
        raw = cast("IO[bytes]", _Packed(raw))
    return io.TextIOWrapper(raw, encoding="utf-8", newline="")


class _Packed(gzip.GzipFile):
    """A gzip stream that closes the file below it."""

    def __init__(self, below: IO[bytes]) -> None:
        super().__init__(filename="", mode="wb", fileobj=below, mtime=0, compresslevel=6)
        self._below = below

    def close(self) -> None:
        try:
            super().close()
        finally:
            self._below.close()


def _write_txt(stream: TextIO, rows: Rows, columns: Sequence[str], header: bool) -> None:  # noqa: ARG001
    stream.writelines(_cell(row[columns[0]]) + "\n" for row in rows)


def _write_jsonl(stream: TextIO, rows: Rows, columns: Sequence[str], header: bool) -> None:  # noqa: ARG001
    stream.writelines(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)


def _write_tsv(stream: TextIO, rows: Rows, columns: Sequence[str], header: bool) -> None:
    if header:
        stream.write("\t".join(columns) + "\n")
    stream.writelines("\t".join(_cell(row[name]) for name in columns) + "\n" for row in rows)


def _write_csv(stream: TextIO, rows: Rows, columns: Sequence[str], header: bool) -> None:
    writer = csv.writer(stream, lineterminator="\n")
    if header:
        writer.writerow(columns)
    for row in rows:
        writer.writerow([row[name] for name in columns])


def _cell(value: Any) -> str:
    # Neither format has a way to write a line break or a tab within a cell.
    return " ".join(str(value).split()) if any(c in str(value) for c in "\n\r\t") else str(value)


_WRITERS: dict[str, Callable[[TextIO, Rows, Sequence[str], bool], None]] = {
    ".txt": _write_txt,
    ".jsonl": _write_jsonl,
    ".tsv": _write_tsv,
    ".csv": _write_csv,
}


def _write_parquet(
    path: Path, rows: Iterator[Mapping[str, Any]], columns: Sequence[str], schema: Any, *, packed: bool
) -> None:
    if packed:
        with tempfile.TemporaryDirectory() as folder:
            plain = Path(folder) / "plain"
            _write_parquet(plain, rows, columns, schema, packed=False)
            with plain.open("rb") as source, path.open("wb") as target, _Packed(target) as stream:
                shutil.copyfileobj(source, stream)
        return
    import pyarrow as pa
    import pyarrow.parquet as pq

    first = list(itertools.islice(rows, _BATCH))
    if schema is None:
        schema = pa.Table.from_pylist(first).schema if first else pa.schema([(name, pa.string()) for name in columns])
    batch = first
    with pq.ParquetWriter(os.fspath(path), schema) as writer:
        while batch:
            try:
                writer.write_batch(pa.RecordBatch.from_pylist(batch, schema=schema))
            except (pa.ArrowException, TypeError) as error:
                raise InputError(f"rows differ in type and do not fit one parquet file: {error}") from error
            batch = list(itertools.islice(rows, _BATCH))
