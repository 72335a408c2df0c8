"""Frozen models that training learns from: each embeds its texts once, before the training begins."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith import __version__
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load, resolve
from sentsmith.encoders.vectorfile import embed_file
from sentsmith.errors import InputError
from sentsmith.files import sha256, write_json

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

KEYS = "teachers.json"


@dataclass(frozen=True)
class Teacher:
    """A model to learn from, loaded.

    Attributes:
        name: As the settings name it.
        model: Frozen, in evaluation mode, cut to the sentence length of the training.
        key: What its vectors depend on: the hash of its weights and how it is read.
        weight: Of its vectors, where those of several models are summed.
        dtype: Of the numbers that are kept of its vectors, ``float32`` or ``float16``.
    """

    name: str
    model: SentenceTransformer
    key: Mapping[str, Any]
    weight: float = 1.0
    dtype: str = "float32"


def load_teacher(
    name: str,
    *,
    max_length: int,
    depends: Mapping[str, Any],
    read_as: Callable[[SentenceTransformer], SentenceTransformer] = lambda model: model,
    weight: float = 1.0,
    key: Mapping[str, Any] | None = None,
) -> Teacher:
    """Load a teacher; it reads as many tokens of a sentence as the model in training, or its own limit if lower.

    Args:
        name: Folder, hub name, or minilm.
        max_length: Tokens a sentence is cut to in training.
        depends: What its vectors depend on besides its weights and that length; goes into its key.
        read_as: Gives the model another pooling, say.
        weight: See :class:`Teacher`.
        key: The teacher's key, where another process of the run has made it: hashing a model takes as long as loading
            it.

    Raises:
        InputError: The model cannot be loaded.
    """
    folder = resolve(name)
    model = read_as(load(folder))
    model.max_seq_length = min(model.max_seq_length or max_length, max_length)
    if key is None:
        key = {"model": sha256(folder), **depends, "max_length": max_length, "version": __version__}
    return Teacher(name, model, key, weight)


def same_teachers(teachers: Sequence[Teacher], work: Path) -> None:
    """Note in the run's work folder which teachers it was begun with, or compare them with what is noted there.

    Raises:
        InputError: A teacher is not the one that the run was begun with.
    """
    file = work / KEYS
    if not file.exists():
        write_json(file, [dict(teacher.key) for teacher in teachers])
    for teacher, key in zip(teachers, json.loads(file.read_text(encoding="utf-8")), strict=True):
        if key != teacher.key:
            raise InputError("has changed since the run was begun; start again with --overwrite", path=teacher.name)


def read_once(
    teacher: Teacher, sentences: Sequence[str], output: Path, *, key: Mapping[str, Any] | None = None, progress: bool
) -> None:
    """Embed the sentences into the file ``output`` (``.npy``, ``[n, d]``); goes on where a killed run was.

    Args:
        teacher: What embeds.
        sentences: ``n`` of them; the vectors keep their order.
        output: Must not exist.
        key: What the vectors depend on, if not the teacher's key alone.
        progress: Draw a bar.
    """
    from tqdm import tqdm

    logger.info("reading the teacher %s once: %d sentences", teacher.name, len(sentences))
    encoder = as_encoder(teacher.model)
    with tqdm(desc=teacher.name, total=len(sentences), unit=" rows", file=sys.stderr, disable=not progress) as bar:
        embed_file(
            lambda: sentences,
            output,
            encoder,
            key=dict(key or teacher.key),
            dtype=teacher.dtype,
            advance=bar.update,
        )
