"""Gradient caching: what a large batch costs in memory and time, against a small one without it.

python benchmarks/caching.py --data-dir ../shared/data
"""

from __future__ import annotations

import argparse
import time

import common

VARIANTS = ("64-kept", "64-recomputed", "1024-kept", "4096-recomputed")


def main() -> None:
    """Print a table: peak memory of the process and sentences per second of one training step."""
    options = common.arguments(__doc__.splitlines()[0]).parse_args()
    if options.worker:
        return worker(options)
    print(common.machine())
    print("\n| batch | activations | rows/s | peak MiB above the loaded model |\n|---|---|---|---|")
    for name in VARIANTS:
        found = common.run_worker(name, options)
        batch, _, activations = name.partition("-")
        used = found["peak_mib"] - found["loaded_mib"]
        print(f"| {batch} | {activations} | {found['per_second']:.1f} | {used:.0f} |", flush=True)
    return None


def worker(options: argparse.Namespace) -> None:
    """Run one forward and backward pass of unsupervised SimCSE."""
    import resource

    import torch

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.encoders.loading import load
    from sentsmith.methods.simcse.objective import SimCSELoss

    torch.set_num_threads(options.threads)
    batch, _, activations = options.worker.partition("-")
    texts = common.mixture(options.data_dir, int(batch))
    model = load("minilm")
    model.max_seq_length = 64
    model.train()
    features = model.preprocess(texts)
    for parameter in model.parameters():  # gradients belong to every variant alike
        parameter.grad = torch.zeros_like(parameter)
    loaded = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    loss = SimCSELoss(model, chunking=Chunking(512, 8, recompute=activations == "recomputed"))
    start = time.perf_counter()
    loss([features]).backward()
    common.report({"per_second": int(batch) / (time.perf_counter() - start), "loaded_mib": loaded})


if __name__ == "__main__":
    main()
