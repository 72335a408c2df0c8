"""Files that are either whole or absent: write beside, then rename.

A crash, a full disk or Ctrl-C leaves the old file (or none) and never a half-written one that looks finished.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentsmith.errors import InputError

_BLOCK = 1 << 20


@contextlib.contextmanager
def atomic_path(path: str | Path) -> Iterator[Path]:
    """Yield a temporary path in the folder of ``path``; on success it is renamed to ``path``.

    On any exception, Ctrl-C included, the temporary file (or folder) is removed and ``path`` stays as it was.
    Missing parent folders are made.

    Raises:
        InputError: A parent of ``path`` is a file, or ``path`` is a folder.
    """
    target = Path(path)
    make_folder(target.parent)
    if target.is_dir():
        raise InputError("is a folder; give the name of a file to write", path=target)
    with _permission(target.parent):
        handle, name = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # mkstemp makes files only their owner may read; what we hand over follows the user's umask.
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(target)
    finally:
        temporary.unlink(missing_ok=True)


@contextlib.contextmanager
def atomic_folder(path: str | Path) -> Iterator[Path]:
    """Yield a temporary folder beside ``path``; on success it takes the place of ``path``.

    Raises:
        InputError: ``path``, or a parent of it, is a file.
    """
    target = Path(path)
    make_folder(target.parent)
    if target.exists() and not target.is_dir():
        raise InputError("is a file; give the name of a folder to write", path=target)
    with _permission(target.parent):
        temporary = Path(tempfile.mkdtemp(prefix=f".{target.name}.", suffix=".tmp", dir=target.parent))
    temporary.chmod(0o777 & ~_umask())
    try:
        yield temporary
        if target.exists():
            old = temporary.with_suffix(".old")
            target.replace(old)
            temporary.replace(target)
            shutil.rmtree(old)
        else:
            temporary.replace(target)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def make_folder(path: str | Path) -> Path:
    """Make a folder and its parents.

    Raises:
        InputError: The path, or a parent of it, is a file, or may not be written.
    """
    folder = Path(path)
    with _permission(folder):
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except (FileExistsError, NotADirectoryError) as error:
            raise InputError("is a file where a folder is needed; give another output", path=folder) from error
    return folder


@contextlib.contextmanager
def _permission(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        if error.errno not in (errno.EACCES, errno.EPERM, errno.EROFS):
            raise
        raise InputError("may not be written; give another output", path=folder) from error


def _umask() -> int:
    # The only way to read it is to set it.
    mask = os.umask(0)
    os.umask(mask)
    return mask


def write_text(path: str | Path, text: str) -> None:
    """Write UTF-8 text, whole or not at all."""
    with atomic_path(path) as temporary:
        temporary.write_text(text, encoding="utf-8")


def write_json(path: str | Path, value: Any) -> None:
    """Write JSON (UTF-8, indented, keys in the order given), whole or not at all."""
    write_text(path, json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def sha256(path: str | Path) -> str:
    """Return the hex sha256 of a file, or of a folder (names and contents of the files below it, sorted)."""
    root = Path(path)
    digest = hashlib.sha256()
    for file in sorted(p for p in root.rglob("*") if p.is_file()) if root.is_dir() else [root]:
        if root.is_dir():
            digest.update(file.relative_to(root).as_posix().encode() + b"\0")
        with file.open("rb") as stream:
            while block := stream.read(_BLOCK):
                digest.update(block)
    return digest.hexdigest()


@contextlib.contextmanager
def alone(path: Path) -> Iterator[None]:
    """Keep a second run from making the same file or folder meanwhile; the lock dies with its process."""
    try:
        import fcntl
    except ImportError:  # Windows has no such locks, and does without
        yield
        return
    lock = path.with_suffix(".lock")
    with lock.open("w") as stream:
        fcntl.flock(stream, fcntl.LOCK_EX)
        try:
            yield
        finally:
            # Not by closing alone: a process that was forked meanwhile has the file open too, and would hold the lock.
            fcntl.flock(stream, fcntl.LOCK_UN)
    lock.unlink(missing_ok=True)
