"""The cost of MultiCSR's mask: training steps with it over steps without, and the masker's one pass over the data.

The same triplets, model, batch size, maximum length and threads; fp32 on a processor, a run's default on a GPU. The
masker embeds each distinct text once, in a process of its own, as it does before a run; the steps look its vectors up.

    python benchmarks/multicsr.py --triplets ../shared/data/nli/triplets_train.csv
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import common

if TYPE_CHECKING:
    from sentsmith.methods.multicsr.masking import CachedMasker

PLAIN, MASKED, MASKER = "plain", "masked", "masker"


def main() -> None:
    """Print the ratios of time and of peak memory."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--triplets", default="../shared/data/nli/triplets_train.csv", help="file of training triplets")
    parser.add_argument("--model", default="minilm", help="the model in training")
    parser.add_argument("--masker", default="minilm", help="the frozen model")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--steps", type=int, default=10, help="training steps a run; the first is not timed")
    parser.add_argument("--epochs", type=int, default=3, help="of the whole run that is reckoned up")
    parser.add_argument("--max-length", type=int, default=32)
    parser.add_argument("--threshold", type=float, default=0.9)
    parser.add_argument("--cache", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    print(common.machine())
    with tempfile.TemporaryDirectory() as folder:
        options.cache = folder
        # The masker first: its vectors are those that the steps look up.
        found = common.paired((MASKER, PLAIN, MASKED), options)
    _print(found, options)
    return None


def _print(found: dict[str, list[dict[str, Any]]], options: argparse.Namespace) -> None:
    rows = options.batch_size * options.steps
    print(
        f"\nbatch {options.batch_size}, {rows} rows, {found[MASKER][0]['texts']} texts, max length {options.max_length}"
    )
    print(
        "\n| | rows/s (masker: texts/s) | peak memory, MiB | time over plain (min–max) | memory over plain (min–max) |"
    )
    print("|---|---|---|---|---|")
    memory = "gpu_peak_mib" if "gpu_peak_mib" in found[PLAIN][0] else "peak_mib"
    for name in (PLAIN, MASKED, MASKER):
        cells = [f"{common.median(found[name], 'per_second'):.1f}", f"{common.median(found[name], memory):.0f}"]
        # What the masker does is another thing than a step: its time is told below.
        cells.append(_cell(common.ratio(found[PLAIN], found[name])) if name != MASKER else "")
        shares = [run[memory] / plain[memory] for plain, run in zip(found[PLAIN], found[name], strict=True)]
        cells.append(_cell((min(shares), statistics.median(shares), max(shares))))
        print(f"| {name} | {' | '.join(cells)} |")
    once = common.median(found[MASKER], "seconds")
    plain, masked = (options.epochs * rows / common.median(found[name], "per_second") for name in (PLAIN, MASKED))
    print(f"\nthe masker's one pass: {once:.1f} s, {once / plain * options.epochs:.3f} of an epoch without the mask")
    print(f"a run of {options.epochs} epochs, the pass included: {(once + masked) / plain:.3f} of one without the mask")


def _cell(ratios: tuple[float, float, float]) -> str:
    low, middle, high = ratios
    return f"{middle:.3f} ({low:.3f}–{high:.3f})"


def worker(options: argparse.Namespace) -> None:
    """Measure one variant and print its figures."""
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    figures = _embed(options) if options.worker == MASKER else _train(options)
    if torch.cuda.is_available():
        # There, the scarce memory is the GPU's.
        figures["gpu_peak_mib"] = torch.cuda.max_memory_allocated() / 2**20
    common.report(figures)


def _rows(options: argparse.Namespace) -> Any:
    from sentsmith.training.data import load_rows, triplet_rows
    from sentsmith.training.settings import SourceSettings

    source = SourceSettings(train=options.triplets, limit=options.batch_size * options.steps)
    return load_rows(source, triplet_rows)


def _masker(options: argparse.Namespace, rows: Any) -> CachedMasker:
    from sentsmith.methods.multicsr.masking import cached_masker
    from sentsmith.training.teachers import load_teacher

    teacher = load_teacher(options.masker, max_length=options.max_length, depends={})
    return cached_masker(teacher, rows, Path(options.cache))


def _embed(options: argparse.Namespace) -> dict[str, Any]:
    for old in Path(options.cache).iterdir():
        old.unlink()
    texts = _masker(options, _rows(options)).texts
    count = len(texts.vectors)
    return {"per_second": count / texts.seconds, "seconds": texts.seconds, "texts": count}


def _train(options: argparse.Namespace) -> dict[str, Any]:
    import torch

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.encoders.loading import load
    from sentsmith.methods.multicsr.objective import MultiCSRLoss
    from sentsmith.training.precision import resolve_precision
    from sentsmith.training.settings import TrainingSettings
    from sentsmith.training.trainer import make_trainer

    rows = _rows(options)
    # As in a run: the masker is loaded and let go before the training, whether its vectors are there already or not.
    masker = _masker(options, rows) if options.worker == MASKED else None
    if torch.cuda.is_available():
        torch.cuda.reset_peak_memory_stats()
    model = load(options.model)
    model.max_seq_length = options.max_length
    gpu = model.device.type == "cuda"
    # The defaults of a training run.
    chunking = Chunking(16384 if gpu else 512, 8)
    train = rows.train if masker is None else rows.train.add_column("label", list(range(len(rows.train))))
    trainer = make_trainer(
        model,
        MultiCSRLoss(model, masker, threshold=options.threshold, mask_duplicates=False, chunking=chunking),
        train,
        TrainingSettings(batch_size=options.batch_size, max_steps=options.steps, save_steps=10_000),
        work=Path(tempfile.mkdtemp()),
        precision=resolve_precision("auto", "cuda") if gpu else "fp32",
        evaluator=None,
        callbacks=[],
        progress=False,
    )
    clock = common.clock()
    trainer.add_callback(clock)
    trainer.train()
    return {"per_second": options.batch_size * (options.steps - 1) / clock.seconds}


if __name__ == "__main__":
    main()
