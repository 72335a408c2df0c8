"""The main job, end to end: real text in, a trained and measured model and a page out.

Without arguments it trains on the sample that ships; with the user's own sentences it trains on those, and measures
on a task made from them. Both measure the start model and the trained one on the same items.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith.corpus.pydoc_text import pydoc_sentences
from sentsmith.corpus.reading import read_rankings, read_sentences, read_triplets
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError
from sentsmith.evaluation.suite import load_suites, measure
from sentsmith.files import atomic_path, write_json
from sentsmith.methods.registry import load_recipe
from sentsmith.quickstart.measures import (
    Comparison,
    compare,
    own_text_measures,
    own_text_task,
    sample_measures,
)
from sentsmith.search.compare import Hit, nearest
from sentsmith.training.output import WORK, Output

if TYPE_CHECKING:
    from sentsmith.evaluation.continuity import NextSentenceTask

logger = logging.getLogger(__name__)

QUESTIONS = (
    "How do I run cleanup code even if an exception was raised?",
    "What happens when two strings are written next to each other?",
    "Can a function change a variable that belongs to the function around it?",
)
"""Asked of the prose of this interpreter's language reference."""

_HITS = 5
_SEED = 42


@dataclass
class Outcome:
    """What a quickstart did, for the page and for ``quickstart.json``.

    Attributes:
        record: The run record of the training.
        comparisons: Each measure before and after.
        questions: What was searched for.
        searched: How many sentences were searched.
        text: What they are.
        hits: What the start model and the trained one found.
        suites: Results of the start model and the trained one on the STS tests, if a data folder was given.
        cosines: Cosines to look at: group → values, before and after.
        positions: Mean cosine by list position, before and after; empty for the user's own text.
        seconds: Of the whole job.
    """

    record: dict[str, Any]
    comparisons: list[Comparison]
    questions: Sequence[str]
    searched: int
    text: str
    hits: tuple[list[list[Hit]], list[list[Hit]]]
    suites: tuple[dict[str, Any], dict[str, Any]] | None = None
    cosines: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    positions: tuple[list[float], list[float]] | None = None
    seconds: float = 0.0


@dataclass
class _Job:
    """What is trained on and measured."""

    recipe: str
    train: Path
    measures: Callable[[Encoder], dict[str, Any]]
    text: list[str]
    about: str
    questions: Sequence[str]


def quickstart(
    output: str | Path,
    *,
    sentences: str | Path | None = None,
    data_dir: str | Path | None = None,
    questions: Sequence[str] = (),
    overrides: Sequence[str] = (),
    overwrite: bool = False,
    progress: bool = False,
) -> Outcome:
    """Run the main job into the folder ``output``.

    Writes ``model/`` (with its run record), ``quickstart.json`` and ``page.html``. A training that was interrupted
    goes on where it was.

    Args:
        output: A folder, made if missing.
        sentences: The user's own sentences; the sample that ships without.
        data_dir: Folder that holds ``sts/``: measures the seven STS tests too.
        questions: What to search for; three examples, or three of the user's sentences, by default.
        overrides: Settings laid over the recipe, as ``key=value``.
        overwrite: Replace what an earlier quickstart left.
        progress: Draw progress bars.

    Raises:
        InputError: Bad sentences, data folder, settings or output; the output holds a finished quickstart.
    """
    from sentsmith.quickstart.page import build_page
    from sentsmith.report.page import write_page

    begun = time.perf_counter()
    folder = Path(output)
    tasks = None if data_dir is None else load_suites(["sts"], data_dir=data_dir)
    job = _sample_job() if sentences is None else _own_job(sentences, folder)
    recipe, method = load_recipe(job.recipe, [f"data.train={job.train}", *overrides])
    model_folder = folder / "model"
    resume = (model_folder / WORK).exists() and not overwrite
    Output(model_folder, resume=resume, overwrite=overwrite).check(recipe)
    logger.info("measuring the start model, %s", recipe.model)
    start = as_encoder(load(recipe.model))
    before = job.measures(start)
    logger.info("training")
    record = method.run(recipe, model_folder, resume=resume, overwrite=overwrite, progress=progress)
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
    write_json(folder / "quickstart.json", _summary(outcome))
    write_page(build_page(outcome), folder / "page.html")
    return outcome


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
        train=sample / "triplets-train.jsonl",
        measures=lambda encoder: sample_measures(encoder, lists, triplets),
        text=text,
        about="the prose of this Python's own language reference (pydoc_data.topics)",
        questions=QUESTIONS,
    )


def _own_job(sentences: str | Path, folder: Path) -> _Job:
    """Train on the first nine tenths of the user's text and measure on the rest, which is kept apart."""
    text = list(read_sentences(sentences))
    held = max(len(text) // 10, 20)
    if len(text) - held < 64:
        raise InputError(f"holds {len(text)} sentences; the quickstart needs at least 84", path=sentences)
    train, kept = text[:-held], text[-held:]
    task: NextSentenceTask = own_text_task(kept, seed=_SEED)
    seen = set(task.queries) | set(task.candidates)
    path = folder / "train-sentences.txt"
    with atomic_path(path) as temporary:
        temporary.write_text("".join(f"{line}\n" for line in train if line not in seen), encoding="utf-8")
    return _Job(
        recipe="quickstart-own-text",
        train=path,
        measures=lambda encoder: own_text_measures(encoder, task),
        text=train,
        about=f"your text, {Path(sentences).name}",
        questions=kept[:3],
    )


def _summary(outcome: Outcome) -> dict[str, Any]:
    result: dict[str, Any] = {
        "measures": [comparison.as_dict() for comparison in outcome.comparisons],
        "seconds": round(outcome.seconds, 1),
        "searched": outcome.searched,
        "model": outcome.record,
    }
    if outcome.suites is not None:
        result["sts"] = {"before": outcome.suites[0], "after": outcome.suites[1]}
    return result
