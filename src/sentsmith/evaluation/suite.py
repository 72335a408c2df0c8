"""Whole suites: every task of them over one embedding of every sentence, written as ``results.json``."""

from __future__ import annotations

import difflib
import logging
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import SettingsError
from sentsmith.evaluation.bitext import load_bitext
from sentsmith.evaluation.captions import CAPTIONS, load_captions
from sentsmith.evaluation.conditional import CONDITIONAL, load_conditional, submission_name
from sentsmith.evaluation.diagnostics import Diagnosis, DiagnosticSettings
from sentsmith.evaluation.embedded import Embedded, Text, similarity_of
from sentsmith.evaluation.hub import load_sts_from_hub
from sentsmith.evaluation.inside import DIAGNOSTICS, INSIDE, check_inside, load_inside, look_inside
from sentsmith.evaluation.lists import LISTS, load_lists
from sentsmith.evaluation.shared import check_trained_on, described, hint, shared_with
from sentsmith.evaluation.softmax import ProbeSettings
from sentsmith.evaluation.sts import load_sts, load_sts_dev
from sentsmith.evaluation.transfer import load_transfer
from sentsmith.files import make_folder, write_json
from sentsmith.versions import versions

logger = logging.getLogger(__name__)

SUITES: dict[str, str] = {
    "sts": "STS12-16, STS-B and SICK-R, their test parts",
    "sts-dev": "STS-B's dev and SICK's trial part: for choosing, nothing of the tests",
    "transfer": "MR, CR, SUBJ, MPQA, SST2, TREC and MRPC",
    "bitext": "the nearest sentence of the other language, both ways, for every pair of languages in the folder",
    CAPTIONS: "the first caption of an image finds its other four among those of all images",
    **INSIDE,
    LISTS: "how the ranked lists of given files drift, beside the same sentences in no order",
    CONDITIONAL: "pairs of sentences under a condition (C-STS), in given files; predictions where labels are hidden",
}
# SICK is only whole on the hub: an average with it must not stand under the name of the published one.
_STS_HUB = "sts-hub"
# Read from given files: no folder is needed, and a mean over them says nothing, as they are not parts of one test.
_GIVEN = {LISTS: "lists", CONDITIONAL: "conditional rows"}
# Every sentence against many others; a model's own similarity is for pairs.
_BY_COSINE = ("bitext", CAPTIONS, LISTS)
_HOW = ("aggregation", "classifier")  # what all tasks of a suite share


class Task(Protocol):
    """What a suite holds: something with sentences, which scores their vectors."""

    @property
    def name(self) -> str:
        """Its key among the scores."""
        ...

    def texts(self) -> Iterator[Text]:
        """Yield every sentence it needs, with repetitions."""
        ...

    def score(self, embedded: Embedded) -> dict[str, Any]:
        """Return ``"score"`` (times 100) and how it came about, as JSON holds it.

        A task whose answers are hidden has no score, but ``"submission"``: its predictions.
        """
        ...


Tasks = Mapping[str, Sequence[Task]]
"""For each suite, its tasks."""


def load_suites(
    suites: Sequence[str],
    *,
    data_dir: str | Path | None = None,
    probe: ProbeSettings | None = None,
    lists: Sequence[str | Path] = (),
    conditional: Sequence[str | Path] = (),
    trained_on: Sequence[str | Path] = (),
) -> Tasks:
    """Read the tasks of suites, so that wrong data is found before a model is loaded.

    Args:
        suites: Names out of :data:`SUITES`; repetitions count once.
        data_dir: Holds ``sts/``, ``transfer/``, ``bitext/`` and ``captions/``. Without it ``sts`` is fetched from the
            hub, and called ``sts-hub``.
        probe: How the classifiers of ``transfer`` are trained; SentEval's way by default.
        lists: Files of ranked lists, for the suite ``lists``.
        conditional: Files of C-STS, for the suite ``conditional``.
        trained_on: What the model was trained on, for ``sts`` and ``sts-dev``: each of their tasks is also scored
            without the sentences that it shares with these files.

    Raises:
        SettingsError: No suite, an unknown one (the nearest is suggested), one that needs ``data_dir``, files without
            their suite or the reverse, or a file that has the name of another task.
        InputError: Data is missing or wrong.
    """
    names = list(dict.fromkeys(suites))
    for name in names:
        if name not in SUITES:
            near = difflib.get_close_matches(name, SUITES, n=1, cutoff=0.5)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise SettingsError(f"unknown suite {name!r}; {hint}known suites: {', '.join(SUITES)}")
        if data_dir is None and name not in ("sts", *_GIVEN):
            raise SettingsError(
                f"suite {name!r} is read from a folder: give --data-dir, which holds sts/, transfer/, bitext/ and "
                "captions/"
            )
    if not names:
        raise SettingsError(f"no suite given; known suites: {', '.join(SUITES)}")
    given = {LISTS: lists, CONDITIONAL: conditional}
    for name, files in given.items():
        if files and name not in names:
            raise SettingsError(f"{_GIVEN[name]} to measure are for the suite {name!r}; add it to the suites")
    check_trained_on(trained_on, names)
    tasks: dict[str, Sequence[Task]] = {}
    for name in names:
        if name == LISTS:
            tasks[name] = list(load_lists(lists).values())
        elif name == CONDITIONAL:
            tasks[name] = list(load_conditional(conditional).values())
        else:
            hub = data_dir is None
            tasks[_STS_HUB if hub else name] = _load_suite(name, data_dir, probe or ProbeSettings(), names)
    _refuse_double(tasks)
    return shared_with(tasks, trained_on)


def _refuse_double(tasks: Tasks) -> None:
    """Refuse a given file that has the name of another task."""
    taken = {task.name for suite, members in tasks.items() if suite not in _GIVEN for task in members}
    for suite, what in _GIVEN.items():
        for task in tasks.get(suite, ()):
            if task.name in taken:
                raise SettingsError(f"a file of {what} is called {task.name!r}, as another task is; rename it")
            taken.add(task.name)


def _load_suite(name: str, data_dir: str | Path | None, probe: ProbeSettings, suites: Sequence[str]) -> Sequence[Task]:
    if data_dir is None:
        return list(load_sts_from_hub().values())
    if name == "transfer":
        return list(load_transfer(data_dir, probe).values())
    if name == "bitext":
        return list(load_bitext(data_dir).values())
    if name == CAPTIONS:
        return list(load_captions(data_dir).values())
    if name in INSIDE:
        return load_inside(name, data_dir, tests="sts" in suites)
    return list((load_sts(data_dir) if name == "sts" else load_sts_dev(data_dir)).values())


def evaluate(
    encoder: Encoder,
    *,
    suites: Sequence[str],
    name: str,
    data_dir: str | Path | None = None,
    probe: ProbeSettings | None = None,
    diagnostics: DiagnosticSettings | None = None,
    lists: Sequence[str | Path] = (),
    conditional: Sequence[str | Path] = (),
    trained_on: Sequence[str | Path] = (),
) -> dict[str, Any]:
    """Measure a model on whole suites; see :func:`load_suites` for the arguments and errors.

    Args:
        encoder: The model.
        suites: Names out of :data:`SUITES`.
        name: What the result calls the model.
        data_dir: Holds ``sts/``, ``transfer/``, ``bitext/`` and ``captions/``.
        probe: How the classifiers of ``transfer`` are trained.
        diagnostics: What the suite ``diagnostics`` looks at.
        lists: Files of ranked lists, for the suite ``lists``.
        conditional: Files of C-STS, for the suite ``conditional``.
        trained_on: What the model was trained on, to score STS also without it.

    Returns:
        What ``results.json`` holds: ``model``; ``scores`` by task (Spearman, accuracy and Kendall's τ times 100,
        not rounded); ``averages`` by suite, those of given files aside; what each suite of
        :data:`~sentsmith.evaluation.inside.INSIDE` that was asked for has found, under its name;
        ``details``: the aggregation, the classifier, each task's subset scores, rows, skipped files and, of tasks of
        scored pairs, similarity (``"cosine"``, or ``"own"``: the model itself); seconds, versions. And, where labels
        are hidden, ``submissions`` by task: row number → prediction.
    """
    given = {"lists": lists, "conditional": conditional, "trained_on": trained_on}
    tasks = load_suites(suites, data_dir=data_dir, probe=probe, **given)
    result = measure(encoder, tasks, name=name)
    result["details"] |= described(trained_on)
    look_inside(encoder, tasks, diagnostics, result)
    return result


def measure(encoder: Encoder, tasks: Tasks, *, name: str) -> dict[str, Any]:
    """Measure a model on loaded tasks; returns what :func:`evaluate` does, but does not look inside it."""
    start = time.perf_counter()
    tasks = {suite: members for suite, members in tasks.items() if suite not in INSIDE}
    _warn_of_cosines(encoder, tasks, name)
    embedded = _embedded(encoder, tasks)
    parts = list(dict.fromkeys(embedded.values()))
    seconds, count = sum(part.seconds for part in parts), sum(map(len, parts))
    if count:
        logger.info("%s: %d sentences embedded in %.0f s", name, count, seconds)
    details: dict[str, dict[str, Any]] = {}
    averages: dict[str, float] = {}
    for suite, members in tasks.items():
        for task in members:
            details[task.name] = task.score(embedded[suite])
            if "score" in details[task.name]:
                logger.info("%s: %s %.2f", name, task.name, details[task.name]["score"])
        if suite not in _GIVEN:
            averages[suite] = sum(details[task.name]["score"] for task in members) / len(members)
    submissions = {task: result.pop("submission") for task, result in details.items() if "submission" in result}
    return {
        "model": name,
        "scores": {task: result.pop("score") for task, result in details.items() if "score" in result},
        "averages": averages,
        "details": {
            **{key: result[key] for key in _HOW for result in details.values() if key in result},
            "tasks": details,
            "sentences": count,
            "empty_sentences": sum(part.blank for part in parts),
            "vectors_not_finite": sum(part.not_finite for part in parts),
            "seconds": {"embedding": seconds, "total": time.perf_counter() - start},
            "versions": versions(),
        },
        **({"submissions": submissions} if submissions else {}),
    }


def _warn_of_cosines(encoder: Encoder, tasks: Tasks, name: str) -> None:
    ranked = [suite for suite in _BY_COSINE if suite in tasks]
    if ranked and similarity_of(encoder) == "own":
        logger.warning(
            "%s: %s ranks by the cosine of its vectors, which is not its own similarity", name, " and ".join(ranked)
        )


def _embedded(encoder: Encoder, tasks: Tasks) -> dict[str, Embedded]:
    """Return each suite's vectors; all plain sentences come from one call, those with a condition from another."""
    found: dict[str, Embedded] = {}
    for suites in (
        [suite for suite in tasks if suite != CONDITIONAL],
        [suite for suite in tasks if suite == CONDITIONAL],
    ):
        texts = (text for suite in suites for task in tasks[suite] for text in task.texts())
        found |= dict.fromkeys(suites, Embedded(texts, encoder))
    return found


def _try(encoder: Encoder, tasks: Tasks) -> None:
    """Have the model encode a text of each kind, so that one that cannot is refused before hours of measuring.

    Raises:
        InputError: The model takes no condition and a suite brings one, or the reverse.
    """
    for conditional in {suite == CONDITIONAL for suite in tasks}:
        Embedded([("a", "b") if conditional else "a"], encoder)


def evaluate_models(
    names: Sequence[str],
    encoder_of: Callable[[str], Encoder],
    *,
    suites: Sequence[str],
    output: str | Path,
    data_dir: str | Path | None = None,
    probe: ProbeSettings | None = None,
    diagnostics: DiagnosticSettings | None = None,
    lists: Sequence[str | Path] = (),
    conditional: Sequence[str | Path] = (),
    trained_on: Sequence[str | Path] = (),
    draw: Callable[[Mapping[str, Any], Diagnosis | None, Path], object] | None = None,
) -> list[dict[str, Any]]:
    """Measure models one after the other and write each one's ``results.json`` as soon as it is there.

    Args:
        names: Folders, hub names or ``minilm``.
        encoder_of: Loads a model by name.
        suites: Names out of :data:`SUITES`.
        output: One model's results go to ``output/results.json``; those of several to
            ``output/<name>/results.json``.
        data_dir: Holds ``sts/``, ``transfer/``, ``bitext/`` and ``captions/``.
        probe: How the classifiers of ``transfer`` are trained.
        diagnostics: What the suite ``diagnostics`` looks at.
        lists: Files of ranked lists, for the suite ``lists``.
        conditional: Files of C-STS, for the suite ``conditional``; where labels are hidden, a model's predictions are
            written into the same folder (``<file>.submission.json``).
        trained_on: What the models were trained on, to score STS also without it.
        draw: Draws a model's result, and its diagnosis if there is one, into the same folder.

    Returns:
        The results, in the order of ``names``.

    Raises:
        SettingsError: ``diagnostics``, ``lists`` or ``conditional`` is given and no suite of that name; ``trained_on``
            and no suite of STS.
        InputError: Data, a model or the output is wrong; found before a model is loaded where possible.
    """
    if diagnostics is not None and DIAGNOSTICS not in suites:
        raise SettingsError(f"a sentence or a number of tokens is for the suite {DIAGNOSTICS!r}; add it to the suites")
    folder = make_folder(output)
    given = {"lists": lists, "conditional": conditional, "trained_on": trained_on}
    tasks = load_suites(suites, data_dir=data_dir, probe=probe, **given)
    about = described(trained_on)
    slugs = _slugs(names)
    results = []
    for name, slug in zip(names, slugs, strict=True):
        encoder, place = encoder_of(name), folder if len(names) == 1 else folder / slug
        check_inside(encoder, tasks)
        _try(encoder, tasks)
        if "sts" in suites and not trained_on:
            hint(name)
        results.append(measure(encoder, tasks, name=name))
        results[-1]["details"] |= about
        diagnosis = look_inside(encoder, tasks, diagnostics, results[-1])
        for task, predictions in results[-1].pop("submissions", {}).items():
            write_json(place / submission_name(task), predictions)
        write_json(place / "results.json", results[-1])
        if draw is not None:
            draw(results[-1], diagnosis, place)
    return results


def table(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows (one for each model) of a table of results, rounded to 0.01."""
    scores = list(dict.fromkeys(task for result in results for task in result["scores"]))
    averages = list(dict.fromkeys(suite for result in results for suite in result["averages"]))
    rows = [
        [
            str(result["model"]),
            *(_number(result["scores"].get(task)) for task in scores),
            *(_number(result["averages"].get(suite)) for suite in averages),
        ]
        for result in results
    ]
    return ["model", *scores, *(f"avg {suite}" for suite in averages)], rows


def _number(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"


def _slugs(names: Sequence[str]) -> list[str]:
    """Return a folder name for each model: its last part, or all of its path where two would be the same."""
    last = [re.sub(r"[^\w.-]+", "-", Path(name).name).strip("-.") or "model" for name in names]
    if len(set(last)) == len(last):
        return last
    whole = [re.sub(r"[^\w.-]+", "-", name).strip("-.") or "model" for name in names]
    return [slug if whole.count(slug) == 1 else f"{slug}-{place}" for place, slug in enumerate(whole, start=1)]
