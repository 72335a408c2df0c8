"""Bytes on disk or standard input → lines of text, as a stream, with every failure told in one line."""

from __future__ import annotations

import contextlib
import gzip
import io
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from sentsmith.errors import InputError

STDIN = "-"
"""The path that means standard input."""

MAX_LINE = 1 << 20
"""The longest line, and the longest CSV cell, in bytes; a longer one is no sentence and no list of them."""

_UTF8_BOM = b"\xef\xbb\xbf"
_UTF16_BOMS = (b"\xff\xfe", b"\xfe\xff")


def label(path: str | Path) -> str:
    """Return the name that messages call ``path`` by."""
    return "standard input" if str(path) == STDIN else str(path)


@contextlib.contextmanager
def reading_errors(path: str | Path) -> Iterator[None]:
    """Turn what the operating system and gzip raise while reading ``path`` into :class:`InputError`."""
    try:
        yield
    except gzip.BadGzipFile as error:
        raise InputError(
            "is not gzip though its name ends in .gz, or is damaged; rename it or make it again",
            path=label(path),
        ) from error
    except EOFError as error:
        raise InputError("ends too early: the gzip file was cut short; fetch it again", path=label(path)) from error
    except zlib.error as error:
        raise InputError("is damaged: gzip cannot unpack it; fetch it again", path=label(path)) from error
    except FileNotFoundError as error:
        raise InputError("does not exist; check the name", path=label(path)) from error
    except IsADirectoryError as error:
        raise InputError("is a folder; a file is needed here", path=label(path)) from error
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror or error}", path=label(path)) from error


@contextlib.contextmanager
def open_bytes(path: str | Path) -> Iterator[BinaryIO]:
    """Open a file for reading bytes: unpacked when its name ends in ``.gz``; ``-`` is standard input."""
    if str(path) == STDIN:
        yield sys.stdin.buffer
        return
    with Path(path).open("rb") as file:
        if str(path).lower().endswith(".gz"):
            with gzip.GzipFile(fileobj=file) as unpacked:
                # GzipFile.readline is Python code; a buffered reader around it is several times as fast.
                yield cast("BinaryIO", io.BufferedReader(unpacked, 1 << 18))
        else:
            yield file


def read_lines(path: str | Path) -> Iterator[tuple[int, str]]:
    r"""Yield ``(row, line)`` from UTF-8 text: rows count from 1, lines come without their ``\n`` or ``\r\n``.

    A byte order mark at the start is dropped. No more than :data:`MAX_LINE` bytes are held at a time.

    Raises:
        InputError: The file cannot be read or unpacked, holds NUL bytes (a binary file), bytes that are not
            UTF-8, or a line longer than :data:`MAX_LINE`.
    """
    with reading_errors(path), open_bytes(path) as stream:
        for row, raw in enumerate(_raw_lines(stream, path), start=1):
            line = raw
            if row == 1:
                if line.startswith(_UTF16_BOMS):
                    raise InputError("is UTF-16; save it as UTF-8", path=label(path))
                line = line.removeprefix(_UTF8_BOM)
            if b"\0" in line:
                raise InputError("holds a NUL byte: a binary file, not text", path=label(path), row=row)
            yield row, _decoded(line, path, row)


def _raw_lines(stream: BinaryIO, path: str | Path) -> Iterator[bytes]:
    row = 0
    while line := stream.readline(MAX_LINE + 2):
        row += 1
        body = line[:-1] if line.endswith(b"\n") else line
        body = body.removesuffix(b"\r")
        if len(body) > MAX_LINE:
            raise InputError(
                f"the line is longer than {MAX_LINE:,} bytes; put one text on a line",
                path=label(path),
                row=row,
            )
        yield body


def _decoded(line: bytes, path: str | Path, row: int) -> str:
    try:
        return line.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InputError(
            f"byte {error.start + 1} of the row is 0x{line[error.start]:02x}, which is not UTF-8; "
            "save the file as UTF-8",
            path=label(path),
            row=row,
        ) from error
