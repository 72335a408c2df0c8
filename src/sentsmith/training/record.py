"""The run record: what was trained, on what, with what, and what came of it; ``run.json`` beside the model."""

from __future__ import annotations

import datetime as dt
import hashlib
import json
import os
import platform
import subprocess
from pathlib import Path
from typing import Any

from sentsmith.errors import InputError
from sentsmith.settings import Settings

RECORD = "run.json"
SETTINGS = "settings.yaml"


def hardware() -> dict[str, Any]:
    """Return processor, cores, memory and GPU of this machine."""
    import torch

    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else None
    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "memory_gib": None if memory is None else round(memory, 1),
        "gpu": torch.cuda.get_device_name() if torch.cuda.is_available() else None,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()


def commit() -> str | None:
    """Return the git commit of this package's checkout, with ``+changes`` if files differ; None when installed."""
    root = Path(__file__).resolve().parents[3]
    if not (root / ".git").exists():
        return None
    try:
        head = _git(root, "rev-parse", "HEAD")
        return head + ("+changes" if _git(root, "status", "--porcelain") else "") if head else None
    except (OSError, subprocess.SubprocessError):
        return None


def _git(root: Path, *arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=root, capture_output=True, text=True, timeout=10, check=False)  # noqa: S603, S607
    return done.stdout.strip()


def settings_hash(settings: Settings) -> str:
    """Return the sha256 of the resolved settings."""
    return hashlib.sha256(json.dumps(settings.model_dump(mode="json"), sort_keys=True).encode()).hexdigest()


def now() -> str:
    """Return the time, UTC, to the second, in ISO format."""
    return dt.datetime.now(dt.UTC).isoformat(timespec="seconds")


def read(folder: str | Path) -> dict[str, Any] | None:
    """Return the run record of a folder, or None if it has none.

    Raises:
        InputError: The record is no JSON object.
    """
    path = Path(folder) / RECORD
    if not path.is_file():
        return None
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except ValueError as error:
        raise InputError("is not valid JSON; the run has to be done again", path=path) from error
    if not isinstance(record, dict):
        raise InputError("is no run record", path=path)
    return record
