"""Attention surgery: from some layer on, a decoder's tokens see what follows them too (BeLLM, Li and Li 2024).

A decoder masks the future in every layer. Here the layers from index ``start`` on get the mask of an encoder: every
real token sees every real token, and nobody sees padding. The masks are built by transformers' own mask builders, for
whatever attention implementation the model runs on, and reach the layers through hooks on its own modules: there is no
copy of any model's code.

Un-masking the last layer alone cannot change what the last token says: its row of the causal mask hides nothing, and
the keys and values it reads come from layers that are as they were. It changes every other token, and so a mean.
"""

from __future__ import annotations

import copy
import logging
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.nn.functional import pad

from sentsmith.encoders.embedding import evaluation_mode
from sentsmith.errors import SentsmithError, SettingsError

if TYPE_CHECKING:
    from torch import nn
    from transformers import PreTrainedModel

logger = logging.getLogger(__name__)

# From the model's call down to its attention, as every decoder hands on what it does not know itself. In the call's
# own arguments a pass that is computed again in the backward pass finds the mask of its batch, not that of a later one.
_CARRIED = "sentsmith_sight"
_INSTALLED = "_sentsmith_both_ways"
_FULL, _SLIDING = "full_attention", "sliding_attention"


def both_ways_layers(layers: int, start: int) -> list[int]:
    """Return the indices (from 0) of the layers that look both ways: those from ``start`` on.

    Args:
        layers: How many the model has.
        start: ``layers`` − 1 is the last layer alone (the paper), 0 all of them; −1, like ``layers``, none.
    """
    return [] if start < 0 else list(range(start, layers))


@dataclass
class _Sight:
    """What one forward pass needs to build the masks of its layers; each is built once."""

    config: Any
    attention_mask: Tensor | None
    masks: dict[str, Any] = field(default_factory=dict)

    def mask(self, hidden_states: Tensor, kind: str) -> Any:
        """Return the mask of a layer of this kind; None where the attention implementation needs none."""
        from transformers.masking_utils import create_bidirectional_mask, create_bidirectional_sliding_window_mask

        if kind not in self.masks:
            config, build = self.config, create_bidirectional_mask
            if kind == _SLIDING:
                # A causal window of w holds the token itself and w − 1 before it. The builder of an encoder's windows
                # counts the tokens on a side, so without this the last token would see one more than it did.
                config, build = copy.copy(config), create_bidirectional_sliding_window_mask
                config.sliding_window -= 1
            self.masks[kind] = build(config, hidden_states, self.attention_mask)
        return self.masks[kind]


@dataclass(frozen=True)
class BothWays:
    """The surgery that a model has undergone, to be undone.

    Attributes:
        start: The first layer that looks both ways.
        pad_leak: Whether these layers see padding.
        handles: Of the hooks.
        attentions: The attention modules that were switched.
    """

    start: int
    pad_leak: bool
    handles: list[Any]
    attentions: list[Any]

    def undo(self) -> None:
        """Make the model causal again."""
        for handle in self.handles:
            handle.remove()
        for attention in self.attentions:
            attention.is_causal = True


def look_both_ways(model: PreTrainedModel, start: int | None, *, pad_leak: bool = False) -> None:
    """Let the layers from ``start`` on see both ways, in place; what an earlier call did is undone first.

    Args:
        model: A decoder of transformers without its head (``AutoModel``): LLaMA, Mistral, Qwen, Gemma, GPT-2, GPT-NeoX
            and their kin. Layers with a sliding window keep it, to both sides. It encodes whole sentences from then
            on; a cache is refused.
        start: See :func:`both_ways_layers`; None is no layer.
        pad_leak: Let these layers see padding, as the authors' code does (it fills their mask with zeros). A sentence's
            vector then depends on the other sentences of its batch.

    Raises:
        SettingsError: There is no layer ``start``, or the model's attention is of a kind that cannot be switched.
    """
    before: BothWays | None = model.__dict__.pop(_INSTALLED, None)
    if before is not None:
        before.undo()
    if start is None:
        return
    attentions = _attentions(model)
    if not -1 <= start <= len(attentions):
        raise SettingsError(
            f"layer {start} cannot be the first that looks both ways: the model has {len(attentions)} layers, so give "
            f"0 (all) to {len(attentions) - 1} (the last), or null for none"
        )
    chosen = both_ways_layers(len(attentions), start)
    kinds = {layer: _kind(model, layer) for layer in chosen}
    handles = [model.register_forward_pre_hook(_Begin(pad_leak), with_kwargs=True)] if chosen else []
    for layer in chosen:
        # Without padding there may be no mask at all, and the flag alone decides; with a mask it is not read.
        attentions[layer].is_causal = False
    for layer, attention in enumerate(attentions if chosen else ()):
        handles.append(attention.register_forward_pre_hook(_Swap(kinds.get(layer)), with_kwargs=True))
    model.__dict__[_INSTALLED] = BothWays(start, pad_leak, handles, [attentions[layer] for layer in chosen])


def _attentions(model: nn.Module) -> list[Any]:
    """Return the self-attention modules, one for each layer, in their order.

    Raises:
        SettingsError: The model has not one for each layer.
    """
    found: list[Any] = [
        module
        for module in model.modules()
        if isinstance(getattr(module, "is_causal", None), bool)
        and isinstance(getattr(module, "layer_idx", None), int)
        and not getattr(module, "is_cross_attention", False)
    ]
    found.sort(key=lambda module: module.layer_idx)
    if any(not module.is_causal for module in found):
        raise SettingsError(f"{type(model).__name__} is no decoder: its tokens see what follows them already")
    depth = getattr(model.config, "num_hidden_layers", None)
    if [module.layer_idx for module in found] != list(range(depth or 0)) or not found:
        raise SettingsError(
            f"{type(model).__name__} cannot look both ways: {len(found)} of its {depth} layers have an attention "
            "module that says whether it is causal, as LLaMA, Mistral, Qwen, Gemma, GPT-2, GPT-NeoX and their kin have"
        )
    return found


def _kind(model: PreTrainedModel, layer: int) -> str:
    kinds = getattr(model.config, "layer_types", None)
    window = getattr(model.config, "sliding_window", None)
    kind: str = kinds[layer] if kinds else (_FULL if window is None else _SLIDING)
    if kind not in (_FULL, _SLIDING):
        raise SettingsError(
            f"layer {layer} of {type(model).__name__} is of the kind {kind!r}, which cannot look both ways; those with "
            f"{_FULL} and {_SLIDING} can"
        )
    return kind


# The hooks are objects and no closures, so that a model goes through pickle to other processes.


@dataclass(frozen=True)
class _Begin:
    """The hook of the model: hands on what its layers build their masks of."""

    pad_leak: bool

    def __call__(
        self, model: PreTrainedModel, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, dict[str, Any]]:
        attention_mask = kwargs.get("attention_mask")
        if kwargs.get("past_key_values") is not None or len(args) > 1:
            raise ValueError(
                "a model that looks both ways encodes whole sentences: call it with named arguments, no past_key_values"
            )
        if attention_mask is not None and attention_mask.dim() != 2:
            raise ValueError(f"attention_mask must be [rows, width], not {list(attention_mask.shape)}")
        sight = _Sight(model.config, None if self.pad_leak else attention_mask)
        return args, kwargs | {"use_cache": False, _CARRIED: sight}


@dataclass(frozen=True)
class _Swap:
    """The hook of an attention module; ``kind`` is None for a layer that stays causal."""

    kind: str | None

    def __call__(self, _: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
        # A copy: where a pass is computed again, the layer hands on the same dictionary a second time.
        kwargs = dict(kwargs)
        sight: _Sight | None = kwargs.pop(_CARRIED, None)
        if sight is None:
            raise SentsmithError(
                "the layers of this model do not hand on what its call is given, so it cannot look both ways; please "
                "report the architecture"
            )
        if self.kind is not None:
            hidden_states = args[0] if args else kwargs["hidden_states"]
            kwargs["attention_mask"] = sight.mask(hidden_states, self.kind)
        return args, kwargs


_PROBE = 6  # tokens; fewer, where a window is narrower


@torch.no_grad()
def check_sight(model: PreTrainedModel) -> None:
    """Try whether the model sees what it is meant to see, in eight passes over one short row.

    The last token is moved: the first must change exactly when some layer looks both ways, be there padding or not
    (without any there may be no mask). What stands under padding is changed, on either side: nothing may change.

    Raises:
        SettingsError: It sees the future by itself: it is no decoder.
        SentsmithError: It does not: this version of transformers does not let the surgery through.
    """
    installed: BothWays | None = model.__dict__.get(_INSTALLED)
    width = min(_PROBE, max(2, getattr(model.config, "sliding_window", None) or _PROBE))
    ids = torch.arange(1, width + 1, device=model.device)[None] % model.config.vocab_size
    looking = installed is not None and bool(installed.attentions)
    with evaluation_mode(model):
        _check_future(model, ids, torch.ones_like(ids), looking=looking)
        for left in (True, False):
            padding = (1, 0) if left else (0, 1)
            padded, mask = pad(ids, padding), pad(torch.ones_like(ids), padding)
            _check_future(model, padded, mask, looking=looking)
            if installed is None or not installed.pad_leak:
                _check_padding(model, padded, mask, side="left" if left else "right")


def _check_future(model: PreTrainedModel, ids: Tensor, mask: Tensor, *, looking: bool) -> None:
    real = mask[0].nonzero()[:, 0]
    moved = ids.clone()
    moved[0, real[-1]] = (ids[0, real[-1]] + 1) % model.config.vocab_size
    # In passes of their own: rows of one pass may be rounded otherwise, and in bfloat16 by much.
    first = [_states(model, row, mask)[real[0]] for row in (ids, moved)]
    if looking and _alike(*first):
        raise SentsmithError(
            f"{type(model).__name__} sees only backwards although layers look both ways; use the version of "
            "transformers that constraints.txt names, and please report the architecture"
        )
    if not looking and not _alike(*first):
        raise SettingsError(
            f"{type(model).__name__} sees the future although no layer was told to: it is no decoder; give one, such "
            "as LLaMA, Mistral, Qwen, Gemma, GPT-2 or GPT-NeoX"
        )


def _check_padding(model: PreTrainedModel, ids: Tensor, mask: Tensor, *, side: str) -> None:
    changed = ids.masked_fill(mask == 0, 2 % model.config.vocab_size)
    real = mask[0].bool()
    if not _alike(*(_states(model, row, mask)[real] for row in (ids, changed))):
        raise SentsmithError(
            f"{type(model).__name__} sees padding on the {side}; use the version of transformers that "
            "constraints.txt names, and please report the architecture"
        )


def _states(model: PreTrainedModel, ids: Tensor, mask: Tensor) -> Tensor:
    states: Tensor = model(input_ids=ids, attention_mask=mask, use_cache=False).last_hidden_state
    return states[0].float()


def _alike(first: Tensor, second: Tensor) -> bool:
    # Sums over other numbers are rounded otherwise, and by no more than this.
    return torch.allclose(first, second, rtol=1e-5, atol=1e-6 * float(first.abs().max()))
