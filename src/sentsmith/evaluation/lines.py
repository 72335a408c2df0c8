"""Lines of the public test files, whose encoding nobody recorded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

from sentsmith.corpus.lines import open_bytes, reading_errors
from sentsmith.errors import InputError

logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class TextLines:
    """The lines of one file.

    Attributes:
        lines: Without their ends (line feed, with or without a carriage return); the empty rest after the
            last line end is no line.
        encoding: ``"utf-8"``, or ``"latin-1"`` where the bytes are not UTF-8.
    """

    lines: tuple[str, ...]
    encoding: str


def read_lines(path: str | Path) -> TextLines:
    """Read a text file, unpacked if it ends in .gz, as UTF-8 (a byte order mark or none), else Latin-1; log which.

    Only line feeds end a line: ``str.splitlines`` would also split at characters that occur inside sentences
    (U+2028, U+0085), and the gold scores beside them would no longer match.

    Raises:
        InputError: The file is missing, may not be read or unpacked, or is binary (holds a NUL byte).
    """
    file = Path(path)
    try:
        data = _unpacked(file) if file.name.endswith(".gz") else file.read_bytes()
    except FileNotFoundError as error:
        raise InputError("no such file", path=file) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=file) from error
    if b"\0" in data:
        row = data[: data.index(b"\0")].count(b"\n") + 1
        raise InputError("is a binary file (holds a NUL byte); give a text file", path=file, row=row)
    try:
        text, encoding = data.decode("utf-8-sig"), "utf-8"
    except UnicodeDecodeError as error:
        text, encoding = data.decode("latin-1"), "latin-1"
        row = data[: error.start].count(b"\n") + 1
        logger.info("%s: row %d is not UTF-8; the whole file is read as Latin-1", file, row)
    lines = text.split("\n")
    if not lines[-1]:
        lines.pop()
    return TextLines(lines=tuple(line.removesuffix("\r") for line in lines), encoding=encoding)


def read_sentences(path: str | Path) -> tuple[str, ...]:
    """Read a file of sentences in any script, one a line, each run of white space made one space.

    Raises:
        InputError: As :func:`read_lines`; the file is empty or not UTF-8 (Latin-1 is a guess for English only), or a
            line is empty.
    """
    text = read_lines(path)
    if text.encoding != "utf-8":
        raise InputError("is not UTF-8 text; convert it", path=path)
    if not text.lines:
        raise InputError("is empty; one sentence a line is needed", path=path)
    for row, line in enumerate(text.lines, start=1):
        if not line.strip():
            raise InputError("is empty; every line needs a sentence", path=path, row=row)
    return tuple(map(rejoin, text.lines))


def rejoin(text: str) -> str:
    """Return ``text`` with each run of white space made one space, as SentEval hands sentences on."""
    return " ".join(text.split())


def _unpacked(file: Path) -> bytes:
    with reading_errors(file), open_bytes(file) as stream:
        return stream.read()
