"""Averaging the trained weights with the start model's (WiSE-FT, Wortsman et al. 2022).

A strong start model forgets a little while it learns from few rows. The straight line between its weights and the
trained ones usually holds models that keep what the one knew and have what the other learned.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch

from sentsmith.training.weights import put_weights, trained_weights

if TYPE_CHECKING:
    from torch import Tensor, nn


class Blend:
    """The start weights, and the share of the trained ones in the average.

    Args:
        model: At its start weights; they are copied.
        weight: In (0, 1]; 1 is the trained model alone, and nothing is copied.
    """

    def __init__(self, model: nn.Module, weight: float) -> None:
        self.weight = weight
        self.start = {} if weight == 1.0 else _copy(model)

    @torch.no_grad()
    def apply(self, model: nn.Module) -> None:
        """Replace the model's weights by ``(1 − weight) · start + weight · trained``."""
        for name, value in trained_weights(model).items():
            if name in self.start and value.is_floating_point():
                value.lerp_(self.start[name].to(value.device), 1.0 - self.weight)

    @contextlib.contextmanager
    def applied(self, model: nn.Module) -> Iterator[None]:
        """Blend inside the block; the trained weights come back after it, bit for bit."""
        if not self.start:
            yield
            return
        trained = _copy(model)
        self.apply(model)
        try:
            yield
        finally:
            put_weights(model, trained)


def _copy(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in trained_weights(model).items()}
