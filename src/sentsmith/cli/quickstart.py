"""``sentsmith quickstart``: the main job on what this machine has."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from sentsmith.cli import console


def quickstart(
    output: Annotated[Path, typer.Option("--output", "-o", help="Folder for model, record and page.")] = Path(
        "quickstart-output"
    ),
    sentences: Annotated[str | None, typer.Option(help="Your own sentences (any format); the sample without.")] = None,
    column: Annotated[str | None, typer.Option(help="Text column of your sentences, where there are several.")] = None,
    data_dir: Annotated[str | None, typer.Option(help="Folder with sts/: measure the seven STS tests too.")] = None,
    question: Annotated[list[str] | None, typer.Option(help="Something to search for. Repeatable.")] = None,
    overrides: Annotated[list[str] | None, typer.Option("--set", help="key=value over the recipe. Repeatable.")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what an earlier run left.")] = False,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Train, measure before and after, search, and show it all on one page."""
    console.start(quiet=quiet)
    from sentsmith.quickstart.job import quickstart as run

    outcome = run(
        output,
        sentences=sentences,
        column=column,
        data_dir=data_dir,
        questions=question or (),
        overrides=overrides or (),
        overwrite=overwrite,
        progress=console.progress_wanted(quiet=quiet),
    )
    if as_json:
        console.show_json([row.as_dict() for row in outcome.comparisons])
        return
    console.show_table(
        "before and after (held-out items, × 100)",
        ("measure", "before", "after", "change", "95 % interval", "verdict"),
        [
            (
                row.name,
                f"{row.before:.2f}",
                f"{row.after:.2f}",
                f"{row.change:+.2f}",
                f"{row.low:+.2f} … {row.high:+.2f}",
                row.verdict,
            )
            for row in outcome.comparisons
        ],
    )
    if outcome.suites is not None:
        from sentsmith.evaluation.suite import table

        console.show_table("STS tests (Spearman × 100)", *table(outcome.suites))
    for found, asked in zip(outcome.hits[1], outcome.questions, strict=True):
        console.say(f"? {asked}\n  → {found[0].sentence}")
    console.say(f"\nmodel   {output / 'model'}\nrecord  {output / 'quickstart.json'}\npage    {output / 'page.html'}")
