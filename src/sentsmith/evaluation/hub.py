"""The STS suite from the hub, through ``mteb``, scored by our own protocol.

``mteb``'s STS12–16 hold one test split each with the rows of all subsets together (3,108, 1,500, 3,750, 3,000
and 1,186 rows, the counts of SentEval's subsets), so one Spearman over the split is the "all" aggregation.
Its SICK-R is all of SICK (9,927 pairs, train part included) and not the test part: that score is called
``SICKR-all`` here, so that it is never put beside ``SICKR``.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from sentsmith.errors import InputError, require
from sentsmith.evaluation.lines import rejoin
from sentsmith.evaluation.pairs import ScoredPairs, parse_gold
from sentsmith.evaluation.sts import StsSubset, StsTask

logger = logging.getLogger(__name__)

HUB_TASKS = {
    **{name: name for name in ("STS12", "STS13", "STS14", "STS15", "STS16")},
    "STSB": "STSBenchmark",
    "SICKR-all": "SICK-R",
}
_TIMEOUT = 10.0  # seconds


def load_sts_from_hub() -> dict[str, StsTask]:
    """Fetch the seven tasks (or take them from the local cache of ``datasets``).

    Returns:
        ``STS12`` … ``STS16``, ``STSB`` and ``SICKR-all``.

    Raises:
        MissingExtraError: ``mteb`` is not installed.
        InputError: The hub cannot be reached; says to give ``--data-dir``.
    """
    mteb = require("mteb", extra="hub")
    _refuse_without_hub()
    tasks = {}
    for name, task_name in HUB_TASKS.items():
        task = mteb.get_task(task_name)
        try:
            task.load_data()
        except (OSError, ValueError, RuntimeError) as error:
            raise _unreachable(f"{task_name} could not be loaded from the hub ({_first_line(error)})") from error
        tasks[name] = task_from_rows(name, task.dataset["test"], low=task.min_score, high=task.max_score)
    logger.info("STS from the hub: SICKR-all is all of SICK, not its test part, which only --data-dir gives")
    return tasks


def task_from_rows(name: str, rows: Iterable[Mapping[str, Any]], *, low: float, high: float) -> StsTask:
    """Turn rows of ``sentence1``, ``sentence2``, ``score`` (a ``datasets.Dataset``, for example) into a task.

    Raises:
        InputError: A column is missing, there are no rows, or a score is out of range.
    """
    first, second, gold = [], [], []
    for number, row in enumerate(rows, start=1):
        missing = [column for column in ("sentence1", "sentence2", "score") if column not in row]
        if missing:
            raise InputError(f"the hub's {name} has no column {', '.join(missing)}; give --data-dir instead")
        gold.append(parse_gold(str(row["score"]), low=low, high=high, path=f"the hub's {name}", row=number))
        first.append(rejoin(row["sentence1"]))
        second.append(rejoin(row["sentence2"]))
    if not gold:
        raise InputError(f"the hub's {name} has no rows; give --data-dir instead")
    pairs = ScoredPairs(tuple(first), tuple(second), np.array(gold, dtype=np.float64))
    return StsTask(name, "all" if name.endswith("-all") else "test", (StsSubset(name, pairs),))


def _refuse_without_hub() -> None:
    """Ask the hub once: ``datasets`` would try for half a minute, and fill the screen, before it gave up."""
    import urllib.error
    import urllib.request

    from huggingface_hub import constants

    if constants.HF_HUB_OFFLINE:  # the user says so: whatever is in the cache will do
        return
    request = urllib.request.Request(constants.ENDPOINT, method="HEAD")  # noqa: S310 - from the user's own settings
    try:
        urllib.request.urlopen(request, timeout=_TIMEOUT).close()  # noqa: S310
    except urllib.error.HTTPError:
        return  # it answered
    except OSError as error:
        raise _unreachable(f"the hub {constants.ENDPOINT} cannot be reached ({_first_line(error)})") from error


def _unreachable(reason: str) -> InputError:
    return InputError(f"{reason}; give --data-dir, a folder that holds sts/ in SentEval's layout")


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n", 1)[0] or type(error).__name__
