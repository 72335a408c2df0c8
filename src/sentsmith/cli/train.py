"""``sentsmith train``: a recipe → a model, a run record and a card."""

from __future__ import annotations

from typing import Annotated

import typer

from sentsmith.cli import console


def train(
    recipe: Annotated[str, typer.Argument(help="A YAML file, or the name of a recipe that ships.")],
    output: Annotated[str, typer.Option("--output", "-o", help="Folder for the model.")],
    overrides: Annotated[
        list[str] | None,
        typer.Option("--set", help="key=value over the recipe, e.g. training.seed=1. Repeatable."),
    ] = None,
    tune: Annotated[
        int | None,
        typer.Option("--tune", min=1, help="Search the recipe's section tune: so many trials, and keep the best."),
    ] = None,
    resume: Annotated[bool, typer.Option("--resume", help="Go on with an unfinished run, if there is one.")] = False,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Delete what the output folder holds.")] = False,
    quiet: console.Quiet = False,
    as_json: console.Json = False,
) -> None:
    """Train a model by a recipe."""
    console.start(quiet=quiet)
    from sentsmith.methods.registry import load_recipe

    settings, method = load_recipe(recipe, overrides or ())
    progress = console.progress_wanted(quiet=quiet)
    if tune is not None:
        from sentsmith.training import tuning

        found = tuning.tune(
            settings, method.run, output, trials=tune, resume=resume, overwrite=overwrite, progress=progress
        )
        console.show_json(found) if as_json else console.say(f"{output}: {tuning.outcome(found)}")
        return
    result = method.run(settings, output, resume=resume, overwrite=overwrite, progress=progress)
    if as_json:
        console.show_json(result)
        return
    selection = result.get("selection")
    chosen = "" if not selection else f", checkpoint of step {selection['best_step']}"
    if selection and selection["select"] == "last":
        chosen = ", last checkpoint"
    console.say(
        f"{output}: {result['method']} on {result['data']['rows']} rows, {result['seconds']['train']} s{chosen}"
    )
