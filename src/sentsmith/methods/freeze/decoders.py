"""Decoders of what the layer encoders made, and the error of what they give back (FREEZE, METHODS §4)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from sentsmith.methods.freeze.layer_encoders import (
    LAYER_NORM_EPS,
    LayerEncoders,
    LayerLinear,
    Stack,
    Standardise,
    in_order,
)
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

    def errors(self, codes: Tensor, offset: Tensor) -> Tensor:
        """Return the mean square of ``decoder(codes) + offset`` by layer, ``[layers]``.

        Args:
            codes: ``[layers, B, b]``.
            offset: ``[layers, B, d]``, minus what is to be decoded; overwritten.
        """
        for linear in self.hidden:
            codes = F.gelu(linear(codes))
        found: Tensor = _LinearError.apply(codes, self.last.weight, self.last.bias, offset)  # type: ignore[no-untyped-call]
        return found


class _LinearError(torch.autograd.Function):
    """The mean of ``(codes · weight + bias + offset)²`` by layer, computed where the offset lies, forward and back."""

    @staticmethod
    def forward(ctx: Any, codes: Tensor, weight: Tensor, bias: Tensor, offset: Tensor) -> Tensor:
        error = offset.add_(bias).baddbmm_(codes, weight)
        ctx.save_for_backward(codes, weight, error)
        flat = error.flatten(1)
        squares: Tensor = torch.linalg.vector_norm(flat, dim=1).square()
        return squares / flat.shape[1]

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        # Autograd raises where the error is no longer what was saved: after a second forward or backward pass.
        codes, weight, error = ctx.saved_tensors
        by_error = error.mul_((gradient * (2 * len(error) / error.numel()))[:, None, None])
        by_bias = by_error.sum(dim=1, keepdim=True)
        return by_error @ weight.transpose(1, 2), codes.transpose(1, 2) @ by_error, by_bias, None


class Autoencoders(nn.Module):
    """Encoders and decoders of all layers: ``mean_l + rms_l · decoder(encoder(x_l))`` is to be ``x_l``.

    The scale and the offset are fixed, measured on the training rows. The norms of a residual stream grow with its
    depth, to hundreds of times where they began: AdamW with a rate of 1e-3 would not get a linear layer there.

    A code is decoded by ``[Linear(b, b) → GELU]… → Linear(b, d)``; a summed one by a ``Linear(D, d)`` for each layer.

    Of independent layers, what is as large as the latents is computed in memory that is kept from step to step: on a
    processor, fresh memory for it costs as much time as the products do. So a forward pass ends what the one before it
    left for a backward pass; autograd raises if that is asked for.

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
        self._rooms: dict[int, Tensor] = {}

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
        return self._by_stack(self.coder, seen.transpose(0, 1), self._normalised(entering.transpose(0, 1)))

    def _by_stack(self, coder: LayerEncoders, seen: Tensor, normal: Tensor) -> Tensor:
        found = []
        scale = self.rms[:, None, None]
        shift, factor = self.mean[:, None] / scale, -1 / scale
        for number, stack in enumerate(cast("Iterable[Stack]", coder.stacks)):
            x = stack.take(seen)
            # A room for each stack: what is written into one must not look to autograd like a change of another.
            room = self._room(number + 1, x.shape)
            offset = torch.addcmul(stack.take(shift), x, stack.take(factor), out=room)
            decoders = cast("StackDecoders", self.decoders[number])
            found.append(decoders.errors(stack(stack.take(normal)), offset))
        return in_order(torch.cat(found), coder)

    def _normalised(self, latents: Tensor) -> Tensor:
        """Do what ``LayerEncoders.normalised`` does, ``[L, B, d]``, in kept memory."""
        centred = torch.sub(latents, latents.mean(dim=-1, keepdim=True), out=self._room(0, latents.shape))
        variance = torch.linalg.vector_norm(centred, dim=-1, keepdim=True).square() / latents.shape[-1]
        return centred.mul_((variance + LAYER_NORM_EPS).rsqrt())

    def _room(self, number: int, shape: torch.Size) -> Tensor:
        """Return memory that the last step is done with, or, where it is too small, new one."""
        room = self._rooms.get(number)
        if room is None or room.numel() < shape.numel():
            room = self._rooms[number] = self.mean.new_empty(shape.numel())
        return room[: shape.numel()].view(shape)
