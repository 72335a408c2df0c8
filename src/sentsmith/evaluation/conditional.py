"""The suite ``conditional``: similarity under a condition (C-STS, Deshpande et al. 2023).

A model encodes each of two sentences together with the condition, as a tuple (sentence, condition): a decoder puts both
into its prompt, a BERT-like model reads them as a pair of texts. What it says of the two is their cosine, unless the
model has a similarity of its own.

C-STS keeps the labels of its test part; a service scores predictions for it. Its script ``make_test_submission.py``
takes a JSON object from a row's number, counted from 0 and written as text, to the prediction, sorts by the number and
wants all 4,732 rows. On what scale the predictions are is not said. Here the cosine is brought to that of the labels,
1 + 4·cosine, as the training has it the other way round: Spearman's and Pearson's correlations are the same on both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentsmith.corpus.reading import read_conditional
from sentsmith.corpus.rows import Conditional
from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.naming import task_name
from sentsmith.evaluation.similarity import pearson, spearman

CONDITIONAL = "conditional"


@dataclass(frozen=True, eq=False)
class ConditionalTask:
    """The rows of one file.

    Attributes:
        name: The file's, without its ending.
        rows: At least one; either all with a label, or none.
    """

    name: str
    rows: tuple[Conditional, ...]

    @property
    def hidden(self) -> bool:
        """Whether the labels are hidden."""
        return self.rows[0].label is None

    def texts(self) -> Iterator[tuple[str, str]]:
        """Yield (sentence, condition) for every sentence of every row."""
        for row in self.rows:
            yield row.sentence1, row.condition
            yield row.sentence2, row.condition

    def score(self, embedded: Embedded) -> dict[str, Any]:
        """Return the task's score (Spearman times 100) and how it came about.

        Where the labels are hidden there is none, but ``"submission"``: row number → prediction.
        """
        similarities = _similarities(self.rows, embedded)
        details: dict[str, Any] = {"rows": len(self.rows), "hidden": self.hidden, "similarity": embedded.measured_by}
        if self.hidden:
            return details | {"submission": {str(row): 1 + 4 * float(value) for row, value in enumerate(similarities)}}
        labels = _labels(self.rows)
        return details | {"score": 100 * spearman(similarities, labels), "pearson": 100 * pearson(similarities, labels)}


def submission_name(task: str) -> str:
    """Return the name of the file of a task's predictions, which stands beside ``results.json``."""
    return f"{task}.submission.json"


def _similarities(rows: Sequence[Conditional], embedded: Embedded) -> NDArray[np.float64]:
    return embedded.similarity(
        [(row.sentence1, row.condition) for row in rows], [(row.sentence2, row.condition) for row in rows]
    )


def _labels(rows: Sequence[Conditional]) -> list[float]:
    labels = [row.label for row in rows if row.label is not None]
    if len(labels) < len(rows):
        raise InputError("the labels are hidden (-1): there is nothing to compare with; give a part with labels")
    return labels


def score_conditional(encoder: Encoder, rows: Sequence[Conditional]) -> float:
    """Return the Spearman correlation, in [-1, 1], between similarities and labels.

    Args:
        encoder: One that takes tuples (sentence, condition).
        rows: With their labels.

    Raises:
        InputError: A label is hidden, or the model cannot take a condition.
    """
    labels, task = _labels(rows), ConditionalTask(CONDITIONAL, tuple(rows))
    return spearman(_similarities(rows, Embedded(task.texts(), encoder)), labels)


def read_labelled(path: str | Path) -> list[Conditional]:
    """Read a part of C-STS that has its labels; see :func:`~sentsmith.corpus.reading.read_conditional`.

    Raises:
        InputError: The file cannot be read, or its labels are hidden.
    """
    rows = list(read_conditional(path))
    try:
        _labels(rows)
    except InputError as error:
        raise InputError(str(error), path=path) from error
    return rows


def load_conditional(files: Sequence[str | Path]) -> dict[str, ConditionalTask]:
    """Read parts of C-STS, one task for each file, under the file's name without its ending.

    Args:
        files: As :func:`~sentsmith.corpus.reading.read_conditional` reads them; repetitions count once.

    Raises:
        SettingsError: No file is given.
        InputError: A file cannot be read, or a row is wrong.
    """
    if not files:
        raise SettingsError(
            f"suite {CONDITIONAL!r} has nothing to measure: give --conditional FILE (columns sentence1, sentence2, "
            "condition, label), or several"
        )
    tasks: dict[str, ConditionalTask] = {}
    for file in dict.fromkeys(map(str, files)):
        name = task_name(file, tasks, otherwise=CONDITIONAL)
        tasks[name] = ConditionalTask(name, tuple(read_conditional(file)))
    return tasks


def submission_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield, for each task of a model's result whose labels are hidden, where its predictions are."""
    for name, details in result["details"]["tasks"].items():
        if details.get("hidden"):
            yield (
                f"{result['model']}: the labels of {name} are hidden; its {details['rows']:,} predictions are in "
                f"{submission_name(name)}"
            )
