"""Training rows: read, checked for an audit, and split into what trains and what is held out."""

from __future__ import annotations

import itertools
import logging
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from sentsmith.corpus.audit import find_record
from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.reading import read_conditional, read_pairs, read_rankings, read_sentences, read_triplets
from sentsmith.errors import InputError
from sentsmith.training.settings import SourceSettings

if TYPE_CHECKING:
    from datasets import Dataset

logger = logging.getLogger(__name__)

T = TypeVar("T")

_MOST_HELD_OUT = 1000


@dataclass
class TrainingRows:
    """Rows to train on, and rows kept apart.

    Attributes:
        path: Where they came from.
        sha256: Of that file or folder.
        train: Columns in sentence-transformers' order.
        held_out: The same columns; empty when dev files choose the checkpoint.
        audit: The record of the overlap audit of this very file, or None.
        warnings: What the run record has to say.
    """

    path: str
    sha256: str
    train: Dataset
    held_out: Dataset
    audit: dict[str, Any] | None
    warnings: list[str] = field(default_factory=list)

    def describe(self) -> dict[str, Any]:
        """Return what the run record keeps of the data."""
        return {
            "path": self.path,
            "sha256": self.sha256,
            "rows": len(self.train),
            "held_out_rows": len(self.held_out),
            "columns": list(self.train.column_names),
            "audit": self.audit,
        }


def load_rows(
    settings: SourceSettings,
    read: Callable[[str], Iterable[dict[str, Any]]] | None = None,
    *,
    held_out: float = 0.0,
    seed: int = 0,
) -> TrainingRows:
    """Read the training rows and hold some out.

    Args:
        settings: Which file, and how many rows.
        read: Opens a path as rows with equal columns; by default sentences, in the column ``sentence``.
        held_out: Share of the rows to keep apart, at most 1,000 of them. Nothing is, where the share is a single row:
            no choice can be made by it.
        seed: Chooses the held-out rows.

    Raises:
        InputError: The data cannot be read, or holds nothing.
    """
    from datasets import Dataset

    opened = _sentences(settings) if read is None else read(settings.train)
    rows = list(limited(opened, settings.limit))
    if not rows:
        raise InputError("holds no rows to train on", path=settings.train)
    names = list(rows[0])
    held = min(int(len(rows) * held_out), _MOST_HELD_OUT)
    held = held if held >= 2 else 0
    chosen = set(random.Random(seed).sample(range(len(rows)), held))
    audit, warnings = find_audit(settings.train)
    return TrainingRows(
        path=settings.train,
        sha256=data_hash(settings.train),
        train=_columns(Dataset, names, [row for i, row in enumerate(rows) if i not in chosen]),
        held_out=_columns(Dataset, names, [rows[i] for i in sorted(chosen)]),
        audit=audit,
        warnings=warnings,
    )


def triplet_rows(path: str) -> Iterator[dict[str, str]]:
    """Open triplets (anchor, positive, negative) for :func:`load_rows`."""
    return (asdict(row) for row in read_triplets(path))


def pair_rows(path: str, scale: float) -> Iterator[dict[str, Any]]:
    """Open scored pairs (sentence1, sentence2, score) for :func:`load_rows`; ``scale`` is the highest score."""
    return (asdict(row) for row in read_pairs(path, scale=scale))


def ranking_rows(path: str) -> Iterator[dict[str, list[str]]]:
    """Open ranked lists (sentences) for :func:`load_rows`."""
    return ({"sentences": list(row.sentences)} for row in read_rankings(path))


def conditional_rows(path: str) -> Iterator[dict[str, Any]]:
    """Open C-STS (sentence1, sentence2, conditions, labels) for :func:`load_rows`.

    All conditions of a pair of sentences are one row, wherever in the file they stand: a batch, and the held-out part,
    has all of them or none.

    Raises:
        InputError: See :func:`~sentsmith.corpus.reading.read_conditional`; or the labels are hidden.
    """
    pairs: dict[tuple[str, str], dict[str, Any]] = {}
    for row in read_conditional(path):
        if row.label is None:
            raise InputError("holds hidden labels (-1), and training needs known ones; give another part", path=path)
        key = row.sentence1, row.sentence2
        pair = pairs.setdefault(key, {"sentence1": key[0], "sentence2": key[1], "conditions": [], "labels": []})
        pair["conditions"].append(row.condition)
        pair["labels"].append(row.label)
    yield from pairs.values()


def _sentences(settings: SourceSettings) -> Iterator[dict[str, str]]:
    return ({"sentence": sentence} for sentence in read_sentences(settings.train, column=settings.column))


def limited(rows: Iterable[T], limit: int | None) -> Iterator[T]:
    """Yield the first ``limit`` of some rows; all of them for None."""
    return itertools.islice(rows, limit)


def _columns(kind: type[Dataset], names: list[str], rows: list[dict[str, Any]]) -> Dataset:
    return kind.from_dict({name: [row[name] for row in rows] for name in names})


def find_audit(path: str) -> tuple[dict[str, Any] | None, list[str]]:
    """Return the record of a file's overlap audit, if it has one, and what a run has to warn of."""
    record = find_record(path)
    if record is None:
        warning = (
            f"{Path(path).name} was not audited for overlap with test sets; run: sentsmith audit {path} --against DIR"
        )
        logger.warning("%s", warning)
        return None, [warning]
    affected = record.get("affected", 0)
    if affected:
        warning = (
            f"{affected} training rows overlap with test sets by their audit; "
            "train on the file that sentsmith audit --output writes"
        )
        logger.warning("%s", warning)
        return record, [warning]
    return record, []
