"""The frozen model P_η behind the mask: its vectors of all texts, looked up in training, or made anew in each step."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from sentsmith.encoders.chunked import Chunking, forward
from sentsmith.errors import SettingsError
from sentsmith.methods.multicsr.objective import false_negative_keep, released_keep
from sentsmith.training.teachers import Teacher
from sentsmith.training.text_vectors import TextVectors, text_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.training.data import TrainingRows

COLUMNS = ("anchor", "positive", "negative")
# The share of masked candidates is measured on at most so many batches: the third digit does not move any more.
_MOST_BATCHES = 200
_PROBED_TEXTS = 64


@dataclass(frozen=True, eq=False)
class CachedMasker:
    """The frozen model's vectors of the training rows; a :class:`~sentsmith.methods.multicsr.objective.Masker`.

    Attributes:
        texts: The vectors of the distinct texts.
        rows: int64 ``[n, 3]``: where the texts of a training row stand among them.
    """

    texts: TextVectors
    rows: NDArray[np.int64]

    def __call__(self, features: Mapping[str, Tensor], labels: Tensor | None) -> Tensor:
        """Return the vectors of the rows ``labels``, float32 ``[B, 3, d]``, on the device of ``features``.

        Raises:
            ValueError: There are no labels.
        """
        if labels is None:
            raise ValueError("the mask looks rows up by their number; the training rows need it as their label")
        return self.texts.look_up(self.rows[labels.cpu().numpy()]).to(features["input_ids"].device)


class DropoutMasker:
    """The frozen model run on each batch with its dropout on, as in the authors' code: a mask that is noisy.

    Args:
        model: P_η; it reads the token ids of the model in training.
        chunking: How a batch is cut.
    """

    def __init__(self, model: SentenceTransformer, chunking: Chunking) -> None:
        self.model = model.train()
        self.chunking = chunking

    @torch.no_grad()
    def __call__(self, features: Mapping[str, Tensor], labels: Tensor | None) -> Tensor:  # noqa: ARG002 - a Masker
        """Return the vectors of the joined columns, ``[B, 3, d]``; the labels are not read."""
        if self.model.device != features["input_ids"].device:
            self.model.to(features["input_ids"].device)
        vectors = forward(self.model, features, self.chunking)
        return vectors.reshape(len(COLUMNS), -1, vectors.shape[1]).transpose(0, 1)


def cached_masker(teacher: Teacher | None, rows: TrainingRows, folder: Path, *, progress: bool = False) -> CachedMasker:
    """Embed the texts of the training rows, the held-out ones too, or find them embedded.

    The arguments and errors are those of :func:`~sentsmith.training.text_vectors.text_vectors`; ``rows`` are triplets.
    """
    columns = [list(rows.train[name]) for name in COLUMNS]
    held_out = (text for name in COLUMNS for text in rows.held_out[name])
    texts = text_vectors(teacher, itertools.chain(*columns, held_out), folder, progress=progress)
    numbers = np.array([[texts.places[text] for text in column] for column in columns], dtype=np.int64).T
    return CachedMasker(texts, numbers)


def masked_share(
    masker: CachedMasker, *, threshold: float, batch_size: int, seed: int, released: bool = False
) -> float:
    """Return which share of the candidates the mask removes, measured before the training, on batches drawn at random.

    All positives and hard negatives of other rows of a batch are counted, over the batches of one epoch, at most 200.

    Args:
        masker: Its vectors.
        threshold: σ.
        batch_size: B, the rows of all processes; at least 2.
        seed: Draws the batches.
        released: By the mask of the authors' code.
    """
    order = np.random.default_rng(seed).permutation(len(masker.rows))
    batches = min(len(order) // batch_size, _MOST_BATCHES)
    rule = released_keep if released else false_negative_keep
    removed = 0
    for number in range(batches):
        drawn = masker.rows[order[number * batch_size : (number + 1) * batch_size]]
        vectors = masker.texts.look_up(drawn)
        removed += int((~rule(*vectors.unbind(dim=1), threshold=threshold)).sum())
    return removed / (batches * batch_size * 2 * (batch_size - 1))


def check_one_tokenizer(student: SentenceTransformer, masker: Teacher, texts: Sequence[str]) -> None:
    """Say that the masker cannot read the token ids of the model in training.

    Raises:
        SettingsError: Vocabularies or the ids of the first texts differ.
    """
    probed = list(texts[:_PROBED_TEXTS])
    same = student.tokenizer.get_vocab() == masker.model.tokenizer.get_vocab()
    if same:
        ids = [model.preprocess(probed)["input_ids"] for model in (student, masker.model)]
        # Cut to the shorter limit: that one of them reads less of a long sentence is no difference.
        width = min(part.shape[1] for part in ids) - 1
        same = torch.equal(ids[0][:, :width], ids[1][:, :width])
    if not same:
        raise SettingsError(
            f"multicsr.eta_dropout runs {masker.name} on the token ids of the model in training, whose tokenizer is "
            "another; use a masker with the same tokenizer, or set multicsr.eta_dropout to false"
        )
