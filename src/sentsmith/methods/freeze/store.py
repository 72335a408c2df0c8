"""What the frozen model says of every sentence, made once and kept on disk: looked up in training and in judging."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
from torch import Tensor

from sentsmith import __version__
from sentsmith.encoders.embedding import ModelEncoder, evaluation_mode, max_length
from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.similarity import spearman
from sentsmith.training.data import pair_rows
from sentsmith.training.teachers import Teacher
from sentsmith.training.text_vectors import TextVectors, text_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.training.data import TrainingRows

SIDES = ("sentence1", "sentence2")
# Pairs of the dev files whose vectors of all layers are in memory at once.
_BLOCK = 512


@dataclass(frozen=True, eq=False)
class LayerStore:
    """The vectors of all layers of distinct sentences; the file may be larger than memory.

    Attributes:
        texts: The file, and where in it each sentence stands.
    """

    texts: TextVectors

    def look_up(self, sentences: Sequence[str]) -> Tensor:
        """Return what the frozen model says of the sentences, ``[n, L·d]``, in the file's dtype.

        Raises:
            KeyError: A sentence is not in the store.
        """
        places = np.array([self.texts.places[sentence] for sentence in sentences], dtype=np.int64)
        return self.texts.look_up(places)


def frozen_teacher(
    model: SentenceTransformer, name: str, weights: Mapping[str, Any], *, longest: int | None, dtype: str = "float32"
) -> Teacher:
    """Return the frozen part of a model as a teacher, whose vectors serve whatever is trained on top of it.

    Args:
        model: Its first module is a :class:`~sentsmith.encoders.layered.LayeredTransformer`.
        name: What it is called.
        weights: What tells its weights from others: a hash.
        longest: Tokens a sentence is cut to, if not fewer by the model itself; None leaves it to the model.
        dtype: Of the numbers kept, ``float32`` or ``float16``.
    """
    from sentence_transformers import SentenceTransformer

    frozen: Any = model[0]
    limits = [limit for limit in (model.max_seq_length, longest) if limit is not None]
    key = {
        **weights,
        "readout": frozen.readout,
        "punctuation": frozen.punctuation,
        "max_length": min(limits, default=None),
        "version": __version__,
    }
    alone = SentenceTransformer(modules=[frozen], device=str(model.device)).eval()
    return Teacher(name, alone, key, dtype=dtype)


def open_store(teacher: Teacher, texts: Iterable[str], folder: Path, *, progress: bool = False) -> LayerStore:
    """Embed sentences, or find them embedded; see :func:`~sentsmith.training.text_vectors.text_vectors`."""
    with max_length(teacher.model, teacher.key["max_length"]):
        return LayerStore(text_vectors(teacher, texts, folder, progress=progress))


def pair_texts(rows: TrainingRows) -> list[str]:
    """Return the sentences of all scored pairs, the held-out ones too."""
    return [text for part in (rows.train, rows.held_out) for side in SIDES for text in part[side]]


@dataclass
class StoreCollator(SentenceTransformerDataCollator):
    """Looks the sentences of a batch up, in place of tokenising them: ``sentence_embedding`` ``[B, L·d]`` a side.

    Attributes:
        store: Holds them.
    """

    store: LayerStore = field(kw_only=True)

    def __call__(self, features: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the batch of these rows."""
        batch: dict[str, Any] = {"label": torch.tensor([row["score"] for row in features], dtype=torch.float32)}
        for side in SIDES:
            batch[f"{side}_sentence_embedding"] = self.store.look_up([row[side] for row in features])
        return batch


class StoreJudge:
    """The mean over files of scored pairs of Spearman × 100 between learned similarity and gold, out of the store.

    Args:
        pairs: Of each file.
        source: Where they are from.
        store: Holds their sentences.
    """

    metric = "spearman"

    def __init__(self, pairs: Sequence[ScoredPairs], source: str, store: LayerStore) -> None:
        self.pairs = pairs
        self.source = source
        self.store = store

    def score(self, encoder: Encoder) -> float:
        """Return the mean Spearman × 100 of the model in training."""
        return 100 * float(np.mean([spearman(self._predicted(encoder, pairs), pairs.gold) for pairs in self.pairs]))

    @torch.inference_mode()
    def _predicted(self, encoder: Encoder, pairs: ScoredPairs) -> Any:
        from sentsmith.methods.freeze.objective import layer_cosines

        assert isinstance(encoder, ModelEncoder)  # noqa: S101 - what a judge is given in training
        codes: Any = encoder.model[-1]
        parts = []
        with evaluation_mode(codes):
            for start in range(0, len(pairs), _BLOCK):
                rows = slice(start, start + _BLOCK)
                first, second = (
                    codes.encode(self.store.look_up(side[rows]).to(encoder.model.device))
                    for side in (pairs.sentences1, pairs.sentences2)
                )
                parts.append(codes.similarity(layer_cosines(first, second)))
        return torch.cat(parts).double().cpu().numpy()


def dev_pairs(paths: Sequence[str], rows: TrainingRows, *, scale: float) -> tuple[list[ScoredPairs], str]:
    """Return the pairs that choose the checkpoint, and where they are from: dev files, or the held-out rows.

    Args:
        paths: Dev files; none, and the held-out rows are taken.
        rows: Read already.
        scale: The highest score of the files, as that of the training rows.

    Raises:
        InputError: A dev file cannot be read, or holds no pair.
    """
    if paths:
        return [_scored(path, list(pair_rows(path, scale))) for path in paths], ", ".join(paths)
    held = list(rows.held_out)
    return ([_scored(rows.path, held)] if len(held) > 1 else []), f"{len(held)} held-out training rows"


def _scored(path: str, pairs: Sequence[Mapping[str, Any]]) -> ScoredPairs:
    if not pairs:
        raise InputError("holds no scored pairs", path=path)
    first, second = (tuple(row[side] for row in pairs) for side in SIDES)
    return ScoredPairs(first, second, np.array([row["score"] for row in pairs], dtype=np.float64))


def shared_sentences(rows: TrainingRows, dev: Iterable[ScoredPairs]) -> int:
    """Return how many distinct sentences of the dev pairs are also in the training rows."""
    trained: set[str] = {text for side in SIDES for text in rows.train[side]}
    return len(trained & {text for pairs in dev for text in pairs.texts()})
