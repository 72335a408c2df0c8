"""Sentences of a test that a model was trained on: warned of, counted, and the score without them.

STS-B is drawn from the tests of 2012 to 2017 and shares half of its sentences with them; a model trained on its train
part knows them when it meets them again. What counts as the same sentence is what
:mod:`sentsmith.corpus.audit` says: to the letter, under the normal form, or but for a word or two.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentsmith.corpus.audit import look_for
from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.overlap import KINDS, FileTally
from sentsmith.corpus.testsets import SourceText
from sentsmith.errors import SettingsError
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.similarity import pearson, spearman

logger = logging.getLogger(__name__)

SUITES = ("sts", "sts-dev")
"""Whose tasks can be compared with training data."""


@dataclass(frozen=True)
class Shared:
    """The sentences of a task that the training data holds too.

    Attributes:
        sentences: As the task has them.
        counts: How many different sentences the task has (``sentences``), and how many of them are shared, by
            :data:`~sentsmith.corpus.overlap.KINDS`.
    """

    sentences: frozenset[str]
    counts: Mapping[str, int]

    def kept(self, pairs: ScoredPairs) -> NDArray[np.bool_]:
        """Return bool ``[n]``: the pairs of which neither sentence is shared."""
        both = zip(pairs.sentences1, pairs.sentences2, strict=True)
        return np.array([not {one, two} & self.sentences for one, two in both], dtype=bool)

    def details(self, parts: Sequence[ScoredPairs], predicted: Sequence[NDArray[np.float64]]) -> dict[str, Any]:
        """Return what a task's details say of it: the counts, and the score (times 100) of the pairs that are left.

        Where fewer than two pairs are left there is no score, but None.

        Args:
            parts: The pairs of each subset.
            predicted: What the model says of them, one ``[n_k]`` for each subset k.
        """
        kept = [self.kept(pairs) for pairs in parts]
        scores = np.concatenate([values[rows] for values, rows in zip(predicted, kept, strict=True)])
        gold = np.concatenate([pairs.gold[rows] for pairs, rows in zip(parts, kept, strict=True)])
        some = len(gold) > 1
        return {
            "shared_sentences": dict(self.counts),
            "without_shared": {
                "score": 100 * spearman(scores, gold) if some else None,
                "pearson": 100 * pearson(scores, gold) if some else None,
                "rows": len(gold),
                "left_out": sum(map(len, parts)) - len(gold),
            },
        }


def check_trained_on(trained_on: Sequence[str | Path], suites: Sequence[str]) -> None:
    """Check that there is something that training data can be compared with.

    Raises:
        SettingsError: Training data is given, and no suite of :data:`SUITES`.
    """
    if trained_on and not set(suites) & set(SUITES):
        raise SettingsError(f"training data is compared with the suites {' and '.join(SUITES)}; add one to the suites")


def find_shared(tasks: Mapping[str, Any], trained_on: Sequence[str | Path]) -> dict[str, Shared]:
    """Find the sentences of each task in training data, and warn of them in the log.

    Args:
        tasks: Name → anything with ``texts()``, an iterator over sentences.
        trained_on: Files or folders, as :func:`sentsmith.corpus.audit.audit` reads them.

    Raises:
        InputError: A file cannot be read, or holds no text.
    """
    texts = {name: dict.fromkeys(task.texts()) for name, task in tasks.items()}
    every = (SourceText(name, 0, text.strip()) for name in texts for text in texts[name] if text.strip())
    tally = look_for(every, trained_on)
    repeated, files = tally.repeated(), tally.files()
    found = {}
    for name, sentences in texts.items():
        file = files.get(name, FileTally())
        counts = {"sentences": file.texts, **{kind: int(getattr(file, kind)) for kind in KINDS}}
        found[name] = Shared(frozenset(text for text in sentences if text.strip() in repeated), counts)
        if found[name].sentences:
            logger.warning("%s: %s", name, _words(counts))
    return found


def shared_with(tasks: Mapping[str, Sequence[Any]], trained_on: Sequence[str | Path]) -> dict[str, Sequence[Any]]:
    """Return the tasks of suites with those of :data:`SUITES` told which of their sentences training data holds.

    Args:
        tasks: Suite → tasks; those of STS have a field ``shared``.
        trained_on: See :func:`find_shared`; with none the tasks are returned as they are.
    """
    if not trained_on:
        return dict(tasks)
    mine = [suite for suite in tasks if suite.removesuffix("-hub") in SUITES]
    found = find_shared({task.name: task for suite in mine for task in tasks[suite]}, trained_on)
    return {
        suite: [replace(task, shared=found[task.name]) for task in members] if suite in mine else members
        for suite, members in tasks.items()
    }


def described(trained_on: Sequence[str | Path]) -> dict[str, Any]:
    """Return what ``results.json`` says of the training data, path and sha256 of each file; nothing without any."""
    files = [{"path": str(path), "sha256": data_hash(path)} for path in trained_on]
    return {"trained_on": files} if files else {}


def hint(model: str | Path) -> None:
    """Say in the log, once for a model, that its run record names training data that nobody compared with the tests."""
    try:
        data = json.loads((Path(model) / "run.json").read_text(encoding="utf-8"))["data"]
        path, audit = data["path"], data.get("audit")
    except (OSError, ValueError, LookupError, TypeError, AttributeError):
        return
    if path and not (isinstance(audit, Mapping) and audit.get("clean")):
        logger.info(
            "%s was trained on %s; --trained-on FILE gives its scores without the sentences it knows", model, path
        )


def table(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table: for each model the score without shared sentences, and the rows left.

    Those that were not compared with training data have no row.
    """
    found = {
        str(result["model"]): {
            name: details["without_shared"]
            for name, details in result["details"]["tasks"].items()
            if "without_shared" in details
        }
        for result in results
    }
    found = {model: tasks for model, tasks in found.items() if tasks}
    names = list(dict.fromkeys(name for tasks in found.values() for name in tasks))
    rows = [[model, *(_cell(tasks.get(name)) for name in names)] for model, tasks in found.items()]
    return ["model", *names], rows


def _cell(found: Mapping[str, Any] | None) -> str:
    if found is None or found["score"] is None:
        return "–"
    return f"{found['score']:.2f} ({found['rows']} of {found['rows'] + found['left_out']})"


def _words(counts: Mapping[str, int]) -> str:
    shared = sum(counts[kind] for kind in KINDS)
    return (
        f"{shared:,} of {counts['sentences']:,} sentences are in the training data ({counts['exact']:,} to the letter, "
        f"{counts['normalised']:,} but for case and punctuation, {counts['near']:,} but for a word or two)"
    )
