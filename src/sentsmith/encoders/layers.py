"""The layers of a transformer: find them in any of the library's models, cut them off, append copies.

Nothing here knows an architecture by name: the layers are the one list of modules that is as long as the config says,
and the final norm, where a model has one, is a module of a known name beside that list.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

from torch import nn

from sentsmith.errors import SettingsError

if TYPE_CHECKING:
    from torch import Tensor

# LLaMA and its kin; GPT-2, GPT-J, Falcon; GPT-NeoX, OPT, T5; Phi; ModernBERT; MPT.
_NORMS = ("norm", "ln_f", "final_layer_norm", "final_layernorm", "final_norm", "norm_f")


@dataclass(frozen=True, eq=False)
class _Stack:
    """Where a transformer keeps its layers."""

    layers: nn.ModuleList
    parent: nn.Module
    config: Any


def transformer_of(model: nn.Module) -> nn.Module:
    """Return the transformers model inside: of a ``SentenceTransformer`` that of its first module, or itself.

    Raises:
        SettingsError: It has no transformer there.
    """
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer

    module = model[0] if isinstance(model, SentenceTransformer) else model
    inner = module.model if isinstance(module, Transformer) else module
    if not isinstance(inner, nn.Module) or not hasattr(inner, "config"):
        raise SettingsError(
            f"the layers of a {type(module).__name__} cannot be told; give a model whose first module is a transformer"
        )
    return inner


def layers_of(model: nn.Module) -> nn.ModuleList:
    """Return the layers of a model's transformer, the first one first.

    Args:
        model: A ``SentenceTransformer``, its first module, or a transformers model.

    Raises:
        SettingsError: There is no list of layers as long as the config says, or more than one.
    """
    return _stack(model).layers


def final_norm_of(model: nn.Module) -> tuple[nn.Module, str] | None:
    """Return the module that holds the norm after the last layer, and the norm's name in it; None if there is none.

    Post-norm encoders such as BERT have none: their layers end in a norm each. Nor has a model whose norm was taken off
    (:func:`keep_layers`).

    Raises:
        SettingsError: As :func:`layers_of`.
    """
    parent = _stack(model).parent
    found = [name for name in _NORMS if isinstance(getattr(parent, name, None), nn.Module)]
    return (parent, found[0]) if found and not isinstance(getattr(parent, found[0]), nn.Identity) else None


def is_decoder(model: nn.Module) -> bool:
    """Whether a model's transformer is of a kind that was made to continue texts, whatever it attends to now.

    Raises:
        SettingsError: The model has no transformer.
    """
    from transformers.models.auto.modeling_auto import (
        MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        MODEL_FOR_MASKED_LM_MAPPING_NAMES,
    )

    config = cast("Any", transformer_of(model)).config
    kinds = {config.model_type, _text_config(config).model_type}
    # BERT and its kin are in both lists: they can be had as decoders, and their config says so.
    continues = any(kind in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES for kind in kinds)
    return continues and (
        not any(kind in MODEL_FOR_MASKED_LM_MAPPING_NAMES for kind in kinds)
        or bool(getattr(config, "is_decoder", False))
    )


def keep_layers(model: nn.Module, count: int, *, final_norm: bool = True) -> None:
    """Cut off all layers but the first ``count``, in place.

    The config says so afterwards, so that the model is saved and loaded as it is now.

    Args:
        model: A ``SentenceTransformer``, its first module, or a transformers model.
        count: From 1 to the number of layers.
        final_norm: Whether the norm after the last layer (trained on the last layer's states) stays. Without it the
            states of the last layer that is kept come out as they are. transformers has no word for that: a model
            that it loads from a folder has a norm again, with fresh weights, until this is called anew.

    Raises:
        SettingsError: The count is out of range, or the layers cannot be found.
    """
    stack = _stack(model)
    depth = len(stack.layers)
    if not 1 <= count <= depth:
        raise SettingsError(f"the first {count} layers of {depth} cannot be kept; give a number from 1 to {depth}")
    norm = final_norm_of(model)
    del stack.layers[count:]
    _tell(stack.config, depth, lambda values: values[:count], count)
    if norm is not None and not final_norm:
        setattr(*norm, nn.Identity())


def append_layers(model: nn.Module, count: int) -> None:
    """Append copies of the last layer, in place; the config says so afterwards (BeLLM's "Addition"; METHODS §2).

    Args:
        model: A ``SentenceTransformer``, its first module, or a transformers model.
        count: How many, 0 or more; each has its own weights.

    Raises:
        SettingsError: The count is negative, or the layers cannot be found.
    """
    if count < 0:
        raise SettingsError(f"{count} layers cannot be appended; give 0 or more")
    stack = _stack(model)
    depth = len(stack.layers)
    for place in range(depth, depth + count):
        layer = copy.deepcopy(stack.layers[depth - 1])
        for module in layer.modules():
            if hasattr(module, "layer_idx"):
                # Its place in a cache of keys and values.
                setattr(module, "layer_idx", place)  # noqa: B010 - to the type checker a module holds modules only
        stack.layers.append(layer)
    _tell(stack.config, depth, lambda values: [*values, *values[-1:] * count], depth + count)


def apply_final_norm(model: nn.Module, states: Tensor) -> Tensor:
    """Return token states as the model's final norm leaves them; as they are where it has none."""
    norm = final_norm_of(model)
    return states if norm is None else cast("Tensor", getattr(*norm)(states))


def _stack(model: nn.Module) -> _Stack:
    transformer = transformer_of(model)
    config = _text_config(cast("Any", transformer).config)
    depth = getattr(config, "num_hidden_layers", None)
    places: list[str] = []
    for place, module in transformer.named_modules():
        inside = any(place.startswith(f"{other}.") for other in places)
        if isinstance(module, nn.ModuleList) and len(module) == depth and not inside:
            places.append(place)
    if len(places) != 1:
        raise SettingsError(
            f"the layers of {type(transformer).__name__} cannot be found: it has {len(places)} lists of {depth} "
            "modules where one is needed, as LLaMA, Mistral, Qwen, Gemma, GPT-2, GPT-NeoX, BERT and their kin have"
        )
    layers = cast("nn.ModuleList", transformer.get_submodule(places[0]))
    return _Stack(layers, transformer.get_submodule(places[0].rpartition(".")[0]), config)


def _text_config(config: Any) -> Any:
    # A model of several senses keeps the config of its language part apart.
    return config.get_text_config() if hasattr(config, "get_text_config") else config


def _tell(config: Any, depth: int, change: Any, count: int) -> None:
    """Write the new number of layers into a config, and cut or extend what it lists layer by layer."""
    lists = {
        name: value
        for name, value in vars(config).items()
        if "layer" in name and isinstance(value, list) and len(value) == depth
    }
    config.num_hidden_layers = count
    for name, value in lists.items():
        setattr(config, name, change(value))
