"""The measures of the quickstart: item by item, so that before and after can be compared in pairs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentsmith.corpus.rows import Triplet
from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.evaluation.continuity import NextSentenceTask, measure_continuity, next_sentence_task
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.ordering import ranking_correlation, triplet_accuracy
from sentsmith.evaluation.significance import paired_bootstrap
from sentsmith.evaluation.similarity import cosine

RANKING = "ranked lists: rank correlation"
TRIPLETS = "triplets ordered right"
NEXT_FIRST = "next sentence found first"
NEXT_RANK = "next sentence: mean reciprocal rank"


@dataclass(frozen=True)
class Comparison:
    """One measure before and after, times 100, with the 95 % paired bootstrap interval of its change."""

    name: str
    before: float
    after: float
    change: float
    low: float
    high: float
    items: int

    @property
    def verdict(self) -> str:
        """``better``, ``worse``, or ``no clear change`` where the interval holds zero."""
        if self.low > 0:
            return "better"
        return "worse" if self.high < 0 else "no clear change"

    def as_dict(self) -> dict[str, Any]:
        """Return the fields and the verdict."""
        return {**asdict(self), "verdict": self.verdict}


def compare(
    before: Mapping[str, NDArray[np.float64]], after: Mapping[str, NDArray[np.float64]], *, seed: int
) -> list[Comparison]:
    """Compare measures item by item.

    Args:
        before: Name → one value per item, of the start model.
        after: The same items, of the trained model.
        seed: Of the bootstrap.
    """
    rows = []
    for name, first in before.items():
        second = after[name]
        interval = paired_bootstrap(first, second, seed=seed)
        means = 100 * float(first.mean()), 100 * float(second.mean())
        change = (100 * interval.difference, 100 * interval.low, 100 * interval.high)
        rows.append(Comparison(name, *means, *change, len(first)))
    return rows


def sample_measures(encoder: Encoder, lists: Sequence[Sequence[str]], triplets: Sequence[Triplet]) -> dict[str, Any]:
    """Measure the held-out part of the sample.

    Returns:
        ``items`` (measure → value per item), ``cosines`` (group → values) and ``positions`` (mean cosine to the first
        sentence at each place of the lists).
    """
    plain = [(row.anchor, row.positive, row.negative) for row in triplets]
    known = _Known(encoder, [*(text for row in plain for text in row), *(text for entry in lists for text in entry)])
    anchors, positives, negatives = (known.encode([row[side] for row in plain]) for side in range(3))
    return {
        "items": {
            RANKING: ranking_correlation(known, lists),
            TRIPLETS: triplet_accuracy(known, triplets),
        },
        "cosines": {
            "anchor and entailment": cosine(anchors, positives).tolist(),
            "anchor and contradiction": cosine(anchors, negatives).tolist(),
        },
        "positions": _positions(known, lists),
    }


class _Known:
    """An encoder that has embedded a set of sentences once, and looks them up."""

    def __init__(self, encoder: Encoder, sentences: Sequence[str]) -> None:
        self._embedded = Embedded(sentences, encoder)

    def encode(self, sentences: Sequence[str]) -> Vectors:
        """Return the vectors of sentences that are among those embedded."""
        return self._embedded.rows(sentences)


def _positions(known: _Known, lists: Sequence[Sequence[str]]) -> list[float]:
    width = min(len(entry) for entry in lists)
    firsts = known.encode([entry[0] for entry in lists])
    return [float(cosine(firsts, known.encode([entry[i] for entry in lists])).mean()) for i in range(1, width)]


def own_text_task(paragraphs: Sequence[Sequence[str]], *, seed: int) -> NextSentenceTask:
    """Make the task from a text: find the sentence that follows in the same paragraph."""
    return next_sentence_task(paragraphs, seed=seed)


def own_text_measures(encoder: Encoder, task: NextSentenceTask) -> dict[str, Any]:
    """Measure the task made from the user's own text; the same keys as :func:`sample_measures`, without positions."""
    known = _Known(encoder, [*task.queries, *task.candidates])
    found = measure_continuity(known, task)
    queries, candidates = known.encode(task.queries), known.encode(task.candidates)
    # Any fixed shuffle gives unrelated sentences; half a turn keeps none in place.
    others = np.roll(task.targets, len(task.targets) // 2)
    return {
        "items": {NEXT_FIRST: found.accuracy_at_1, NEXT_RANK: found.reciprocal_rank},
        "cosines": {
            "sentence and the next one": cosine(queries, candidates[task.targets]).tolist(),
            "sentence and one from elsewhere": cosine(queries, candidates[others]).tolist(),
        },
        "positions": None,
    }
