"""A language model scores the pairs of STS tasks itself, from 0 to 5: the rows of MultiCSR's Table 1.

Each pair is one question (the task ``score`` of a prompt file; worked examples are the file's), asked through the
ledger. Scored like cosines: Spearman under the "all" aggregation, ties with average ranks, of which a model that knows
few numbers makes many.

An answer that holds no score is counted and gets the mean of its task's readable scores. Left out, the pairs that the
model could not answer would make the task easier, differently for each model; as 0 (or 5) they would say something
about the pair that the model did not say. The mean puts them in the middle of the ranking, where they help least.
"""

from __future__ import annotations

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
from sentsmith.llm.answering import Outcome, ask
from sentsmith.llm.backend import Backend, Decoding
from sentsmith.llm.estimating import Estimate, estimate
from sentsmith.llm.ledger import Ledger, kind_of
from sentsmith.llm.outputs import advice, answer_of, asks_again, was_lost
from sentsmith.llm.prompts import Prompts, load_prompts
from sentsmith.llm.questions import Question, Unreadable, key_of
from sentsmith.llm.spending import Budget, Price
from sentsmith.versions import versions

logger = logging.getLogger(__name__)

TASK = "score"
SCORED = ("sts", "sts-dev")
"""The suites that hold scored pairs."""
LEDGER = "ledger.sqlite"
MAX_NEW_TOKENS = 16
"""The longest answer, if nothing else is said; a score has four tokens at most, and some models talk around it."""
_MIDDLE = 2.5


@dataclass(frozen=True, slots=True)
class Direct:
    """What came of the pairs.

    Attributes:
        result: What stands in ``results.json``; None where the budget ended before all pairs were asked.
        pairs: All of them.
        pending: Those still to be asked.
        outcome: What was asked in this run.
    """

    result: dict[str, Any] | None
    pairs: int
    pending: int
    outcome: Outcome


@dataclass(frozen=True, slots=True)
class _Scores:
    """The scores of a task's pairs.

    Attributes:
        predicted: float64 ``[n_k]`` for each subset k; NaN where there is no score.
        reasons: Why pairs that were asked have no score.
        lost: To how many of these no answer came at all.
        pending: How many were not asked yet.
    """

    predicted: list[NDArray[np.float64]]
    reasons: Counter[str]
    lost: int
    pending: int

    def filled(self) -> list[NDArray[np.float64]]:
        """Return the scores, with the mean of the readable ones where there is none."""
        every = np.concatenate(self.predicted)
        readable = every[~np.isnan(every)]
        mean = float(readable.mean()) if readable.size else _MIDDLE
        return [np.where(np.isnan(values), mean, values) for values in self.predicted]


def evaluate_directly(
    backend: Callable[[], Backend],
    *,
    suites: Sequence[str],
    output: str | Path,
    data_dir: str | Path | None = None,
    prompts: str | Path = "multicsr",
    max_new_tokens: int = MAX_NEW_TOKENS,
    ledger: str | Path | None = None,
    budget: Budget | None = None,
    price: Price | None = None,
    retry_quarantined: bool = False,
    advance: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> Direct:
    """Let a language model score the pairs of suites and write ``results.json``; asked pairs are not asked again.

    Args:
        backend: Opens the language model; called once the data is known to be good. Decoding is greedy.
        suites: Out of :data:`SCORED`.
        output: Folder of ``results.json``.
        data_dir: Holds ``sts/``; without it, ``sts`` comes from the hub.
        prompts: A prompt file, or the name of one that ships, with a task ``score``.
        max_new_tokens: The longest answer.
        ledger: Another ledger than ``output/ledger.sqlite``.
        budget: Where to stop asking; nothing is written then, and a later run goes on.
        price: What tokens cost.
        retry_quarantined: Ask again what an earlier run got no score for.
        advance: Called with the number of answers since the last call.
        expect: Called once with the number of pairs.

    Returns:
        Its ``result`` is what :func:`sentsmith.evaluation.suite.evaluate` returns: ``model`` (the backend's name),
        ``scores``, ``averages``; ``unreadable``: for each task, of how many pairs the answer was no score; ``details``
        with their reasons, the prompts and what was asked.

    Raises:
        SettingsError: A suite has no scored pairs, or the prompts have no task ``score`` of two inputs.
        InputError: Data, the prompts, the model or the ledger is wrong.
        SentsmithError: The model fails, or no answer at all is a score; nothing is written then.
    """
    plan = _Plan(suites, output, data_dir, prompts, max_new_tokens, ledger)
    expect(plan.pairs)
    model = backend()
    with Ledger(plan.ledger) as answers:
        outcome = ask(
            plan.questions(),
            model,
            answers,
            plan.decoding,
            budget=budget,
            price=price,
            retry_quarantined=retry_quarantined,
            advance=advance,
        )
        scores = {task.name: plan.scores(task, answers, model.name) for task in plan.every}
    pending = sum(found.pending for found in scores.values())
    if pending:
        return Direct(None, plan.pairs, pending, outcome)
    result = _result(model.name, plan.tasks, scores)
    result["details"] |= plan.facts() | {
        "asked": outcome.asked,
        "skipped": outcome.skipped,
        "prompt_tokens": outcome.prompt_tokens,
        "answer_tokens": outcome.answer_tokens,
        "money": outcome.money,
        "seconds": {"total": outcome.seconds},
        "versions": versions(),
    }
    write_json(Path(output) / "results.json", result)
    return Direct(result, plan.pairs, 0, outcome)


def estimate_directly(
    backend: Callable[[], Backend],
    *,
    suites: Sequence[str],
    output: str | Path,
    data_dir: str | Path | None = None,
    prompts: str | Path = "multicsr",
    max_new_tokens: int = MAX_NEW_TOKENS,
    ledger: str | Path | None = None,
    price: Price | None = None,
) -> Estimate:
    """Return what :func:`evaluate_directly` would ask, and about how long that takes and what it costs.

    Raises:
        InputError: See :func:`evaluate_directly`, as for the others.
    """
    plan = _Plan(suites, output, data_dir, prompts, max_new_tokens, ledger)
    model = backend()
    with Ledger(plan.ledger) as answers:
        return estimate(plan.questions(), model, answers, plan.decoding, price=price)


def unreadable_lines(result: Mapping[str, Any]) -> Iterator[str]:
    """Yield a line for each task of a result in which answers held no score."""
    for task, count in result["unreadable"].items():
        if count:
            details = result["details"]["tasks"][task]
            reasons = ", ".join(f"{number} {reason}" for reason, number in details["unreadable_reasons"].items())
            lost = f". {asks_again(details['lost'])}" if details["lost"] else ""
            rows = details["rows"]
            yield f"{task}: {count} of {rows} answers hold no score ({reasons}); they count as the mean{lost}"


class _Plan:
    """The pairs of the suites and the questions about them."""

    def __init__(
        self,
        suites: Sequence[str],
        output: str | Path,
        data_dir: str | Path | None,
        prompts: str | Path,
        max_new_tokens: int,
        ledger: str | Path | None,
    ) -> None:
        for name in suites:
            if name in SUITES and name not in SCORED:
                raise SettingsError(
                    f"suite {name!r} needs vectors; a language model scores the pairs of: {', '.join(SCORED)}"
                )
        self.name, self.decoding = prompts, Decoding(max_new_tokens=max_new_tokens)
        folder = make_folder(output)
        found = load_suites(suites, data_dir=data_dir)
        self.tasks = {
            suite: [task for task in members if isinstance(task, StsTask)] for suite, members in found.items()
        }
        self.prompts = _score_prompts(prompts)
        self.every = [task for members in self.tasks.values() for task in members]
        self.pairs = sum(len(subset.pairs) for task in self.every for subset in task.subsets)
        self.ledger = folder / LEDGER if ledger is None else Path(ledger)

    def questions(self) -> Iterator[Question]:
        for task in self.every:
            for subset in self.by_subset(task):
                yield from subset

    def by_subset(self, task: StsTask) -> Iterator[list[Question]]:
        """Yield the questions about each subset's pairs, in order."""
        for subset in task.subsets:
            pairs = zip(subset.pairs.sentences1, subset.pairs.sentences2, strict=True)
            yield [self.prompts.question(TASK, pair) for pair in pairs]

    def scores(self, task: StsTask, ledger: Ledger, model: str) -> _Scores:
        reasons: Counter[str] = Counter()
        predicted, lost, pending = [], 0, 0
        for questions in self.by_subset(task):
            values = np.full(len(questions), np.nan)
            for row, question in enumerate(questions):
                record = ledger.get(key_of(question, model, self.decoding))
                try:
                    answer = answer_of(record, question)
                except Unreadable as error:
                    reasons[kind_of(str(error))] += 1
                    lost += record is not None and was_lost(record)
                    continue
                pending += answer is None
                values[row] = np.nan if answer is None else float(answer)
            predicted.append(values)
        return _Scores(predicted, reasons, lost, pending)

    def facts(self) -> dict[str, Any]:
        return {
            "prompts": {
                "name": str(self.name),
                "sha256": self.prompts.sha256,
                "exemplars": len(self.prompts.tasks[TASK].exemplars),
            },
            "decoding": self.decoding.model_dump(mode="json"),
            "ledger": str(self.ledger),
        }


def _score_prompts(name: str | Path) -> Prompts:
    prompts = load_prompts(name).need(TASK, name=name)
    task = prompts.tasks[TASK]
    if task.inputs != 2:
        raise SettingsError(f"task {TASK!r} is asked about {task.inputs} inputs; it needs 2", path=name)
    if task.parse != TASK:
        raise SettingsError(f"task {TASK!r} is read as a {task.parse}; it needs a score", path=name)
    return prompts


def _result(name: str, tasks: Mapping[str, Sequence[StsTask]], scores: Mapping[str, _Scores]) -> dict[str, Any]:
    rows = sum(len(values) for task in scores.values() for values in task.predicted)
    reasons = sum((task.reasons for task in scores.values()), Counter[str]())
    if reasons.total() == rows:
        told = ", ".join(f"{count} {reason}" for reason, count in reasons.most_common(3))
        lost = sum(found.lost for found in scores.values())
        raise SentsmithError(f"none of {rows} answers holds a score ({told}). {advice(rows, lost)}")
    details = {}
    for task in (task for members in tasks.values() for task in members):
        found = scores[task.name]
        predicted = found.filled()
        details[task.name] = task.score_of(predicted) | {
            "unreadable_reasons": dict(found.reasons.most_common()),
            "lost": found.lost,
            "different_scores": len(np.unique(np.concatenate(predicted))),
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
