"""A key-value cache with room to spare: a step writes one column, where transformers' own copies all of them."""

from __future__ import annotations

import inspect
from typing import Any

from torch import Tensor
from transformers import DynamicCache, EncoderDecoderCache
from transformers.cache_utils import DynamicLayer

_SPARE = 32


def growing_cache(model: Any) -> Any:
    """Return transformers' own cache for this model, with :class:`GrowingLayer` wherever a layer keeps everything.

    Layers of another kind (sliding windows, recurrent states) stay as they are.

    Returns:
        To be given as ``past_key_values``; None for models that take no such cache.
    """
    takes = inspect.signature(model.forward).parameters
    if "past_key_values" not in takes or not model._supports_default_dynamic_cache():  # noqa: SLF001 - generate asks it
        return None
    config = model.config.get_text_config(decoder=True)
    cache = DynamicCache(config=config)
    layer_class: Any = GrowingLayer
    cache.layers = [layer_class() if type(layer) is DynamicLayer else layer for layer in cache.layers]
    if model.config.is_encoder_decoder:
        # What the encoder said is written once and does not grow.
        return EncoderDecoderCache(cache, DynamicCache(config=config))
    return cache


class GrowingLayer(DynamicLayer):  # type: ignore[no-untyped-call]
    """A layer of the cache in a larger tensor, half as long again each time that it is full."""

    _room: tuple[Tensor, Tensor] | None = None

    def lazy_initialization(self, key_states: Tensor, value_states: Tensor) -> None:
        """Begin empty."""
        super().lazy_initialization(key_states, value_states)
        self._room = None

    def begin(self, key_states: Tensor, value_states: Tensor, rows: int, columns: int) -> None:
        """Begin with columns of zeros, to be written into; dtype, heads and width are those of the states given."""
        self.lazy_initialization(key_states, value_states)
        alike = (states[:1].expand(rows, -1, -1, -1) for states in (key_states, value_states))
        keys, values = (_roomier(None, states, columns) for states in alike)
        self._room = keys, values
        self.keys, self.values = keys[..., :columns, :].zero_(), values[..., :columns, :].zero_()

    def update(
        self,
        key_states: Tensor,
        value_states: Tensor,
        *args: Any,  # noqa: ARG002 - the signature of transformers
        **kwargs: Any,  # noqa: ARG002
    ) -> tuple[Tensor, Tensor]:
        """Append states, each ``[rows, heads, new, width]``, and return all so far (views)."""
        if not self.is_initialized:
            self.lazy_initialization(key_states, value_states)
        old = self.get_seq_length()
        new = old + key_states.shape[-2]
        keys, values = self._room or (None, None)
        if keys is None or values is None or keys.shape[-2] < new:
            keys, values = _roomier(self.keys, key_states, new), _roomier(self.values, value_states, new)
            self._room = keys, values
        keys[..., old:new, :] = key_states
        values[..., old:new, :] = value_states
        self.keys, self.values = keys[..., :new, :], values[..., :new, :]
        return self.keys, self.values

    def reorder_cache(self, beam_idx: Any) -> None:
        """Keep these rows, int64 ``[kept]``, and the room: the next step need not copy them a second time."""
        if self._room is not None:
            keys, values = self._room
            length, rows = self.get_seq_length(), beam_idx.to(keys.device)
            self._room = keys.index_select(0, rows), values.index_select(0, rows)
            self.keys, self.values = (states[..., :length, :] for states in self._room)


def _roomier(held: Tensor | None, states: Tensor, length: int) -> Tensor:
    """Return an empty tensor for ``length`` columns and half as many more, with ``held`` at its start."""
    room = states.new_empty(*states.shape[:-2], length + max(_SPARE, length // 2), states.shape[-1])
    if held is not None and held.numel():
        room[..., : held.shape[-2], :] = held
    return room
