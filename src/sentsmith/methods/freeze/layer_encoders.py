"""One small encoder per layer of a frozen model, all of them computed side by side.

The layers of one bottleneck are one stack: their weights are one tensor, and every product goes over all of them in one
``torch.baddbmm``. Usually there are one or two stacks. Padding all layers to the widest bottleneck would be one stack
always, but a third of the products of FREEZE's own sizes, and of the saved weights, would be zeros.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, cast

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812
from numpy.typing import NDArray
from torch import Tensor, nn

from sentsmith.errors import InputError

# Values (not bytes) of the vectors that are looked at together; in float64 they take eight times as many bytes.
_BLOCK = 1 << 23
# A coordinate whose variance is below this share of its mean square is a constant but for rounding.
_CONSTANT = 1e-12


LAYER_NORM_EPS = 1e-5  # torch.nn.LayerNorm's


class LayerLinear(nn.Module):
    """L linear layers of one shape side by side: ``y[l] = x[l] · weight[l] + bias[l]``.

    Initialised as ``torch.nn.Linear`` is: uniform within ± 1/√inputs.

    Args:
        layers: L.
        inputs: Of each.
        outputs: Of each.
        generator: Where the numbers are drawn from; torch's global one by default.

    Attributes:
        weight: ``[L, inputs, outputs]``.
        bias: ``[L, 1, outputs]``.
    """

    def __init__(self, layers: int, inputs: int, outputs: int, *, generator: torch.Generator | None = None) -> None:
        super().__init__()
        bound = inputs**-0.5
        self.weight = nn.Parameter(torch.empty(layers, inputs, outputs).uniform_(-bound, bound, generator=generator))
        self.bias = nn.Parameter(torch.empty(layers, 1, outputs).uniform_(-bound, bound, generator=generator))

    def forward(self, x: Tensor) -> Tensor:
        """Map ``[L, B, inputs]`` to ``[L, B, outputs]``."""
        return torch.baddbmm(self.bias, x, self.weight)


class Stack(nn.Module):
    """The encoders of the layers that have one bottleneck, behind the normalisation.

    Args:
        places: Which layers, counted from 0.
        width: d.
        bottleneck: b.
        depth: How many of the linear layers are followed by a GELU.
    """

    def __init__(self, places: Sequence[int], width: int, bottleneck: int, depth: int) -> None:
        super().__init__()
        self.places, self.bottleneck = tuple(places), bottleneck
        layers = len(self.places)
        self.norm_weight = nn.Parameter(torch.ones(layers, width))
        self.norm_bias = nn.Parameter(torch.zeros(layers, width))
        sizes = [width] + [bottleneck] * depth
        self.linears = nn.ModuleList(LayerLinear(layers, inputs, bottleneck) for inputs in sizes)

    def take(self, states: Tensor) -> Tensor:
        """Return what is these layers' of ``[L, …]``; a view where they follow each other."""
        first, last = self.places[0], self.places[-1]
        follow = last - first + 1 == len(self.places)
        return states[first : last + 1] if follow else states[list(self.places)]

    def forward(self, normal: Tensor) -> Tensor:
        """Encode these layers' normalised latents ``[layers, B, d]`` into codes ``[layers, B, b]``."""
        first, *rest = cast("Iterable[LayerLinear]", self.linears)
        # LayerNorm's own weight and bias as part of the matrix: the same numbers, and as nothing that depends on a
        # weight comes before the first product, its backward pass is one product instead of two.
        weight = self.norm_weight[:, :, None] * first.weight
        bias = torch.baddbmm(first.bias, self.norm_bias[:, None], first.weight)
        codes = torch.baddbmm(bias, normal, weight)
        for linear in rest:
            codes = linear(F.gelu(codes))
        return codes


class LayerEncoders(nn.Module):
    """L independent encoders: ``LayerNorm(d) → Linear(d, b) → GELU → [Linear(b, b) → GELU]… → Linear(b, b)``.

    The encoder of FREEZE's autoencoders (METHODS §4: the paper gives the bottlenecks and no more). Its numbers are
    drawn from torch's global generator.

    Args:
        layers: L.
        width: d, what a layer of the frozen model has.
        bottlenecks: b of each layer.
        depth: How many of the linear layers are followed by a GELU.

    Attributes:
        stacks: One per different bottleneck.
        kept: bool ``[L, widest b]``: which columns of the codes are real.

    Raises:
        ValueError: A number is below 1, or there is not one bottleneck per layer.
    """

    kept: Tensor

    def __init__(self, layers: int, width: int, bottlenecks: Sequence[int], *, depth: int = 1) -> None:
        super().__init__()
        if len(bottlenecks) != layers or min(layers, width, depth, *bottlenecks, layers) < 1:
            raise ValueError(
                f"{layers} layers of {width} at depth {depth} need as many bottlenecks, and nothing below 1, not "
                f"{list(bottlenecks)}"
            )
        self.layers, self.width, self.depth = layers, width, depth
        self.bottlenecks = tuple(bottlenecks)
        self.stacks = nn.ModuleList(
            Stack([layer for layer in range(layers) if bottlenecks[layer] == b], width, b, depth)
            for b in dict.fromkeys(bottlenecks)
        )
        columns = torch.arange(max(bottlenecks))
        self.register_buffer("kept", columns < torch.tensor(self.bottlenecks)[:, None], persistent=False)

    def normalised(self, latents: Tensor) -> Tensor:
        """Return latents ``[…, d]`` with mean 0 and deviation 1, computed in float32 at least, in the weights' type."""
        wide = latents.to(torch.promote_types(latents.dtype, torch.float32))
        return F.layer_norm(wide, (self.width,), eps=LAYER_NORM_EPS).to(self._stack(0).norm_weight.dtype)

    def by_stack(self, latents: Tensor) -> list[Tensor]:
        """Encode latents ``[B, L, d]`` into the codes of each stack, ``[layers there, B, b]``."""
        normal = self.normalised(latents).transpose(0, 1)
        return [stack(stack.take(normal)) for stack in cast("Iterable[Stack]", self.stacks)]

    def forward(self, latents: Tensor) -> Tensor:
        """Encode latents ``[B, L, d]`` into codes ``[B, L, widest b]``, 0 beyond a layer's own bottleneck."""
        widest = max(self.bottlenecks)
        padded = [F.pad(codes, (0, widest - codes.shape[-1])) for codes in self.by_stack(latents)]
        return in_order(torch.cat(padded), self).transpose(0, 1)

    def parameter_count(self) -> int:
        """Return how many weights there are."""
        return sum(parameter.numel() for parameter in self.parameters())

    def _stack(self, number: int) -> Stack:
        return cast("Stack", self.stacks[number])


def in_order(values: Tensor, encoders: LayerEncoders) -> Tensor:
    """Put what the stacks gave, one behind the other along the first dimension, into the order of the layers."""
    places = [place for stack in encoders.stacks for place in cast("Stack", stack).places]
    if places == sorted(places):
        return values
    return values[torch.tensor(places, device=values.device).argsort()]


class Standardise(nn.Module):
    """Each coordinate of each layer brought to mean 0 and deviation 1; changes nothing before :meth:`measure`.

    An experiment that failed for the authors of FREEZE.

    Args:
        layers: L.
        width: d.

    Attributes:
        mean: float32 ``[L, d]``.
        deviation: float32 ``[L, d]``; 1 for a coordinate that is constant.
    """

    mean: Tensor
    deviation: Tensor

    def __init__(self, layers: int, width: int) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(layers, width))
        self.register_buffer("deviation", torch.ones(layers, width))

    def forward(self, latents: Tensor) -> Tensor:
        """Map ``[B, L, d]`` to the same shape, in float32 where the latents are in half precision."""
        return (latents - self.mean) / self.deviation

    def measure(self, vectors: NDArray[Any]) -> None:
        """Take the means and deviations of vectors ``[n, L·d]``, in blocks; raises as :func:`layer_moments` does."""
        mean, variance = layer_moments(vectors, len(self.mean))
        constant = variance <= _CONSTANT * mean**2
        self.mean.copy_(torch.from_numpy(mean))
        self.deviation.copy_(torch.from_numpy(np.where(constant, 1.0, np.sqrt(variance))))


def row_blocks(vectors: NDArray[Any], rows: NDArray[np.int64] | None = None) -> Iterator[NDArray[np.float64]]:
    """Yield the rows (of all, or those given, sorted) of a file that may be larger than memory, some at a time."""
    step = max(1, _BLOCK // vectors.shape[1])
    for start in range(0, len(vectors) if rows is None else len(rows), step):
        taken = slice(start, start + step)
        yield vectors[taken if rows is None else rows[taken]].astype(np.float64)


def layer_moments(
    vectors: NDArray[Any], layers: int, rows: NDArray[np.int64] | None = None
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return the mean and the variance of each coordinate of each layer, float64 ``[L, d]`` both.

    The file is read in blocks and may be larger than memory.

    Args:
        vectors: ``[n, L·d]``, float16 or float32, usually a memory map.
        layers: L.
        rows: Sorted; all by default.

    Raises:
        InputError: There are no rows, or a value is not finite.
    """
    count, values = (len(vectors) if rows is None else len(rows)), vectors.shape[1]
    if count == 0:
        raise InputError("there are no vectors to measure; give at least one sentence")
    total, squares = np.zeros(values), np.zeros(values)
    # About the first row: the sum of squares of a coordinate that is large and hardly varies would lose its digits.
    origin = vectors[0 if rows is None else rows[0]].astype(np.float64)
    with np.errstate(invalid="ignore"):  # what is not finite is found below
        for block in row_blocks(vectors, rows):
            away = block - origin
            total += away.sum(axis=0)
            squares += np.square(away).sum(axis=0)
        mean = total / count
        variance = np.maximum(squares / count - mean**2, 0.0)
    mean, variance = (mean + origin).reshape(layers, -1), variance.reshape(layers, -1)
    broken = np.flatnonzero(~np.isfinite(variance).all(axis=1))
    if len(broken):
        raise InputError(
            f"the vectors of layer {broken[0] + 1} are not all finite; store them as float32, not float16, or take "
            "another model"
        )
    return mean, variance
