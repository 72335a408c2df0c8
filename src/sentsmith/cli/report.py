"""``sentsmith report``: compare runs on one HTML page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli.console import Quiet, say, start


def report(
    runs: Annotated[
        list[Path],
        typer.Argument(metavar="RUN...", help="Run folders: trained models, or outputs of evaluate."),
    ],
    output: Annotated[Path, typer.Option("--output", "-o", help="The HTML page to write.")],
    quiet: Quiet = False,
) -> None:
    """Compare runs on one self-contained HTML page; differences are taken from the first run."""
    from sentsmith.report.page import write_page
    from sentsmith.report.runs import compare

    start(quiet=quiet)
    write_page(compare(runs), output)
    if not quiet:
        say(f"wrote {output}")
