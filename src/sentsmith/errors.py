"""What can go wrong, and the exit code each kind ends in.

    SentsmithError            1   the job failed
    ├── InputError            2   the input was wrong: names the file and, where there is one, the row
    │   └── SettingsError     2   a setting was wrong: names the key, and the nearest right one
    └── MissingExtraError     2   an optional dependency is needed: names the exact install command

Every message says what was given, what is allowed and what to do. The command line prints it as one line; a
programmer catches the class.
"""

from __future__ import annotations

import importlib
from pathlib import Path
from types import ModuleType


class SentsmithError(Exception):
    """The job failed (exit code 1)."""

    exit_code: int = 1


class InputError(SentsmithError):
    """The input was wrong (exit code 2).

    Args:
        message: What was given, what is allowed, what to do.
        path: The file it was found in, if any.
        row: The 1-based row (line) in that file, if known.
    """

    exit_code = 2

    def __init__(self, message: str, *, path: str | Path | None = None, row: int | None = None) -> None:
        place = "" if path is None else f"{path}: " if row is None else f"{path}, row {row}: "
        super().__init__(place + message)
        self.path = path
        self.row = row


class SettingsError(InputError):
    """A setting was unknown, of the wrong type or out of range (exit code 2)."""


class MissingExtraError(SentsmithError):
    """An optional dependency is not installed (exit code 2)."""

    exit_code = 2


def require(module: str, *, extra: str) -> ModuleType:
    """Import an optional dependency, or say how to get it.

    Args:
        module: The module to import, for example ``"faiss"``.
        extra: The extra of this package that brings it.

    Raises:
        MissingExtraError: It is not installed.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(
            f"this needs {module!r}, which is not installed: pip install 'sentsmith[{extra}]'"
        ) from error
