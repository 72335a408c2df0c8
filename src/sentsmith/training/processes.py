"""Training on several processes, started by ``torchrun`` or ``accelerate launch``: who writes, and who waits.

Every process reads the same data and trains on rows of its own; the first one alone judges, writes and prints. All of
them need the output folder, on a disk that they share: each keeps the state of its random numbers there.
"""

from __future__ import annotations

import datetime as dt
import os
from collections.abc import Callable
from types import ModuleType
from typing import Any, TypeVar

T = TypeVar("T")

# As long as the trainer allows: the others wait while the first one judges.
_PATIENCE = dt.timedelta(minutes=30)


def count() -> int:
    """Return how many processes this one was started with, itself included."""
    # LOCAL_RANK and not WORLD_SIZE alone, which some clusters set for processes that nobody started together.
    return int(os.environ.get("WORLD_SIZE", "1")) if "LOCAL_RANK" in os.environ else 1


def is_first() -> bool:
    """Whether this is the process that judges, writes and prints."""
    return count() == 1 or int(os.environ.get("RANK", "0")) == 0


def wait() -> None:
    """Return when all processes are here."""
    if count() > 1:
        _group().barrier()


def on_first(function: Callable[[], T]) -> T:
    """Call ``function`` in the first process, when all have come here; every process returns what it returned.

    What it returns has to survive pickling. If it raises, every process raises the same.
    """
    if count() == 1:
        return function()
    group = _group()
    group.barrier()
    outcome: list[Any] = [None, None]
    if is_first():
        try:
            outcome[0] = function()
        except Exception as error:  # noqa: BLE001 - the others wait for the outcome, whatever it is
            outcome[1] = error
    group.broadcast_object_list(outcome, src=0)
    value, failure = outcome
    if failure is not None:
        raise failure
    result: T = value
    return result


def _group() -> ModuleType:
    """Return ``torch.distributed``, in which the processes have found each other."""
    import torch
    from accelerate import PartialState  # type: ignore[import-untyped]

    if not torch.distributed.is_initialized():
        # The trainer does the same later, and then takes what is there.
        PartialState(cpu=not torch.cuda.is_available(), timeout=_PATIENCE)
    return torch.distributed
