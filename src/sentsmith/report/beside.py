"""The pictures that stand beside a ``results.json``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentsmith.evaluation.degradation import DEGRADATION
from sentsmith.evaluation.diagnostics import Diagnosis
from sentsmith.evaluation.layers import LAYERS
from sentsmith.evaluation.lists import lists_of
from sentsmith.report import diagnosis as diagnosed
from sentsmith.report import drift, inside, layers


def draw(result: Mapping[str, Any], diagnosis: Diagnosis | None, folder: str | Path) -> None:
    """Write what there is to draw of a model: its diagnosis, its ranked lists, its curves by layer.

    Args:
        result: As :func:`sentsmith.evaluation.suite.evaluate` returns it.
        diagnosis: Of which the result holds the numbers only.
        folder: Where ``results.json`` is.

    Raises:
        InputError: A picture's place is a folder.
    """
    if diagnosis is not None:
        diagnosed.draw(diagnosis, folder)
    if lists_of(result):
        drift.draw(result, folder)
    if DEGRADATION in result:
        inside.draw_curve(result, folder)
    if LAYERS in result:
        layers.draw_layers(result, folder)
