"""What every layer of a model says of a sentence: token states tapped by hooks, read out as the model itself does.

One pass gives all layers. Layer 0 is what the embedding layer hands to the first layer; layer k what the first k
layers make of it: the states of the model cut off there (:func:`sentsmith.encoders.layers.keep_layers`).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from sentsmith.encoders.embedding import ModelEncoder
from sentsmith.encoders.layers import apply_final_norm, final_norm_of, layers_of, transformer_of
from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError, SettingsError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Sentences at a time: their vectors of all layers are many times the model's own.
_BLOCK = 512


@contextmanager
def recorded(layers: nn.ModuleList) -> Iterator[list[Tensor]]:
    """Yield a list that takes up, while the block runs a model, what enters its first layer and what each one leaves.

    Args:
        layers: Of the model, the first one first.
    """
    states: list[Tensor] = []

    def before(_module: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        states.append(arguments[0] if arguments else named["hidden_states"])

    def after(_module: nn.Module, _arguments: Any, output: Any) -> None:
        states.append(output[0] if isinstance(output, tuple) else output)

    handles = [layers[0].register_forward_pre_hook(before, with_kwargs=True)]
    try:
        handles += [layer.register_forward_hook(after) for layer in layers]
        yield states
    finally:
        for handle in handles:
            handle.remove()


def check_tapped(model: nn.Module, output: Mapping[str, Any], states: Sequence[Tensor]) -> None:
    """Check that the last of the recorded states, normed, are those that the model itself goes on with.

    Args:
        model: A ``SentenceTransformer``, its first module, or a transformers model.
        output: What its first module returned: ``token_embeddings`` and ``attention_mask``.
        states: As :func:`recorded` took them up.

    Raises:
        SettingsError: They are not: what the model does after its last layer is not known here.
    """
    own, real = output["token_embeddings"], output["attention_mask"].bool()
    last = apply_final_norm(model, states[-1]) if len(states) == len(layers_of(model)) + 1 else None
    same = last is not None and last.shape == own.shape
    if last is None or not same or not torch.allclose(last[real], own[real], rtol=1e-3, atol=1e-4, equal_nan=True):
        raise SettingsError(
            f"the layers of {type(transformer_of(model)).__name__} cannot be tapped: what it returns is "
            "not its last layer's states, normed"
        )


class LayerTaps:
    """Reads the states of all layers while a model runs as it always does.

    Args:
        model: Its first module must be a transformer.

    Raises:
        SettingsError: Its layers cannot be found.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        self.model = model
        self.layers = layers_of(model)
        self.has_final_norm = final_norm_of(model) is not None

    def __len__(self) -> int:
        """The layers, the embedding layer among them."""
        return len(self.layers) + 1

    def __call__(self, features: Mapping[str, Tensor]) -> tuple[dict[str, Any], list[Tensor]]:
        """Run the first module on a batch; see :func:`normed` for the final norm.

        Returns:
            What the first module returns, and for each layer, from the embedding layer, its token states
            ``[rows, width, d]``, before any final norm.

        Raises:
            SettingsError: See :func:`check_tapped`.
        """
        with recorded(self.layers) as states:
            output: dict[str, Any] = self.model[0](dict(features))
        check_tapped(self.model, output, states)
        return output, states

    def normed(self, states: Tensor) -> Tensor:
        """Return the states of any layer as the model's final norm leaves them; as they are where it has none."""
        return apply_final_norm(self.model, states)

    def read_out(self, output: Mapping[str, Any], states: Tensor) -> Tensor:
        """Return the sentence vectors ``[rows, d]`` that the model's later modules make of token states.

        Args:
            output: What the first module returned.
            states: ``[rows, width, d]``, in place of its token states.
        """
        features = {**output, "token_embeddings": states}
        for module in list(self.model)[1:]:
            features = module(features)
        return cast("Tensor", features["sentence_embedding"])[:, : self.model.truncate_dim]


class AllLayers(nn.Module):
    """A model that returns the sentence vectors of all its layers, one after the other.

    Args:
        taps: Of the model.
        norms: Whether the final norm is applied to the states of each layer; with both, both in this order.

    Raises:
        SettingsError: The model mixes its layers itself.
    """

    def __init__(self, taps: LayerTaps, norms: Sequence[bool] = (True,)) -> None:
        from sentence_transformers.sentence_transformer.modules import WeightedLayerPooling

        super().__init__()
        if any(isinstance(module, WeightedLayerPooling) for module in taps.model):
            raise SettingsError("this model's pooling mixes several layers, so its layers have no readout of their own")
        self._taps = taps
        self.norms = tuple(norms)

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return ``sentence_embedding`` ``[rows, norms × (layers + 1) × d]``."""
        output, states = self._taps(features)
        vectors = [
            self._taps.read_out(output, self._taps.normed(state) if norm else state)
            for norm in self.norms
            for state in states
        ]
        return {"sentence_embedding": torch.cat(vectors, dim=1)}


def encode_layers(
    encoder: ModelEncoder, sentences: Sequence[str], *, norms: Sequence[bool] = (True,)
) -> NDArray[np.float32]:
    """Encode sentences by every layer of a model, in one pass, with the readout of the model's own later modules.

    Args:
        encoder: The model; its chunking, precision and prompt hold here too.
        sentences: What it encodes.
        norms: Whether the model's final norm is applied to each layer's states; ``(True, False)`` gives both.

    Returns:
        float32 ``[len(norms), layers + 1, len(sentences), d]``, the embedding layer first.

    Raises:
        SettingsError: The layers cannot be found, or what follows the last one is not known.
    """
    taps = LayerTaps(encoder.model)
    vectors = encoder.encode_by(AllLayers(taps, norms), sentences, block=_BLOCK)
    return vectors.reshape(len(sentences), len(norms), len(taps), -1).transpose(1, 2, 0, 3)


def model_inside(encoder: Encoder) -> ModelEncoder:
    """Return an encoder as one whose layers can be looked at.

    Raises:
        InputError: It holds no SentenceTransformer.
    """
    if not isinstance(encoder, ModelEncoder):
        raise InputError("this encoder has no SentenceTransformer inside to look into")
    return encoder
