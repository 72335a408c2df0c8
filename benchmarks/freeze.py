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
import runpy
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

import common

if TYPE_CHECKING:
    from sentsmith.methods.freeze.autoencoders import FitSettings

BATCH = 256
SIZES = {
    "minilm, 96": (6, 384, [96] * 6),
    "minilm, 96 and 192": (6, 384, [96] * 3 + [192] * 3),
    "gpt2-medium, 256 and 512": (24, 1024, [256] * 12 + [512] * 12),
}
SENTENCES = 20_000
STUDIES = Path(__file__).parents[1] / "studies"


def main() -> None:
    """Print a table for each part."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--parts", type=_parts, default=list(PARTS), help=f"some of {','.join(PARTS)}")
    parser.add_argument("--steps", type=int, default=20, help="steps a run, of MiniLM's size; an eighth of gpt2's")
    parser.add_argument("--rows", type=int, default=SENTENCES, help="sentences of the whole job of autoencoders")
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


def _print_autoencoders(options: argparse.Namespace) -> None:
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


def _ladder(options: argparse.Namespace, folder: str, sentences: str) -> dict[str, list[str]]:
    """Return the five steps of the study, by name, and what each lays over the recipe."""
    # A script of the same name as this one, which finds its neighbours in its folder.
    sys.path.append(str(STUDIES))
    rows = runpy.run_path(str(STUDIES / "freeze.py"))["ROWS"]["minilm"][:5]
    fill = {"seed": 1, "data": options.data_dir, "sentences": sentences, "runs": folder}
    return {row.name: [*(text.format(**fill) for text in row.overrides), *options.overrides] for row in rows}


def _print_epoch(options: argparse.Namespace) -> None:
    found: dict[bool, list[dict[str, Any]]] = {True: [], False: []}
    with tempfile.TemporaryDirectory() as folder:
        for repeat in range(options.repeats):
            for look_up, runs in found.items():
                runs.append(_train(options, folder, look_up=look_up))
                rate = runs[-1]["per_second"]
                print(
                    f"  run {repeat + 1}/{options.repeats} look_up={look_up}: {rate:.1f} pairs/s",
                    file=sys.stderr,
                    flush=True,
                )
    first = found[True][0]
    low, middle, high = common.ratio(found[True], found[False])
    print(
        f"\n| an epoch of {first['epoch']} pairs | pairs timed a run | pairs/s | s an epoch | ratio, median (min–max) |"
    )
    print("|---|---|---|---|---|")
    seconds = {look_up: first["epoch"] / common.median(runs, "per_second") for look_up, runs in found.items()}
    for look_up, runs in found.items():
        name, cell = ("from the store", f"{middle:.1f} ({low:.1f}–{high:.1f})") if look_up else ("model run again", "1")
        rate = common.median(runs, "per_second")
        print(f"| {name} | {runs[0]['timed']} | {rate:.1f} | {seconds[look_up]:.2f} | {cell} |")
    print(
        f"\nthe store of {first['sentences']} sentences: {first['store']:.1f} s, paid for after "
        f"{first['store'] / (seconds[False] - seconds[True]):.2f} epochs"
    )


def _train(options: argparse.Namespace, folder: str, *, look_up: bool) -> dict[str, Any]:
    """Build the ladder's last step as a run does, and time its training steps."""
    from transformers import set_seed

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.encoders.embedding import max_length
    from sentsmith.methods.freeze.build import Building, open_model
    from sentsmith.methods.freeze.objective import FreezeLoss
    from sentsmith.methods.freeze.store import StoreCollator
    from sentsmith.methods.registry import load_recipe
    from sentsmith.training.data import load_rows, pair_rows
    from sentsmith.training.trainer import make_trainer

    *_, last = _ladder(options, folder, "null").values()
    # How well the autoencoders are fitted makes no difference to the time of the steps.
    fit = ["freeze.autoencoder.limit=1000", "freeze.autoencoder.epochs=1"]
    recipe, _ = load_recipe("freeze-small", [*last, *fit, "training.save_steps=1000000", f"freeze.look_up={look_up}"])
    set_seed(recipe.training.seed)
    rows = load_rows(recipe.data, lambda path: pair_rows(path, recipe.freeze.scale), held_out=0.0, seed=1)
    with tempfile.TemporaryDirectory() as work:
        building = Building(recipe, rows, open_model(recipe), Path(work))
        model = building.model()
        store = building.store([]) if look_up else None
        batch = recipe.training.batch_size
        epoch = len(rows.train) // batch
        steps = epoch if look_up else min(epoch, max(1, options.pairs // batch))
        trainer = make_trainer(
            model,
            # The chunks of a training run's defaults.
            FreezeLoss(model, recipe.freeze.loss, chunking=Chunking(512 if model.device.type == "cpu" else 16384, 8)),
            rows.train,
            # The first step is not timed.
            recipe.training.model_copy(update={"max_steps": 1 + steps}),
            work=Path(work),
            precision=recipe.training.precision,
            evaluator=None,
            callbacks=[],
            collator=None if store is None else StoreCollator(preprocess_fn=model.preprocess, store=store),
            learning_rates={r".*\.encoders\..*": recipe.freeze.encoder_learning_rate},
            progress=False,
        )
        clock = common.clock()
        trainer.add_callback(clock)
        with max_length(model, building.teacher.key["max_length"]):
            trainer.train()
    figures = {"per_second": steps * batch / clock.seconds, "timed": steps * batch, "epoch": epoch * batch}
    if store is not None:
        figures |= {"store": store.texts.seconds, "sentences": len(store.texts.vectors)}
    return figures


def _print_ladder(options: argparse.Namespace) -> None:
    from sentsmith.methods.registry import load_recipe

    columns = ("read pairs, s", "read sentences, s", "fit autoencoders, s", "train and judge, s", "whole step, s")
    print(f"\n| step | {' | '.join(columns)} | steps trained | dev Spearman |\n|{'---|' * (len(columns) + 3)}")
    totals = np.zeros(len(columns))
    with tempfile.TemporaryDirectory() as folder:
        sentences = options.sentences or _draw_sentences(options, Path(folder) / "sentences.txt")
        for name, overrides in _ladder(options, folder, sentences).items():
            recipe, method = load_recipe("freeze-small", overrides)
            fitted = _fits(folder)
            begun = time.perf_counter()
            record = method.run(recipe, Path(folder) / name)
            whole = time.perf_counter() - begun
            taken = record["seconds"]
            # Of autoencoders that an earlier step fitted, the record says what they took then.
            fit = taken.get("autoencoders", 0.0) if _fits(folder) > fitted else 0.0
            parts = [taken.get("store_pairs", 0.0), taken.get("store_sentences", 0.0), fit, taken["train"], whole]
            totals += parts
            cells = " | ".join(f"{part:.1f}" for part in parts)
            score = record["selection"]["best_score"]
            print(f"| {name} | {cells} | {record['speed']['steps']} | {score:.2f} |", flush=True)
    print(f"| all | {' | '.join(f'{total:.1f}' for total in totals)} | | |")
    read = record["freeze"]["store"]
    print(
        f"\n{read['pairs']['sentences']} sentences of pairs, {read['sentences']['sentences']} raw sentences; "
        f"{totals[-1] / 60:.1f} minutes with {options.threads} threads"
    )


def _draw_sentences(options: argparse.Namespace, path: Path) -> str:
    """Write sentences drawn from the data, which no audit has seen; good enough to time, not to train on."""
    path.write_text("\n".join(common.mixture(options.data_dir, SENTENCES)) + "\n", encoding="utf-8")
    return str(path)


def _fits(folder: str) -> int:
    return len(list((Path(folder) / "store").glob("autoencoders-*")))


PARTS = {"autoencoders": _print_autoencoders, "epoch": _print_epoch, "ladder": _print_ladder}


if __name__ == "__main__":
    main()
