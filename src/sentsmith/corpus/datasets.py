"""Typed rows → a data set for the trainer, and the hash that names a data file in a run record."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from sentsmith import files
from sentsmith.corpus.lines import label, reading_errors
from sentsmith.corpus.rows import Row, as_dict
from sentsmith.errors import InputError


def to_dataset(rows: Iterable[Row]) -> Any:
    """Return a ``datasets.Dataset`` with the columns of the rows, in sentence-transformers' order.

    Args:
        rows: At least one; all of one kind.

    Raises:
        InputError: No rows, or rows of several kinds.
    """
    from datasets import Dataset

    whole = list(rows)
    if not whole:
        raise InputError("there are no rows to train on")
    kinds = sorted({type(row).__name__ for row in whole})
    if len(kinds) > 1:
        raise InputError(f"rows of several kinds in one data set: {', '.join(kinds)}; use one kind")
    dictionaries = [as_dict(row) for row in whole]
    return Dataset.from_dict({name: [row[name] for row in dictionaries] for name in dictionaries[0]})


def data_hash(path: str | Path) -> str:
    """Return the hex sha256 of a data file, or of a folder's names and contents.

    Raises:
        InputError: It cannot be read.
    """
    with reading_errors(path):
        if not Path(path).exists():
            raise InputError("does not exist; check the name", path=label(path))
        return files.sha256(path)
