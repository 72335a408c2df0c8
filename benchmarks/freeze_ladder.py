"""The ladder of FREEZE on STS-B with MiniLM: an epoch of its last step, and the whole of it; parts of freeze.py."""

from __future__ import annotations

import argparse
import runpy
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

import common

SENTENCES = 20_000
STUDIES = Path(__file__).parents[1] / "studies"


def _ladder(options: argparse.Namespace, folder: str, sentences: str) -> dict[str, list[str]]:
    """Return the five steps of the study, by name, and what each lays over the recipe."""
    # A script of the same name as this one, which finds its neighbours in its folder.
    sys.path.append(str(STUDIES))
    rows = runpy.run_path(str(STUDIES / "freeze.py"))["ROWS"]["minilm"][:5]
    fill = {"seed": 1, "data": options.data_dir, "sentences": sentences, "runs": folder}
    return {row.name: [*(text.format(**fill) for text in row.overrides), *options.overrides] for row in rows}


def print_epoch(options: argparse.Namespace) -> None:
    """Print the table of an epoch from the store and one that runs the frozen model again."""
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
    changes = ["freeze.autoencoder.epochs=1", "training.save_steps=1000000", f"freeze.look_up={look_up}"]
    recipe, _ = load_recipe("freeze-small", [*last, *changes])
    set_seed(recipe.training.seed)
    rows = load_rows(recipe.data, lambda path: pair_rows(path, recipe.freeze.scale), held_out=0.0, seed=1)
    with tempfile.TemporaryDirectory() as work:
        building = Building(recipe, rows, open_model(recipe))
        model = building.model(Path(work))
        store = building.store(Path(work)) if look_up else None
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
        with max_length(model, recipe.training.max_length):
            trainer.train()
    figures = {"per_second": steps * batch / clock.seconds, "timed": steps * batch, "epoch": epoch * batch}
    if store is not None:
        figures |= {"store": store.texts.seconds, "sentences": len(store.texts.vectors)}
    return figures


def print_ladder(options: argparse.Namespace) -> None:
    """Print what each step of the ladder takes; imports of libraries are not counted."""
    from sentsmith.methods.registry import load_recipe

    columns = ("read pairs, s", "read sentences, s", "fit autoencoders, s", "train and judge, s", "whole step, s")
    print(f"\n| step | {' | '.join(columns)} | steps trained | dev Spearman |\n|{'---|' * (len(columns) + 3)}")
    totals = np.zeros(len(columns))
    with tempfile.TemporaryDirectory() as folder:
        sentences = options.sentences or _draw_sentences(options, Path(folder) / "sentences.txt")
        for name, overrides in _ladder(options, folder, sentences).items():
            recipe, method = load_recipe("freeze-small", overrides)
            begun = time.perf_counter()
            record = method.run(recipe, Path(folder) / name)
            whole = time.perf_counter() - begun
            taken = record["seconds"]
            pairs = taken.get("store_pairs", 0.0) + taken.get("store_dev", 0.0)
            parts = [pairs, taken.get("store_sentences", 0.0), taken.get("autoencoders", 0.0), taken["train"], whole]
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
