"""A search for the best settings: many runs of one recipe, each with other values, chosen by what chooses checkpoints.

While the search goes on its folder holds ``work/`` (the settings it was begun with), ``tuning.json`` (every trial so
far) and ``trials/NNNN/``, the runs. When it is done the best trial's model is moved to the folder itself, ``run.json``
last. Of the other trials their records and settings stay.
"""

from __future__ import annotations

import gc
import json
import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from sentsmith.corpus.datasets import data_hash
from sentsmith.encoders.loading import resolve
from sentsmith.errors import InputError, SentsmithError, SettingsError, require
from sentsmith.files import write_json, write_text
from sentsmith.training import processes, record, space
from sentsmith.training.output import SEARCH, Output
from sentsmith.training.settings import BaseRecipe, Range, Recipe

logger = logging.getLogger(__name__)

TRIALS = "trials"
_CARD = "README.md"

Run = Callable[..., dict[str, Any]]


@dataclass(frozen=True)
class Trial:
    """One run of a search.

    Attributes:
        number: From 0, which is the recipe as it is.
        values: Setting → value, of those that are searched.
        state: ``repeated`` has the values of an earlier trial, and its score; nothing was run.
        score: Of the checkpoint that was kept; None until it is finished.
        best_step: Which that was.
        seconds: What it took.
        error: Why it failed.
        same_as: The trial that a repeated one repeats.
    """

    number: int
    values: dict[str, Any]
    state: Literal["running", "finished", "failed", "repeated"] = "running"
    score: float | None = None
    best_step: int | None = None
    seconds: float = 0.0
    error: str | None = None
    same_as: int | None = None


def tune(
    recipe: BaseRecipe,
    run: Run,
    output: str | Path,
    *,
    trials: int,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Try ``trials`` settings of ``recipe.tune``, the recipe's own first, and keep the model of the best.

    A trial whose training fails (its loss becomes infinite, say), whose values do not go together or that the method
    refuses counts as failed, and the search goes on. Input that the first trial finds wrong ends it: the recipe's own
    values are nobody's guess.

    Args:
        recipe: The resolved recipe.
        run: The method's: trains a recipe into a folder, and returns the run record.
        output: Folder of the search, and of the best model.
        trials: How many in all, those before a kill included.
        resume: Go on with a search that was broken off; start one if there is none.
        overwrite: Delete the run or search that the folder holds.
        progress: Draw a progress bar for each trial.

    Returns:
        What ``tuning.json`` holds: every trial, which of them is the best, and what was searched.

    Raises:
        SettingsError: ``recipe.tune`` is empty or wrong (see :func:`space.checked`), or the method has no steps.
        InputError: The data, the model or the output folder are wrong, or what the recipe reads has changed since the
            search was begun; or there are several processes.
        MissingExtraError: Optuna is not installed.
        SentsmithError: All trials failed.
    """
    if not isinstance(recipe, Recipe):
        raise SettingsError(f"--tune: {recipe.method} is not trained step by step, and nothing scores it on the way")
    if trials < 1:
        raise InputError(f"--tune {trials}: give the number of trials, at least 1")
    if processes.count() > 1:
        raise InputError(f"--tune searches in one process, not in {processes.count()}; start it by itself")
    require("optuna", extra="tune")
    searched = space.checked(recipe)
    place = Output(Path(output), resume, overwrite, search=True)
    place.check(recipe)
    search = _Search(recipe, run, place.folder, searched, trials, progress)
    search.open(place)
    while (trial := search.next()) is not None:
        search.do(trial)
    return search.finish()


@dataclass
class _Search:
    recipe: Recipe
    run: Run
    folder: Path
    space: Mapping[str, Range | tuple[Any, ...]]
    wanted: int
    progress: bool
    trials: list[Trial] = field(default_factory=list)
    judge: dict[str, str] | None = None
    inputs: dict[str, str] = field(default_factory=dict)
    ended: bool = False

    def open(self, place: Output) -> None:
        """Take up what was done before; called once, and changes nothing if it raises."""
        for model in self.recipe.starts():
            resolve(model)
        self.inputs = _hashed(self.recipe, self.space)
        kept = self.folder / SEARCH
        if place.resume and kept.exists():
            before = json.loads(kept.read_text(encoding="utf-8"))
            known = before["inputs"]
            changed = [path for path in {**known, **self.inputs} if known.get(path) != self.inputs.get(path)]
            if changed:
                raise InputError(
                    "has changed since the search was begun; start again with --overwrite", path=changed[0]
                )
            self.trials, self.judge = [Trial(**entry) for entry in before["trials"]], before["judge"]
            self.ended = before["ended"]
        place.open(self.recipe, self.inputs[self.recipe.data.train])
        if self.trials:
            logger.info("going on after %d trials", sum(trial.state != "running" for trial in self.trials))
        self._write()

    def next(self) -> Trial | None:
        """Return the trial to do now: the one that was broken off, or a new one; None when there are enough."""
        if self.trials and self.trials[-1].state == "running":
            return self.trials[-1]
        number = len(self.trials)
        if self.ended or number >= self.wanted:
            return None
        scored = [(trial.values, trial.score) for trial in self.trials]
        values = (
            space.suggest(self.space, scored, self.recipe.training.seed)
            if scored
            else space.own_values(self.recipe, self.space)
        )
        self.trials.append(Trial(number, values))
        self._write()
        return self.trials[-1]

    def do(self, trial: Trial) -> None:
        """Run a trial and note what came of it."""
        twin = next((other for other in self.trials[:-1] if other.values == trial.values), None)
        done = self._run(trial) if twin is None else _repeated(trial, twin)
        self.trials[-1] = done
        self._write()
        self._forget_beaten()
        what = f"failed: {done.error}" if done.score is None else f"{self._metric} {done.score:.4f}"
        best = self.best
        logger.info(
            "trial %d, %d of %d (%s): %s%s%s",
            done.number,
            done.number + 1,
            max(self.wanted, done.number + 1),
            described(done.values),
            what,
            "" if done.same_as is None else f", as trial {done.same_as}",
            "" if best is None else f"; best: trial {best.number}, {best.score:.4f}",
        )

    def _run(self, trial: Trial) -> Trial:
        folder = self._folder(trial)
        begun = time.perf_counter()
        try:
            recipe = space.with_values(self.recipe, trial.values)
        except SettingsError as error:
            # Each value was tried by itself; these do not go together.
            return replace(trial, state="failed", error=str(error))
        try:
            # One that was finished, but not noted when the search was broken off, has its record.
            result = record.read(folder) or self.run(recipe, folder, resume=folder.exists(), progress=self.progress)
            step, score = self._score(result)
        except SentsmithError as error:
            # The recipe as it is has shown what is wrong with the input; later on it is the values that are refused.
            if trial.number == 0 and error.exit_code != SentsmithError.exit_code:
                raise
            return replace(trial, state="failed", error=str(error), seconds=round(time.perf_counter() - begun, 1))
        finally:
            # A model and its optimizer refer to each other.
            gc.collect()
        seconds = round(sum(result["seconds"].values()), 1)
        return replace(trial, state="finished", score=score, best_step=step, seconds=seconds)

    def _score(self, result: Mapping[str, Any]) -> tuple[int, float]:
        selection = result.get("selection")
        if selection is None:
            raise InputError(
                "holds too few rows to hold some out, so nothing scores the trials; name files in data.dev",
                path=self.recipe.data.train,
            )
        judge = {"metric": selection["metric"], "source": selection["source"]}
        if self.judge not in (None, judge):
            raise InputError(f"the trials were judged by {self.judge} and by {judge}, which cannot be compared")
        self.judge = judge
        if selection["select"] == "last":
            return selection["history"][-1]["step"], selection["history"][-1]["score"]
        return selection["best_step"], selection["best_score"]

    @property
    def best(self) -> Trial | None:
        """The trial with the best score; the earliest of equals."""
        scored = [trial for trial in self.trials if trial.state == "finished" and trial.score is not None]
        return max(scored, key=lambda trial: (trial.score, -trial.number), default=None)

    @property
    def _metric(self) -> str:
        return "" if self.judge is None else self.judge["metric"]

    def finish(self) -> dict[str, Any]:
        """Move the best trial's model to the folder of the search; returns what ``tuning.json`` holds.

        Raises:
            SentsmithError: No trial has a score.
        """
        best = self.best
        self._forget_beaten()
        if best is None:
            raise SentsmithError(
                f"all {len(self.trials)} trials failed, the last one so: {self.trials[-1].error}; search other values "
                "(--overwrite), or go on with --resume and a larger --tune"
            )
        source = self._folder(best)
        result = record.read(source)
        if result is None:
            raise SentsmithError(f"{source / record.RECORD} is missing; begin again with --overwrite")
        # From here on no trial may become a better one: if it is killed the rest of this model is moved later.
        self.ended = True
        self._write()
        for item in sorted(source.iterdir()):
            if item.name not in (record.RECORD, record.SETTINGS, _CARD):
                item.replace(self.folder / item.name)
        result["tuning"] = self._summary(best)
        write_text(self.folder / record.SETTINGS, (source / record.SETTINGS).read_text(encoding="utf-8"))
        write_text(self.folder / _CARD, (source / _CARD).read_text(encoding="utf-8") + self._card())
        write_json(self.folder / record.RECORD, result)
        self._forget([best])
        shutil.rmtree(self.folder / "work")
        return self._record()

    def _summary(self, best: Trial) -> dict[str, Any]:
        return {
            "trials": len(self.trials),
            "failed": sum(trial.state == "failed" for trial in self.trials),
            "best": best.number,
            "score": best.score,
            "score_of_the_recipe": self.trials[0].score,
            "values": best.values,
            "seconds": round(sum(trial.seconds for trial in self.trials), 1),
        }

    def _card(self) -> str:
        seconds = sum(trial.seconds for trial in self.trials)
        return (
            f"\n## How its settings were found\n\nThe {outcome(self._record())}; {seconds:.0f} s in all. "
            "`tuning.json` holds every trial.\n"
        )

    def _record(self) -> dict[str, Any]:
        best = self.best
        return {
            "kind": "tuning",
            "method": self.recipe.method,
            "judge": self.judge,
            "space": {
                key: values.model_dump(mode="json") if isinstance(values, Range) else list(values)
                for key, values in self.space.items()
            },
            "seed": self.recipe.training.seed,
            "inputs": self.inputs,
            "best": None if best is None else best.number,
            "ended": self.ended,
            "trials": [asdict(trial) for trial in self.trials],
        }

    def _write(self) -> None:
        write_json(self.folder / SEARCH, self._record())

    def _folder(self, trial: Trial) -> Path:
        return self.folder / TRIALS / f"{trial.number:04d}"

    def _forget_beaten(self) -> None:
        best = self.best
        self._forget([trial for trial in self.trials if best is None or trial.number != best.number])

    def _forget(self, trials: Sequence[Trial]) -> None:
        """Delete what these trials left, but for record and settings."""
        for trial in trials:
            folder = self._folder(trial)
            for item in folder.iterdir() if folder.is_dir() else ():
                if trial.state == "failed" or item.name not in (record.RECORD, record.SETTINGS):
                    shutil.rmtree(item) if item.is_dir() else item.unlink()
            if trial.state == "failed" and folder.is_dir():
                folder.rmdir()


def _hashed(recipe: Recipe, searched: Mapping[str, Range | tuple[Any, ...]]) -> dict[str, str]:
    """Return the sha256 of every file and folder here that a trial reads and that no run writes."""
    choices = [(key, value) for key, values in searched.items() if isinstance(values, tuple) for value in values]
    recipes = [recipe, *(space.with_values(recipe, {key: value}) for key, value in choices)]
    names = dict.fromkeys(name for each in recipes for name in each.reads() if name not in each.keeps())
    # The data has to be here, and that it is not is said now; a model may be on the hub.
    data = (recipe.data.train, *recipe.data.dev)
    return {name: data_hash(name) for name in names if name in data or Path(name).exists()}


def _repeated(trial: Trial, twin: Trial) -> Trial:
    """Return the outcome of a trial whose values were tried before: the seed is the same, and so would the run be."""
    state: Literal["failed", "repeated"] = "failed" if twin.score is None else "repeated"
    first = twin.number if twin.same_as is None else twin.same_as
    return replace(trial, state=state, score=twin.score, best_step=twin.best_step, error=twin.error, same_as=first)


def described(values: Mapping[str, Any]) -> str:
    """Return values as a line of text."""
    return ", ".join(
        f"{key} {value:.4g}" if isinstance(value, float) else f"{key} {value}" for key, value in values.items()
    )


def outcome(found: Mapping[str, Any]) -> str:
    """Return what :func:`tune` found as a line of text."""
    best, first = found["trials"][found["best"]], found["trials"][0]
    own = "failed" if first["score"] is None else f"{first['score']:.4f}"
    return (
        f"best of {len(found['trials'])} trials: number {best['number']}, {found['judge']['metric']} "
        f"{best['score']:.4f} (the recipe as it is: {own}) with {described(best['values'])}"
    )
