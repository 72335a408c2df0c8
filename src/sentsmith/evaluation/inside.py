"""The suites that look inside a model: what each of them finds has a place of its own in a result."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError
from sentsmith.evaluation.degradation import DEGRADATION, measure_degradation, turning
from sentsmith.evaluation.dependency import DEPENDENCY, measure_dependency
from sentsmith.evaluation.diagnostics import Diagnosis, DiagnosticSettings, diagnose
from sentsmith.evaluation.largest_errors import ERRORS, measure_errors
from sentsmith.evaluation.layers import LAYERS, best_line, measure_layers
from sentsmith.evaluation.sts import StsTask, load_part, load_sts, load_sts_dev

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

DIAGNOSTICS = "diagnostics"
INSIDE: dict[str, str] = {
    DIAGNOSTICS: "geometry, attention and cost, over STS-B's dev part: nothing of the tests",
    DEPENDENCY: "how far the tokens of a sentence say the same as its vector, over STS-B's dev part",
    DEGRADATION: "the scores of sts, if that suite is asked for too, else of sts-dev, by the number of layers",
    LAYERS: "what each layer alone is worth, by its last token and by its mean, over STS-B's dev part",
    ERRORS: "the pairs of STS-B's dev part on which the model and people are farthest apart",
}


def load_inside(name: str, data_dir: str | Path, *, tests: bool) -> Sequence[StsTask]:
    """Read what a suite of :data:`INSIDE` is measured over.

    Args:
        name: Of the suite.
        data_dir: Holds ``sts/``.
        tests: Whether the test parts may be read, which only ``degradation`` does.

    Raises:
        InputError: Data is missing or wrong.
    """
    if name == DEGRADATION:
        return list((load_sts(data_dir) if tests else load_sts_dev(data_dir)).values())
    return [load_part(data_dir, "STSB", "dev")]


def check_inside(encoder: Encoder, suites: Iterable[str]) -> None:
    """Say at once, before hours of measuring, that a model cannot be looked into as these suites do.

    Raises:
        InputError: It cannot.
    """
    from sentsmith.encoders.layers import layers_of, transformer_of
    from sentsmith.encoders.taps import AllLayers, LayerTaps, model_inside

    asked = set(suites)
    if asked & {DEPENDENCY, DEGRADATION}:
        _refuse_layered(model_inside(encoder).model)
    if DEPENDENCY in asked:
        transformer_of(model_inside(encoder).model)
    if DEGRADATION in asked:
        AllLayers(LayerTaps(model_inside(encoder).model))
    if LAYERS in asked:
        layers_of(model_inside(encoder).model)


def _refuse_layered(model: SentenceTransformer) -> None:
    from sentsmith.encoders.layered import LayeredTransformer

    if isinstance(model[0], LayeredTransformer):
        raise InputError(
            f"this model reads all its layers at once: it cannot be cut off after one ({DEGRADATION}) and has no token "
            f"that it is read from ({DEPENDENCY}); the suite for it is {LAYERS}"
        )


def look_inside(
    encoder: Encoder, tasks: Mapping[str, Sequence[Any]], settings: DiagnosticSettings | None, result: dict[str, Any]
) -> Diagnosis | None:
    """Add to a model's result what the suites of :data:`INSIDE` find that were asked for.

    Args:
        encoder: The model.
        tasks: For each suite, what it is measured over.
        settings: What the suite ``diagnostics`` looks at.
        result: Gets each suite's findings under its name, and the time that they took.

    Returns:
        The diagnosis, of which the result holds the numbers only; None if it was not asked for.

    Raises:
        InputError: The model cannot be looked into.
    """
    diagnosis = None
    for suite in INSIDE:
        if suite not in tasks:
            continue
        start = time.perf_counter()
        if suite == DIAGNOSTICS:
            diagnosis = _diagnose(encoder, tasks[suite][0], settings, result)
        elif suite == DEPENDENCY:
            result[suite] = measure_dependency(encoder, tasks[suite][0].texts()).summary()
            logger.info("%s: dependency %.3f", result["model"], result[suite]["mean"])
        elif suite == LAYERS:
            result[suite] = measure_layers(encoder, tasks[suite][0]).summary()
            logger.info("%s: %s", result["model"], best_line(result[suite]))
        elif suite == ERRORS:
            result[suite] = measure_errors(encoder, tasks[suite][0]).summary()
        else:
            result[suite] = measure_degradation(encoder, tasks[suite]).summary()
            logger.info("%s: %s", result["model"], turning(result[suite]["final_norm"]))
        seconds = result["details"]["seconds"]
        seconds[suite] = time.perf_counter() - start
        seconds["total"] += seconds[suite]
    return diagnosis


def _diagnose(
    encoder: Encoder, task: StsTask, settings: DiagnosticSettings | None, result: dict[str, Any]
) -> Diagnosis:
    diagnosis = diagnose(encoder, task.subsets[0].pairs, settings)
    logger.info("%s: diagnosed, %s %.2f", result["model"], task.name, diagnosis.score)
    # A score and no average: its suite has this one only.
    result["scores"].setdefault(task.name, diagnosis.score)
    result[DIAGNOSTICS] = diagnosis.summary()
    return diagnosis
