"""An index on disk: sentences, their vectors, and the name of the model that made them.

A folder of three files:

    index.faiss         unit vectors, float32; exact inner product, so cosine (faiss ``IndexFlatIP``)
    sentences.parquet   one column ``sentence``; row i belongs to vector i
    index.json          model, dimension, count, metric, versions, sha256 of both files and of the sentences

The folder is written beside and renamed. Opening it checks the hashes: what was damaged is not searched.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.errors import InputError, require
from sentsmith.files import atomic_folder, sha256, write_json
from sentsmith.search.compare import Hit, check_k, check_searchable, unit

# Reduced precision (bf16, int8) moves a vector by less than this, another checkpoint in general by more.
_SAME_MODEL = 0.99
_VECTORS, _SENTENCES, _FACTS = "index.faiss", "sentences.parquet", "index.json"


class Facts(BaseModel):
    """What ``index.json`` holds."""

    model_config = ConfigDict(frozen=True)

    model: str
    dimension: int = Field(ge=1)
    count: int = Field(ge=1)
    metric: Literal["cosine"]
    sentences_sha256: str
    files: dict[str, str]
    versions: dict[str, str] = {}


def build(
    sentences: Sequence[str],
    vectors: Vectors,
    folder: str | Path,
    *,
    model: str,
    overwrite: bool = False,
) -> Facts:
    """Write an index, whole or not at all.

    Args:
        sentences: What will be found.
        vectors: ``[len(sentences), d]``, of any length; they are normalised here.
        folder: Where to write.
        model: The model that made the vectors, by the name or folder to load it with for searching.
        overwrite: Whether to replace an index that is there.

    Raises:
        InputError: Sentences and vectors differ in number, there are none, a vector is not finite, or the
            folder holds an index (and ``overwrite`` is False) or files that are none of an index.
        MissingExtraError: faiss is not installed.
    """
    faiss = require("faiss", extra="search")
    check_free(folder, overwrite=overwrite)
    if not len(sentences):
        raise InputError("there is no sentence to index")
    rows = unit(vectors)
    if len(rows) != len(sentences):
        raise InputError(f"{len(sentences)} sentences and {len(rows)} vectors were given; one for each is needed")
    index = faiss.IndexFlatIP(rows.shape[1])
    index.add(rows)
    with atomic_folder(folder) as temporary:
        faiss.write_index(index, str(temporary / _VECTORS))
        _write_sentences(sentences, temporary / _SENTENCES)
        facts = Facts(
            model=model,
            dimension=rows.shape[1],
            count=len(rows),
            metric="cosine",
            sentences_sha256=_sentences_sha256(sentences),
            files={name: sha256(temporary / name) for name in (_VECTORS, _SENTENCES)},
            versions={"faiss": str(faiss.__version__), "sentsmith": version("sentsmith")},
        )
        # The last file: a folder that has it is whole.
        write_json(temporary / _FACTS, facts.model_dump())
    return facts


def check_free(folder: str | Path, *, overwrite: bool) -> None:
    """Raise InputError unless an index may be written at ``folder``; worth asking before embedding."""
    place = Path(folder)
    if not place.is_dir():
        return
    names = {file.name for file in place.iterdir()}
    strange = sorted(names - {_VECTORS, _SENTENCES, _FACTS})
    if strange:
        raise InputError(f"holds files that are none of an index ({strange[0]}); give another folder", path=place)
    if names and not overwrite:
        raise InputError("holds an index; give another folder, or --overwrite to replace it", path=place)


def model_name(model: str) -> str:
    """Return the name to keep for a model: a folder's absolute path, anything else as it is."""
    return str(Path(model).resolve()) if Path(model).is_dir() else model


class Index:
    """An open index; make one with :meth:`open`."""

    def __init__(self, facts: Facts, sentences: Sequence[str], vectors: Any) -> None:
        self.facts = facts
        self.sentences = sentences
        self._vectors = vectors

    @classmethod
    def open(cls, folder: str | Path) -> Index:
        """Open an index that :func:`build` wrote.

        Raises:
            InputError: The folder is no index, or a file of it is missing, damaged or not of this index.
            MissingExtraError: faiss is not installed.
        """
        faiss = require("faiss", extra="search")
        place = Path(folder)
        facts = _read_facts(place)
        for name in (_VECTORS, _SENTENCES):
            file = place / name
            if not file.is_file():
                raise InputError("is missing from the index; build it again", path=file)
            if sha256(file) != facts.files.get(name):
                raise InputError("was changed or damaged since the index was built; build it again", path=file)
        try:
            vectors = faiss.read_index(str(place / _VECTORS))
        except RuntimeError as error:
            raise InputError("cannot be read by faiss; build the index again", path=place / _VECTORS) from error
        sentences = _read_sentences(place / _SENTENCES)
        if (vectors.ntotal, vectors.d, len(sentences)) != (facts.count, facts.dimension, facts.count):
            raise InputError("its three files do not belong together; build the index again", path=place)
        return cls(facts, sentences, vectors)

    def check_model(self, encoder: Encoder) -> None:
        """Raise InputError unless ``encoder`` gives the first sentence the vector that the index has for it.

        Nor may it have a similarity of its own (:func:`~sentsmith.search.compare.check_searchable`).

        A folder's model may have been trained anew since; its questions would be compared with vectors of
        another model, and quietly find the wrong sentences.
        """
        check_searchable(encoder)
        given = unit(encoder.encode([self.sentences[0]]))[0]
        held = self._vectors.reconstruct(0)
        if given.shape != held.shape or (held.any() and float(given @ held) < _SAME_MODEL):
            raise InputError(
                f"the index was not built with this model: the same sentence has another vector; "
                f"use {self.facts.model} as it was then, or build the index again"
            )

    def search(self, vectors: Vectors, k: int) -> list[list[Hit]]:
        """Return for each vector the ``k`` nearest sentences, best first (all, where there are fewer).

        Args:
            vectors: ``[questions, d]`` from the model of ``facts.model``, of any length.
            k: How many to return.

        Raises:
            InputError: ``k`` is below 1, or the vectors are not ``[questions, d]`` or not finite.
        """
        check_k(k)
        asked = unit(vectors)
        if asked.shape[1] != self.facts.dimension:
            raise InputError(
                f"vectors of dimension {asked.shape[1]} cannot be searched in an index of dimension "
                f"{self.facts.dimension}; use the model it was built with, {self.facts.model}"
            )
        scores, places = self._vectors.search(asked, min(k, self.facts.count))
        return [
            [Hit(self.sentences[place], score, place) for score, place in zip(*pair, strict=True)]
            for pair in zip(scores.tolist(), places.tolist(), strict=True)
        ]


def _read_facts(place: Path) -> Facts:
    file = place / _FACTS
    if not place.is_dir():
        what = "is a file" if place.exists() else "does not exist"
        raise InputError(f"{what}; give the folder of an index (sentsmith index makes one)", path=place)
    if not file.is_file():
        raise InputError(f"holds no {_FACTS}, so it is no index; sentsmith index makes one", path=place)
    try:
        return Facts.model_validate(json.loads(file.read_text(encoding="utf-8")))
    except (OSError, ValueError, RecursionError) as error:
        what = "is not JSON" if not isinstance(error, ValidationError) else "lacks a key or holds a wrong value"
        raise InputError(f"{what}; build the index again", path=file) from error


def _write_sentences(sentences: Sequence[str], path: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    pq.write_table(pa.table({"sentence": pa.array(sentences, pa.string())}), path)


def _read_sentences(path: Path) -> list[str]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        sentences: list[str] = pq.read_table(path, columns=["sentence"])["sentence"].to_pylist()
    except (OSError, KeyError, pa.ArrowException) as error:
        raise InputError("cannot be read as parquet; build the index again", path=path) from error
    return sentences


def _sentences_sha256(sentences: Sequence[str]) -> str:
    """Return the hash of the sentences themselves: parquet may write the same ones in other bytes."""
    digest = hashlib.sha256()
    for sentence in sentences:
        data = sentence.encode()
        digest.update(len(data).to_bytes(8, "big") + data)
    return digest.hexdigest()
