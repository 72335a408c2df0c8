"""What the frozen model says of every sentence, made once and kept on disk: looked up in training and in judging."""

from __future__ import annotations

import json
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
from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.errors import InputError
from sentsmith.evaluation.pairs import ScoredPairs, read_scored_pairs
from sentsmith.evaluation.similarity import spearman
from sentsmith.files import sha256
from sentsmith.training.teachers import Teacher
from sentsmith.training.text_vectors import TextVectors, text_vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.training.data import TrainingRows

SIDES = ("sentence1", "sentence2")
_LONGEST = 512  # tokens, of a model that has no limit
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
    model: SentenceTransformer, name: str, weights: Mapping[str, Any], *, longest: int, dtype: str = "float32"
) -> Teacher:
    """Return the frozen part of a model as a teacher, whose vectors serve whatever is trained on top of it.

    Args:
        model: Its first module is a :class:`~sentsmith.encoders.layered.LayeredTransformer`.
        name: What it is called.
        weights: What tells its weights from others: a hash.
        longest: Tokens a sentence is cut to, at most.
        dtype: Of the numbers kept, ``float32`` or ``float16``.
    """
    from sentence_transformers import SentenceTransformer

    frozen: Any = model[0]
    cut = min(model.max_seq_length or longest, longest)
    key = {
        **weights,
        "readout": frozen.readout,
        "punctuation": frozen.punctuation,
        "max_length": cut,
        "version": __version__,
    }
    alone = SentenceTransformer(modules=[frozen], device=str(model.device)).eval()
    return Teacher(name, alone, key, dtype=dtype)


def open_store(teacher: Teacher, texts: Iterable[str], folder: Path, *, progress: bool = False) -> LayerStore:
    """Embed sentences, or find them embedded; see :func:`~sentsmith.training.text_vectors.text_vectors`."""
    with max_length(teacher.model, teacher.key["max_length"]):
        return LayerStore(text_vectors(teacher, texts, folder, progress=progress))


def can_store(model: SentenceTransformer) -> bool:
    """Whether a model is one of FREEZE whose frozen part says the same in every training."""
    from sentsmith.encoders.layered import LayeredTransformer

    first: Any = model[0]
    return isinstance(first, LayeredTransformer) and len(model) == 2 and first.readout != "attention"


class StoredEncoder:
    """A FREEZE model as an encoder that keeps what its frozen part says, for other models on the same frozen one.

    Args:
        model: Loaded from ``folder``; its readout must not be a trained one.
        folder: Where it is saved.
        store: Where the vectors lie, or are to lie.

    Raises:
        InputError: It is no FREEZE model, or reads by attention.
    """

    def __init__(self, model: SentenceTransformer, folder: str | Path, store: str | Path) -> None:
        self.model = model
        if not can_store(model):
            raise InputError("is no FREEZE model whose frozen part can be stored", path=folder)
        parts = json.loads((Path(folder) / "modules.json").read_text(encoding="utf-8"))
        weights = {"frozen": sha256(Path(folder) / parts[0]["path"])}
        longest = self.model.max_seq_length or _LONGEST
        self.teacher = frozen_teacher(self.model, str(folder), weights, longest=longest)
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


def dev_pairs(paths: Sequence[str], rows: TrainingRows) -> tuple[list[ScoredPairs], str]:
    """Return the pairs that choose the checkpoint, and where they are from: dev files, or the held-out rows.

    Raises:
        InputError: A dev file cannot be read.
    """
    if paths:
        return [read_scored_pairs(path) for path in paths], ", ".join(paths)
    held = rows.held_out
    if len(held) < 2:
        return [], ""
    gold = np.array(held["score"], dtype=np.float64)
    pairs = ScoredPairs(tuple(held["sentence1"]), tuple(held["sentence2"]), gold)
    return [pairs], f"{len(held)} held-out training rows"


def shared_sentences(rows: TrainingRows, dev: Iterable[ScoredPairs]) -> int:
    """Return how many distinct sentences of the dev pairs are also in the training rows."""
    trained: set[str] = {text for side in SIDES for text in rows.train[side]}
    return len(trained.intersection(*[{text for pairs in dev for text in pairs.texts()}]))
