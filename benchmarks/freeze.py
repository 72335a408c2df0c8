"""FREEZE: a step of the autoencoders of all layers side by side, against a Python loop over layers.

One training step on one batch of 256, both in one process and in turn, the same sizes, weights and threads. The loop is
what one would write with torch's modules: a Sequential per layer, one backward pass, one AdamW over all, as it comes
and fused (the batched step uses the fused one).

    python benchmarks/freeze.py
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import nn

import common

BATCH = 256
SIZES = {
    "minilm, 96": (6, 384, [96] * 6),
    "minilm, 96 and 192": (6, 384, [96] * 3 + [192] * 3),
    "gpt2-medium, 256 and 512": (24, 1024, [256] * 12 + [512] * 12),
}


def main() -> None:
    """Print a table: milliseconds of a step, and ratios."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=20, help="steps a run, of MiniLM's size; an eighth of gpt2's")
    options = parser.parse_args()
    torch.set_num_threads(options.threads)
    print(common.machine())
    print(f"matrix-product peak: {common.matrix_peak(options.threads):.0f} GFLOP/s ({options.threads} threads, fp32)")
    print("\n| sizes | batched, ms | loop, ms | loop, fused AdamW, ms | loop over batched, median (min–max) | fused |")
    print("|---|---|---|---|---|---|")
    for name, (layers, width, bottlenecks) in SIZES.items():
        steps = options.steps if layers == 6 else max(1, options.steps // 8)
        runs = _run(layers, width, bottlenecks, steps, options.repeats)
        batched, loop, fused = ([run[number] for run in runs] for number in range(3))
        ms = [f"{statistics.median(column) * 1e3:.1f}" for column in (batched, loop, fused)]
        print(f"| {name} | {' | '.join(ms)} | {_ratio(loop, batched)} | {_ratio(fused, batched)} |", flush=True)


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
    coders = nn.ModuleList(
        nn.Sequential(nn.LayerNorm(width), nn.Linear(width, b), nn.GELU(), nn.Linear(b, b), nn.Linear(b, width))
        for b in bottlenecks
    )
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


if __name__ == "__main__":
    main()
