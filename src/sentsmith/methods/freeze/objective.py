"""The similarity and the losses of FREEZE (METHODS §4): cosines by layer, a head over them, log-variance.

Pure functions first; :class:`FreezeLoss` makes the codes and delegates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from sentsmith.encoders.chunked import Chunking, forward, join
from sentsmith.methods.simcse.objective import at_least_float32

LossName = Literal["log_variance", "mse"]

_FLOOR = 1e-8


def layer_cosines(first: Tensor, second: Tensor) -> Tensor:
    """Return ``c_l = cos(first_l, second_l)`` for each pair and layer, ``[…, L]``, at least float32.

    Args:
        first: ``[…, L, b]``, the codes of the first sentences.
        second: The same of the second ones.

    Raises:
        ValueError: The shapes differ.
    """
    if first.shape != second.shape:
        raise ValueError(f"both sides must have one shape, not {list(first.shape)} and {list(second.shape)}")
    return nn.functional.cosine_similarity(at_least_float32(first), at_least_float32(second), dim=-1)


def weighted_similarity(cosines: Tensor, weights: Tensor, bias: Tensor) -> Tensor:
    """Return ``ŷ = sigmoid(Σ_l w_l·c_l + b)``, ``[…]`` in (0, 1): the head of one linear layer (METHODS §4).

    Args:
        cosines: ``[…, L]``.
        weights: ``[L]``.
        bias: A scalar.
    """
    return torch.sigmoid(cosines @ weights + bias)


def log_variance(predicted: Tensor, gold: Tensor) -> Tensor:
    """Return ``log(Var(ŷ − y) + 1e-8)`` over the batch, the variance of a population (METHODS §4, §11).

    What is added to all predictions does not change it: it asks for the same differences, wherever they lie.

    Args:
        predicted: ``[B]``, B at least 2.
        gold: ``[B]``.

    Returns:
        A scalar, at least float32.

    Raises:
        ValueError: The shapes differ, or there are fewer than two.
    """
    _check(predicted, gold)
    if len(predicted) < 2:
        raise ValueError(f"the variance of {len(predicted)} difference(s) is 0; a batch of at least 2 is needed")
    difference = at_least_float32(predicted) - at_least_float32(gold)
    return torch.log(difference.var(correction=0) + _FLOOR)


def squared_error(predicted: Tensor, gold: Tensor) -> Tensor:
    """Return the mean of ``(ŷ − y)²``, the loss of the earlier steps of the ladder; a scalar, at least float32.

    Raises:
        ValueError: The shapes differ.
    """
    _check(predicted, gold)
    return (at_least_float32(predicted) - at_least_float32(gold)).square().mean()


def _check(predicted: Tensor, gold: Tensor) -> None:
    if predicted.dim() != 1 or predicted.shape != gold.shape:
        raise ValueError(f"one prediction per gold score, [B] each, not {list(predicted.shape)} and {list(gold.shape)}")


_LOSSES = {"log_variance": log_variance, "mse": squared_error}


class FreezeLoss(nn.Module):
    """The loss of FREEZE as one that sentence-transformers' trainer accepts: two columns, and scores in [0, 1].

    The columns are tokenised sentences, or what the frozen model has said of them before (``sentence_embedding``, out
    of a store): then only the modules behind it run.

    Args:
        model: A :class:`~sentsmith.encoders.layered.LayeredTransformer` and
            :class:`~sentsmith.methods.freeze.codes.LayerCodes`.
        name: See :data:`LossName`.
        chunking: How a batch is cut for the forward pass of the frozen model.

    Raises:
        ValueError: An unknown loss.
    """

    def __init__(
        self, model: nn.Sequential, name: LossName = "log_variance", *, chunking: Chunking | None = None
    ) -> None:
        super().__init__()
        if name not in _LOSSES:
            raise ValueError(f"loss {name!r} is unknown; use one of {', '.join(_LOSSES)}")
        self.model = model
        self.name = name
        self.chunking = chunking or Chunking()

    def forward(self, sentence_features: Iterable[Mapping[str, Tensor]], labels: Tensor) -> Tensor:
        """Return the scalar loss of one batch.

        Args:
            sentence_features: Two entries, the first and the second sentences.
            labels: ``[B]``, the gold scores.
        """
        columns = list(sentence_features)
        codes: Any = self.model[1]
        if "input_ids" in columns[0]:
            states = forward(self.model[0], join(columns), self.chunking)
        else:
            states = torch.cat([column["sentence_embedding"] for column in columns])
        first, second = codes.encode(states).chunk(2)
        return _LOSSES[self.name](codes.similarity(layer_cosines(first, second)), labels)

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the loss."""
        return {"loss": self.name}
