"""What the studies share: rows of a table, each a recipe with overrides, trained and measured once for each seed.

A study is the committed command behind the numbers of a page under ``docs/``. What is finished is not done again, and
what was killed goes on; several processes may work on different rows of one output folder.
"""

from __future__ import annotations

import argparse
import fnmatch
import json
import logging
import statistics
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.protocol import Encoder
from sentsmith.evaluation.suite import evaluate_models
from sentsmith.methods.registry import load_recipe
from sentsmith.training import record

Results = Mapping[str, Sequence[Mapping[str, Any]]]
"""Row name → one result (as ``results.json`` holds it) for each seed that was measured."""


@dataclass(frozen=True)
class Row:
    """One row of a study.

    Attributes:
        name: Names its folders.
        recipe: A recipe that ships, or None: nothing is trained, and ``model`` is measured.
        overrides: key=value over the recipe; ``{seed}``, ``{data}``, ``{sentences}``, ``{runs}`` and the study's own
            options by their names are filled in.
        suites: What is measured.
        model: What is measured where nothing is trained; filled in likewise.
        view: Turns the loaded model into the one to measure; None measures it as it is.
        seeds: The seeds of this row; None is all that are asked for.
        trained_on: Files whose sentences the STS tests are also scored without; filled in likewise.
    """

    name: str
    recipe: str | None
    overrides: tuple[str, ...] = ()
    suites: tuple[str, ...] = ("sts", "diagnostics")
    model: str = ""
    view: Callable[[Any], Any] | None = None
    seeds: tuple[int, ...] | None = None
    trained_on: tuple[str, ...] = ()


def run(
    rows: Sequence[Row],
    show: Callable[[Results], None],
    prepare: Callable[[argparse.Namespace], None],
    arguments: Callable[[argparse.ArgumentParser], None] = lambda _: None,
    opened: Callable[[str, argparse.Namespace], Encoder] = lambda name, _: as_encoder(load(name)),
) -> None:
    """Parse the command line, do what is not done yet, and print the tables of all that is.

    Args:
        rows: Of the study.
        show: Prints its tables.
        prepare: Makes what the rows need, before any of them.
        arguments: Adds options of the study's own.
        opened: Loads a model to measure, of rows without a view.
    """
    parser = argparse.ArgumentParser(description=sys.modules["__main__"].__doc__)
    parser.add_argument("--data-dir", default="../shared/data", help="holds sts/")
    parser.add_argument("--sentences", required=True, help="the audited training sentences, one a line")
    parser.add_argument("--output", default="study-output", help="folder of models and results")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3, 4, 5])
    parser.add_argument("--rows", nargs="*", default=["*"], help="names or patterns; none: only print")
    arguments(parser)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    prepare(options)
    chosen = [row for row in rows if any(fnmatch.fnmatch(row.name, pattern) for pattern in options.rows)]
    for seed in options.seeds:
        for row in chosen:
            if row.seeds is None or seed in row.seeds:
                _do(row, seed, options, opened)
    show(_found(rows, options))


def _do(row: Row, seed: int, options: argparse.Namespace, opened: Callable[[str, argparse.Namespace], Encoder]) -> None:
    place = _place(row, seed, options)
    if (place / "results.json").is_file():
        return
    fill = {**vars(options), "seed": seed, "data": options.data_dir, "runs": options.output}
    model = row.model.format(**fill)
    if row.recipe is not None:
        model = str(Path(options.output) / f"{row.name}-{seed}")
        overrides = [text.format(**fill) for text in row.overrides]
        recipe, method = load_recipe(row.recipe, overrides)
        if record.read(model) is None:
            method.run(recipe, model, resume=True)
    evaluate_models(
        [model],
        lambda name: as_encoder(row.view(load(name))) if row.view else opened(str(name), options),
        suites=row.suites,
        output=place,
        data_dir=options.data_dir,
        trained_on=[text.format(**fill) for text in row.trained_on],
    )


def _place(row: Row, seed: int, options: argparse.Namespace) -> Path:
    return Path(options.output) / "results" / f"{row.name}-{seed}"


def _found(rows: Sequence[Row], options: argparse.Namespace) -> Results:
    found: dict[str, list[Mapping[str, Any]]] = {}
    for row in rows:
        files = [_place(row, seed, options) / "results.json" for seed in options.seeds]
        found[row.name] = [json.loads(file.read_text(encoding="utf-8")) for file in files if file.is_file()]
    return found


def mean_and_spread(values: Sequence[float], digits: int = 2) -> str:
    """Return the mean, with the standard deviation over seeds where there are several."""
    if not values:
        return "–"
    if len(values) == 1:
        return f"{values[0]:.{digits}f}"
    return f"{statistics.mean(values):.{digits}f} ± {statistics.stdev(values):.{digits}f}"


def print_table(title: str, columns: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    """Print a Markdown table."""
    print(f"\n{title}\n")
    print("| " + " | ".join(columns) + " |")
    print("|" + "---|" * len(columns))
    for row in rows:
        print("| " + " | ".join(row) + " |")
