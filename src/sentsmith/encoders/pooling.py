"""How token vectors become one sentence vector: replace the pooling of a model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, get_args

from sentsmith.errors import InputError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.modules import Transformer
    from torch import nn

Pooling = Literal["cls", "mean", "last", "first_last"]
"""``cls``: last layer at the first token. ``mean``: mask-weighted mean. ``last``: the last token that is no padding.
``first_last``: mask-weighted mean of the average of the first block's and the last block's outputs."""

_LIBRARY_NAMES = {"cls": "cls", "mean": "mean", "last": "lasttoken", "first_last": "mean"}


def with_pooling(model: SentenceTransformer, pooling: Pooling) -> SentenceTransformer:
    """Return the model's transformer under another pooling; weights are shared, later modules (a head) dropped.

    A closing ``Normalize`` is kept.

    Raises:
        InputError: An unknown pooling, or the first module is no transformer.
    """
    from sentence_transformers.base.modules import Normalize, Transformer
    from sentence_transformers.sentence_transformer.modules import Pooling as PoolingModule
    from sentence_transformers.sentence_transformer.modules import WeightedLayerPooling

    if pooling not in get_args(Pooling):
        raise InputError(f"pooling {pooling!r} is unknown; use one of {', '.join(get_args(Pooling))}")
    transformer = model[0]
    if not isinstance(transformer, Transformer):
        raise InputError(f"pooling can be chosen for transformers only, not for {type(transformer).__name__}")
    dimension = transformer.get_embedding_dimension()
    modules: list[nn.Module] = [transformer]
    if pooling == "first_last":
        modules.append(_first_and_last(transformer, dimension))
    elif any(isinstance(module, WeightedLayerPooling) for module in model):
        # Of the model given, which this one replaces. A model that shares its weights may go on reading all layers.
        transformer.model.config.output_hidden_states = False
    modules.append(PoolingModule(dimension, pooling_mode=_LIBRARY_NAMES[pooling]))
    if isinstance(model[-1], Normalize):
        modules.append(model[-1])
    return rebuilt(model, modules)


def without_normalize(model: SentenceTransformer) -> SentenceTransformer:
    """Return the model without its closing ``Normalize`` (weights are shared), or the model itself if it has none."""
    from sentence_transformers.base.modules import Normalize

    return rebuilt(model, list(model)[:-1]) if isinstance(model[-1], Normalize) else model


def rebuilt(model: SentenceTransformer, modules: Sequence[nn.Module]) -> SentenceTransformer:
    """Return ``model`` made of other modules (weights are shared), with its prompts and its similarity kept."""
    from sentence_transformers import SentenceTransformer

    return SentenceTransformer(
        modules=list(modules),
        device=str(model.device),
        prompts={name: text or "" for name, text in model.prompts.items()},
        default_prompt_name=model.default_prompt_name,
        similarity_fn_name=model.similarity_fn_name,
        truncate_dim=model.truncate_dim,
    )


def _first_and_last(transformer: Transformer, dimension: int) -> nn.Module:
    import torch
    from sentence_transformers.sentence_transformer.modules import WeightedLayerPooling

    config = transformer.model.config
    config.output_hidden_states = True
    layers = config.num_hidden_layers
    # Entry 0 of the hidden states is the embedding layer: the first block's output is entry 1.
    weights = torch.zeros(layers)
    weights[0] += 1
    weights[-1] += 1
    fixed = torch.nn.Parameter(weights, requires_grad=False)
    return WeightedLayerPooling(dimension, num_hidden_layers=layers, layer_start=1, layer_weights=fixed)
