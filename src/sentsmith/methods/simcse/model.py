"""The model that a contrastive loss trains: the start model's transformer, its pooling, its dropout, and a head."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from sentsmith.encoders.pooling import Pooling
from sentsmith.errors import InputError
from sentsmith.settings import Settings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer


class ModelSettings(Settings):
    """What SimCSE changes in the start model, and the methods that stand on its loss."""

    head: Literal["none", "training", "kept"] = Field(
        default="none", description="The MLP head: none, in training only, or kept in the model"
    )
    pooling: Pooling | None = Field(default=None, description="Replaces the model's pooling; null keeps its own")
    dropout: float | None = Field(
        default=None, ge=0.0, lt=1.0, description="Of the transformer's layers; null keeps the model's own"
    )


def prepare(model: SentenceTransformer, settings: ModelSettings) -> SentenceTransformer:
    """Return the model to train: with the pooling, the dropout and the head that the settings ask for."""
    from sentence_transformers.base.modules import Dense

    from sentsmith.encoders.dropout import set_dropout
    from sentsmith.encoders.pooling import rebuilt, with_pooling

    if settings.pooling is not None:
        model = with_pooling(model, settings.pooling)
    if settings.dropout is not None:
        set_dropout(model, settings.dropout)
    if settings.head == "none":
        return model
    dimension = model.get_embedding_dimension()
    if dimension is None:
        raise InputError("a head needs a model that says how long its vectors are; use simcse.head: none")
    # Dense is tanh(W·h + b) unless told otherwise.
    modules = list(model)
    modules.insert(_head_place(model), Dense(dimension, dimension))
    return rebuilt(model, modules)


def _head_place(model: SentenceTransformer) -> int:
    # A closing normalisation stays the last: the head reads the vector as it was pooled.
    from sentence_transformers.base.modules import Normalize

    return len(model) - isinstance(model[-1], Normalize)


def readout(model: SentenceTransformer, settings: ModelSettings) -> SentenceTransformer:
    """Return the model as it will be used: without a head that was for training only; weights are shared."""
    from sentsmith.encoders.pooling import rebuilt

    if settings.head != "training":
        return model
    modules = list(model)
    del modules[_head_place(model) - 1]
    return rebuilt(model, modules)
