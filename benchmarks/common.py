"""What the benchmarks share: data, workers in processes of their own, paired runs, the machine's peak."""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any


def arguments(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that all benchmarks have."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--data-dir", default="../shared/data", help="holds sentences/ and sts/")
    parser.add_argument("--repeats", type=int, default=5, help="paired runs; medians are reported")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--worker", help=argparse.SUPPRESS)
    return parser


def mixture(data_dir: str | Path, count: int, *, seed: int = 0) -> list[str]:
    """Return sentences drawn at random from ``sentences/``, in random order (not sorted by length)."""
    from sentsmith.corpus.reading import read_sentences
    from sentsmith.corpus.sampling import sample_random

    path = Path(data_dir) / "sentences" / "sentences.tsv.gz"
    if not path.is_file():
        sys.exit(f"{path} is not here: give --data-dir")
    drawn = sample_random(read_sentences(path, column="2"), count, seed=seed)
    random.Random(seed).shuffle(drawn)
    return drawn


def run_worker(name: str, options: argparse.Namespace) -> dict[str, Any]:
    """Run one variant in a fresh process and return what it printed (its last line, JSON)."""
    command = [sys.executable, sys.argv[0], "--worker", name]
    for key, value in vars(options).items():
        if key != "worker" and value is not None:
            command += [f"--{key.replace('_', '-')}", str(value)]
    environment = {**os.environ, "OMP_NUM_THREADS": str(options.threads), "HF_HUB_DISABLE_PROGRESS_BARS": "1"}
    done = subprocess.run(command, capture_output=True, text=True, env=environment, check=False)
    if done.returncode != 0:
        sys.exit(f"{name} failed:\n{done.stderr[-3000:]}")
    return json.loads(done.stdout.strip().splitlines()[-1])


def report(figures: dict[str, Any]) -> None:
    """Print a worker's figures, with the peak memory of its process."""
    import resource

    figures["peak_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(figures))


def paired(names: Sequence[str], options: argparse.Namespace) -> dict[str, list[dict[str, Any]]]:
    """Run the variants in turn, A B A B …, so that a machine whose speed drifts treats them alike."""
    found: dict[str, list[dict[str, Any]]] = {name: [] for name in names}
    for repeat in range(options.repeats):
        for name in names:
            found[name].append(run_worker(name, options))
            rate = found[name][-1]["per_second"]
            print(f"  run {repeat + 1}/{options.repeats} {name}: {rate:.1f}/s", file=sys.stderr, flush=True)
    return found


def ratio(first: list[dict[str, Any]], second: list[dict[str, Any]]) -> tuple[float, float, float]:
    """Return min, median, max of the speed ratio first / second, pair by pair."""
    ratios = [a["per_second"] / b["per_second"] for a, b in zip(first, second, strict=True)]
    return min(ratios), statistics.median(ratios), max(ratios)


def median(runs: list[dict[str, Any]], key: str) -> float:
    """Return the median of a figure over runs."""
    return statistics.median(run[key] for run in runs)


def matrix_peak(threads: int) -> float:
    """Return the machine's fp32 matrix-product peak in GFLOP/s, as torch reaches it: best of ten 2,048³ products."""
    import torch

    torch.set_num_threads(threads)
    a = torch.randn(2048, 2048)
    times = []
    for _ in range(10):
        start = time.perf_counter()
        a @ a
        times.append(time.perf_counter() - start)
    return 2 * 2048**3 / min(times) / 1e9


def machine() -> str:
    """Return one line about the machine and the versions."""
    from sentsmith.training.record import hardware
    from sentsmith.versions import versions

    facts, found = hardware(), versions()
    return (
        f"{facts['cpu']}, {facts['cores']} cores, {facts['memory_gib']} GiB; torch {found['torch']}, "
        f"transformers {found['transformers']}, sentence-transformers {found['sentence-transformers']}"
    )


def minilm_flops(tokens: int) -> float:
    """Return the multiply-adds × 2 of MiniLM-L6's linear layers for ``tokens`` tokens, forward only."""
    width, inner, layers = 384, 1536, 6
    return 2.0 * tokens * layers * (4 * width * width + 2 * width * inner)


def clock() -> Any:
    """Return a trainer callback that times all steps after the first, in ``seconds``."""
    from transformers import TrainerCallback

    class Clock(TrainerCallback):
        """Times all steps after the first."""

        def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
            """Start after the first step, stop after the last."""
            if state.global_step == 1:
                self.start = time.perf_counter()
            self.seconds = time.perf_counter() - self.start

    return Clock()
