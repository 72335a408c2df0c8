"""The seven transfer tasks of SentEval: frozen vectors as features of a linear classifier.

| task | rows | protocol |
|---|---|---|
| MR, CR, SUBJ, MPQA | one class a file | nested cross-validation |
| SST2 | train, dev, test | L2 and stopping by the dev part |
| TREC (six coarse classes) | train, test | L2 by cross-validation on train |
| MRPC (features abs(u−v) and u·v side by side) | train, test | L2 by cross-validation on train; F1 as well |

Rows are sorted by their number of words, then by label, as in SentEval: the folds depend on the order.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.lines import read_lines, rejoin
from sentsmith.evaluation.probe import (
    ProbeResult,
    cross_validation,
    given_split,
    nested_cross_validation,
)
from sentsmith.evaluation.softmax import Features, ProbeSettings

logger = logging.getLogger(__name__)

# The file of class 1 and the file of class 0, in SentEval's order.
BINARY: dict[str, tuple[str, str]] = {
    "MR": ("MR/rt-polarity.pos", "MR/rt-polarity.neg"),
    "CR": ("CR/custrev.pos", "CR/custrev.neg"),
    "SUBJ": ("SUBJ/subj.objective", "SUBJ/subj.subjective"),
    "MPQA": ("MPQA/mpqa.pos", "MPQA/mpqa.neg"),
}
SPLIT: dict[str, dict[str, str]] = {
    "SST2": {part: f"SST/binary/sentiment-{part}" for part in ("train", "dev", "test")},
    "TREC": {"train": "TREC/train_5500.label", "test": "TREC/TREC_10.label"},
    "MRPC": {part: f"MRPC/msr_paraphrase_{part}.txt" for part in ("train", "test")},
}
TREC_CLASSES = ("ABBR", "DESC", "ENTY", "HUM", "LOC", "NUM")


@dataclass(frozen=True, eq=False)
class Labelled:
    """Sentences, or pairs of them, with a class each.

    Attributes:
        sentences: ``[n]``; may hold empty strings.
        labels: int64 ``[n]``.
        others: ``[n]``, the second sentences of pairs; empty where there are no pairs.
    """

    sentences: tuple[str, ...]
    labels: NDArray[np.int64]
    others: tuple[str, ...] = ()

    def __len__(self) -> int:
        return len(self.labels)

    def features(self, embedded: Embedded) -> Features:
        """Return float32 ``[n, d]``, or ``[n, 2d]`` (|u−v|, then u·v) for pairs."""
        u = embedded.rows(self.sentences)
        if not self.others:
            return u
        v = embedded.rows(self.others)
        return np.concatenate([np.abs(u - v), u * v], axis=1)


@dataclass(frozen=True, eq=False)
class TransferTask:
    """One transfer task.

    Attributes:
        name: ``"MR"``, ``"CR"``, ``"SUBJ"``, ``"MPQA"``, ``"SST2"``, ``"TREC"`` or ``"MRPC"``.
        classes: How many classes there are.
        parts: ``"all"``; or ``"train"``, ``"test"`` and, for SST2, ``"dev"``.
        encodings: Files that are not UTF-8, and what they were read as.
        settings: How the classifier is trained.
    """

    name: str
    classes: int
    parts: dict[str, Labelled]
    encodings: dict[str, str]
    settings: ProbeSettings

    def texts(self) -> Iterator[str]:
        """Yield every sentence of the task, with repetitions."""
        for part in self.parts.values():
            yield from part.sentences
            yield from part.others

    def score(self, embedded: Embedded) -> dict[str, Any]:
        """Return the task's score (accuracy times 100) and how it came about."""
        start = time.perf_counter()
        result = self._probe(embedded)
        details: dict[str, Any] = {
            "score": 100 * result.accuracy,
            "classifier": self.settings.describe(),
            "dev_accuracy": 100 * result.dev_accuracy,
            "l2": list(result.l2),
            "rows": {name: len(part) for name, part in self.parts.items()},
            "empty_sentences": sum(not text for text in self.texts()),
            "encodings": self.encodings,
            "seconds": time.perf_counter() - start,
        }
        if self.name == "MRPC":
            details["f1"] = 100 * f1(result.predictions, self.parts["test"].labels)
        return details

    def _probe(self, embedded: Embedded) -> ProbeResult:
        data = {name: (part.features(embedded), part.labels) for name, part in self.parts.items()}
        if "all" in data:
            return nested_cross_validation(*data["all"], classes=self.classes, settings=self.settings)
        if "dev" in data:
            return given_split(data["train"], data["dev"], data["test"], classes=self.classes, settings=self.settings)
        return cross_validation(data["train"], data["test"], classes=self.classes, settings=self.settings)


def f1(predicted: NDArray[np.int64], gold: NDArray[np.int64]) -> float:
    """Return F1 of class 1: the harmonic mean of precision and recall, 0 where nothing was found."""
    found = int(((predicted == 1) & (gold == 1)).sum())
    return 2 * found / max(1, int((predicted == 1).sum() + (gold == 1).sum()))


def load_transfer(data_dir: str | Path, settings: ProbeSettings | None = None) -> dict[str, TransferTask]:
    """Read the seven tasks below ``data_dir/transfer``.

    Files that are not UTF-8 are read as Latin-1, which the log and the result say.

    Args:
        data_dir: Holds ``transfer/``.
        settings: How the classifiers are to be trained; SentEval's by default.

    Raises:
        InputError: Files are missing (all of them are named), or a row is wrong (file and row).
    """
    root = Path(data_dir) / "transfer"
    wanted = [
        *(file for pair in BINARY.values() for file in pair),
        *(f for p in SPLIT.values() for f in p.values()),
    ]
    missing = [file for file in wanted if not (root / file).is_file()]
    if missing:
        raise InputError(
            f"missing {', '.join(missing)}; --data-dir must hold transfer/ in SentEval's layout (MR, CR, "
            "SUBJ, MPQA, SST/binary, TREC, MRPC)",
            path=root,
        )
    settings = settings or ProbeSettings()
    tasks = [_binary(root, name, files, settings) for name, files in BINARY.items()]
    readers: dict[str, tuple[Callable[[Sequence[str], Path], Labelled], int]] = {
        "SST2": (_sst, 2),
        "TREC": (_trec, len(TREC_CLASSES)),
        "MRPC": (_mrpc, 2),
    }
    for name, (read, classes) in readers.items():
        parts, encodings = {}, {}
        for part, file in SPLIT[name].items():
            text = read_lines(root / file)
            parts[part] = _sorted(read(text.lines, root / file))
            if text.encoding != "utf-8":
                encodings[file] = text.encoding
        tasks.append(TransferTask(name, classes, parts, encodings, settings))
    return {task.name: task for task in tasks}


def _binary(root: Path, name: str, files: tuple[str, str], settings: ProbeSettings) -> TransferTask:
    sentences: list[str] = []
    labels: list[int] = []
    encodings = {}
    for label, file in zip((1, 0), files, strict=True):
        text = read_lines(root / file)
        if not text.lines:
            raise InputError("is empty; one sentence a line is needed", path=root / file)
        sentences += map(rejoin, text.lines)
        labels += [label] * len(text.lines)
        if text.encoding != "utf-8":
            encodings[file] = text.encoding
    part = _sorted(_labelled(sentences, labels))
    return TransferTask(name, 2, {"all": part}, encodings, settings)


def _sst(lines: Sequence[str], file: Path) -> Labelled:
    sentences, labels = [], []
    for row, line in enumerate(lines, start=1):
        sentence, tab, label = line.rpartition("\t")
        if not tab or label.strip() not in ("0", "1"):
            raise InputError("is no sentence, tab, 0 or 1", path=file, row=row)
        sentences.append(rejoin(sentence))
        labels.append(int(label))
    return _labelled(sentences, labels, file=file)


def _trec(lines: Sequence[str], file: Path) -> Labelled:
    sentences, labels = [], []
    for row, line in enumerate(lines, start=1):
        label, _, question = line.strip().partition(" ")
        coarse = label.partition(":")[0]
        if coarse not in TREC_CLASSES:
            allowed = ", ".join(TREC_CLASSES)
            raise InputError(f"begins with {label!r}; CLASS:fine is needed, CLASS one of {allowed}", path=file, row=row)
        sentences.append(rejoin(question))
        labels.append(TREC_CLASSES.index(coarse))
    return _labelled(sentences, labels, file=file)


def _mrpc(lines: Sequence[str], file: Path) -> Labelled:
    first, second, labels = [], [], []
    for row, line in enumerate(lines, start=1):
        fields = line.split("\t")
        if row == 1 and fields[0] == "Quality":
            continue
        if len(fields) < 5 or fields[0].strip() not in ("0", "1"):
            raise InputError("is no 0 or 1, two ids and two sentences, separated by tabs", path=file, row=row)
        labels.append(int(fields[0]))
        first.append(rejoin(fields[3]))
        second.append(rejoin(fields[4]))
    return _labelled(first, labels, second, file=file)


def _labelled(
    sentences: Sequence[str], labels: Sequence[int], others: Sequence[str] = (), *, file: Path | None = None
) -> Labelled:
    if not labels:
        raise InputError("has no rows", path=file)
    return Labelled(tuple(sentences), np.array(labels, dtype=np.int64), tuple(others))


def _sorted(part: Labelled) -> Labelled:
    words = [len(text.split()) for text in part.sentences]
    others = [len(text.split()) for text in part.others] or [0] * len(part)
    order = sorted(range(len(part)), key=lambda row: (words[row], others[row], part.labels[row]))
    return Labelled(
        tuple(part.sentences[row] for row in order),
        part.labels[order],
        tuple(part.others[row] for row in order) if part.others else (),
    )
