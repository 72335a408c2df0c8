"""A language model scores the pairs of STS tasks itself, from 0 to 5: the rows of MultiCSR's Table 1.

Each pair is one question (the task ``score`` of a prompt file; worked examples are the file's), asked through the
ledger. Scored like cosines: Spearman under the "all" aggregation, ties with average ranks, of which a model that knows
few numbers makes many.

An answer that holds no score is counted and gets the mean of its task's readable scores. Left out, the pairs that the
model could not answer would make the task easier, differently for each model; as 0 (or 5) they would say something
about the pair that the model did not say. The mean puts them in the middle of the ranking, where they help least.
"""

from __future__ import annotations

import hashlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from sentsmith.errors import SentsmithError, SettingsError
from sentsmith.evaluation.sts import StsTask
from sentsmith.evaluation.suite import SUITES, load_suites
from sentsmith.files import make_folder, write_json
from sentsmith.llm.answering import ask
from sentsmith.llm.backend import Backend, Decoding
from sentsmith.llm.ledger import Ledger, kind_of
from sentsmith.llm.prompts import Prompts, load_prompts
from sentsmith.llm.questions import Question, key_of
from sentsmith.versions import versions

logger = logging.getLogger(__name__)

TASK = "score"
SCORED = ("sts", "sts-dev")
"""The suites that hold scored pairs."""
LEDGER = "ledger.sqlite"
_DECODING = Decoding(max_new_tokens=16)
_MIDDLE = 2.5


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of a task's pairs.

    Attributes:
        predicted: float64 ``[n_k]`` for each subset k.
        reasons: Why the pairs that have the mean have no score of their own.
    """

    predicted: list[NDArray[np.float64]]
    reasons: Counter[str]


def evaluate_directly(
    backend: Callable[[], Backend],
    *,
    suites: Sequence[str],
    output: str | Path,
    data_dir: str | Path | None = None,
    prompts: str | Path = "multicsr",
    ledger: str | Path | None = None,
    retry_quarantined: bool = False,
    advance: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> dict[str, Any]:
    """Let a language model score the pairs of suites and write ``results.json``; asked pairs are not asked again.

    Args:
        backend: Opens the language model; called once the data is known to be good. Decoding is greedy.
        suites: Out of :data:`SCORED`.
        output: Folder of ``results.json``.
        data_dir: Holds ``sts/``; without it, ``sts`` comes from the hub.
        prompts: A prompt file, or the name of one that ships, with a task ``score``.
        ledger: Another ledger than ``output/ledger.sqlite``.
        retry_quarantined: Ask again what an earlier run got no score for.
        advance: Called with the number of answers since the last call.
        expect: Called once with the number of pairs.

    Returns:
        What :func:`sentsmith.evaluation.suite.evaluate` does: ``model`` (the backend's name), ``scores``, ``averages``;
        ``unreadable``: for each task, of how many pairs the answer was no score; ``details`` with their reasons, the
        prompts and what was asked.

    Raises:
        SettingsError: A suite has no scored pairs, or the prompts have no task ``score`` of two inputs.
        InputError: Data, the prompts, the model or the ledger is wrong.
        SentsmithError: The model fails, or no answer at all is a score; nothing is written then.
    """
    for name in suites:
        if name in SUITES and name not in SCORED:
            raise SettingsError(
                f"suite {name!r} needs vectors; a language model scores the pairs of: {', '.join(SCORED)}"
            )
    folder = make_folder(output)
    found = load_suites(suites, data_dir=data_dir)
    tasks = {suite: [task for task in members if isinstance(task, StsTask)] for suite, members in found.items()}
    asked = _score_prompts(prompts)
    every = [task for members in tasks.values() for task in members]
    expect(sum(len(subset.pairs) for task in every for subset in task.subsets))
    model, place = backend(), folder / LEDGER if ledger is None else Path(ledger)
    with Ledger(place) as answers:
        outcome = ask(
            (question for task in every for subset in _questions(task, asked) for question in subset),
            model,
            answers,
            _DECODING,
            retry_quarantined=retry_quarantined,
            advance=advance,
        )
        scores = {task.name: _scores(task, asked, answers, model.name) for task in every}
    result = _result(model.name, tasks, scores)
    result["details"] |= {
        "prompts": {
            "name": str(prompts),
            "sha256": hashlib.sha256(asked.model_dump_json().encode()).hexdigest(),
            "exemplars": len(asked.tasks[TASK].exemplars),
        },
        "decoding": _DECODING.model_dump(mode="json"),
        "ledger": str(place),
        "asked": outcome.asked,
        "skipped": outcome.skipped,
        "prompt_tokens": outcome.prompt_tokens,
        "answer_tokens": outcome.answer_tokens,
        "seconds": {"total": outcome.seconds},
        "versions": versions(),
    }
    write_json(folder / "results.json", result)
    return result


def unreadable_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each task of a result in which answers held no score."""
    for task, count in result["unreadable"].items():
        if count:
            details = result["details"]["tasks"][task]
            reasons = ", ".join(f"{number} {reason}" for reason, number in details["unreadable_reasons"].items())
            yield f"{task}: {count} of {details['rows']} answers hold no score ({reasons}); they count as the mean"


def _score_prompts(name: str | Path) -> Prompts:
    prompts = load_prompts(name).need(TASK, name=name)
    task = prompts.tasks[TASK]
    if task.inputs != 2:
        raise SettingsError(f"task {TASK!r} is asked about {task.inputs} inputs; it needs 2", path=name)
    if task.parse != TASK:
        raise SettingsError(f"task {TASK!r} is read as a {task.parse}; it needs a score", path=name)
    return prompts


def _questions(task: StsTask, prompts: Prompts) -> Iterator[list[Question]]:
    """Yield the questions about each subset's pairs, in order."""
    for subset in task.subsets:
        pairs = zip(subset.pairs.sentences1, subset.pairs.sentences2, strict=True)
        yield [prompts.question(TASK, pair) for pair in pairs]


def _scores(task: StsTask, prompts: Prompts, ledger: Ledger, model: str) -> _Scores:
    reasons: Counter[str] = Counter()
    predicted = []
    for questions in _questions(task, prompts):
        values = np.full(len(questions), np.nan)
        for row, question in enumerate(questions):
            record = ledger.get(key_of(question, model, _DECODING))
            if record is not None and record.state == "parsed" and record.value is not None:
                values[row] = float(record.value)
            else:
                reasons[kind_of((record and record.reason) or "no answer")] += 1
        predicted.append(values)
    every = np.concatenate(predicted)
    readable = every[~np.isnan(every)]
    mean = float(readable.mean()) if readable.size else _MIDDLE
    return _Scores([np.where(np.isnan(values), mean, values) for values in predicted], reasons)


def _result(name: str, tasks: Mapping[str, Sequence[StsTask]], scores: Mapping[str, _Scores]) -> dict[str, Any]:
    rows = sum(len(values) for task in scores.values() for values in task.predicted)
    reasons = sum((task.reasons for task in scores.values()), Counter[str]())
    if reasons.total() == rows:
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
        raise SentsmithError(f"none of {rows} answers holds a score ({told}). Does the model follow these prompts?")
    details = {}
    for task in (task for members in tasks.values() for task in members):
        found = scores[task.name]
        details[task.name] = task.score_of(found.predicted) | {
            "unreadable_reasons": dict(found.reasons.most_common()),
            "different_scores": len(np.unique(np.concatenate(found.predicted))),
        }
        logger.info("%s: %s %.2f", name, task.name, details[task.name]["score"])
    averages = {
        suite: sum(details[task.name]["score"] for task in members) / len(members) for suite, members in tasks.items()
    }
    return {
        "model": name,
        "scores": {task: found.pop("score") for task, found in details.items()},
        "averages": averages,
        "unreadable": {task: found.reasons.total() for task, found in scores.items()},
        "details": {"aggregation": "all", "scored_by": "language model", "tasks": details},
    }
