"""Lines of the public test files, whose encoding nobody recorded."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from pathlib import Path

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
    """Read a text file as UTF-8 (with or without a byte order mark), else as Latin-1, and log which.

    Only line feeds end a line: ``str.splitlines`` would also split at characters that occur inside sentences
    (U+2028, U+0085), and the gold scores beside them would no longer match.

    Raises:
        InputError: The file is missing, may not be read, or is binary (holds a NUL byte).
    """
    file = Path(path)
    try:
        data = file.read_bytes()
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


def rejoin(text: str) -> str:
    """Return ``text`` with each run of white space made one space, as SentEval hands sentences on."""
    return " ".join(text.split())
