"""Choose the chunk size by measurement: the best one depends on processor, model and number format."""

from __future__ import annotations

import contextlib
import json
import logging
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from sentsmith.encoders.chunked import Chunking, forward, join
from sentsmith.files import write_json

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

CANDIDATES = (256, 512, 1024, 2048, 4096, 16384)
_REPEATS = 3


def measured(
    model: SentenceTransformer,
    rows: Sequence[dict[str, Any]],
    kept: Path,
    *,
    precision: str,
    min_rows: int,
    candidates: Sequence[int] = CANDIDATES,
    collate: Callable[[list[dict[str, Any]]], dict[str, Any]] | None = None,
) -> int:
    """Return the tokens per chunk with the shortest forward and backward pass over ``rows``.

    The choice is written to ``kept`` and read from there when a run is resumed, since dropout follows the chunks.
    Random state and gradients are left as they were.

    Args:
        model: The model to train.
        rows: One batch.
        kept: The file of the choice.
        precision: ``"fp32"``, ``"bf16"`` or ``"fp16"``.
        min_rows: See :class:`~sentsmith.encoders.chunked.Chunking`.
        candidates: Tokens per chunk, to choose from.
        collate: Tokenises the rows, where their columns are not single texts: the method's own collator.
    """
    if kept.is_file():
        return int(json.loads(kept.read_text(encoding="utf-8"))["tokens"])
    if collate is None:
        columns = [model.preprocess(texts) for name in rows[0] if (texts := _texts(rows, name))]
    else:
        columns = _columns(collate(list(rows)))
    device = model.device
    features = {key: value.to(device) for key, value in join(columns).items()}
    half = {"bf16": torch.bfloat16, "fp16": torch.float16}.get(precision)
    seconds = {}
    devices = [device] if device.type == "cuda" else []
    with torch.random.fork_rng(devices):
        model.train()
        for tokens in candidates:
            seconds[tokens] = _time(model, features, Chunking(tokens, min_rows), half)
    model.zero_grad(set_to_none=True)
    best = min(seconds, key=lambda tokens: seconds[tokens])
    write_json(kept, {"tokens": best, "seconds": {str(tokens): round(s, 4) for tokens, s in seconds.items()}})
    logger.info("chunks of %d tokens are the fastest here: %.3f s a batch", best, seconds[best])
    return best


def _texts(rows: Sequence[dict[str, Any]], name: str) -> list[str]:
    """Return the texts of a column; none of one that holds labels."""
    return [row[name] for row in rows if isinstance(row[name], str)]


def _columns(batch: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return the features of each column of a collated batch, as the trainer hands them to a loss."""
    names = [key.removesuffix("input_ids") for key in batch if key.endswith("_input_ids")]
    return [{key.removeprefix(name): value for key, value in batch.items() if key.startswith(name)} for name in names]


def _time(
    model: SentenceTransformer,
    features: dict[str, torch.Tensor],
    chunking: Chunking,
    half: torch.dtype | None,
) -> float:
    device = model.device.type
    runs = []
    for _ in range(_REPEATS + 1):
        start = time.perf_counter()
        with torch.autocast(device, half) if half else contextlib.nullcontext():
            vectors = forward(model, features, chunking)
        torch.autograd.backward(vectors.float().square().mean())
        if device == "cuda":
            torch.cuda.synchronize()
        runs.append(time.perf_counter() - start)
    return min(runs[1:])
