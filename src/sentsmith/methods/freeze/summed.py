"""The paper's own attempt at one vector per sentence: the codes of all layers, projected up and summed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import cast

import torch
from torch import Tensor, nn

from sentsmith.methods.freeze.layer_encoders import LayerEncoders, Stack


class SummedCodes(nn.Module):
    """``Σ_l code_l · up_l``: one vector ``[D]``, of which an autoencoder is to read every layer again.

    The projections have no bias: they would add up to one constant vector, which the decoders have already.

    Args:
        encoders: What makes the codes.
        dimension: D; the width of the frozen model by default.

    Attributes:
        up: ``[sum of all b, D]``, the projections one below the other, stack by stack.

    Raises:
        ValueError: ``dimension`` is below 1.
    """

    def __init__(self, encoders: LayerEncoders, dimension: int | None = None) -> None:
        super().__init__()
        self.encoders = encoders
        self.dimension = encoders.width if dimension is None else dimension
        if self.dimension < 1:
            raise ValueError(f"dimension must be at least 1, not {dimension}")
        rows = []
        for stack in cast("Iterable[Stack]", encoders.stacks):
            bound = stack.bottleneck**-0.5
            rows.append(torch.empty(len(stack.places) * stack.bottleneck, self.dimension).uniform_(-bound, bound))
        self.up = nn.Parameter(torch.cat(rows))

    def forward(self, latents: Tensor) -> Tensor:
        """Map latents ``[B, L, d]`` to vectors ``[B, D]``."""
        codes = [codes.transpose(0, 1).flatten(1) for codes in self.encoders.by_stack(latents)]
        # The sum over layers is one product of the codes side by side with the projections one below the other.
        return torch.cat(codes, dim=1) @ self.up

    def parameter_count(self) -> int:
        """Return how many weights there are."""
        return self.encoders.parameter_count() + self.up.numel()
