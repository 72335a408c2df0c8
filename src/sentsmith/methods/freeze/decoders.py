"""Decoders of what the layer encoders made, and the error of what they give back (FREEZE, METHODS §4)."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from sentsmith.methods.freeze.layer_encoders import LayerEncoders, LayerLinear, Stack, Standardise, in_order
from sentsmith.methods.freeze.summed import SummedCodes


class StackDecoders(nn.Module):
    """The decoders of one stack, its encoders mirrored: ``[Linear(b, b) → GELU]… → Linear(b, d)``.

    Args:
        stack: What they decode.
        width: d.
        depth: Of the encoders.
        generator: Where their numbers are drawn from.
    """

    def __init__(self, stack: Stack, width: int, depth: int, generator: torch.Generator | None = None) -> None:
        super().__init__()
        layers, b = len(stack.places), stack.bottleneck
        self.hidden = nn.ModuleList(LayerLinear(layers, b, b, generator=generator) for _ in range(depth - 1))
        self.last = LayerLinear(layers, b, width, generator=generator)

    def error(self, codes: Tensor, latents: Tensor, mean: Tensor, rms: Tensor) -> Tensor:
        """Return ``decoder(code) − (x − mean)/rms``, ``[layers, B, d]``.

        Args:
            codes: ``[layers, B, b]``.
            latents: x, ``[layers, B, d]``.
            mean: ``[layers, d]``.
            rms: ``[layers]``.
        """
        for linear in self.hidden:
            codes = F.gelu(linear(codes))
        scale = rms[:, None, None]
        # The product is added to all that is known before it: one tensor of this size less, and two passes over one.
        before = torch.addcmul(self.last.bias + mean[:, None] / scale, latents, -1 / scale)
        return torch.baddbmm(before, codes, self.last.weight)


class _MeanSquare(torch.autograd.Function):
    """``[L, …] → [L]``, the mean of the squares, in one pass forward and one back."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        flat = x.flatten(1)
        squares: Tensor = torch.linalg.vector_norm(flat, dim=1).square()
        return squares / flat.shape[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Tensor:
        (x,) = ctx.saved_tensors
        factor = gradient * (2 * len(x) / x.numel())
        # In place: nobody else needs it. A second backward pass would find it changed, and raise.
        result: Tensor = x.mul_(factor.view(-1, *[1] * (x.dim() - 1)))
        return result


class Autoencoders(nn.Module):
    """Encoders and decoders of all layers: ``mean_l + rms_l · decoder(encoder(x_l))`` is to be ``x_l``.

    The scale and the offset are fixed, measured on the training rows. The norms of a residual stream grow with its
    depth, to hundreds of times where they began: AdamW with a rate of 1e-3 would not get a linear layer there.

    A code is decoded by ``[Linear(b, b) → GELU]… → Linear(b, d)``; a summed one by a ``Linear(D, d)`` for each layer.

    Args:
        coder: Layers independent of each other, or summed into one vector.
        mean: float64 ``[L, d]``, of the training rows.
        variance: The same.
        standardise: Comes first; then what it gives is reconstructed. None leaves the latents raw.
        generator: Where the decoders' numbers are drawn from.

    Attributes:
        mean: ``[L, d]``.
        rms: ``[L]``, root of the mean variance of the layer's coordinates; 1 for a layer that is constant.
    """

    mean: Tensor
    rms: Tensor

    def __init__(
        self,
        coder: LayerEncoders | SummedCodes,
        mean: NDArray[np.float64],
        variance: NDArray[np.float64],
        *,
        standardise: Standardise | None = None,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.standardise, self.coder = standardise, coder
        if isinstance(coder, SummedCodes):
            whole = LayerLinear(1, coder.dimension, mean.size, generator=generator)
            self.decoders = nn.ModuleList([whole])
        else:
            depth = coder.depth
            self.decoders = nn.ModuleList(
                StackDecoders(cast("Stack", stack), coder.width, depth, generator) for stack in coder.stacks
            )
        rms = np.sqrt(variance.mean(axis=1))
        self.register_buffer("mean", torch.from_numpy(mean))
        self.register_buffer("rms", torch.from_numpy(np.where(rms > 0, rms, 1.0)))
        self.to(next(coder.parameters()))

    def places(self) -> dict[str, list[int] | None]:
        """Return which layers each parameter's first dimension goes over, by its name; None: it belongs to all."""
        names = [name for name, _ in self.named_parameters()]
        if isinstance(self.coder, SummedCodes):
            return dict.fromkeys(names)
        found: dict[str, list[int] | None] = {}
        for number, stack in enumerate(self.coder.stacks):
            own = (f"coder.stacks.{number}.", f"decoders.{number}.")
            found |= {name: list(cast("Stack", stack).places) for name in names if name.startswith(own)}
        return found

    def forward(self, latents: Tensor, *, noise: float = 0.0, generator: torch.Generator | None = None) -> Tensor:
        """Return each layer's mean squared error over rows and coordinates, divided by ``rms²``, ``[L]``.

        So divided, all layers can be minimised as one sum. To AdamW a constant factor makes no difference.

        Args:
            latents: ``[B, L, d]``.
            noise: Deviation of what is added to what the encoders see, in units of ``rms``.
            generator: Where the noise is drawn from, on the latents' device.
        """
        seen = latents if self.standardise is None else self.standardise(latents)
        scale = self.rms[:, None]
        entering = seen
        if noise:
            drawn = torch.randn(seen.shape, generator=generator, device=seen.device, dtype=seen.dtype)
            entering = seen + noise * scale * drawn
        if isinstance(self.coder, SummedCodes):
            decoded: Tensor = self.decoders[0](self.coder(entering)[None])[0]
            return (decoded.view_as(seen) - (seen - self.mean) / scale).square().mean(dim=(0, 2))
        return self._by_stack(self.coder, seen, entering)

    def _by_stack(self, coder: LayerEncoders, seen: Tensor, entering: Tensor) -> Tensor:
        found = []
        for module, decoders, codes in zip(coder.stacks, self.decoders, coder.by_stack(entering), strict=True):
            stack = cast("Stack", module)
            mean, rms = self.mean[list(stack.places)], self.rms[list(stack.places)]
            error = cast("StackDecoders", decoders).error(codes, stack.take(seen), mean, rms)
            found.append(cast("Tensor", _MeanSquare.apply(error)))  # type: ignore[no-untyped-call]
        return in_order(torch.cat(found), coder)
