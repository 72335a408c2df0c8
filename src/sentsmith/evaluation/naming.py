"""What a task is called that is read from a file of the user's own."""

from __future__ import annotations

import re
from collections.abc import Container
from itertools import count
from pathlib import Path

from sentsmith.corpus.formats import kind_of

_PACKED = re.compile(r"\.gz$", re.IGNORECASE)


def task_name(file: str | Path, taken: Container[str], *, otherwise: str) -> str:
    """Return the file's name without its ending, in letters that a file's name can have, unlike those ``taken``.

    Args:
        file: Which.
        taken: Names of other tasks; a number is put behind one of them (``dev-2``).
        otherwise: The name where nothing is left.
    """
    name = Path(file).name
    if kind_of(name):
        name = Path(_PACKED.sub("", name)).stem
    plain = re.sub(r"[^\w-]+", "-", name).strip("-") or otherwise
    if plain not in taken:
        return plain
    return next(free for number in count(2) if (free := f"{plain}-{number}") not in taken)
