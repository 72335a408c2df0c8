"""The rows of all processes as one batch: for losses in which every row is the negative of every other.

In training on several processes (DistributedDataParallel) each one embeds its own rows. :func:`gather_rows` joins the
vectors, so that every process computes the same loss over the whole batch. In the backward pass the gradients that all
processes have for a row are summed and go back to the process that embedded it. Since DistributedDataParallel averages
the parameters' gradients over the processes, the outcome is the gradient of a single process with the whole batch:
the sum over P processes of the same loss, divided by P.

Without ``torch.distributed``, or with one process, every function here returns what it was given. All are collective:
each process has to call them, in the same order.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.autograd.function import once_differentiable

from sentsmith.encoders.chunked import Features, pads_left, widen


def process_count() -> int:
    """Return how many processes train together; 1 if ``torch.distributed`` is not in use."""
    return distributed.get_world_size() if distributed.is_available() and distributed.is_initialized() else 1


def gather_rows(rows: Tensor) -> Tensor:
    """Return the rows of all processes, in the order of their ranks, with gradients.

    A loss that reads several vectors per row (anchor, positive, …) should gather them stacked, ``[n, k, d]``: one
    exchange instead of k.

    Args:
        rows: ``[n, …]`` of any dtype; n may differ between processes and may be 0, the other dimensions may not.

    Returns:
        ``[sum of n, …]``, the same on every process. Its backward pass is collective too: if one process calls it,
        all have to.
    """
    if process_count() == 1:
        return rows
    wants_gradient = torch.is_grad_enabled() and rows.requires_grad
    facts = _exchange([len(rows), int(wants_gradient)], rows.device)
    if facts[:, 1].any() and not rows.requires_grad:
        # A process whose rows need no gradient still has to take part when the others exchange theirs.
        rows = rows.detach().requires_grad_()
    gathered: Tensor = _GatherRows.apply(rows, facts[:, 0].tolist())  # type: ignore[no-untyped-call]
    return gathered


def gather_features(features: Features, *, pad_token_id: int = 0) -> dict[str, Tensor]:
    """Return the tokenised rows of all processes, in the order of their ranks, padded to the widest.

    Args:
        features: int64 ``[n, width]`` each; n and width may differ between processes. Tensors of another shape are
            dropped, as by :func:`sentsmith.encoders.chunked.join`, whose padding rules these are.
        pad_token_id: Fills ``input_ids``.
    """
    if process_count() == 1:
        return dict(features)
    mask = features["attention_mask"]
    facts = _exchange([len(mask), mask.shape[1], int(pads_left(features))], mask.device)
    width, left = int(facts[:, 1].max()), bool(facts[:, 2].any())
    wide = widen(features, width, left=left, pad_token_id=pad_token_id)
    counts = facts[:, 0].tolist()
    # By name: processes whose tokenizer gave the keys in another order must not mix them up.
    return {key: _all_gather(wide[key], counts) for key in sorted(wide)}


def same_everywhere(value: Tensor) -> Tensor:
    """Return rank 0's ``value`` on every process; shape and dtype must be the same on all. No gradient."""
    value = value.detach()
    if process_count() == 1:
        return value
    value = value.clone()
    distributed.broadcast(value, src=0)
    return value


def shared_bit(device: torch.device | str = "cpu") -> bool:
    """Return a fair random bit, the same on every process.

    Every process draws, so that their random states advance alike; rank 0's draw counts.

    Args:
        device: Where it is drawn: the model's device, since some backends (NCCL) exchange tensors of a GPU only.
    """
    return bool(same_everywhere(torch.randint(2, (), device=device)))


class _GatherRows(torch.autograd.Function):
    """``torch.distributed.nn.functional.all_gather`` is deprecated, and takes the same number of rows only."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, counts: list[int]) -> Tensor:
        ctx.counts = counts
        return _all_gather(rows, counts)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        # A sum that everyone gets, of which each keeps its part: more bytes than a reduce-scatter, but every backend
        # has it, and a batch of vectors is small beside the parameters' gradients.
        total = gradient.contiguous().clone()
        distributed.all_reduce(total)
        return torch.split(total, ctx.counts)[distributed.get_rank()], None


def _all_gather(rows: Tensor, counts: list[int]) -> Tensor:
    # Backends exchange tensors of one shape: the shorter ones are filled up, and the filling is cut off again.
    missing = max(counts) - len(rows)
    filled = nn.functional.pad(rows.detach(), [0, 0] * (rows.dim() - 1) + [0, missing]).contiguous()
    parts = [torch.empty_like(filled) for _ in counts]
    distributed.all_gather(parts, filled)
    return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])


def _exchange(numbers: list[int], device: torch.device) -> Tensor:
    """Return the numbers of every process, int64 ``[processes, len(numbers)]``, in main memory."""
    own = torch.tensor(numbers, dtype=torch.int64, device=device)
    parts = [torch.empty_like(own) for _ in range(process_count())]
    distributed.all_gather(parts, own)
    return torch.stack(parts).cpu()
