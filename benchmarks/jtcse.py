"""JTCSE's cost: a training step over one of unsupervised SimCSE, and what two towers cost over one in use.

The same sentences, batch size, maximum length and threads, MiniLM, fp32. The joint step runs two towers over two views
and the cross branch. The tower that a twin was distilled into is measured where its folder is given.

    python benchmarks/jtcse.py --data-dir ../shared/data
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path
from typing import Any

import common

BATCH = 64


def main() -> None:
    """Print the ratios of seconds."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="training steps a run; the first is not timed")
    parser.add_argument("--rows", type=int, default=1500, help="sentences embedded a run")
    parser.add_argument("--max-length", type=int, default=64)
    parser.add_argument("--distilled", help="folder of a tower that a twin was distilled into (recipe distill)")
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    print(common.machine())
    print("\n| | per second | seconds over the reference, median (min–max) |")
    print("|---|---|---|")
    embedding = ("embed-one", "embed-twin", *(["embed-distilled"] if options.distilled else []))
    for names in (("train-simcse", "train-tncse", "train-jtcse"), embedding):
        found = common.paired(names, options)
        for name in names:
            low, middle, high = common.ratio(found[names[0]], found[name])
            rate = common.median(found[name], "per_second")
            print(f"| {name} | {rate:.1f} | {middle:.2f} ({low:.2f}–{high:.2f}) |", flush=True)
    return None


def worker(options: argparse.Namespace) -> None:
    """Time one variant and print its speed."""
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    what, _, variant = options.worker.partition("-")
    common.report({"per_second": _train(variant, options) if what == "train" else _embed(variant, options)})


def _train(variant: str, options: argparse.Namespace) -> float:
    from datasets import Dataset

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.encoders.loading import load
    from sentsmith.methods.jtcse.cross import CrossPlan, crossed_layers
    from sentsmith.methods.jtcse.objective import JTCSELoss
    from sentsmith.methods.jtcse.towers import twin
    from sentsmith.methods.simcse.objective import SimCSELoss
    from sentsmith.training.settings import TrainingSettings
    from sentsmith.training.trainer import make_trainer

    sentences = common.mixture(options.data_dir, BATCH * options.steps)
    chunking = Chunking(512, 8)  # the defaults of a training run on a processor
    model = load("minilm") if variant == "simcse" else twin(load("minilm"), load("minilm"))
    model.max_seq_length = options.max_length
    plan = CrossPlan(crossed_layers(6, None)) if variant == "jtcse" else None
    loss: Any = SimCSELoss(model, chunking=chunking)
    if variant != "simcse":
        loss = JTCSELoss(model, cross=plan, chunking=chunking)
    trainer = make_trainer(
        model,
        loss,
        Dataset.from_dict({"sentence": sentences}),
        TrainingSettings(batch_size=BATCH, max_steps=options.steps, save_steps=10_000),
        work=Path(tempfile.mkdtemp()),
        precision="fp32",
        evaluator=None,
        callbacks=[],
        progress=False,
    )
    clock = common.clock()
    trainer.add_callback(clock)
    trainer.train()
    return BATCH * (options.steps - 1) / clock.seconds


def _embed(variant: str, options: argparse.Namespace) -> float:
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load
    from sentsmith.methods.jtcse.towers import twin

    sentences = common.mixture(options.data_dir, options.rows)
    model = load(options.distilled if variant == "distilled" else "minilm")
    if variant == "twin":
        model = twin(model, load("minilm"))
    encoder = as_encoder(model)
    encoder.encode(sentences[:64])
    start = time.perf_counter()
    encoder.encode(sentences)
    return len(sentences) / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
