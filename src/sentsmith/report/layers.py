"""What the suite ``layers`` found: curves by layer, and a section of the report."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentsmith.evaluation import layers as measured
from sentsmith.evaluation.layers import LAYERS, WORDS
from sentsmith.files import write_text
from sentsmith.report.page import Picture, Section
from sentsmith.report.pictures import curve
from sentsmith.report.tables import Cell, Score, Table, are_numbers

PICTURE = "layers.svg"
_TITLE = "Correlation by layer"

_TEXT = """\
How well the plain cosine of each layer alone agrees with people, over STS-B's dev part: of its last token's vector, of
the mean of its tokens, final norm not applied; and of its trained codes, where the model has such. The table of every
layer also has the mean length of these vectors, which in most decoders grows from layer to layer, and with it whatever
is measured in their units. Runs of one frozen model have the same curves but for the codes, and share a line."""

Found = Mapping[str, Any]


def draw_layers(result: Found, folder: str | Path) -> None:
    """Write ``layers.svg`` of a model's result into a folder.

    Raises:
        InputError: It is a folder.
    """
    write_text(Path(folder) / PICTURE, layer_curves(result[LAYERS]))


def layer_curves(found: Found) -> str:
    """Draw Spearman by layer for every readout of one model, its best single layer marked.

    Raises:
        InputError: No readout has a finite point.
    """
    readouts = found["readouts"]
    best = max(readouts.values(), key=lambda each: max(each["spearman"]))["best"]
    series = {WORDS.get(name, name): _points(each) for name, each in readouts.items()}
    return curve(
        series, x_label="layer", y_label="Spearman × 100", title=_TITLE, chosen=float(best), mark="best single layer"
    )  # fmt: skip


def section(results: Mapping[str, Found]) -> Section | None:
    """Return the report's section, None where no run measured its layers.

    Args:
        results: Run → its ``results.json``; what does not look like findings of this suite is passed over.
    """
    found = {run: result[LAYERS] for run, result in results.items() if is_by_layer(result.get(LAYERS))}
    if not found:
        return None
    readouts = {name: each for name in WORDS if (each := _of_readout(found, name))}
    if len(found) == 1:
        pictures = [Picture(layer_curves(each)) for each in found.values()]
    else:
        pictures = [Picture(_of_runs(each, title=f"{_TITLE}: {WORDS[name]}")) for name, each in readouts.items()]
    named = [
        {"model": run, LAYERS: {"readouts": {name: each}}}
        for name, runs in readouts.items()
        for run, each in runs.items()
    ]
    columns, rows = measured.table(named)
    tables = [Table(columns, [list(row) for row in rows], caption="The best single layer")]
    tables += [_every_layer(run, each) for run, each in found.items()]
    return Section(_TITLE, text=_TEXT, pictures=pictures, tables=tables)


def _of_readout(found: Mapping[str, Found], name: str) -> dict[str, Found]:
    """Return run → curve; runs with the same curve, as those of one frozen model have, stand under one name."""
    runs: dict[str, list[str]] = {}
    curves: dict[str, Found] = {}
    for run, each in found.items():
        if name in each["readouts"]:
            mine = each["readouts"][name]
            key = str([round(value, 4) for value in (*mine["layers"], *mine["spearman"], *mine["pearson"])])
            runs.setdefault(key, []).append(run)
            curves.setdefault(key, mine)
    return {
        names[0] if len(names) == 1 else f"{names[0]} and {len(names) - 1} more": curves[key]
        for key, names in runs.items()
    }


def _of_runs(runs: Mapping[str, Found], *, title: str) -> str:
    series = {run: _points(each) for run, each in runs.items()}
    return curve(series, x_label="layer", y_label="Spearman × 100", title=title)


def _every_layer(run: str, found: Found) -> Table:
    columns: dict[str, dict[int, Cell]] = {}
    for name, each in found["readouts"].items():
        for measure, digits in (("spearman", 2), ("pearson", 2), ("norms", 2), ("weights", 3)):
            values = each.get(measure)
            if are_numbers(values) and len(values) == len(each["layers"]):
                label = {"norms": "length", "weights": "weight"}.get(measure, measure.capitalize())
                columns[f"{WORDS.get(name, name)}: {label}"] = {
                    layer: Score(value, digits=digits) for layer, value in zip(each["layers"], values, strict=True)
                }
    layers = sorted({layer for column in columns.values() for layer in column})
    rows: list[list[Cell]] = [[layer, *(column.get(layer) for column in columns.values())] for layer in layers]
    return Table(("layer", *columns), rows, caption=f"Every layer of {run}", folded=True)


def _points(found: Found) -> list[tuple[float, float]]:
    return [(float(layer), value) for layer, value in zip(found["layers"], found["spearman"], strict=True)]


def is_by_layer(found: Any) -> bool:
    """Whether something is the summary of a model's layers."""
    try:
        return len(found["readouts"]) > 0 and all(
            are_numbers(each["spearman"])
            and len(each["layers"]) == len(each["spearman"]) == len(each["pearson"])
            and are_numbers(each["pearson"])
            and each["best"] in each["layers"]
            for each in found["readouts"].values()
        )
    except (KeyError, TypeError, AttributeError):
        return False
