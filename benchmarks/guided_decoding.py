"""Guided decoding's speed: against transformers' classifier-free guidance, and against plain decoding of as many rows.

64 prompts of mixed lengths, each with its opposite, greedy. transformers' own guidance runs prompt by prompt (how it is
used) and in left-padded batches of several sizes, of which the best counts; ours runs in batches of the same sizes. All
see the same prompts sorted by length, so none pays for more padding. New tokens per second, ends included, in one
process, the variants in turn. Then the loop alone: 128 rows (64 pairs) for as many steps as asked, no end, against
``generate`` with 128 plain rows; a row-step is one row fed one token.

    python benchmarks/guided_decoding.py --model ../shared/models/nli-lm-8m --data-dir ../shared/data
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

import common

PROMPTS = 64
FRAME = "### Instruction: Write a sentence that {} the input.\n### Input: {}\n### Output:"
STRENGTH = 0.5


def main() -> None:
    """Print tokens per second and ratios, pair by pair."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", required=True, help="folder of a decoder-only model")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--sizes", default="8,16,32,64", help="pairs in a batch")
    parser.add_argument("--max-new-tokens", type=int, default=48)
    options = parser.parse_args()
    bench = Bench(options)
    print(common.machine(), "\n")
    sizes = [int(size) for size in options.sizes.split(",")]
    theirs, ours = ({size: speed(size) for size in sizes} for speed in (bench.library, bench.ours))
    print("one pass each, new tokens/s by pairs in a batch:")
    print("  transformers", {size: round(rate, 1) for size, rate in theirs.items()})
    print("  ours        ", {size: round(rate, 1) for size, rate in ours.items()}, "\n", flush=True)
    best, own = max(theirs, key=theirs.__getitem__), max(ours, key=ours.__getitem__)
    _print(
        ("new tokens/s", f"ours, {own} pairs a batch", "transformers, 1", f"transformers, {best}"),
        options,
        lambda: bench.ours(own),
        lambda: bench.library(1),
        lambda: bench.library(best),
    )
    _print(("row-steps/s", "ours, 64 pairs", "generate, 128 rows"), options, bench.guided_steps, bench.plain_steps)


def _print(names: tuple[str, ...], options: argparse.Namespace, *variants: Callable[[], float]) -> None:
    found: list[list[float]] = [[] for _ in variants]
    for repeat in range(options.repeats):
        for runs, variant in zip(found, variants, strict=True):
            runs.append(variant())
        done = " ".join(f"{runs[-1]:.1f}" for runs in found)
        print(f"  run {repeat + 1}/{options.repeats}: {done}", file=sys.stderr, flush=True)
    print(f"| | {names[0]} | ours over it, median (min–max) |\n|---|---|---|")
    for name, runs in zip(names[1:], found, strict=True):
        ratios = [a / b for a, b in zip(found[0], runs, strict=True)]
        spread = f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"
        print(f"| {name} | {statistics.median(runs):.1f} | {spread} |")
    print(flush=True)


class Bench:
    """The model, the prompts, and the ways to decode them; each returns a rate per second."""

    def __init__(self, options: argparse.Namespace) -> None:
        import torch

        from sentsmith.llm.backend import Decoding
        from sentsmith.llm.decoding import Pair
        from sentsmith.llm.local import LocalBackend

        torch.set_num_threads(options.threads)
        backend = LocalBackend(options.model, device=options.device)
        self.decoder, self.limit = backend.decoder, options.max_new_tokens
        self.how = Decoding(max_new_tokens=self.limit, first_weight=1 + STRENGTH, second_weight=-STRENGTH)
        texts = common.mixture(options.data_dir, PROMPTS)
        ids = [[backend.read(FRAME.format(what, t)) for what in ("contradicts", "is entailed by")] for t in texts]
        pairs = [Pair(first, second, self.limit) for first, second in ids]
        self.pairs = sorted(pairs, key=lambda pair: -len(pair.first))

    def ours(self, size: int) -> float:
        """New tokens per second, ``size`` pairs in a batch."""

        def run() -> int:
            batches = (self.pairs[i : i + size] for i in range(0, PROMPTS, size))
            return sum(len(one.tokens) for batch in batches for one in self.decoder.decode(batch, self.how))

        return _rate(run)

    def library(self, size: int) -> float:
        """New tokens per second of transformers' own guidance, ``size`` prompts in a batch."""
        return _rate(lambda: sum(self._guided(self.pairs[i : i + size]) for i in range(0, PROMPTS, size)))

    def _guided(self, pairs: list[Any]) -> int:
        import torch

        ids, mask = self._padded([pair.first for pair in pairs])
        against, against_mask = self._padded([pair.second for pair in pairs])
        with torch.inference_mode():
            found = self.decoder.model.generate(
                input_ids=ids,
                attention_mask=mask,
                negative_prompt_ids=against,
                negative_prompt_attention_mask=against_mask,
                guidance_scale=1 + STRENGTH,
                do_sample=False,
                max_new_tokens=self.limit,
            )
        return sum(self._length(row) for row in found[:, ids.shape[1] :].tolist())

    def _length(self, row: list[int]) -> int:
        """Tokens up to the end and with it; what follows is padding."""
        return next((place + 1 for place, token in enumerate(row) if token in self.decoder.ends), len(row))

    def guided_steps(self) -> float:
        """Row-steps per second of our loop over all pairs, none of which ends."""
        ends, self.decoder.ends = self.decoder.ends, frozenset([-1])
        try:
            return _rate(lambda: 2 * sum(len(one.tokens) for one in self.decoder.decode(self.pairs, self.how)))
        finally:
            self.decoder.ends = ends

    def plain_steps(self) -> float:
        """Row-steps per second of ``generate`` over the same rows, unguided."""
        import torch

        ids, mask = self._padded([row for pair in self.pairs for row in (pair.first, pair.second)])

        def run() -> int:
            with torch.inference_mode():
                found = self.decoder.model.generate(
                    input_ids=ids,
                    attention_mask=mask,
                    do_sample=False,
                    max_new_tokens=self.limit,
                    min_new_tokens=self.limit,
                )
            return int(found.shape[0] * (found.shape[1] - ids.shape[1]))

        return _rate(run)

    def _padded(self, rows: list[list[int]]) -> tuple[Any, Any]:
        import torch

        width = max(map(len, rows))
        ids = torch.tensor([[self.decoder.pad] * (width - len(row)) + row for row in rows])
        mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
        device = self.decoder.model.device
        return ids.to(device), mask.to(device)


def _rate(run: Callable[[], int]) -> float:
    start = time.perf_counter()
    count = run()
    return count / (time.perf_counter() - start)


if __name__ == "__main__":
    main()
