"""FREEZE: autoencoders side by side against a loop over layers, an epoch from the store, and the whole ladder.

``--parts`` names what to measure:

autoencoders: one training step on one batch of 256, both in one process and in turn, the same sizes, weights and
threads. The loop is what one would write with torch's modules: a Sequential per layer, one backward pass, one AdamW
over all, as it comes and fused (the batched step uses the fused one). Then the whole job, from a file on disk: epochs
over random vectors against one layer after the other, each with its own AdamW and its own pass over the file. Both
draw the same batches and judge the same held-out rows.

epoch: the ladder's last step on STS-B with MiniLM, through the project's own trainer. Training steps that look the
frozen model's vectors up against steps that run it again; the first step, judging, loading and saving are not timed.
The batches are the same ones; where the model runs again, the first ``--pairs`` of the epoch.

ladder: the five steps of studies/freeze.py, one seed, from nothing.

    python benchmarks/freeze.py --data-dir ../shared/data
    python benchmarks/freeze.py --parts ladder --sentences sentences.txt
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import common
import freeze_ladder

if TYPE_CHECKING:
    from sentsmith.methods.freeze.autoencoders import FitSettings

BATCH = 256
SIZES = {
    "minilm, 96": (6, 384, [96] * 6),
    "minilm, 96 and 192": (6, 384, [96] * 3 + [192] * 3),
    "gpt2-medium, 256 and 512": (24, 1024, [256] * 12 + [512] * 12),
}


def main() -> None:
    """Print a table for each part."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--steps", type=int, default=20, help="steps a run, of MiniLM's size; an eighth of gpt2's")
    parser.add_argument("--rows", type=int, default=20_000, help="sentences of the whole job of autoencoders")
    parser.add_argument("--fit-epochs", type=int, default=2, help="epochs of it")
    parser.add_argument("--pairs", type=int, default=1024, help="pairs a run that the frozen model reads again")
    parser.add_argument(
        "--sentences", help="file, one a line, of the ladder's autoencoders; drawn from the data if not"
    )
    parser.add_argument(
        "--set", action="append", default=[], dest="overrides", metavar="KEY=VALUE", help="over epoch's and ladder's"
    )
    options = parser.parse_args()
    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    print(common.machine())
    for name in options.parts:
        PARTS[name](options)


def _parts(text: str) -> list[str]:
    names = text.split(",")
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise argparse.ArgumentTypeError(f"{unknown[0]!r} is no part; choose from {','.join(PARTS)}")
    return names


def print_autoencoders(options: argparse.Namespace) -> None:
    """Print the tables of a step and of the whole job."""
    print(f"matrix-product peak: {common.matrix_peak(options.threads):.0f} GFLOP/s ({options.threads} threads, fp32)")
    print(
        "\n| a step of | batched, ms | loop, ms | loop, fused AdamW, ms | loop over batched, median (min–max) | fused |"
    )
    print("|---|---|---|---|---|---|")
    for name, (layers, width, bottlenecks) in SIZES.items():
        steps = options.steps if layers == 6 else max(1, options.steps // 8)
        runs = _run(layers, width, bottlenecks, steps, options.repeats)
        batched, loop, fused = ([run[number] for run in runs] for number in range(3))
        ms = [f"{statistics.median(column) * 1e3:.1f}" for column in (batched, loop, fused)]
        print(f"| {name} | {' | '.join(ms)} | {_ratio(loop, batched)} | {_ratio(fused, batched)} |", flush=True)
    print(
        f"\n| {options.fit_epochs} epochs over {options.rows} sentences | side by side, s | one after the other, s "
        "| ratio, median (min–max) | held-out loss, side by side | one after the other |\n|---|---|---|---|---|---|"
    )
    for name in ("minilm, 96", "minilm, 96 and 192"):
        print(f"| {name} | {_whole_job(*SIZES[name], options)} |", flush=True)


def _ratio(first: Sequence[float], second: Sequence[float]) -> str:
    ratios = [a / b for a, b in zip(first, second, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


def _run(layers: int, width: int, bottlenecks: list[int], steps: int, repeats: int) -> list[list[float]]:
    """Return the seconds of a step, by repeat, of each of the three."""
    latents = torch.randn(BATCH, layers * width) * 3 + 1
    mean, variance = np.full((layers, width), 1.0), np.full((layers, width), 9.0)
    variants = [
        _batched(latents, bottlenecks, mean, variance),
        _loop(latents, bottlenecks, mean, variance, fused=False),
        _loop(latents, bottlenecks, mean, variance, fused=True),
    ]
    for step in variants:
        _seconds(step, 2)
    return [[_seconds(step, steps) for step in variants] for _ in range(repeats)]


def _seconds(step: Callable[[], None], steps: int) -> float:
    start = time.perf_counter()
    for _ in range(steps):
        step()
    return (time.perf_counter() - start) / steps


def _batched(
    latents: torch.Tensor, bottlenecks: list[int], mean: np.ndarray, variance: np.ndarray
) -> Callable[[], None]:
    from sentsmith.methods.freeze.decoders import Autoencoders
    from sentsmith.methods.freeze.layer_encoders import LayerEncoders

    layers, width = mean.shape
    model = Autoencoders(LayerEncoders(layers, width, bottlenecks), mean, variance)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)

    def step() -> None:
        optimiser.zero_grad()
        model(latents.view(-1, layers, width)).sum().backward()
        optimiser.step()

    return step


def _loop(
    latents: torch.Tensor, bottlenecks: list[int], mean: np.ndarray, variance: np.ndarray, *, fused: bool
) -> Callable[[], None]:
    layers, width = mean.shape
    means = torch.from_numpy(mean).float()
    rms = torch.from_numpy(variance).float().mean(dim=1).sqrt()
    coders = nn.ModuleList(_coder(width, b) for b in bottlenecks)
    optimiser = torch.optim.AdamW(coders.parameters(), lr=1e-3, fused=fused)

    def step() -> None:
        optimiser.zero_grad()
        x = latents.view(-1, layers, width)
        losses = [
            nn.functional.mse_loss(coder(x[:, layer]), (x[:, layer] - means[layer]) / rms[layer])
            for layer, coder in enumerate(coders)
        ]
        torch.stack(losses).sum().backward()
        optimiser.step()

    return step


def _coder(width: int, b: int) -> nn.Sequential:
    return nn.Sequential(nn.LayerNorm(width), nn.Linear(width, b), nn.GELU(), nn.Linear(b, b), nn.Linear(b, width))


def _whole_job(layers: int, width: int, bottlenecks: list[int], options: argparse.Namespace) -> str:
    """Return the cells of one row: both times, their ratio, both losses."""
    from sentsmith.methods.freeze.autoencoders import FitSettings, fit
    from sentsmith.methods.freeze.layer_encoders import LayerEncoders

    # Nothing stops early: both do all epochs of all layers.
    settings = FitSettings(epochs=options.fit_epochs, batch_size=BATCH, patience=options.fit_epochs + 1)
    times: list[tuple[float, float]] = []
    with tempfile.TemporaryDirectory() as folder:
        vectors = _random_vectors(Path(folder) / "vectors.npy", options.rows, layers * width)
        for repeat in range(options.repeats):
            begun = time.perf_counter()
            coder = LayerEncoders(layers, width, bottlenecks)
            # A folder of its own, or it would be found fitted.
            found = fit(coder, vectors, Path(folder) / str(repeat), {"repeat": repeat}, settings)
            middle = time.perf_counter()
            losses = _one_after_the_other(vectors, width, bottlenecks, settings)
            times.append((middle - begun, time.perf_counter() - middle))
    ours, loop = zip(*times, strict=True)
    cells = [f"{statistics.median(ours):.2f}", f"{statistics.median(loop):.2f}", _ratio(loop, ours)]
    return " | ".join([*cells, f"{statistics.mean(found.history[-1]):.3f}", f"{statistics.mean(losses):.3f}"])


def _random_vectors(path: Path, rows: int, columns: int) -> NDArray[np.float32]:
    """Return a memory map of random vectors."""
    file = np.lib.format.open_memmap(path, mode="w+", dtype=np.float32, shape=(rows, columns))
    generator = np.random.default_rng(0)
    for start in range(0, rows, 1000):
        block = file[start : start + 1000]
        block[:] = generator.standard_normal(block.shape, dtype=np.float32) * 3 + 1
    file.flush()
    return np.load(path, mmap_mode="r")


def _one_after_the_other(
    vectors: NDArray[np.float32], width: int, bottlenecks: list[int], settings: FitSettings
) -> list[float]:
    """Fit an autoencoder for each layer, as one would write it first; returns their last held-out losses."""
    from sentsmith.methods.freeze.autoencoders import epoch_batches, held_out_rows

    rows, held = held_out_rows(len(vectors), settings)
    losses = []
    for layer, bottleneck in enumerate(bottlenecks):
        own = vectors[:, layer * width : (layer + 1) * width]
        known = own[rows]
        mean, rms = torch.from_numpy(known.mean(axis=0)), float(known.var(axis=0).mean() ** 0.5)
        coder = _coder(width, bottleneck)
        optimiser = torch.optim.AdamW(coder.parameters(), lr=settings.learning_rate)
        for epoch in range(1, settings.epochs + 1):
            for batch in epoch_batches(rows, settings, epoch):
                x = torch.from_numpy(own[batch])
                optimiser.zero_grad()
                nn.functional.mse_loss(coder(x), (x - mean) / rms).backward()
                optimiser.step()
            with torch.no_grad():
                total = 0.0
                for start in range(0, len(held), settings.batch_size):
                    x = torch.from_numpy(own[held[start : start + settings.batch_size]])
                    total += len(x) * nn.functional.mse_loss(coder(x) * rms + mean, x).item()
        losses.append(total / len(held))
    return losses


PARTS = {"autoencoders": print_autoencoders, "epoch": freeze_ladder.print_epoch, "ladder": freeze_ladder.print_ladder}


if __name__ == "__main__":
    main()
