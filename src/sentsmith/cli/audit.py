"""``sentsmith audit``: overlap between a training set and test sets."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli.console import Json, Quiet, say, show_json, show_table, start


def audit(
    data: Annotated[str, typer.Argument(help="Training data: a file, a folder, or - for standard input.")],
    against: Annotated[list[str], typer.Option(help="A folder of test sets; may be given several times.")],
    column: Annotated[str | None, typer.Option(help="The column to compare; every column of texts without.")] = None,
    output: Annotated[Path | None, typer.Option(help="Write the data without the overlapping rows here.")] = None,
    record: Annotated[Path | None, typer.Option(help="Write the record here, not to DATA.audit.json.")] = None,
    near: Annotated[bool, typer.Option(help="Look for near duplicates too.")] = True,
    quiet: Quiet = False,
    as_json: Json = False,
) -> None:
    """Find the texts of test sets in training data: exact, normalised and near copies."""
    start(quiet=quiet)
    from sentsmith.corpus.audit import audit as run

    report = run(data, against, column=column, output=output, record=record, near=near)
    if as_json:
        show_json(report.as_dict())
        return
    show_table(
        "Test texts found in the training data",
        ("test file", "texts", "exact", "normalised", "near", "training rows"),
        [
            (name, *(f"{count:,}" for count in (t.texts, t.exact, t.normalised, t.near, t.rows)))
            for name, t in report.files.items()
        ],
    )
    kinds = ", ".join(f"{count:,} {kind}" for kind, count in report.overlapping.items())
    say(f"{report.affected:,} of {report.rows:,} training rows overlap ({kinds}); {report.seconds:.1f} s")
    if report.output:
        say(f"{report.rows - report.affected:,} rows without overlap: {report.output}")
    if report.record:
        say(f"record: {report.record}")
