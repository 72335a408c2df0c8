"""Training speed: SimCSE here against sentence-transformers' own trainer with its own loss.

The same sentences, batch size, maximum length, threads, optimiser and number format; a mixture of lengths, not sorted.

    python benchmarks/training.py --data-dir ../shared/data
"""

from __future__ import annotations

import argparse
import logging
import tempfile
from typing import Any

import common

BATCH = 64


def main() -> None:
    """Print a table of speeds, ratios and memory."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=5, help="steps a run; the first is not timed")
    parser.add_argument("--max-length", type=int, default=64)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    from sentsmith.training.precision import has_native_bf16

    print(common.machine())
    print(f"matrix-product peak: {common.matrix_peak(options.threads):.0f} GFLOP/s ({options.threads} threads, fp32)")
    precisions = ["fp32", "bf16"] if has_native_bf16("cpu") else ["fp32"]
    if len(precisions) == 1:
        print("bf16: this processor has no native bf16; not measured")
    print("\n| training | format | rows/s | GFLOP/s | peak MiB | ratio to the peer's fp32, median (min–max) |")
    print("|---|---|---|---|---|---|")
    for task in ("unsupervised", "supervised"):
        names = [f"{who}-{task}-{precision}" for precision in precisions for who in ("peer", "ours")]
        found = common.paired(names, options)
        for name in names:
            low, middle, high = common.ratio(found[name], found[f"peer-{task}-fp32"])
            runs, precision = found[name], name.rpartition("-")[2]
            print(
                f"| {name.partition('-')[0]}, {task} | {precision} | {common.median(runs, 'per_second'):.1f} "
                f"| {common.median(runs, 'gflops'):.0f} | {common.median(runs, 'peak_mib'):.0f} "
                f"| {middle:.2f} ({low:.2f}–{high:.2f}) |",
                flush=True,
            )
    return None


def worker(options: argparse.Namespace) -> None:
    """Train one variant for a few steps and print its speed."""
    import torch
    from datasets import Dataset

    from sentsmith.encoders.loading import load

    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    who, task, precision = options.worker.split("-")
    columns = 1 if task == "unsupervised" else 3
    rows = BATCH * options.steps
    texts = common.mixture(options.data_dir, rows * columns)
    names = ("anchor", "positive", "negative")[:columns]
    data = {name: texts[i * rows : (i + 1) * rows] for i, name in enumerate(names)}
    if who == "peer" and columns == 1:
        data["positive"] = data["anchor"]  # how its documentation trains unsupervised SimCSE
    model = load("minilm")
    trainer = (_ours if who == "ours" else _peer)(model, Dataset.from_dict(data), options, precision)
    clock = common.clock()
    trainer.add_callback(clock)
    trainer.train()
    views = 2 if columns == 1 else 3
    used = texts[: rows * columns]
    tokens = sum(len(ids) for ids in model.tokenizer(used, truncation=True, max_length=options.max_length)["input_ids"])
    timed = (options.steps - 1) / options.steps
    # Useful arithmetic only (padding is not counted): forward and backward cost three forward passes.
    flops = 3 * common.minilm_flops(int(tokens / columns * views))
    common.report(
        {
            "per_second": BATCH * (options.steps - 1) / clock.seconds,
            "gflops": flops * timed / clock.seconds / 1e9,
        }
    )


def _ours(model: Any, data: Any, options: argparse.Namespace, precision: str) -> Any:
    from pathlib import Path

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.methods.simcse.objective import SimCSELoss
    from sentsmith.training.settings import TrainingSettings
    from sentsmith.training.trainer import make_trainer

    model.max_seq_length = options.max_length
    settings = TrainingSettings(batch_size=BATCH, max_steps=options.steps, save_steps=10_000)
    # The defaults of a training run on a processor.
    loss = SimCSELoss(model, chunking=Chunking(512, 32 if precision == "bf16" else 8))
    return make_trainer(
        model,
        loss,
        data,
        settings,
        work=Path(tempfile.mkdtemp()),
        precision=precision,
        evaluator=None,
        callbacks=[],
        progress=False,
    )


def _peer(model: Any, data: Any, options: argparse.Namespace, precision: str) -> Any:
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from transformers.trainer_callback import PrinterCallback

    model.max_seq_length = options.max_length
    settings = SentenceTransformerTrainingArguments(
        output_dir=tempfile.mkdtemp(),
        per_device_train_batch_size=BATCH,
        max_steps=options.steps,
        bf16=precision == "bf16",
        use_cpu=True,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=settings, train_dataset=data, loss=MultipleNegativesRankingLoss(model, scale=20.0)
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


if __name__ == "__main__":
    main()
