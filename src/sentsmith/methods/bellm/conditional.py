"""Conditional STS (C-STS) as a training task: the collator that brings its rows to a loss, and the loss.

A training row is a pair of sentences with all its conditions (:func:`sentsmith.training.data.conditional_rows`), so
that those are never in different batches.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from sentsmith.encoders.chunked import Chunking, Features, forward, join
from sentsmith.methods.bellm.objective import conditional_parts

NOTHING = -1.0
"""The label beyond a row's last condition."""


class ConditionalCollator(SentenceTransformerDataCollator):
    """Tokenises each sentence once under each of its conditions.

    The model's ``preprocess`` gets tuples (sentence, condition): a decoder puts them into its prompt, another model
    takes them for a pair of texts. The batch has the columns ``sentence1`` and ``sentence2``, N texts each, N being
    the number of conditions of all rows, and the label float32 ``[B, most conditions of a row]``, from 1 to 5 and −1
    beyond a row's last condition.
    """

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the tokenised batch of these rows."""
        labels = [torch.tensor(row["labels"], dtype=torch.float32) for row in features]
        batch: dict[str, Any] = {"label": pad_sequence(labels, batch_first=True, padding_value=NOTHING)}
        for name in ("sentence1", "sentence2"):
            texts = [(row[name], condition) for row in features for condition in row["conditions"]]
            batch |= {f"{name}_{key}": value for key, value in self.preprocess_fn(texts).items()}
        return batch


class ConditionalLoss(nn.Module):
    """The loss of conditional STS as one that sentence-transformers' trainer accepts.

    Its rows are no negatives of each other, so each process has its own: nothing is gathered.

    Args:
        model: The model to train.
        hinge_weight: See :func:`~sentsmith.methods.bellm.objective.conditional_parts`.
        chunking: How the texts of a step are cut for the forward pass.
        pad_token_id: The tokenizer's, see :func:`sentsmith.encoders.chunked.join`.

    Raises:
        ValueError: A negative weight.
    """

    def __init__(
        self,
        model: nn.Module,
        *,
        hinge_weight: float = 1.0,
        chunking: Chunking | None = None,
        pad_token_id: int = 0,
    ) -> None:
        super().__init__()
        if hinge_weight < 0:
            raise ValueError(f"hinge_weight must be 0 or more, not {hinge_weight}")
        self.model = model
        self.hinge_weight = hinge_weight
        self.chunking = chunking or Chunking()
        self.pad_token_id = pad_token_id

    def forward(self, sentence_features: Iterable[Features], labels: Tensor) -> dict[str, Tensor]:
        """Return the parts of the loss of one step, by name; their sum is the loss.

        Args:
            sentence_features: Two entries: the first sentences and the second ones, each once per condition.
            labels: ``[B, most conditions of a row]``, see :class:`ConditionalCollator`.
        """
        features = join(list(sentence_features), pad_token_id=self.pad_token_id)
        first, second = forward(self.model, features, self.chunking).chunk(2)
        known = labels != NOTHING
        # The texts stand row by row, as nonzero and the mask go through the labels.
        pairs = known.nonzero()[:, 0]
        return conditional_parts(first, second, labels[known], hinge_weight=self.hinge_weight, pairs=pairs)

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the loss."""
        return {"hinge_weight": self.hinge_weight}
