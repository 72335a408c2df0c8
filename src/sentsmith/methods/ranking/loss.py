"""The loss of post-training on ranked lists, and the collator that brings lists to it.

A training row is one list in the column ``sentences``, and its label the rows of its sentences among the teacher's
vectors. For joint training it also carries some triplets, each column a list of as many texts.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from sentsmith.encoders.chunked import Chunking, Features, forward, join
from sentsmith.methods.ranking.objective import list_mle
from sentsmith.methods.simcse.objective import distinct, info_nce, unit_vectors

NOTHING = -1
"""The label beyond a list's end."""


class ListCollator(SentenceTransformerDataCollator):
    """Tokenises columns that hold lists of texts.

    The library's collator would tokenise a list of two texts as one text pair, and fail at three. Here a column becomes
    the features of all its texts, one list after the other, and the labels int64 ``[B, n]``, padded with −1: they tell
    where a list ends.
    """

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the tokenised batch of these rows."""
        labels = [torch.tensor(row["label"], dtype=torch.int64) for row in features]
        batch: dict[str, Any] = {"label": pad_sequence(labels, batch_first=True, padding_value=NOTHING)}
        for name in features[0]:
            if name == "label":
                continue
            texts = [text for row in features for text in row[name]]
            batch |= {f"{name}_{key}": value for key, value in self.preprocess_fn(texts).items()}
        return batch


class RankingLoss(nn.Module):
    """ListMLE against the targets of each list, and InfoNCE over triplets beside it, if there are any.

    Args:
        model: The model to train.
        targets: Given the labels ``[B, n]`` and the sizes ``[B]`` (sentences per list), returns the targets
            ``[B, n, n]``; only their order within a row is read.
        temperature: τ; cosines are divided by it, in both losses.
        chunking: How the texts of a step are cut for the forward pass; lists and triplets are in one.
        log_epsilon: See :func:`~sentsmith.methods.ranking.objective.list_mle`; so too the next.
        first_row_only: Train on the order around each list's first sentence alone.
        triplet_weight: Of the triplets' loss; the lists' has 1.
        pad_token_id: The tokenizer's, see :func:`sentsmith.encoders.chunked.join`.
    """

    def __init__(
        self,
        model: nn.Module,
        targets: Callable[[Tensor, Tensor], Tensor],
        *,
        temperature: float = 0.05,
        chunking: Chunking | None = None,
        log_epsilon: float = 0.0,
        first_row_only: bool = False,
        triplet_weight: float = 1.0,
        pad_token_id: int = 0,
    ) -> None:
        super().__init__()
        self.model = model
        self.targets = targets
        self.temperature = temperature
        self.chunking = chunking or Chunking()
        self.log_epsilon = log_epsilon
        self.first_row_only = first_row_only
        self.triplet_weight = triplet_weight
        self.pad_token_id = pad_token_id

    def forward(self, sentence_features: Iterable[Features], labels: Tensor) -> dict[str, Tensor]:
        """Return the parts of the loss of one step, by name; their sum is the loss.

        Args:
            sentence_features: Of the lists' sentences, list by list; then, if there are triplets, of the anchors, the
                positives and the negatives.
            labels: int64 ``[B, n]``, −1 beyond a list's end.
        """
        lists, *triplets = sentence_features
        features = join([lists, *triplets], pad_token_id=self.pad_token_id)
        vectors = forward(self.model, features, self.chunking)
        sizes = (labels != NOTHING).sum(dim=1)
        sentences = int(sizes.sum())
        parts = {"ranking": self.rank(vectors[:sentences], labels, sizes)}
        if triplets:
            anchors, positives, negatives = vectors[sentences:].chunk(3)
            texts = {key: value[sentences:] for key, value in features.items()}
            loss = info_nce(
                anchors,
                positives,
                negatives,
                temperature=self.temperature,
                keep=distinct(texts, len(anchors)),
            )
            parts["contrastive"] = self.triplet_weight * loss
        return parts

    def rank(self, vectors: Tensor, labels: Tensor, sizes: Tensor) -> Tensor:
        """Return the mean ListMLE of lists whose sentences' vectors stand one list after the other.

        Args:
            vectors: ``[sum of sizes, d]``.
            labels: int64 ``[B, n]``.
            sizes: int64 ``[B]``.
        """
        scores = list_cosines(vectors, sizes, width=labels.shape[1]) / self.temperature
        return list_mle(
            scores,
            self.targets(labels, sizes),
            sizes=sizes,
            log_epsilon=self.log_epsilon,
            first_row_only=self.first_row_only,
        )

    def get_config_dict(self) -> dict[str, Any]:
        """Return what the model card says of the loss."""
        return {"temperature": self.temperature, "triplet_weight": self.triplet_weight}


def list_cosines(vectors: Tensor, sizes: Tensor, *, width: int) -> Tensor:
    """Return the cosines within each list, at least float32 ``[B, width, width]``; 0 beyond a list's end.

    Args:
        vectors: ``[sum of sizes, d]``, one list after the other; half precision is widened first, as it makes ties.
        sizes: int64 ``[B]``.
        width: Of the longest list, or more.
    """
    with torch.autocast(vectors.device.type, enabled=False):
        units = unit_vectors(vectors)
        padded = units.new_zeros(len(sizes), width, units.shape[1])
        padded[torch.arange(width, device=sizes.device) < sizes[:, None]] = units
        return padded @ padded.mT
