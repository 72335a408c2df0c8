"""How large should a chunk be? Seconds of one training batch, and of embedding, by tokens per chunk.

python benchmarks/chunks.py --data-dir ../shared/data
"""

from __future__ import annotations

import statistics
import time

import common

SIZES = (128, 256, 512, 1024, 2048, 4096, 16384)


def main() -> None:
    """Print a table; the defaults in the code are the fastest rows of such a table."""
    options = common.arguments(__doc__.splitlines()[0]).parse_args()
    import torch

    from sentsmith.encoders.chunked import Chunking, forward, join
    from sentsmith.encoders.embedding import ModelEncoder
    from sentsmith.encoders.loading import load

    torch.set_num_threads(options.threads)
    model = load("minilm")
    texts = common.mixture(options.data_dir, 1064)
    print(common.machine())
    model.max_seq_length = 64
    features = join([model.preprocess(texts[:64])] * 2)
    print("\n| tokens per chunk | training batch (64 × 2 views), s | embedding, sentences/s |\n|---|---|---|")
    for size in SIZES:
        chunking = Chunking(size, 8)

        def step(chunking: Chunking = chunking) -> None:
            model.train()
            forward(model, features, chunking).square().mean().backward()

        def embed(chunking: Chunking = chunking) -> None:
            ModelEncoder(model, chunking=chunking).encode(texts[64:])

        print(f"| {size} | {_median(step, options.repeats):.2f} | {1000 / _median(embed, 3):.0f} |", flush=True)


def _median(work: object, repeats: int) -> float:
    work()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        times.append(time.perf_counter() - start)
    return statistics.median(times)


if __name__ == "__main__":
    main()
