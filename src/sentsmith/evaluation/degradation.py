"""Degradation: what each layer of a model is worth on STS, and where more layers stop helping (BeLLM §2; METHODS §8).

The model is read after its embedding layer and after every layer, by its own readout, all in one pass: what comes out
is the score of the model cut off there. A decoder's states go through a final norm that was trained on the last layer's
states alone, and the paper does not say whether a cut-off model keeps it; both are measured.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.similarity import cosine
from sentsmith.evaluation.sts import StsTask

if TYPE_CHECKING:
    from sentsmith.encoders.embedding import ModelEncoder

logger = logging.getLogger(__name__)

DEGRADATION = "degradation"
NORMED = "final_norm"
BARE = "no_final_norm"
WORDS = {NORMED: "with the final norm", BARE: "without it"}
"""What the two curves of a summary are called where people read."""


@dataclass(frozen=True)
class Curve:
    """Scores by the number of layers, from 0 (the embedding layer).

    Attributes:
        scores: Task → Spearman times 100 for each number of layers.
    """

    scores: Mapping[str, tuple[float, ...]]

    @property
    def average(self) -> tuple[float, ...]:
        """The mean over tasks."""
        return tuple(float(np.mean(column)) for column in zip(*self.scores.values(), strict=True))

    @property
    def best(self) -> int:
        """The number of layers of the best average; the smallest, of several."""
        return int(np.argmax(self.average))

    @property
    def falls_after(self) -> int | None:
        """The first number of layers whose successor's average is lower; None if the average never falls."""
        average = self.average
        return next((count for count, (now, then) in enumerate(zip(average, average[1:])) if then < now), None)  # noqa: B905, RUF007 - neighbours

    def summary(self) -> dict[str, Any]:
        """Return the curve as ``results.json`` holds it."""
        return {
            "scores": {task: list(values) for task, values in self.scores.items()},
            "average": list(self.average),
            "best": self.best,
            "falls_after": self.falls_after,
        }


@dataclass(frozen=True)
class Degradation:
    """A model's scores by the number of its layers.

    Attributes:
        normed: With the model's final norm on every layer's states; where it has none, as they are.
        bare: Without it; None where the model has none.
    """

    normed: Curve
    bare: Curve | None

    def summary(self) -> dict[str, Any]:
        """Return what ``results.json`` holds: ``"final_norm"`` and ``"no_final_norm"``, None where there is none.

        A model without a final norm has its only curve under ``"final_norm"``.
        """
        return {NORMED: self.normed.summary(), BARE: None if self.bare is None else self.bare.summary()}


def measure_degradation(encoder: Encoder, tasks: Sequence[StsTask]) -> Degradation:
    """Measure a model on STS tasks with its first 0, 1, … all layers.

    Vectors of all layers are held for one task at a time, so a sentence of two tasks is encoded twice.

    Args:
        encoder: A :class:`~sentsmith.encoders.embedding.ModelEncoder` whose first module is a transformer.
        tasks: At least one.

    Raises:
        InputError: The encoder cannot be looked into.
        SettingsError: The model's layers cannot be found, or it mixes them itself.
    """
    from sentsmith.encoders.layers import final_norm_of
    from sentsmith.encoders.taps import model_inside

    inside = model_inside(encoder)
    norms = (True,) if final_norm_of(inside.model) is None else (True, False)
    every = _EveryLayer(inside, norms)
    found: list[dict[str, tuple[float, ...]]] = [{} for _ in norms]
    for task in tasks:
        embedded = Embedded(task.texts(), every)
        scores = _by_layer(task, embedded, every)
        for curve, values in zip(found, scores, strict=True):
            curve[task.name] = tuple(values)
        logger.info("%s: %d layers, best %.2f", task.name, every.layers - 1, max(scores[0]))
    curves = [Curve(scores) for scores in found]
    return Degradation(curves[0], curves[1] if len(curves) > 1 else None)


def curves_of(found: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    """Return the curves of a summary, by what people call them; a model without a final norm has one, called so."""
    if found[BARE] is None:
        return {"no final norm in this model": found[NORMED]}
    return {words: found[key] for key, words in WORDS.items()}


def turning(curve: Mapping[str, Any]) -> str:
    """Say in words where a curve turns."""
    last, best = len(curve["average"]) - 1, curve["best"]
    after = curve["falls_after"]
    fall = "never falls" if after is None else f"first falls after {after}"
    return f"best with {best} of {last} layers ({curve['average'][best]:.2f}), {fall}"


def turning_lines(results: Sequence[Mapping[str, Any]]) -> list[str]:
    """Say in words where each curve of each result turns."""
    return [
        f"{result['model']}, {words}: {turning(curve)}"
        for result in results
        if result.get(DEGRADATION) is not None
        for words, curve in curves_of(result[DEGRADATION]).items()
    ]


def table(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table of results: for each curve the averages by number of layers."""
    found = [(result, curves_of(result[DEGRADATION])) for result in results if result.get(DEGRADATION) is not None]
    deepest = max((len(curve["average"]) for _, curves in found for curve in curves.values()), default=0)
    rows = []
    for count in range(deepest):
        averages = [curve["average"] for _, curves in found for curve in curves.values()]
        rows.append([str(count), *(f"{average[count]:.2f}" if count < len(average) else "–" for average in averages)])
    prefix = len(found) > 1
    names = [f"{result['model']}: {words}" if prefix else words for result, curves in found for words in curves]
    return ["layers", *names], rows


class _EveryLayer:
    """An encoder whose vector of a sentence is that of every layer, one after the other."""

    def __init__(self, encoder: ModelEncoder, norms: Sequence[bool]) -> None:
        from sentsmith.encoders.layers import layers_of

        self._encoder = encoder
        self.norms = tuple(norms)
        self.layers = len(layers_of(encoder.model)) + 1

    def encode(self, sentences: Sequence[str]) -> Vectors:
        from sentsmith.encoders.taps import encode_layers

        found = encode_layers(self._encoder, sentences, norms=self.norms)
        return found.transpose(2, 0, 1, 3).reshape(len(sentences), -1)


def _by_layer(task: StsTask, embedded: Embedded, every: _EveryLayer) -> list[list[float]]:
    """Return the task's score for each norm and number of layers."""
    cosines = [_cosines(embedded, subset.pairs.sentences1, subset.pairs.sentences2, every) for subset in task.subsets]
    return [
        [float(task.score_of([part[norm, layer] for part in cosines])["score"]) for layer in range(every.layers)]
        for norm in range(len(every.norms))
    ]


def _cosines(
    embedded: Embedded, first: Sequence[str], second: Sequence[str], every: _EveryLayer
) -> NDArray[np.float64]:
    """Return the cosine of each pair, ``[norms, layers + 1, n]``."""
    shape = (len(first), len(every.norms), every.layers, -1)
    one, two = embedded.rows(first).reshape(shape), embedded.rows(second).reshape(shape)
    return np.array(
        [
            [cosine(one[:, norm, layer], two[:, norm, layer]) for layer in range(every.layers)]
            for norm in range(len(every.norms))
        ]
    )
