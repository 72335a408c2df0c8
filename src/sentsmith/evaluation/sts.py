"""Semantic textual similarity: STS12–16, STS-B and SICK-R, Spearman under the "all" aggregation.

A task's score is one Spearman correlation over all its rows together, whichever subset they come from ("all";
METHODS §8). The mean of the subsets' correlations is a different number (Vec ``eval_sts_all``: 0.695 against
0.836) and is not what SimCSE and its successors report.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike

from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.lines import read_lines, rejoin
from sentsmith.evaluation.pairs import ScoredPairs, parse_gold, read_scored_pairs
from sentsmith.evaluation.similarity import pearson, spearman

if TYPE_CHECKING:
    from sentsmith.evaluation.shared import Shared

logger = logging.getLogger(__name__)

# What SentEval measures in each year. STS13's SMT is not free: often only its gold is found.
YEARS: dict[str, tuple[str, ...]] = {
    "STS12": ("MSRpar", "MSRvid", "SMTeuroparl", "surprise.OnWN", "surprise.SMTnews"),
    "STS13": ("FNWN", "OnWN", "headlines"),
    "STS14": ("OnWN", "deft-forum", "deft-news", "headlines", "images", "tweet-news"),
    "STS15": ("answers-forums", "answers-students", "belief", "headlines", "images"),
    "STS16": ("answer-answer", "headlines", "plagiarism", "postediting", "question-question"),
}

# Each part of STS-B and SICK, and the file names it goes by.
PARTS: dict[str, tuple[str, dict[str, tuple[str, ...]]]] = {
    "STSB": (
        "STSBenchmark",
        {part: (f"{part}.csv", f"sts-{part}.csv") for part in ("train", "dev", "test")},
    ),
    "SICKR": (
        "SICK",
        {"train": ("SICK_train.txt",), "dev": ("SICK_trial.txt",), "test": ("SICK_test_annotated.txt",)},
    ),
}

_LAYOUT = (
    "expected SentEval's layout: STS12-en-test … STS16-en-test with STS.input.NAME.txt and STS.gs.NAME.txt, "
    "STSBenchmark with train/dev/test.csv, SICK with SICK_train/SICK_trial/SICK_test_annotated.txt"
)


@dataclass(frozen=True, eq=False)
class StsSubset:
    """One file of a task."""

    name: str
    pairs: ScoredPairs


@dataclass(frozen=True, eq=False)
class StsTask:
    """One STS task.

    Attributes:
        name: ``"STS12"`` … ``"STS16"``, ``"STSB"``, ``"SICKR"``; with ``"-dev"`` where that part is measured.
        part: ``"test"``, ``"dev"`` or ``"train"``.
        subsets: At least one.
        skipped_files: Files of the folder that were left out, and why.
        missing: Subsets that the published numbers include and this folder lacks.
        shared: Its sentences that the model was trained on; None if nobody looked for them.
    """

    name: str
    part: str
    subsets: tuple[StsSubset, ...]
    skipped_files: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    shared: Shared | None = None

    def texts(self) -> Iterator[str]:
        """Yield every sentence of the task, with repetitions."""
        for subset in self.subsets:
            yield from subset.pairs.texts()

    def score(self, embedded: Embedded) -> dict[str, Any]:
        """Return the task's score (Spearman times 100) and how it came about, by which similarity among others.

        If training data was looked for in it (:attr:`shared`), also what the score is without those sentences.
        """
        predicted = [embedded.similarity(subset.pairs.sentences1, subset.pairs.sentences2) for subset in self.subsets]
        return self.score_of(predicted) | {"similarity": embedded.measured_by}

    def score_of(self, predicted: Sequence[ArrayLike]) -> dict[str, Any]:
        """Return what :meth:`score` does, for predictions from anywhere: one ``[n_k]`` array for each subset k.

        What similarity they are of it does not know.
        """
        golds = [subset.pairs.gold for subset in self.subsets]
        details: dict[str, Any] = {
            "score": 100 * all_aggregation(predicted, golds),
            "pearson": 100 * pearson(np.concatenate([*map(np.asarray, predicted)]), np.concatenate(golds)),
            "aggregation": "all",
            "part": self.part,
            "rows": sum(map(len, golds)),
            "rows_without_gold": sum(subset.pairs.skipped for subset in self.subsets),
            "skipped_files": list(self.skipped_files),
            "missing_subsets": list(self.missing),
        }
        if len(self.subsets) > 1:
            details["subsets"] = {
                subset.name: {
                    "spearman": 100 * spearman(values, subset.pairs.gold),
                    "rows": len(subset.pairs),
                }
                for subset, values in zip(self.subsets, predicted, strict=True)
            }
        if self.shared is not None:
            values = [np.asarray(part, dtype=np.float64) for part in predicted]
            details |= self.shared.details([subset.pairs for subset in self.subsets], values)
        return details


def all_aggregation(predicted: Sequence[ArrayLike], gold: Sequence[ArrayLike]) -> float:
    """Return one Spearman correlation over the rows of all subsets together.

    Args:
        predicted: One ``[n_k]`` array for each subset k.
        gold: The same shapes.
    """
    return spearman(np.concatenate([*map(np.asarray, predicted)]), np.concatenate([*map(np.asarray, gold)]))


def score_pairs(encoder: Encoder, pairs: ScoredPairs) -> float:
    """Return the Spearman correlation, in [-1, 1], between the model's similarities and gold scores."""
    embedded = Embedded(pairs.texts(), encoder)
    return spearman(embedded.similarity(pairs.sentences1, pairs.sentences2), pairs.gold)


def load_sts(data_dir: str | Path) -> dict[str, StsTask]:
    """Read the seven test sets below ``data_dir/sts``.

    Returns:
        ``STS12`` … ``STS16`` (all their subsets), ``STSB`` and ``SICKR`` (their test parts), in this order.

    Raises:
        InputError: Folders or files are missing (all of them are named), or a row is wrong (file and row).
    """
    root = _root(data_dir)
    years = {name: root / f"{name}-en-test" for name in YEARS}
    absent = [str(folder.relative_to(root)) for folder in years.values() if not folder.is_dir()]
    absent += [found for name in PARTS if isinstance(found := _part_file(root, name, "test"), str)]
    _refuse_missing(root, absent)
    tasks = {name: _load_year(name, folder) for name, folder in years.items()}
    return tasks | {name: load_part(data_dir, name, "test") for name in PARTS}


def load_sts_dev(data_dir: str | Path) -> dict[str, StsTask]:
    """Read what may choose between models: STS-B's dev part and SICK's trial part, nothing of the tests.

    Returns:
        ``STSB-dev`` and ``SICKR-dev``.

    Raises:
        InputError: As :func:`load_sts`.
    """
    root = _root(data_dir)
    _refuse_missing(root, [found for name in PARTS if isinstance(found := _part_file(root, name, "dev"), str)])
    tasks = [load_part(data_dir, name, "dev") for name in PARTS]
    return {task.name: task for task in tasks}


def load_part(data_dir: str | Path, name: str, part: str) -> StsTask:
    """Read one part of STS-B or SICK below ``data_dir/sts``.

    Args:
        data_dir: Holds ``sts/``.
        name: ``"STSB"`` or ``"SICKR"``.
        part: ``"train"``, ``"dev"`` (SICK calls it trial) or ``"test"``.

    Raises:
        InputError: The name or the part is unknown, the file is missing, or a row is wrong.
    """
    if name not in PARTS or part not in PARTS[name][1]:
        raise InputError(f"no part {part!r} of {name!r}; STSB and SICKR have train, dev and test")
    root = _root(data_dir)
    file = _part_file(root, name, part)
    if isinstance(file, str):
        _refuse_missing(root, [file])
    title = name if part == "test" else f"{name}-{part}"
    return StsTask(title, part, (StsSubset(name, read_scored_pairs(file)),))


def _root(data_dir: str | Path) -> Path:
    root = Path(data_dir) / "sts"
    if not root.is_dir():
        raise InputError(f"no such folder; --data-dir must hold sts/; {_LAYOUT}", path=root)
    return root


def _part_file(root: Path, name: str, part: str) -> Path | str:
    """Return the file of a part, or the name it should have had."""
    folder, parts = PARTS[name]
    found = [root / folder / file for file in parts[part] if (root / folder / file).is_file()]
    return found[0] if found else f"{folder}/{parts[part][0]}"


def _refuse_missing(root: Path, absent: Sequence[str]) -> None:
    if absent:
        raise InputError(f"missing {', '.join(absent)}; {_LAYOUT}", path=root)


def _load_year(name: str, folder: Path) -> StsTask:
    inputs, golds = _named(folder, "STS.input."), _named(folder, "STS.gs.")
    skipped = [
        *(f"{golds[key].name}: no STS.input.{key}.txt beside it" for key in golds if key not in inputs),
        *(f"{inputs[key].name}: no STS.gs.{key}.txt beside it" for key in inputs if key not in golds),
    ]
    for reason in skipped:
        logger.info("%s: %s; skipped", folder.name, reason)
    both = [key for key in inputs if key in golds]
    if not both:
        raise InputError(f"no STS.input.NAME.txt with its STS.gs.NAME.txt; {_LAYOUT}", path=folder)
    missing = [key for key in YEARS[name] if key not in both]
    if missing:
        logger.warning("%s lacks %s: its score does not compare with published ones", name, ", ".join(missing))
    subsets = tuple(StsSubset(key, _read_subset(inputs[key], golds[key])) for key in both)
    return StsTask(name, "test", subsets, tuple(skipped), tuple(missing))


def _named(folder: Path, prefix: str) -> dict[str, Path]:
    return {file.name[len(prefix) : -len(".txt")]: file for file in sorted(folder.glob(f"{prefix}*.txt"))}


def _read_subset(input_file: Path, gold_file: Path) -> ScoredPairs:
    lines, scores = read_lines(input_file).lines, read_lines(gold_file).lines
    if len(lines) != len(scores):
        raise InputError(
            f"has {len(scores)} lines and {input_file.name} has {len(lines)}; they must match line by line",
            path=gold_file,
        )
    sentences: list[tuple[str, str]] = []
    gold: list[float] = []
    for row, (line, score) in enumerate(zip(lines, scores, strict=True), start=1):
        if not score.strip():
            continue
        gold.append(parse_gold(score, low=0.0, high=5.0, path=gold_file, row=row))
        fields = line.split("\t")
        if len(fields) < 2:
            raise InputError("has no two sentences separated by a tab", path=input_file, row=row)
        sentences.append((rejoin(fields[0]), rejoin(fields[1])))
    if not gold:
        raise InputError("has no row with a gold score", path=gold_file)
    return ScoredPairs(
        tuple(a for a, _ in sentences),
        tuple(b for _, b in sentences),
        np.array(gold, dtype=np.float64),
        skipped=len(scores) - len(gold),
    )
