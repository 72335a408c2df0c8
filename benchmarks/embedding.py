"""Embedding speed: `sentsmith embed`'s encoder against SentenceTransformer.encode at its best batch size.

python benchmarks/embedding.py --data-dir ../shared/data
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import time
from pathlib import Path

import common

BATCHES = (8, 16, 32, 64, 128)


def main() -> None:
    """Print a table of speeds, ratios, memory and what the fast modes cost."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=3000)
    options = parser.parse_args()
    if options.worker:
        return worker(options)
    print(common.machine())
    peak = common.matrix_peak(options.threads)
    print(f"matrix-product peak: {peak:.0f} GFLOP/s ({options.threads} threads, fp32)")
    sizes = {size: common.run_worker(f"peer-{size}", options)["per_second"] for size in BATCHES}
    best = max(sizes, key=lambda size: sizes[size])
    print("peer by batch size: " + ", ".join(f"{size}: {rate:.0f}/s" for size, rate in sizes.items()))
    names = [f"peer-{best}", "ours-fp32", *(f"ours-{mode}" for mode in fast_modes())]
    found = common.paired(names, options)
    dev = {name: common.run_worker(f"{name}@dev", options)["stsb"] for name in names}
    print("\n| mode | sentences/s | GFLOP/s | share of peak | peak MiB | ratio to the peer, median (min–max) "
          "| largest difference | STS-B dev |\n|---|---|---|---|---|---|---|---|")  # fmt: skip
    for name in names:
        low, middle, high = common.ratio(found[name], found[names[0]])
        runs = found[name]
        gflops = common.median(runs, "gflops")
        print(
            f"| {name} | {common.median(runs, 'per_second'):.0f} | {gflops:.0f} | {gflops / peak:.0%} "
            f"| {common.median(runs, 'peak_mib'):.0f} | {middle:.2f} ({low:.2f}–{high:.2f}) "
            f"| {common.median(runs, 'difference'):.1e} | {dev[name]:.2f} |"
        )
    return None


def fast_modes() -> list[str]:
    """Return the modes beyond torch's fp32 that this machine can run."""
    import importlib.util

    from sentsmith.training.precision import has_native_bf16

    modes = ["bf16"] if has_native_bf16("cpu") else []
    return modes + (["openvino"] if importlib.util.find_spec("openvino") else [])


def worker(options: argparse.Namespace) -> None:
    """Embed the mixture once to warm up and once timed; print the speed."""
    import numpy as np
    import torch

    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load

    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    texts = common.mixture(options.data_dir, options.rows)
    model = load("minilm")
    variant, _, part = options.worker.partition("@")
    who, _, mode = variant.partition("-")
    if who == "peer":

        def encode(sentences: list[str]) -> np.ndarray:
            return model.encode(sentences, batch_size=int(mode), show_progress_bar=False)
    else:
        backend, precision = ("openvino", "fp32") if mode == "openvino" else ("torch", mode)
        encode = as_encoder(model, backend=backend, precision=precision).encode
    if part == "dev":
        common.report({"stsb": _dev(encode, options)})
        return
    encode(texts[:300])
    start = time.perf_counter()
    vectors = encode(texts)
    seconds = time.perf_counter() - start
    reference = Path(tempfile.gettempdir()) / f"sentsmith-embedding-{options.rows}.npy"
    if who == "peer":
        np.save(reference, vectors)
    tokens = sum(
        len(ids) for ids in model.tokenizer(texts, truncation=True, max_length=model.max_seq_length)["input_ids"]
    )
    common.report(
        {
            "per_second": len(texts) / seconds,
            "gflops": common.minilm_flops(tokens) / seconds / 1e9,
            "difference": float(np.abs(vectors - np.load(reference)).max()),
        }
    )


def _dev(encode: object, options: argparse.Namespace) -> float:
    from sentsmith.evaluation.pairs import read_scored_pairs
    from sentsmith.evaluation.sts import score_pairs

    class Wrapped:
        """The function as an encoder."""

        encode = staticmethod(encode)

    return 100 * score_pairs(Wrapped(), read_scored_pairs(Path(options.data_dir) / "sts" / "STSBenchmark" / "dev.csv"))


if __name__ == "__main__":
    main()
