"""A FREEZE model as an encoder that keeps what its frozen part says: of many models on one, it is asked once."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from sentsmith.encoders.embedding import evaluation_mode
from sentsmith.encoders.layered import LayeredTransformer
from sentsmith.encoders.protocol import Vectors
from sentsmith.files import sha256
from sentsmith.methods.freeze.store import frozen_teacher, open_store

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

_BLOCK = 512


def can_store(model: SentenceTransformer) -> bool:
    """Whether a model is one of FREEZE whose frozen part says the same in every training."""
    first: Any = model[0]
    return isinstance(first, LayeredTransformer) and len(model) == 2 and first.readout != "attention"


class StoredEncoder:
    """A FREEZE model whose frozen part is looked up.

    Args:
        model: Loaded from ``folder``; see :func:`can_store`.
        folder: Where it is saved.
        store: Where the vectors lie, or are to lie.
    """

    def __init__(self, model: SentenceTransformer, folder: str | Path, store: str | Path) -> None:
        self.model = model
        parts = json.loads((Path(folder) / "modules.json").read_text(encoding="utf-8"))
        weights = {"frozen": sha256(Path(folder) / parts[0]["path"])}
        self.teacher = frozen_teacher(model, str(folder), weights, longest=None)
        self.store = Path(store)

    @property
    def pair_scores(self) -> Any:
        """See :attr:`sentsmith.encoders.embedding.ModelEncoder.pair_scores`."""
        codes: Any = self.model[1]
        return codes.pair_scores

    @torch.inference_mode()
    def encode(self, sentences: Sequence[str]) -> Vectors:
        """Return float32 ``[len(sentences), dimension]``, in the order given."""
        found = open_store(self.teacher, sentences, self.store)
        parts = []
        with evaluation_mode(self.model):
            for start in range(0, len(sentences), _BLOCK):
                states = found.look_up(sentences[start : start + _BLOCK]).to(self.model.device)
                parts.append(self.model[1]({"sentence_embedding": states})["sentence_embedding"].cpu().numpy())
        return np.concatenate(parts)
