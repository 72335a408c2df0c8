"""Attention that crosses between two towers: one tower's attention weights over the other tower's values.

In a crossed layer tower I computes ``softmax(Q_I K_Iᵀ / √d_head) V_II`` and II the mirror image (JTCSE, Eqs. 7 to 9);
it has no weights of its own. The main streams never see it: it is a side branch, for training only. What a layer reads
is recorded by hooks on the library's own modules, and the attention is computed by the library's own attention
functions, so the same code serves every implementation (sdpa, eager, …) and every model with layers built as BERT's.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from torch import Tensor

from sentsmith.errors import SettingsError
from sentsmith.methods.jtcse.settings import Mode

if TYPE_CHECKING:
    from torch import nn


@dataclass(frozen=True)
class CrossPlan:
    """Where the towers cross.

    Attributes:
        layers: Indices of the crossed layers, ascending, counted from 0; the last layer is always one of them.
        mode: ``last``: each crossed layer reads the main streams, so only the last one's output counts. ``carry``: a
            stream of its own begins at the first crossed layer, passes each tower's later layers and crosses again.

    Raises:
        ValueError: There are no layers.
    """

    layers: tuple[int, ...]
    mode: Mode = "last"

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a plan without layers crosses nowhere; no plan at all (None) says so")


def crossed_layers(depth: int, count: int | None) -> tuple[int, ...]:
    """Return the indices (from 0) of ``count`` evenly spaced layers, the last layer among them.

    Args:
        depth: Layers of a tower.
        count: How many; it must divide the depth. None is every second layer (half the depth; of an odd depth the
            largest divisor below half). 0 is no layer at all.

    Raises:
        SettingsError: ``count`` does not divide ``depth``.
    """
    legal = [number for number in range(1, depth + 1) if depth % number == 0]
    if count is None:
        count = max((number for number in legal if number <= depth / 2), default=1)
    if count == 0:
        return ()
    if count not in legal:
        raise SettingsError(
            f"jtcse.cross_layers {count} does not divide the {depth} layers of the towers; "
            f"use one of {', '.join(map(str, [0, *legal]))}"
        )
    step = depth // count
    return tuple(range(step - 1, depth, step))


def layers_of(model: nn.Module) -> list[Any]:
    """Return the layers of an encoder in which attention can cross.

    Raises:
        SettingsError: The layers are not built as BERT's are.
    """
    layers = list(getattr(getattr(model, "encoder", None), "layer", ()))
    if not layers or not all(_is_known(layer) for layer in layers):
        raise SettingsError(
            f"attention cannot cross between towers of {type(model).__name__}: its layers are not built as those of "
            "BERT or RoBERTa are; use jtcse.cross_layers 0 (TNCSE)"
        )
    return layers


# What a layer is made of, and nothing else: one that normalises before it attends (RoBERTa-PreLayerNorm), rotates its
# queries (ESM) or has adapters (X-MOD) is built of more, and would cross wrongly without a word.
_PARTS = {
    "": {"attention", "intermediate", "output"},
    "attention": {"self", "output"},
    "attention.self": {"query", "key", "value", "dropout"},
    "attention.output": {"dense", "LayerNorm", "dropout"},
    "output": {"dense", "LayerNorm", "dropout"},
}


def _is_known(layer: nn.Module) -> bool:
    modules = dict(layer.named_modules())
    return (
        all(name in modules and {part for part, _ in modules[name].named_children()} == _PARTS[name] for name in _PARTS)
        and all(hasattr(modules["attention.self"], name) for name in ("attention_head_size", "scaling"))
        and hasattr(layer, "feed_forward_chunk")
    )


class Recorder:
    """What one tower's layer reads in a forward pass.

    Attributes:
        layer: The layer.
        hidden: Its hidden states, ``[rows, tokens, width]``.
        mask: The mask as the library made it; None where nothing is masked.
        projected: ``query``, ``key`` and ``value`` of these, ``[rows, tokens, width]`` each.
    """

    def __init__(self, layer: Any) -> None:
        self.layer = layer
        self.hidden: Tensor
        self.mask: Tensor | None
        self.projected: dict[str, Tensor] = {}

    @contextmanager
    def recording(self) -> Iterator[None]:
        """Record the forward pass inside the block."""
        attention = self.layer.attention.self
        with ExitStack() as stack:
            stack.callback(attention.register_forward_pre_hook(self._read, with_kwargs=True).remove)
            for name in ("query", "key", "value"):
                stack.callback(getattr(attention, name).register_forward_hook(self._keep(name)).remove)
            yield

    def _read(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:  # noqa: ARG002 - the library's signature
        given = dict(zip(("hidden_states", "attention_mask"), args, strict=False)) | kwargs
        self.hidden, self.mask = given["hidden_states"], given.get("attention_mask")

    def _keep(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Tensor) -> None:  # noqa: ARG001 - the library's signature
            self.projected[name] = output

        return keep


def context(attention: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
    """Return ``softmax(query keyᵀ / √d_head) value``, heads concatenated, ``[rows, tokens, width]``.

    Args:
        attention: The self-attention module whose implementation, scaling and dropout are used.
        query: ``[rows, tokens, width]`` before it is cut into heads; ``key`` and ``value`` likewise.
        key: Of the same tower as the query.
        value: Of the other tower.
        mask: As the library made it for this layer; padding is left out by it.
    """
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    # Each model file has its own eager function; the library looks it up in the same way.
    eager = sys.modules[type(attention).__module__].eager_attention_forward
    compute = ALL_ATTENTION_FUNCTIONS.get_interface(attention.config._attn_implementation, eager)  # noqa: SLF001
    shape = (*query.shape[:-1], -1, attention.attention_head_size)
    heads = [part.view(shape).transpose(1, 2) for part in (query, key, value)]
    dropout = attention.dropout.p if attention.training else 0.0
    output, _ = compute(attention, *heads, mask, dropout=dropout, scaling=attention.scaling)
    return output.reshape(query.shape)  # type: ignore[no-any-return]


def cross_streams(plan: CrossPlan, towers: Sequence[Sequence[Any]], first: Sequence[Recorder]) -> list[Tensor]:
    """Return the cross stream of each tower after its last layer, ``[rows, tokens, width]``.

    Args:
        plan: Where they cross.
        towers: Each tower's layers.
        first: What both towers' first layer to be computed (:func:`first_crossed`) read in the main streams.
    """
    begin = first_crossed(plan)
    masks = [recorder.mask for recorder in first]
    streams = _cross(
        [tower[begin] for tower in towers],
        [recorder.hidden for recorder in first],
        [recorder.projected for recorder in first],
        masks,
    )
    for index in range(begin + 1, len(towers[0])):
        layers = [tower[index] for tower in towers]
        if index in plan.layers:
            projected = [_project(layer, hidden) for layer, hidden in zip(layers, streams, strict=True)]
            streams = _cross(layers, streams, projected, masks)
        else:
            streams = [layer(hidden, mask) for layer, hidden, mask in zip(layers, streams, masks, strict=True)]
    return streams


def first_crossed(plan: CrossPlan) -> int:
    """Return the layer at which the cross streams begin: of ``last``, only the last crossed layer matters."""
    return plan.layers[0] if plan.mode == "carry" else plan.layers[-1]


def _project(layer: Any, hidden: Tensor) -> dict[str, Tensor]:
    attention = layer.attention.self
    return {name: getattr(attention, name)(hidden) for name in ("query", "key", "value")}


def _cross(
    layers: Sequence[Any],
    hidden: Sequence[Tensor],
    projected: Sequence[dict[str, Tensor]],
    masks: Sequence[Tensor | None],
) -> list[Tensor]:
    streams = []
    for own, other in ((0, 1), (1, 0)):
        layer, mine = layers[own], projected[own]
        crossed = context(layer.attention.self, mine["query"], mine["key"], projected[other]["value"], masks[own])
        # The rest of the layer is the tower's own: dense and normalisation with its residual, then the feed-forward.
        streams.append(layer.feed_forward_chunk(layer.attention.output(crossed, hidden[own])))
    return streams
