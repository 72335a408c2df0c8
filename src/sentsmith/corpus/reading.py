"""Text on disk → sentences, dictionaries or typed rows, as a stream.

Every function takes a file (``.txt``, ``.jsonl``, ``.csv``, ``.tsv``, ``.parquet``, each also gzipped), a
folder of them, or ``-`` for lines on standard input, checks at once that it can be opened, and returns an
iterator that holds a few rows at a time. Whatever is wrong with the input is an
:class:`~sentsmith.errors.InputError` of one line.
"""

from __future__ import annotations

import contextlib
import itertools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

from sentsmith.corpus.formats import Table, has_columns, kind_of, open_table, text_columns
from sentsmith.corpus.lines import STDIN, label
from sentsmith.corpus.rows import Conditional, Pair, Ranking, Translation, Triplet
from sentsmith.errors import InputError

log = logging.getLogger(__name__)

SENTENCE_COLUMNS = ("sentence", "text", "sentences", "anchor", "sentence1")
"""Where :func:`read_sentences` looks, in this order, when no column is named."""

_TRIPLETS = (("anchor", "positive", "negative"), ("sent0", "sent1", "hard_neg"))
_PAIRS = (("sentence1", "sentence2", "score"), ("sentence_A", "sentence_B", "relatedness_score"))
_TRANSLATIONS = (("sentence", "echo"),)
_CONDITIONAL = (("sentence1", "sentence2", "condition", "label"),)

T = TypeVar("T")


def readable_files(path: str | Path) -> list[str]:
    """Return the files that ``path`` stands for: itself, or the readable ones below a folder, sorted.

    Hidden files, and files of other kinds, are passed over with a line in the log.

    Raises:
        InputError: The path does not exist, or is a folder without a readable file.
    """
    if str(path) == STDIN:
        return [STDIN]
    root = Path(path)
    try:
        if not root.is_dir():
            if not root.exists():
                raise InputError("does not exist; check the name", path=root)
            return [str(path)]
        files = [file for file in sorted(root.rglob("*")) if file.is_file() and not _hidden(file, root)]
    except (OSError, ValueError) as error:
        raise InputError(f"cannot be read: {getattr(error, 'strerror', None) or error}", path=root) from error
    known = [file for file in files if kind_of(file)]
    if not known:
        raise InputError("the folder holds no .txt, .jsonl, .csv, .tsv or .parquet file (also with .gz)", path=root)
    if len(known) < len(files):
        others = [str(file.relative_to(root)) for file in files if not kind_of(file)]
        log.info("%s: %d file(s) of other kinds passed over: %s", root, len(others), ", ".join(others[:5]))
    return [str(file) for file in known]


def _hidden(file: Path, root: Path) -> bool:
    return any(part.startswith(".") for part in file.relative_to(root).parts)


def open_tables(path: str | Path, *, wanted: Sequence[str] = ()) -> Iterator[Table]:
    """Open the files that ``path`` stands for, one after the other; in a folder an empty one is passed over.

    Raises:
        InputError: See :func:`readable_files` and :func:`sentsmith.corpus.formats.open_table`.
    """
    files = readable_files(path)
    found = False
    for file in files:
        if len(files) > 1 and not Path(file).stat().st_size:
            log.warning("%s: is empty and passed over", file)
            continue
        found = True
        yield open_table(file, wanted=wanted)
    if not found:
        raise InputError("every file in the folder is empty", path=path)


def _eager(rows: Iterator[T]) -> Iterator[T]:
    # Pulls the first row at once, so that a wrong path fails where it was given and not in the middle of a
    # run.
    first = list(itertools.islice(rows, 1))
    return itertools.chain(first, rows)


def read_rows(path: str | Path, *, columns: Sequence[str] | None = None) -> Iterator[dict[str, Any]]:
    """Read rows as dictionaries.

    Args:
        path: A file, a folder, or ``-``.
        columns: The columns to return; each must exist. None returns all.

    Raises:
        InputError: The input cannot be read, or lacks a column.
    """
    return _eager(row for _, _, row in numbered_rows(path, columns=columns))


def numbered_rows(
    path: str | Path, *, columns: Sequence[str] | None = None
) -> Iterator[tuple[str, int, dict[str, Any]]]:
    """Yield ``(file, row number, row)``; see :func:`read_rows`."""
    for table in open_tables(path, wanted=columns or ()):
        if columns is not None:
            has_columns(table, columns)
        yield from _rows_of(table, columns)


def _rows_of(table: Table, columns: Sequence[str] | None) -> Iterator[tuple[str, int, dict[str, Any]]]:
    for number, row in table.rows(columns):
        if columns is None:
            yield table.path, number, row
            continue
        try:
            yield table.path, number, {name: row[name] for name in columns}
        except KeyError as error:
            raise InputError(f"has no {error.args[0]!r}", path=label(table.path), row=number) from error


def read_sentences(path: str | Path, *, column: str | None = None) -> Iterator[str]:
    """Read sentences; blank ones are passed over.

    Args:
        path: A file, a folder, or ``-``.
        column: The column that holds them: a name, or a number counted from 1 in a table without a header.
            Without one, the first of :data:`SENTENCE_COLUMNS` that is there; in a table without a header the
            one with the longest texts. A log line says which. Where a cell holds a list (``sentences``), each
            member is one.

    Raises:
        InputError: The input cannot be read, lacks the column, or the column holds something other than text.
    """
    return _eager(_sentences(path, column))


@contextlib.contextmanager
def rereadable(sentences: str | Path, output: Path) -> Iterator[Path]:
    """Yield a path whose sentences can be read more than once: ``sentences`` itself, or what standard input held.

    Standard input is written beside ``output``, and removed at the end.

    Raises:
        InputError: Standard input cannot be read.
    """
    if str(sentences) != STDIN:
        yield Path(sentences)
        return
    spool = output.with_name(output.name + ".stdin.txt")
    try:
        with spool.open("w", encoding="utf-8", newline="\n") as stream:
            stream.writelines(f"{line}\n" for line in read_sentences(STDIN))
        yield spool
    finally:
        spool.unlink(missing_ok=True)


def _sentences(path: str | Path, column: str | None) -> Iterator[str]:
    for table in open_tables(path, wanted=() if column is None else (column,)):
        name = _sentence_column(table, column)
        for file, number, row in _rows_of(table, (name,)):
            value = row[name]
            for text in value if isinstance(value, list) else (value,):
                if not isinstance(text, str):
                    if text is None:
                        continue
                    raise InputError(
                        f"column {name!r} holds {type(text).__name__}; text is needed",
                        path=label(file),
                        row=number,
                    )
                if text.strip():
                    yield text


def _sentence_column(table: Table, column: str | None) -> str:
    if table.columns == ("text",) and kind_of(table.path) == ".txt":
        return "text"
    if column is not None:
        has_columns(table, (column,))
        return column
    if not table.named:
        chosen = _longest(table)
        log.info("%s: no header; sentences are read from column %s, the longest", label(table.path), chosen)
        return chosen
    for name in SENTENCE_COLUMNS:
        if name in table.columns:
            log.info("%s: sentences are read from column %r", label(table.path), name)
            return name
    raise InputError(
        f"has no column {', '.join(SENTENCE_COLUMNS[:-1])} or {SENTENCE_COLUMNS[-1]}; "
        f"name the one to read: {', '.join(table.columns)}",
        path=label(table.path),
    )


def _longest(table: Table) -> str:
    def characters(name: str) -> int:
        return sum(len(str(row[name])) for row in table.sample)

    return max(table.columns, key=characters)


def read_triplets(path: str | Path) -> Iterator[Triplet]:
    """Read triplets: columns ``anchor, positive, negative``, or SimCSE's ``sent0, sent1, hard_neg``.

    Raises:
        InputError: The input cannot be read, lacks the columns, or a text is empty (names file and row).
    """

    def triplet(row: Mapping[str, Any], names: Sequence[str]) -> Triplet:
        anchor, positive, negative = (row[name] for name in names)
        return Triplet(anchor, positive, negative)

    return _eager(_typed(path, _TRIPLETS, triplet))


def read_pairs(path: str | Path, *, scale: float = 5.0) -> Iterator[Pair]:
    """Read scored pairs: columns ``sentence1, sentence2, score``, SICK's names, or three without a header.

    Args:
        path: A file or a folder.
        scale: The highest score there can be: scores are divided by it, so that they lie in [0, 1]. 5 for
            STS-B and SICK; 1 for files that hold scores in [0, 1].

    Raises:
        InputError: The input cannot be read, lacks the columns, or a row has an empty text or a score that is
            no number or out of range (names file and row).
    """
    if not scale > 0:
        raise InputError(f"scale {scale}: the highest score must be above 0")
    return _eager(_scaled(path, scale))


def _scaled(path: str | Path, scale: float) -> Iterator[Pair]:
    highest = 0.0

    def pair(row: Mapping[str, Any], names: Sequence[str]) -> Pair:
        nonlocal highest
        first, second, score = (row[name] for name in names)
        value = _number(score, "score")
        if not 0 <= value <= scale:
            raise ValueError(f"score {value} is out of range; scores here lie in [0, {scale:g}]")
        highest = max(highest, value)
        return Pair(first, second, value / scale)

    yield from _typed(path, _PAIRS, pair)
    if scale > 1 >= highest:
        log.warning("%s: no score is above 1, yet they were divided by %g; is scale 1 meant?", label(path), scale)


def _number(value: object, name: str) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError, OverflowError) as error:
        raise ValueError(f"{name} {str(value)[:40]!r} is not a number") from error


def read_conditional(path: str | Path) -> Iterator[Conditional]:
    """Read pairs under a condition: columns ``sentence1, sentence2, condition, label``, as C-STS has them.

    A label lies in [1, 5]; −1, as in C-STS's test part, is a hidden one and becomes None. All labels are hidden, or
    none.

    Raises:
        InputError: The input cannot be read, lacks the columns, or a row has an empty text, a label that is no number
            or out of range, or a hidden label among known ones (names file and row).
    """
    return _eager(_conditional(path))


def _conditional(path: str | Path) -> Iterator[Conditional]:
    hidden: bool | None = None

    def conditional(row: Mapping[str, Any], names: Sequence[str]) -> Conditional:
        nonlocal hidden
        first, second, condition, label = (row[name] for name in names)
        value = _number(label, "label")
        made = Conditional(first, second, condition, None if value == -1 else value)
        if hidden is None:
            hidden = made.label is None
        if hidden != (made.label is None):
            before, here = ("hidden (-1)", "known") if hidden else ("known", "hidden (-1)")
            raise ValueError(f"the label is {here}, those before it are {before}; give the one kind or the other")
        return made

    yield from _typed(path, _CONDITIONAL, conditional)


def read_rankings(path: str | Path) -> Iterator[Ranking]:
    """Read ranked lists: the column ``sentences`` holds a list of at least two texts (.jsonl or .parquet).

    Raises:
        InputError: The input cannot be read, lacks the column, or a row holds no such list (names file and
            row).
    """

    def ranking(row: Mapping[str, Any], names: Sequence[str]) -> Ranking:
        value = row[names[0]]
        if not isinstance(value, list):
            reason = f"{names[0]} holds {type(value).__name__}; a list of texts is needed"
            raise ValueError(reason)  # noqa: TRY004 - one class to catch
        return Ranking(tuple(value))

    return _eager(_typed(path, (("sentences",),), ranking))


def read_translations(path: str | Path) -> Iterator[Translation]:
    """Read sentences with their round-trip translations: columns ``sentence, echo``.

    Raises:
        InputError: The input cannot be read, lacks the columns, or a text is empty (names file and row).
    """

    def translation(row: Mapping[str, Any], names: Sequence[str]) -> Translation:
        sentence, echo = (row[name] for name in names)
        return Translation(sentence, echo)

    return _eager(_typed(path, _TRANSLATIONS, translation))


def _typed(
    path: str | Path,
    namings: Sequence[tuple[str, ...]],
    make: Callable[[Mapping[str, Any], Sequence[str]], T],
) -> Iterator[T]:
    # A header is one though a cell of it is empty, as over an index that pandas wrote.
    for table in open_tables(path, wanted=namings[0]):
        names = _naming(table, namings)
        for file, number, row in _rows_of(table, names):
            try:
                made = make(row, names)
            except ValueError as error:
                raise InputError(str(error), path=label(file), row=number) from error
            yield made


def _naming(table: Table, namings: Sequence[tuple[str, ...]]) -> tuple[str, ...]:
    for names in namings:
        if set(names) <= set(table.columns):
            return names
    width = len(namings[0])
    if not table.named and len(table.columns) == width and width > 1:
        log.info("%s: no header; columns are taken as %s", label(table.path), ", ".join(namings[0]))
        return table.columns
    wanted = " or ".join(", ".join(names) for names in namings)
    found = ", ".join(table.columns) if table.named else f"{len(table.columns)} column(s) without a header"
    raise InputError(f"needs the columns {wanted}; it has: {found}", path=label(table.path))


__all__ = [
    "SENTENCE_COLUMNS",
    "numbered_rows",
    "open_tables",
    "read_conditional",
    "read_pairs",
    "read_rankings",
    "read_rows",
    "read_sentences",
    "read_translations",
    "read_triplets",
    "readable_files",
    "rereadable",
    "text_columns",
]
