"""The main job, end to end: real text in, a trained and measured model and a page out.

Without arguments it trains on the sample that ships; with the user's own sentences it trains on those, and measures
on a task made from them. Both measure the start model and the trained one on the same items.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any

from sentsmith.corpus.pydoc_text import pydoc_sentences
from sentsmith.corpus.reading import read_rankings, read_triplets
from sentsmith.corpus.sampling import sample_random
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.protocol import Encoder
from sentsmith.evaluation.suite import load_suites, measure
from sentsmith.files import write_json, write_text
from sentsmith.methods.registry import load_recipe
from sentsmith.quickstart.measures import (
    compare,
    own_text_measures,
    own_text_task,
    sample_measures,
)
from sentsmith.quickstart.outcome import Outcome
from sentsmith.quickstart.own_text import read_own_text
from sentsmith.quickstart.page import build_page
from sentsmith.report.page import write_page
from sentsmith.search.compare import nearest
from sentsmith.training.output import WORK, Output
from sentsmith.training.record import read, settings_hash

logger = logging.getLogger(__name__)

QUESTIONS = (
    "How do I run cleanup code even if an exception was raised?",
    "What happens when two strings are written next to each other?",
    "Can a function change a variable that belongs to the function around it?",
)
"""Asked of the prose of this interpreter's language reference."""

_SUMMARY, _PAGE = "quickstart.json", "page.html"
_HITS = 5
_SEARCHED = 5000
_SEED = 42


@dataclass
class _Job:
    """What is trained on and measured.

    Attributes:
        recipe: That ships.
        train: The training rows.
        lines: Are written to ``train`` first, if there are any.
        overrides: Of the recipe, besides ``data.train``.
        measures: Measures a model.
        text: What is searched.
        about: Says what that is.
        questions: To search for.
    """

    recipe: str
    train: Path
    lines: list[str]
    overrides: Sequence[str]
    measures: Callable[[Encoder], dict[str, Any]]
    text: list[str]
    about: str
    questions: Sequence[str]


def quickstart(
    output: str | Path,
    *,
    sentences: str | Path | None = None,
    column: str | None = None,
    data_dir: str | Path | None = None,
    questions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> Outcome:
    """Run the main job into the folder ``output``.

    Writes ``model/`` (with its run record), ``quickstart.json`` and ``page.html``. A training that was interrupted
    goes on where it was, one that was finished is not done again.

    Args:
        output: A folder, made if missing.
        sentences: The user's own sentences; the sample that ships without.
        column: The text column of ``sentences``, where there are several.
        data_dir: Folder that holds ``sts/``: measures the seven STS tests too.
        questions: What to search for; three examples, or three of the user's sentences, by default.
        overrides: Settings laid over the recipe, as ``key=value``.
        overwrite: Replace what an earlier quickstart left.
        progress: Draw progress bars.

    Raises:
        InputError: Bad sentences, data folder, settings or output; the output holds a finished quickstart.
    """
    begun = time.perf_counter()
    folder = Path(output)
    tasks = None if data_dir is None else load_suites(["sts"], data_dir=data_dir)
    job = _sample_job() if sentences is None else _own_job(sentences, column, folder)
    recipe, method = load_recipe(job.recipe, [f"data.train={job.train}", *job.overrides, *overrides])
    model_folder = folder / "model"
    resume = (model_folder / WORK).exists() and not overwrite
    done = None if overwrite else _trained_before(folder, recipe)
    if done is None:
        Output(model_folder, resume=resume, overwrite=overwrite).check(recipe)
        # Pages of an earlier run must not stand beside a model that they do not describe.
        for name in (_SUMMARY, _PAGE):
            (folder / name).unlink(missing_ok=True)
    if job.lines:
        write_text(job.train, "".join(f"{line}\n" for line in job.lines))
    logger.info("measuring the start model, %s", recipe.model)
    start = as_encoder(load(recipe.model))
    before = job.measures(start)
    logger.info("training")
    record = done or method.run(recipe, model_folder, resume=resume, overwrite=overwrite, progress=progress)
    trained = as_encoder(load(model_folder))
    logger.info("measuring the trained model")
    after = job.measures(trained)
    asked = list(questions) or list(job.questions)
    outcome = Outcome(
        record=record,
        comparisons=compare(before["items"], after["items"], seed=_SEED),
        questions=asked,
        searched=len(job.text),
        text=job.about,
        hits=(nearest(start, job.text, asked, _HITS), nearest(trained, job.text, asked, _HITS)),
        cosines={"before": before["cosines"], "after": after["cosines"]},
        positions=(before["positions"], after["positions"]) if before.get("positions") else None,
    )
    if tasks is not None:
        logger.info("measuring both on the seven STS tests")
        outcome.suites = (
            measure(start, tasks, name=recipe.model),
            measure(trained, tasks, name=str(model_folder)),
        )
    outcome.seconds = time.perf_counter() - begun
    write_json(folder / _SUMMARY, outcome.as_dict())
    write_page(build_page(outcome), folder / _PAGE)
    return outcome


def _trained_before(folder: Path, recipe: Any) -> dict[str, Any] | None:
    """Return the record of a training that a killed quickstart had finished, if it was this one."""
    record = read(folder / "model")
    if record is None or (folder / _SUMMARY).exists():
        return None
    return record if record.get("settings_sha256") == settings_hash(recipe) else None


def sample_folder() -> Path:
    """Return the folder of the sample data that ships."""
    return Path(str(resources.files("sentsmith") / "sample"))


def _sample_job() -> _Job:
    sample = sample_folder()
    lists = [row.sentences for row in read_rankings(sample / "rankings-held_out.jsonl")]
    triplets = list(read_triplets(sample / "triplets-held_out.jsonl"))
    text = [sentence for paragraph in pydoc_sentences() for sentence in paragraph]
    return _Job(
        recipe="quickstart",
        train=sample / "rankings-train.jsonl",
        lines=[],
        overrides=[f"ranking.triplets={sample / 'triplets-train.jsonl'}"],
        measures=lambda encoder: sample_measures(encoder, lists, triplets),
        text=text,
        about="the prose of this Python's own language reference (pydoc_data.topics)",
        questions=QUESTIONS,
    )


def _own_job(sentences: str | Path, column: str | None, folder: Path) -> _Job:
    """Train on the first nine tenths of the user's text and measure on the rest, which is kept apart."""
    text = read_own_text(sentences, column=column)
    task = own_text_task(text.held_out, seed=_SEED)
    return _Job(
        recipe="quickstart-own-text",
        train=folder / "train-sentences.txt",
        lines=text.train,
        overrides=(),
        measures=lambda encoder: own_text_measures(encoder, task),
        text=sample_random(text.train, _SEARCHED, seed=_SEED),
        about=f"your text, {Path(sentences).name}",
        questions=task.queries[:3],
    )
