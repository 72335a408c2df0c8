"""What the runs of FREEZE leave: reconstruction by layer, learned layer weights, the ladder from step to step."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from sentsmith.evaluation.layers import CODES, LAYERS
from sentsmith.report.bars import score_bars, signed_bars
from sentsmith.report.layers import is_by_layer
from sentsmith.report.page import Picture, Section
from sentsmith.report.pictures import curve
from sentsmith.report.tables import NOT_RECORDED, Cell, Score, Table, are_numbers

FREEZE = "freeze"
_WIDE = 20.0  # times the smallest loss: from here on the others would lie flat on a plain scale
_LADDER_TASKS = ("STSB", "STSB-dev")
_RECONSTRUCTION = "Reconstruction by layer"
_WEIGHTS = "Learned layer weights"
_LADDER = "The ladder"

_RECONSTRUCTION_TEXT = """\
What each layer's autoencoder could not give back of sentences held out from it: the mean squared error in the layer's
own units, which grows with the length of its vectors, and the share of their variance that it explains, which does
not."""
_WEIGHTS_TEXT = """\
What the similarity counts each layer's cosine for. Where a weight is below zero, sentences that are alike in this layer
are taken to be less alike: no vector has such a similarity, and identical sentences need not score highest."""
_LADDER_TEXT = """\
The runs of this page on {task}, in their order: Pearson, which FREEZE's loss is after, and Spearman."""

Found = Mapping[str, Any]


def sections(runs: Mapping[str, tuple[Found, Found]]) -> list[Section]:
    """Return the report's sections, none where no run has anything to show.

    Args:
        runs: Run → its ``run.json`` and its ``results.json``, {} where one is absent. What does not look as it should
            is passed over.
    """
    parts = (_ladder(runs), _reconstruction({run: record for run, (record, _) in runs.items()}), _weights(runs))
    return [section for section in parts if section is not None]


def _ladder(runs: Mapping[str, tuple[Found, Found]]) -> Section | None:
    for task in _LADDER_TASKS:
        found = {run: scores for run, (_, result) in runs.items() if (scores := _scores_of(result, task))}
        # A run's scores may lie in a folder of their own, without its record.
        if len(found) < 2 or not any(record.get("method") == FREEZE for record, _ in runs.values()):
            continue
        picture = score_bars(found, x_label=f"correlation on {task}, × 100", title=f"{_LADDER}: {task}")
        return Section(_LADDER, text=_LADDER_TEXT.format(task=f"`{task}`"), pictures=[Picture(picture)])
    return None


def _scores_of(result: Found, task: str) -> dict[str, float]:
    try:
        values = {"Pearson": result["details"]["tasks"][task]["pearson"], "Spearman": result["scores"][task]}
        return values if all(map(math.isfinite, values.values())) else {}
    except (KeyError, TypeError):
        return {}


def _reconstruction(records: Mapping[str, Found]) -> Section | None:
    found = {run: part for run, record in records.items() if (part := _reconstructed(record))}
    if not found:
        return None
    losses = {run: [(float(layer), loss) for layer, (loss, _) in part.items()] for run, part in found.items()}
    shares = {run: [(float(layer), 100 * share) for layer, (_, share) in part.items()] for run, part in found.items()}
    values = [loss for points in losses.values() for _, loss in points]
    powers = min(values) > 0 and max(values) > _WIDE * min(values)
    pictures = [
        Picture(curve(losses, x_label="layer", y_label="mean squared error", title=_RECONSTRUCTION, powers=powers)),
        Picture(curve(shares, x_label="layer", y_label="variance explained, %", title="Share of a layer explained")),
    ]
    tables = [_of_reconstruction(run, records[run], part) for run, part in found.items()]
    return Section(_RECONSTRUCTION, text=_RECONSTRUCTION_TEXT, pictures=pictures, tables=tables)


def _reconstructed(record: Found) -> dict[int, tuple[float, float]]:
    """Return layer → raw loss and explained share; {} where the run has no autoencoders.

    All layers have one, those that are left out too.
    """
    part = _freeze(record).get("reconstruction")
    loss, share = (part.get("loss"), part.get("explained")) if isinstance(part, Mapping) else (None, None)
    if not are_numbers(loss) or not are_numbers(share) or len(loss) != len(share):
        return {}
    return dict(enumerate(zip(loss, share, strict=True), start=1))


def _of_reconstruction(run: str, record: Found, found: Mapping[int, tuple[float, float]]) -> Table:
    widths = _freeze(record)["reconstruction"].get("bottlenecks")
    known = isinstance(widths, Sequence) and len(widths) == len(found)
    rows: list[list[Cell]] = [
        [layer, int(widths[place]) if known else NOT_RECORDED, Score(loss, digits=4), Score(100 * share, digits=1)]
        for place, (layer, (loss, share)) in enumerate(found.items())
    ]
    columns = ("layer", "bottleneck", "mean squared error", "explained, %")
    return Table(columns, rows, caption=f"Every autoencoder of {run}", folded=True)


def _weights(runs: Mapping[str, tuple[Found, Found]]) -> Section | None:
    found = {run: each for run, (record, result) in runs.items() if (each := _weights_of(record, result))}
    if not found:
        return None
    picture = signed_bars(found, x_label="layer", y_label="weight", title=_WEIGHTS)
    return Section(_WEIGHTS, text=_WEIGHTS_TEXT, pictures=[Picture(picture)])


def _weights_of(record: Found, result: Found) -> dict[int, float]:
    """Return layer → weight, from the record or else from the suite ``layers``; {} where neither has any."""
    weights = _freeze(record).get("weights")
    if are_numbers(weights):
        return dict(zip(_numbers(record, len(weights)), weights, strict=False))
    found = result.get(LAYERS)
    codes = found["readouts"].get(CODES) if isinstance(found, Mapping) and is_by_layer(found) else None
    learned = None if codes is None else codes.get("weights")
    if codes is None or not are_numbers(learned) or len(learned) != len(codes["layers"]):
        return {}
    return dict(zip(codes["layers"], learned, strict=True))


def _numbers(record: Found, count: int) -> list[int]:
    """Return the numbers of the layers that ``count`` weights stand for: those that were not left out.

    None, where they are of something else: codes that were summed have one weight for all layers.
    """
    settings = record.get("settings")
    mine = settings.get(FREEZE) if isinstance(settings, Mapping) else None
    out = mine.get("leave_out", ()) if isinstance(mine, Mapping) else ()
    left = set(out if isinstance(out, Sequence) else ())
    layers = _freeze(record).get("layers")
    numbers = [layer for layer in range(1, (layers if isinstance(layers, int) else count) + 1) if layer not in left]
    return numbers if len(numbers) == count else []


def _freeze(record: Found) -> Found:
    found = record.get(FREEZE)
    return found if isinstance(found, Mapping) else {}
