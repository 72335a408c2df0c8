"""What attention makes of a sentence's first token: E_CLS, and the attention maps to look at.

E_CLS (JTCSE; METHODS §5) compares, in the attention context tensor of a layer, the length of the first token's row
with that of all other rows together: how much of what a layer says stands where the sentence vector is read. The
context is attention × value with the heads joined, before the output projection. It shrinks as sentences get longer,
so two models are only comparable over the same sentences.

Everything here watches a model from outside, by hooks, while it runs as it always does: the model may have several
encoders (two towers), and its attention may be computed by any implementation.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sentsmith.encoders.embedding import as_encoder
from sentsmith.errors import InputError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from transformers import PreTrainedModel

# BERT, RoBERTa, XLM-R, Electra and their kin keep the attention before its output projection in a module of its own.
_SELF_ATTENTION = re.compile(r"(^|\.)attention\.self$")

_See = Callable[[int, int, Mapping[str, Tensor], Any], None]
"""Takes the tower, the layer, the features of the batch, and what the layer's self-attention returned."""


def cls_energy(context: Tensor, mask: Tensor) -> Tensor:
    """Return E_CLS of each sentence: the length of its first token's context over that of all its other tokens.

    ``|CT[0]|₂ / |CT[1:]|_F`` (JTCSE; METHODS §5). Position 0 is the first real token, on whichever side the
    sentence is padded. A sentence without a second token has nothing to compare with: its value is NaN, and so is
    that of a sentence whose other rows are all zero.

    Args:
        context: ``[B, T, d]``, attention × value with the heads joined, before the output projection; any float type.
        mask: ``[B, T]``, 1 (or True) for real tokens, 0 for padding; padding is never read.

    Returns:
        float64 ``[B]``, on the processor.

    Raises:
        InputError: The shapes do not fit each other.
    """
    if context.dim() != 3 or context.shape[:2] != mask.shape:
        raise InputError(
            f"E_CLS needs a context [B, T, d] and a mask [B, T], given {tuple(context.shape)} and {tuple(mask.shape)}"
        )
    real = mask.bool()
    wide = context.to(torch.promote_types(context.dtype, torch.float32))
    # Padding is filled, not multiplied by zero: what stands there need not be finite.
    squared = wide.square().sum(dim=-1).masked_fill(~real, 0.0).cpu().double()
    first = real.long().argmax(dim=1, keepdim=True).cpu()
    others = squared.scatter(1, first, 0.0).sum(dim=1)
    ratio = (squared.gather(1, first).squeeze(1) / others).sqrt()
    return torch.where(others > 0, ratio, torch.nan)


@dataclass(frozen=True)
class TowerEnergy:
    """E_CLS of one encoder.

    Attributes:
        name: Where the encoder stands in the model, for example ``"0.model"``.
        by_layer: For each layer, from the first, the mean over the sentences.
    """

    name: str
    by_layer: tuple[float, ...]

    @property
    def mean(self) -> float:
        """The mean over layers (and sentences)."""
        return float(np.mean(self.by_layer))


@dataclass(frozen=True)
class ClsEnergy:
    """E_CLS of a model.

    Attributes:
        towers: One for each encoder in the model.
        sentences: How many sentences the means are over.
        without: How many sentences had no second token and are left out.
    """

    towers: tuple[TowerEnergy, ...]
    sentences: int
    without: int

    @property
    def mean(self) -> float:
        """The mean over towers of their means."""
        return float(np.mean([tower.mean for tower in self.towers]))

    @property
    def by_layer(self) -> tuple[float, ...]:
        """For each layer, the mean over the towers that have it."""
        depth = max(len(tower.by_layer) for tower in self.towers)
        return tuple(
            float(np.mean([tower.by_layer[layer] for tower in self.towers if layer < len(tower.by_layer)]))
            for layer in range(depth)
        )


@dataclass(frozen=True)
class AttentionMap:
    """The attention weights of one encoder over one sentence.

    Attributes:
        name: Where the encoder stands in the model.
        tokens: ``[T]``, as text, special tokens included.
        weights: float32 ``[layers, heads, T, T]``; row i says how token i spreads its attention, and sums to 1.
    """

    name: str
    tokens: tuple[str, ...]
    weights: NDArray[np.float32]


def find_encoders(model: nn.Module) -> dict[str, PreTrainedModel]:
    """Return the transformers models inside a model, by their place in it; those inside another one don't count."""
    from transformers import PreTrainedModel

    found: dict[str, PreTrainedModel] = {}

    def look(module: nn.Module, place: str) -> None:
        for name, child in module.named_children():
            here = f"{place}.{name}" if place else name
            if not isinstance(child, PreTrainedModel):
                look(child, here)
            elif all(child is not known for known in found.values()):
                found[here] = child

    look(model, "")
    return found


def measure_cls_energy(model: SentenceTransformer, sentences: Sequence[str]) -> ClsEnergy:
    """Return E_CLS of a model over sentences; see :func:`watch_cls_energy`."""
    with watch_cls_energy(model) as meter:
        as_encoder(model).encode(sentences)
    return meter.result()


@contextlib.contextmanager
def watch_cls_energy(model: SentenceTransformer) -> Iterator[EnergyMeter]:
    """Measure E_CLS of every sentence that the model is called with inside the block.

    Raises:
        InputError: An encoder of the model keeps its attention where this cannot see it.
    """
    towers = _towers(model)
    meter = EnergyMeter({name: len(layers) for name, layers in towers.items()})
    with _watching(model, towers, meter.see):
        yield meter


class EnergyMeter:
    """Adds up E_CLS over the batches of a :func:`watch_cls_energy` block.

    Args:
        depths: Name → layers of each encoder.
    """

    def __init__(self, depths: Mapping[str, int]) -> None:
        self._names = list(depths)
        self._sums = [np.zeros(depth) for depth in depths.values()]
        self._counts = [np.zeros(depth, dtype=np.int64) for depth in depths.values()]
        self._without = 0

    def see(self, tower: int, layer: int, features: Mapping[str, Tensor], output: Any) -> None:
        """Add one layer's output for one batch."""
        energy = cls_energy(output[0].detach(), features["attention_mask"])
        counted = energy.isfinite()
        self._sums[tower][layer] += float(energy[counted].sum())
        self._counts[tower][layer] += int(counted.sum())
        if tower == layer == 0:
            self._without += int((~counted).sum())

    def result(self) -> ClsEnergy:
        """Return the means over everything seen.

        Raises:
            InputError: Some layer saw no sentence of two tokens or more.
        """
        if any((counts == 0).any() for counts in self._counts):
            raise InputError("E_CLS needs a sentence of two tokens or more, run by every layer of the model")
        towers = [
            TowerEnergy(name, tuple(map(float, sums / counts)))
            for name, sums, counts in zip(self._names, self._sums, self._counts, strict=True)
        ]
        return ClsEnergy(tuple(towers), sentences=int(self._counts[0][0]), without=self._without)


def attention_maps(model: SentenceTransformer, sentence: str) -> list[AttentionMap]:
    """Return the attention weights of each encoder of a model over one sentence.

    Only plain ("eager") attention gives its weights away: the encoders are switched to it for this call, and back.

    Raises:
        InputError: An encoder keeps its attention where this cannot see it, or does not give its weights away.
    """
    towers = _towers(model)
    weights: list[list[NDArray[np.float32]]] = [[] for _ in towers]
    ids: list[int] = []

    def see(tower: int, layer: int, features: Mapping[str, Tensor], output: Any) -> None:
        if len(output) < 2 or output[1] is None:
            raise InputError(f"layer {layer + 1} of {list(towers)[tower]!r} gives no attention weights away")
        real = features["attention_mask"][0].bool()
        ids[:] = features["input_ids"][0][real].tolist()
        weights[tower].append(output[1][0].detach()[:, real][:, :, real].float().cpu().numpy())

    with _eager(model), _watching(model, towers, see):
        as_encoder(model).encode([sentence])
    if not all(weights):
        raise InputError("the model ran without its encoders; their attention cannot be shown")
    tokens = tuple(_label(model.tokenizer, token) for token in ids)
    return [AttentionMap(name, tokens, np.stack(layers)) for name, layers in zip(towers, weights, strict=True)]


def _label(tokenizer: Any, token: int) -> str:
    # Decoding turns a byte-level token ("Ġplaying") into what a reader knows; one that is white space stays as it is.
    return str(tokenizer.decode([token])).strip() or str(tokenizer.convert_ids_to_tokens(token))


def _towers(model: nn.Module) -> dict[str, list[nn.Module]]:
    """Return the self-attention modules of each encoder, layer by layer."""
    encoders = find_encoders(model)
    if not encoders:
        raise InputError("the model holds no transformers encoder, so there is no attention to read")
    towers = {}
    for name, encoder in encoders.items():
        towers[name] = [module for place, module in encoder.named_modules() if _SELF_ATTENTION.search(place)]
        if not towers[name]:
            raise InputError(
                f"the attention of {type(encoder).__name__} cannot be read; "
                "BERT, RoBERTa, XLM-RoBERTa, Electra and models built like them can"
            )
    return towers


@contextlib.contextmanager
def _watching(model: nn.Module, towers: Mapping[str, Sequence[nn.Module]], see: _See) -> Iterator[None]:
    features: dict[str, Tensor] = {}

    def remember(_module: nn.Module, arguments: tuple[Any, ...]) -> None:
        features.clear()
        features.update(arguments[0])

    def hook(tower: int, layer: int) -> Callable[[nn.Module, Any, Any], None]:
        def seen(module: nn.Module, _arguments: Any, output: Any) -> None:
            # What padding is stands in the features of the whole model: the encoder's own mask has many forms.
            if "attention_mask" not in features:
                raise InputError("the model was run without an attention_mask, so its padding cannot be told")
            if not isinstance(output, tuple) or not isinstance(output[0], Tensor):
                raise InputError(f"{type(module).__name__} does not return its context first; it cannot be read")
            see(tower, layer, features, output)

        return seen

    handles = [model.register_forward_pre_hook(remember)]
    try:
        for tower, layers in enumerate(towers.values()):
            handles += [module.register_forward_hook(hook(tower, layer)) for layer, module in enumerate(layers)]
        yield
    finally:
        for handle in handles:
            handle.remove()


@contextlib.contextmanager
def _eager(model: nn.Module) -> Iterator[None]:
    before = [(encoder, encoder.config._attn_implementation) for encoder in find_encoders(model).values()]  # noqa: SLF001 - the name has no public reader
    try:
        for encoder, _ in before:
            encoder.set_attn_implementation("eager")
        yield
    finally:
        for encoder, implementation in before:
            encoder.set_attn_implementation(implementation)
