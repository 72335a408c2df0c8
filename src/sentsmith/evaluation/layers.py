"""What each layer of a model knows of similarity (FREEZE, figure 1): correlation with people, layer by layer.

The plain cosine of what a layer leaves in the residual stream, final norm not applied, for two ways to read a sentence
out of it: its last token that is no padding, and the mean of its tokens. A FREEZE model adds its trained codes: the
cosine of what each layer's own encoder makes of it. All over STS-B's dev part, nothing of the tests.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, cast

import numpy as np
from numpy.typing import NDArray

from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.similarity import cosine, pearson, spearman
from sentsmith.evaluation.sts import StsTask

if TYPE_CHECKING:
    from torch import nn

    from sentsmith.encoders.embedding import ModelEncoder

logger = logging.getLogger(__name__)

LAYERS = "layers"
LAST, MEAN, CODES = "last", "mean", "codes"
WORDS = {LAST: "last token", MEAN: "mean of tokens", CODES: "trained codes"}
"""What the readouts of a summary are called where people read."""

_PAIRS = 512  # whose vectors of all layers are held at once


class Codes(Protocol):
    """The second module of a FREEZE model, as far as it is asked here."""

    kept: Sequence[int]
    """The layers that it reads, counted from 0."""

    @property
    def weights(self) -> Sequence[float] | None:
        """What each of them weighs; None where the head has no such thing."""
        ...

    def layer_similarities(self, first: Vectors, second: Vectors) -> NDArray[Any]:
        """Return the cosine of each kept layer's codes, ``[n, kept]``, of the model's vectors ``[n, d]`` twice.

        Where the model has summed all codes into one there is one column.
        """
        ...


@dataclass(frozen=True)
class Curve:
    """How well the cosines of each layer agree with people.

    Attributes:
        layers: Their numbers, the first one being 1; a model may leave some out.
        pearson: Of each, times 100.
        spearman: Of each, times 100.
        norms: The mean length of its vectors; None for codes, which are brought to length 1.
        weights: What the model learned to weigh its codes with; None where there is no such thing.
    """

    layers: tuple[int, ...]
    pearson: tuple[float, ...]
    spearman: tuple[float, ...]
    norms: tuple[float, ...] | None = None
    weights: tuple[float, ...] | None = None

    @property
    def best(self) -> int:
        """The layer of the highest Spearman; the earliest, of several."""
        return self.layers[int(np.argmax(self.spearman))]

    def summary(self) -> dict[str, Any]:
        """Return the curve as ``results.json`` holds it."""
        return {
            "layers": list(self.layers),
            "pearson": list(self.pearson),
            "spearman": list(self.spearman),
            "best": self.best,
            "norms": None if self.norms is None else list(self.norms),
            "weights": None if self.weights is None else list(self.weights),
        }


@dataclass(frozen=True)
class ByLayer:
    """A model's curves.

    Attributes:
        curves: Readout → its curve.
        task: What they were measured over.
        rows: Its pairs.
    """

    curves: Mapping[str, Curve]
    task: str
    rows: int

    def summary(self) -> dict[str, Any]:
        """Return what ``results.json`` holds."""
        return {
            "task": self.task,
            "rows": self.rows,
            "readouts": {name: curve.summary() for name, curve in self.curves.items()},
        }


def measure_layers(encoder: Encoder, task: StsTask) -> ByLayer:
    """Measure the layers of a model, each alone, on an STS task.

    Args:
        encoder: A :class:`~sentsmith.encoders.embedding.ModelEncoder` whose first module is a transformer.
        task: Scored pairs; vectors of all layers are held for some of them at a time.

    Raises:
        InputError: The encoder cannot be looked into.
        SettingsError: The model's layers cannot be found, or what it does after the last one is not known.
    """
    from sentsmith.encoders.taps import model_inside

    inside = model_inside(encoder)
    every = _EveryLayer(inside)
    found = [every.cosines(*block) for block in _blocks(task)]
    gold = np.concatenate([subset.pairs.gold for subset in task.subsets])
    cosines, lengths = (np.concatenate(parts, axis=-1) for parts in zip(*found, strict=True))
    curves = {
        name: _curve(cosines[place], gold, norms=lengths[place].mean(axis=-1).tolist())
        for place, name in enumerate((LAST, MEAN))
    }
    codes = codes_of(inside)
    if codes is not None:
        similarities = _similarities_of_codes(inside, codes, task)
        # Codes that were summed into one are no longer those of a layer.
        if len(similarities) == len(codes.kept):
            curves[CODES] = _curve(
                similarities, gold, layers=[layer + 1 for layer in codes.kept], weights=codes.weights
            )
    return ByLayer(curves, task.name, len(gold))


def codes_of(encoder: ModelEncoder) -> Codes | None:
    """Return the module of a FREEZE model that holds the layers' own encoders; None for every other model."""
    second = list(encoder.model)[1:2]
    return cast("Codes", second[0]) if second and hasattr(second[0], "layer_similarities") else None


def table(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table: for each model and readout its best layer, beside the last one."""
    rows = [
        [
            str(result["model"]),
            WORDS.get(name, name),
            f"{curve['best']} of {curve['layers'][-1]}",
            *(f"{curve[measure][place]:.2f}" for place in (_best(curve), -1) for measure in ("spearman", "pearson")),
        ]
        for result in results
        if result.get(LAYERS) is not None
        for name, curve in result[LAYERS]["readouts"].items()
    ]
    return ["model", "read", "best layer", "Spearman", "Pearson", "last layer: Spearman", "Pearson"], rows


def best_line(found: Mapping[str, Any]) -> str:
    """Say in words which single layer of a summary is the best, by which readout."""
    name, curve = max(found["readouts"].items(), key=lambda entry: max(entry[1]["spearman"]))
    words, of = WORDS.get(name, name), curve["layers"][-1]
    return f"best layer {curve['best']} of {of}, {words}, Spearman {max(curve['spearman']):.2f}"


def _best(curve: Mapping[str, Any]) -> int:
    return list(curve["layers"]).index(curve["best"])


class _EveryLayer:
    """An encoder whose vector of a sentence is that of every layer and readout, one after the other."""

    def __init__(self, encoder: ModelEncoder) -> None:
        from sentsmith.encoders.layers import layers_of

        self._encoder = encoder
        self._layers = len(layers_of(encoder.model))

    def encode(self, sentences: Sequence[str]) -> Vectors:
        return self._encoder.encode_by(_readouts(self._encoder.model), sentences)

    def cosines(self, first: Sequence[str], second: Sequence[str]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """Return the cosine of each pair and the mean length of its two vectors, both ``[readouts, layers, n]``."""
        embedded = Embedded([*first, *second], self)
        one, two = (embedded.rows(side).reshape(len(side), 2, self._layers, -1) for side in (first, second))
        places = [(readout, layer) for readout in range(2) for layer in range(self._layers)]
        cosines = [cosine(one[:, *place], two[:, *place]) for place in places]
        lengths = [(_lengths(one[:, *place]) + _lengths(two[:, *place])) / 2 for place in places]
        return tuple(np.array(part).reshape(2, self._layers, -1) for part in (cosines, lengths))  # type: ignore[return-value]  # two parts


def _lengths(vectors: Vectors) -> NDArray[np.float64]:
    return np.asarray(np.linalg.norm(vectors.astype(np.float64), axis=1))


def _readouts(model: nn.Module) -> nn.Module:
    """Return a module that runs the model's first one and gives ``[rows, readouts × layers × d]``."""
    import torch
    from torch import Tensor, nn

    from sentsmith.encoders.layers import layers_of
    from sentsmith.encoders.readout import last_token, masked_mean, states_at
    from sentsmith.encoders.taps import check_tapped, recorded

    first = cast("Callable[..., dict[str, Any]]", cast("Any", model)[0])

    class Readouts(nn.Module):
        def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
            with recorded(layers_of(model)) as states:
                output = first(dict(features))
            # The first module of a FREEZE model checks this itself, and keeps its token states to itself.
            if "token_embeddings" in output:
                check_tapped(model, output, states)
            mask = output["attention_mask"]
            last = last_token(mask)
            vectors = [states_at(state, last) for state in states[1:]]
            return {"sentence_embedding": torch.cat([*vectors, *(masked_mean(s, mask) for s in states[1:])], dim=1)}

    return Readouts()


def _blocks(task: StsTask) -> Iterator[tuple[Sequence[str], Sequence[str]]]:
    for subset in task.subsets:
        first, second = subset.pairs.sentences1, subset.pairs.sentences2
        for start in range(0, len(first), _PAIRS):
            yield first[start : start + _PAIRS], second[start : start + _PAIRS]


def _curve(
    cosines: NDArray[np.float64],
    gold: NDArray[np.float64],
    *,
    layers: Sequence[int] | None = None,
    norms: Sequence[float] | None = None,
    weights: Sequence[float] | None = None,
) -> Curve:
    """Return the curve of cosines ``[layers, n]``."""
    return Curve(
        tuple(range(1, len(cosines) + 1) if layers is None else layers),
        tuple(100 * pearson(layer, gold) for layer in cosines),
        tuple(100 * spearman(layer, gold) for layer in cosines),
        None if norms is None else tuple(norms),
        None if weights is None else tuple(weights),
    )


def _similarities_of_codes(encoder: ModelEncoder, codes: Codes, task: StsTask) -> NDArray[np.float64]:
    """Return the cosines of codes, ``[kept layers, n]``."""
    embedded = Embedded(task.texts(), encoder)
    found = [
        np.asarray(
            codes.layer_similarities(embedded.rows(subset.pairs.sentences1), embedded.rows(subset.pairs.sentences2)),
            dtype=np.float64,
        )
        for subset in task.subsets
    ]
    return np.concatenate(found).T
