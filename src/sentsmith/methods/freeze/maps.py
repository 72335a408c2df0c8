"""Encoders that keep a model's own cosines: one linear map per layer, at first onto its leading directions."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sentsmith.errors import SettingsError
from sentsmith.methods.freeze.layer_encoders import Standardise, row_blocks


class LayerMaps(nn.Module):
    """L linear maps ``[d] → [b]``, computed side by side, zero beyond a layer's own b.

    An autoencoder's code keeps what rebuilds a vector, not how vectors lie to each other: of a model whose cosines are
    good already it throws much away. These maps begin as projections onto the directions in which a layer's vectors
    are longest (:meth:`measure`), as the best linear autoencoder does: their cosines are the model's own, nearly.

    Args:
        layers: L.
        width: d.
        bottlenecks: b of each layer, at most d.

    Attributes:
        kept: bool ``[L, widest b]``: which columns of the codes are real.

    Raises:
        SettingsError: Not one b per layer, or one above d.
    """

    kept: Tensor

    def __init__(self, layers: int, width: int, bottlenecks: Sequence[int]) -> None:
        super().__init__()
        if len(bottlenecks) != layers or max(bottlenecks) > width:
            raise SettingsError(
                f"{layers} layers need as many bottlenecks, of at most {width}, not {list(bottlenecks)}"
            )
        self.layers, self.width, self.bottlenecks = layers, width, tuple(bottlenecks)
        # Zero beyond a layer's own b, where it stays: a cosine's gradient at two zeros is zero.
        self.weight = nn.Parameter(torch.zeros(layers, width, max(bottlenecks)))
        self.bias = nn.Parameter(torch.zeros(layers, 1, max(bottlenecks)))
        with torch.no_grad():
            for layer, b in enumerate(self.bottlenecks):
                self.weight[layer, :, :b].uniform_(-(width**-0.5), width**-0.5)
        columns = torch.arange(max(bottlenecks))
        self.register_buffer("kept", columns < torch.tensor(self.bottlenecks)[:, None], persistent=False)

    def forward(self, latents: Tensor) -> Tensor:
        """Map ``[B, L, d]`` to ``[B, L, widest b]``."""
        return torch.baddbmm(self.bias, latents.to(self.weight.dtype).transpose(0, 1), self.weight).transpose(0, 1)

    @torch.no_grad()
    def measure(self, vectors: NDArray[Any], standardise: Standardise | None = None) -> None:
        """Set the maps to the leading eigenvectors of each layer's second moments, not centred, as cosines are not.

        Args:
            vectors: ``[n, L·d]``, float16 or float32, read in blocks; may be larger than memory.
            standardise: Comes before the maps.
        """
        device = self.weight.device
        moments = torch.zeros(self.layers, self.width, self.width, dtype=torch.float64, device=device)
        for block in row_blocks(vectors):
            rows = torch.from_numpy(block).to(device).reshape(-1, self.layers, self.width)
            rows = (rows if standardise is None else standardise(rows)).transpose(0, 1)
            moments += rows.mT @ rows
        # Ascending; the sign of a direction is nothing to a cosine.
        _, directions = torch.linalg.eigh(moments)
        self.weight.zero_()
        for layer, b in enumerate(self.bottlenecks):
            self.weight[layer, :, :b] = directions[layer, :, -b:].flip(1).to(self.weight)
