"""Set the dropout of a model's transformer."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

# Decoders keep a number of their own for the attention.
_NAMES = ("hidden_dropout_prob", "attention_probs_dropout_prob", "dropout", "attention_dropout")


def set_dropout(model: SentenceTransformer, rate: float) -> None:
    """Set every dropout of the transformer, hidden states' and attention's, to ``rate`` (in [0, 1)); in place."""
    # The configuration, so that the saved model says so; the modules, since they have read it already.
    transformer: Any = model[0]
    for holder in (transformer.model.config, *model.modules()):
        for name in _NAMES:
            if isinstance(getattr(holder, name, None), float):
                setattr(holder, name, rate)
        if isinstance(holder, torch.nn.Dropout):
            holder.p = rate
