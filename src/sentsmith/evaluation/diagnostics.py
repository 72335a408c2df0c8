"""What the scores don't say of a model: its geometry, its attention, its cost; over STS-B's dev part.

Nothing of a test part is read, so these numbers may be looked at while choosing.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.geometry import PairGeometry, pair_geometry, similarity_bands
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.similarity import cosine, spearman

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.evaluation.attention import AttentionMap, ClsEnergy

logger = logging.getLogger(__name__)

SENTENCE = "A man is playing the guitar and a woman is singing."
"""The sentence whose attention is shown, unless another one is asked for."""

_Found = TypeVar("_Found")


@dataclass(frozen=True)
class DiagnosticSettings:
    """What the diagnostics look at.

    Attributes:
        sentence: Its attention maps are shown.
        tokens: The length of the sentence whose cost is counted.

    Raises:
        SettingsError: The sentence is empty, or the length not positive.
    """

    sentence: str = SENTENCE
    tokens: int = 32

    def __post_init__(self) -> None:
        if not self.sentence.strip():
            raise SettingsError("the sentence whose attention is shown is empty; give a sentence")
        if self.tokens < 1:
            raise SettingsError(f"the cost of a sentence of {self.tokens} tokens cannot be counted; give 1 or more")


def asked_for(*, sentence: str | None, tokens: int | None) -> DiagnosticSettings | None:
    """Return the settings with what was given, or None if nothing was."""
    if sentence is None and tokens is None:
        return None
    default = DiagnosticSettings()
    return DiagnosticSettings(
        default.sentence if sentence is None else sentence, default.tokens if tokens is None else tokens
    )


@dataclass(frozen=True, eq=False)
class Diagnosis:
    """What :func:`diagnose` found.

    Attributes:
        score: Spearman times 100 over the pairs.
        geometry: Alignment and uniformity.
        bands: Band of gold score → the cosines of its pairs, float64.
        energy: E_CLS; None if the attention cannot be read.
        maps: The attention over one sentence, one for each encoder; none if it cannot be read.
        gmacs: Billions of multiply-accumulates for one sentence; None if they cannot be counted.
        settings: What was looked at.
        notes: For each of the three that is absent, why.
    """

    score: float
    geometry: PairGeometry
    bands: Mapping[str, NDArray[np.float64]]
    energy: ClsEnergy | None
    maps: Sequence[AttentionMap]
    gmacs: float | None
    settings: DiagnosticSettings
    notes: tuple[str, ...]

    def summary(self) -> dict[str, Any]:
        """Return the numbers as ``results.json`` holds them; None where one could not be measured."""
        from sentsmith.evaluation.cost import score_per_gmac

        energy = self.energy
        return {
            "alignment": self.geometry.alignment,
            "uniformity": self.geometry.uniformity,
            "positive_pairs": self.geometry.positives,
            "sentences": self.geometry.sentences,
            "e_cls": None if energy is None else energy.mean,
            "e_cls_by_layer": None if energy is None else list(energy.by_layer),
            "e_cls_by_tower": {} if energy is None else {tower.name: list(tower.by_layer) for tower in energy.towers},
            "gmacs": self.gmacs,
            "tokens": self.settings.tokens,
            "score_per_gmac": None if self.gmacs is None else score_per_gmac(self.score, self.gmacs),
            "bands": {band: _spread(cosines) for band, cosines in self.bands.items()},
            "sentence": self.settings.sentence,
            "notes": list(self.notes),
        }


def diagnose(encoder: Encoder, pairs: ScoredPairs, settings: DiagnosticSettings | None = None) -> Diagnosis:
    """Measure what :class:`Diagnosis` holds, over scored pairs (STS-B's dev part).

    Geometry and bands need vectors only. E_CLS, attention and cost look into ``encoder.model``, a
    ``SentenceTransformer``; where that is absent or cannot be read they are left out, and a note says why.

    Args:
        encoder: The model.
        pairs: Gold scores from 0 to 5, some above 4.
        settings: What to look at.

    Raises:
        InputError: The gold scores are not of that kind.
    """
    settings = settings or DiagnosticSettings()
    notes: list[str] = []
    embedded, energy = _embed(encoder, pairs, notes)
    cosines = cosine(embedded.rows(pairs.sentences1), embedded.rows(pairs.sentences2))

    def show() -> Sequence[AttentionMap]:
        from sentsmith.evaluation.attention import attention_maps

        return attention_maps(_model(encoder), settings.sentence)

    def count() -> float:
        from sentsmith.evaluation.cost import count_gmacs

        return count_gmacs(_model(encoder), tokens=settings.tokens)

    return Diagnosis(
        score=100 * spearman(embedded.similarity(pairs.sentences1, pairs.sentences2), pairs.gold),
        geometry=pair_geometry(embedded, pairs),
        bands=similarity_bands(cosines, pairs.gold),
        energy=energy,
        maps=_or_note("no attention maps", show, notes) or (),
        gmacs=_or_note("no GMACs", count, notes),
        settings=settings,
        notes=tuple(notes),
    )


def table(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table of results; those without diagnostics have no row."""
    columns = {"alignment": 3, "uniformity": 3, "e_cls": 3, "tokens": 0, "gmacs": 3, "score_per_gmac": 2}
    rows = [
        [
            str(result["model"]),
            *("–" if found[key] is None else f"{found[key]:.{digits}f}" for key, digits in columns.items()),
        ]
        for result in results
        if (found := result.get("diagnostics")) is not None
    ]
    return ["model", "alignment", "uniformity", "E_CLS", "tokens", "GMACs", "score per GMAC"], rows


def _embed(encoder: Encoder, pairs: ScoredPairs, notes: list[str]) -> tuple[Embedded, ClsEnergy | None]:
    """Embed the sentences, measuring E_CLS on the way where the attention can be read."""
    from sentsmith.evaluation.attention import watch_cls_energy

    def watch() -> tuple[Embedded, ClsEnergy]:
        with watch_cls_energy(_model(encoder)) as meter:
            embedded = Embedded(pairs.texts(), encoder)
        return embedded, meter.result()

    return _or_note("no E_CLS", watch, notes) or (Embedded(pairs.texts(), encoder), None)


def _model(encoder: Encoder) -> SentenceTransformer:
    from sentence_transformers import SentenceTransformer

    model = getattr(encoder, "model", None)
    if not isinstance(model, SentenceTransformer):
        raise InputError("this encoder has no SentenceTransformer inside to look into")
    return model


def _or_note(what: str, find: Callable[[], _Found], notes: list[str]) -> _Found | None:
    try:
        return find()
    except InputError as error:
        notes.append(f"{what}: {error}")
        logger.warning("%s: %s", what, error)
        return None


def _spread(cosines: NDArray[np.float64]) -> dict[str, Any]:
    if not len(cosines):
        return {"pairs": 0, "mean": None, "quartiles": None}
    return {
        "pairs": len(cosines),
        "mean": float(cosines.mean()),
        "quartiles": [float(value) for value in np.quantile(cosines, (0.25, 0.5, 0.75))],
    }
