"""From run folders to one page that compares them.

A run folder holds ``run.json`` (the record that a training leaves beside its model), ``results.json`` (what
an evaluation measured), or both. Records are read leniently: what one lacks is shown as "not recorded".
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentsmith.errors import InputError
from sentsmith.report.page import Callout, Page, Picture, Section
from sentsmith.report.tables import NOT_RECORDED, Cell, Delta, Score, Table

_ORIGIN = ("commit", "data", "hardware", "versions", "settings_sha256")


@dataclass(frozen=True)
class Run:
    """A run folder as read: its name on the page, its training record, its evaluation; {} if absent."""

    name: str
    record: Mapping[str, Any] = field(default_factory=dict)
    results: Mapping[str, Any] = field(default_factory=dict)


def read_run(folder: str | Path) -> Run:
    """Read one run folder.

    Raises:
        InputError: The folder does not exist or is a file, holds neither ``run.json`` nor ``results.json``,
            or one of them is not a JSON object.
    """
    place = Path(folder)
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise InputError(f"{what}; give a run folder (one that holds run.json or results.json)", path=place)
    record, results = _read_object(place / "run.json"), _read_object(place / "results.json")
    if record is None and results is None:
        raise InputError("holds neither run.json nor results.json, so it is no run folder", path=place)
    return Run(place.resolve().name, record or {}, results or {})


def compare(folders: Sequence[str | Path]) -> Page:
    """Read run folders and build the page that compares them; the first is what the others are compared with.

    Raises:
        InputError: No folder was given, or one of them cannot be read (see :func:`read_run`).
    """
    if not folders:
        raise InputError("no run folder was given; give at least one")
    runs = _distinct([read_run(folder) for folder in folders])
    sections = [
        _overview(runs),
        *(
            section
            for section in (
                _scores(runs),
                _lists(runs),
                _diagnostics(runs),
                *_inside(runs),
                *_layers(runs),
                _curves(runs),
                _settings(runs),
            )
            if section is not None
        ),
        _origin(runs),
    ]
    names = ", ".join(f"`{run.name}`" for run in runs)
    lead = f"One run: {names}." if len(runs) == 1 else f"{len(runs)} runs: {names}."
    if len(runs) > 1:
        lead += f" Differences are taken from the first, `{runs[0].name}`."
    return Page(
        "Sentsmith report",
        lead,
        sections=sections,
        footer="Every number here was read from the runs' own records.",
    )


def _read_object(path: Path) -> dict[str, Any] | None:
    if not path.exists():
        return None
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InputError(f"cannot be read as JSON: {error}", path=path) from error
    if not isinstance(value, dict):
        raise InputError(f"holds a JSON {type(value).__name__}, not an object", path=path)
    return value


def _distinct(runs: Sequence[Run]) -> list[Run]:
    """Give runs whose folders have the same name a number, so that columns can be told apart."""
    names: list[str] = []
    for run in runs:
        name, count = run.name, 2
        while name in names:
            name, count = f"{run.name} ({count})", count + 1
        names.append(name)
    return [Run(name, run.record, run.results) for name, run in zip(names, runs, strict=True)]


def _overview(runs: Sequence[Run]) -> Section:
    facts = {
        "method": ("method",),
        "model": ("model",),
        "status": ("status",),
        "created": ("created",),
        "training time": ("seconds", "train"),
        "evaluation time": ("details", "seconds", "total"),
        "chosen by": ("selection", "metric"),
        "measured on": ("selection", "source"),
        "best step": ("selection", "best_step"),
        "best score": ("selection", "best_score"),
    }
    rows: list[list[Cell]] = [
        [label, *(_fact(run, keys, seconds=label.endswith("time")) for run in runs)] for label, keys in facts.items()
    ]
    warnings: dict[str, list[str]] = {}
    for run in runs:
        for warning in _warnings(run):
            warnings.setdefault(warning, []).append(f"`{run.name}`")
    callouts = [Callout("warning", f"{', '.join(names)}: {warning}") for warning, names in warnings.items()]
    return Section("Runs", callouts=callouts, tables=[Table(("", *(run.name for run in runs)), rows)])


def _warnings(run: Run) -> Iterator[str]:
    status = run.record.get("status", "finished")
    if status != "finished":
        yield f"the record says {_text(status)}, not finished."
    for warning in _list(run.record.get("warnings")):
        yield _text(warning, limit=2000)


def _fact(run: Run, keys: Sequence[str], *, seconds: bool) -> str:
    places = (run.record, run.results, run.record.get("settings"))
    value: Any = next((found for place in places if (found := _get(place, *keys)) is not None), None)
    if seconds and _is_number(value):
        return f"{value:.1f} s" if value < 120 else f"{value / 60:.1f} min"
    return _text(value)


def _scores(runs: Sequence[Run]) -> Section | None:
    parts = (
        ("Averages", [_get(run.results, "averages") for run in runs]),
        ("Evaluation, task by task", [_get(run.results, "scores") for run in runs]),
        ("Without the sentences that the model was trained on", [_without_shared(run) for run in runs]),
    )
    tables, fallen = [], []
    for caption, columns in parts:
        scores = [dict(_numbers(column)) for column in columns]
        if any(scores):
            tables.append(_score_table(scores, runs, caption))
            fallen += [name for name in _fallen(scores, runs) if name not in fallen]
    callouts = [Callout("warning", f"Below `{runs[0].name}`: {'; '.join(fallen)}.")] if fallen else []
    return Section("Scores", callouts=callouts, tables=tables) if tables else None


def _without_shared(run: Run) -> dict[str, Any]:
    tasks = _items(_get(run.results, "details", "tasks"))
    return {f"{task} without": _get(details, "without_shared", "score") for task, details in tasks}


def _score_table(columns: Sequence[Mapping[str, float]], runs: Sequence[Run], caption: str) -> Table:
    rows: list[list[Cell]] = []
    for task in dict.fromkeys(task for column in columns for task in column):
        row: list[Cell] = [task]
        for place, column in enumerate(columns):
            if task not in column:
                row.append(NOT_RECORDED)
            elif place == 0 or task not in columns[0]:
                row.append(Score(column[task]))
            else:
                row.append(Score(column[task], Delta(column[task] - columns[0][task])))
        rows.append(row)
    return Table(("", *(run.name for run in runs)), rows, caption=caption)


def _fallen(columns: Sequence[Mapping[str, float]], runs: Sequence[Run]) -> Iterator[str]:
    """Name the scores of each later run that lie below the first run's."""
    for run, column in zip(runs[1:], columns[1:], strict=True):
        for task, value in column.items():
            if task in columns[0] and (delta := Delta(value - columns[0][task])).tone == "loss":
                yield f"{task} of `{run.name}` ({delta})"


def _lists(runs: Sequence[Run]) -> Section | None:
    # Only pages of lists pay for numpy and matplotlib.
    from sentsmith.report.lists import section

    return section({run.name: run.results for run in runs})


def _diagnostics(runs: Sequence[Run]) -> Section | None:
    """What the suite ``diagnostics`` measured; its pictures stand beside each run's ``results.json``."""
    columns = [_get(run.results, "diagnostics") for run in runs]
    facts: dict[str, tuple[str, ...]] = {
        "alignment": ("alignment",),
        "uniformity": ("uniformity",),
        "E_CLS, mean over layers": ("e_cls",),
        "GMACs for one sentence": ("gmacs",),
        "its tokens": ("tokens",),
        "STS-B dev score per GMAC": ("score_per_gmac",),
    }
    bands = dict.fromkeys(band for column in columns for band, _ in _items(_get(column, "bands")))
    facts |= {f"mean cosine, gold {band}": ("bands", band, "mean") for band in bands}
    found = {label: [_get(column, *keys) for column in columns] for label, keys in facts.items()}
    rows: list[list[Cell]] = [
        [label, *map(_measure, values)] for label, values in found.items() if any(map(_is_number, values))
    ]
    if not rows:
        return None
    notes = [f"`{run.name}`: {_text(note, limit=300)}" for run in runs for note in _notes(run)]
    layers = {run.name: list(_by_layer(run)) for run in runs}
    pictures = []
    if any(layers.values()):
        from sentsmith.report.pictures import curve

        pictures.append(Picture(curve(layers, x_label="layer", y_label="E_CLS", title="E_CLS by layer")))
    return Section(
        "Diagnostics", tables=[Table(("", *(run.name for run in runs)), rows)], pictures=pictures, notes=notes
    )


def _inside(runs: Sequence[Run]) -> list[Section]:
    if not any(name in run.results for run in runs for name in ("dependency", "degradation")):
        return []  # only pages of these pay for numpy and matplotlib
    from sentsmith.report.inside import sections

    return sections({run.name: run.results for run in runs})


def _layers(runs: Sequence[Run]) -> list[Section]:
    if not any(run.record.get("method") == "freeze" or {"layers", "errors"} & set(run.results) for run in runs):
        return []  # as above
    from sentsmith.report import freeze, largest_errors, layers

    results = {run.name: run.results for run in runs}
    found = (
        layers.section(results),
        *freeze.sections({run.name: (run.record, run.results) for run in runs}),
        largest_errors.section(results),
    )
    return [section for section in found if section is not None]


def _measure(value: Any) -> Cell:
    if not _is_number(value):
        return NOT_RECORDED
    return value if isinstance(value, int) else Score(value, digits=3)


def _notes(run: Run) -> list[Any]:
    return _list(_get(run.results, "diagnostics", "notes"))


def _by_layer(run: Run) -> Iterator[tuple[float, float]]:
    for layer, value in enumerate(_list(_get(run.results, "diagnostics", "e_cls_by_layer")), start=1):
        if _is_number(value):
            yield float(layer), float(value)


def _curves(runs: Sequence[Run]) -> Section | None:
    # matplotlib takes a second to import: only pages with curves pay for it.
    from sentsmith.report.pictures import curve

    pictures = []
    losses = {run.name: list(_points(run.record.get("loss"), "loss")) for run in runs}
    if any(losses.values()):
        pictures.append(Picture(curve(losses, x_label="step", y_label="loss", title="Training loss")))
    for metric, group in _by_metric(runs).items():
        history = {run.name: list(_points(_get(run.record, "selection", "history"), "score")) for run in group}
        if not any(history.values()):
            continue
        best: Any = _get(group[0].record, "selection", "best_step") if len(group) == 1 else None
        svg = curve(
            history,
            x_label="step",
            y_label=metric,
            title="Score by which the checkpoint was chosen",
            chosen=float(best) if _is_number(best) else None,
        )
        pictures.append(Picture(svg))
    return Section("Training curves", pictures=pictures) if pictures else None


def _by_metric(runs: Sequence[Run]) -> dict[str, list[Run]]:
    """Runs may be chosen by different measures; only those of one measure share a picture."""
    groups: dict[str, list[Run]] = {}
    for run in runs:
        groups.setdefault(_text(_get(run.record, "selection", "metric")), []).append(run)
    return groups


def _points(entries: object, key: str) -> Iterator[tuple[float, float]]:
    for entry in _list(entries):
        if isinstance(entry, Mapping) and _is_number(entry.get("step")) and _is_number(entry.get(key)):
            yield float(entry["step"]), float(entry[key])


def _settings(runs: Sequence[Run]) -> Section | None:
    runs = [run for run in runs if run.record.get("settings")]
    columns = [dict(_leaves(run.record.get("settings"))) for run in runs]
    keys = list(dict.fromkeys(key for column in columns for key in column))
    if not keys:
        return None
    rows = {key: [column.get(key, NOT_RECORDED) for column in columns] for key in keys}
    names = ("setting", *(run.name for run in runs))
    if len(runs) == 1:
        return Section("Settings", tables=[Table(names, [[key, *row] for key, row in rows.items()])])
    different = [[key, *row] for key, row in rows.items() if len(set(row)) > 1]
    same = [[key, row[0]] for key, row in rows.items() if len(set(row)) == 1]
    tables = []
    if different:
        tables.append(Table(names, different, caption="Settings in which the runs differ"))
    if same:
        tables.append(Table(("setting", "all runs"), same, caption=f"{len(same)} settings that all share", folded=True))
    return Section("Settings", tables=tables)


def _origin(runs: Sequence[Run]) -> Section:
    """Where the numbers come from: data, machine, versions."""
    columns = []
    for run in runs:
        parts = {part: run.record.get(part, _get(run.results, "details", part)) for part in _ORIGIN}
        columns.append(dict(_leaves({part: value for part, value in parts.items() if value is not None})))
    keys = dict.fromkeys(key for column in columns for key in column)
    rows: list[list[Cell]] = [[key, *(column.get(key, NOT_RECORDED) for column in columns)] for key in keys]
    if not rows:
        return Section("Data and machine", text="The runs recorded neither their data nor their machine.")
    return Section("Data and machine", tables=[Table(("", *(run.name for run in runs)), rows)])


def _leaves(value: object, prefix: str = "") -> Iterator[tuple[str, str]]:
    """Yield the dotted keys and the text of everything below ``value`` that is not a mapping."""
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _leaves(below, f"{prefix}.{key}" if prefix else str(key))
    elif prefix:
        yield prefix, _text(value)


def _numbers(value: object, prefix: str = "") -> Iterator[tuple[str, float]]:
    if isinstance(value, Mapping):
        for key, below in value.items():
            yield from _numbers(below, f"{prefix}.{key}" if prefix else str(key))
    elif prefix and _is_number(value):
        yield prefix, float(value)  # type: ignore[arg-type]


def _get(value: object, *keys: str) -> Any:
    for key in keys:
        if not isinstance(value, Mapping):
            return None
        value = value.get(key)
    return value


def _items(value: object) -> Iterable[tuple[Any, Any]]:
    return value.items() if isinstance(value, Mapping) else ()


def _list(value: object) -> list[Any]:
    return list(value) if isinstance(value, Iterable) and not isinstance(value, (str, Mapping)) else []


def _is_number(value: object) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value)


def _text(value: object, *, limit: int = 80) -> str:
    """Write any value of a record on one line; an ellipsis shows that it was cut at ``limit`` characters."""
    if value is None:
        return NOT_RECORDED
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
    line = " ".join(text.split())
    return line if len(line) <= limit else f"{line[: limit - 1]}…"
