"""Embed a file of any size, in constant memory: ordered, resumable, to .npy or .parquet.

Vectors are appended to ``OUT.part`` block by block, and ``OUT.part.json`` says how many rows are safe. A run that was
killed goes on from there; a run of another model, or over other data, does not mistake the rest for its own.
"""

from __future__ import annotations

import itertools
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from sentsmith import __version__
from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.reading import read_sentences, rereadable
from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.errors import InputError, SettingsError
from sentsmith.files import atomic_path, make_folder, sha256, write_json

logger = logging.getLogger(__name__)

SUFFIXES = (".npy", ".parquet")
_BLOCK = 4096


def embed_path(
    sentences: str | Path,
    output: str | Path,
    model: str | Path,
    *,
    column: str | None = None,
    precision: str = "fp32",
    backend: str = "torch",
    overwrite: bool = False,
    trust_remote_code: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> int:
    """Embed a file or folder of sentences, or standard input (``-``), with a model by name; see :func:`embed_file`.

    Standard input is written beside the output first, since it cannot be read twice. Of a model whose similarity is
    not the cosine a warning says so.

    Raises:
        InputError: The sentences or the model cannot be read, or the output cannot be written.
    """
    from sentsmith.encoders.embedding import BACKENDS, PRECISIONS, as_encoder
    from sentsmith.encoders.loading import load, resolve

    if precision not in PRECISIONS:
        raise SettingsError(f"precision {precision!r} is unknown; use one of {', '.join(PRECISIONS)}")
    if backend not in BACKENDS or (backend == "openvino" and precision != "fp32"):
        raise SettingsError(f"backend {backend!r} with {precision}: use torch, or openvino with fp32")
    target = checked_output(output, overwrite=overwrite)
    with rereadable(sentences, target) as path:
        folder = resolve(model)
        key = {
            "data": data_hash(path),
            "column": column,
            "model": sha256(folder),
            "precision": precision,
            "backend": backend,
            "version": __version__,
        }
        encoder = as_encoder(load(folder, trust_remote_code=trust_remote_code), precision=precision, backend=backend)
        if encoder.pair_scores is not None:
            logger.warning("%s: the cosine of these vectors is not the model's own similarity of two sentences", model)
        return embed_file(
            lambda: read_sentences(path, column=column),
            target,
            encoder,
            key=key,
            overwrite=overwrite,
            advance=advance,
        )


def checked_output(output: str | Path, *, overwrite: bool) -> Path:
    """Return the output as a path that can be written.

    Raises:
        InputError: Another suffix than .npy and .parquet, a folder, or a finished output.
    """
    target = Path(output)
    if target.suffix not in SUFFIXES:
        raise InputError(f"cannot write {target.suffix or 'a name without suffix'}; use .npy or .parquet", path=target)
    if target.is_dir():
        raise InputError("is a folder; give the name of a file to write", path=target)
    if target.exists() and not overwrite:
        raise InputError("exists; give another name, or --overwrite", path=target)
    make_folder(target.parent)
    return target


def embed_file(
    sentences: Callable[[], Iterable[str]],
    output: str | Path,
    encoder: Encoder,
    *,
    key: dict[str, Any],
    dtype: str = "float32",
    overwrite: bool = False,
    advance: Callable[[int], None] = lambda _: None,
) -> int:
    """Embed a stream of sentences into a file.

    Args:
        sentences: Opens the stream; called twice for parquet, which also stores the text.
        output: ``.npy`` (``[rows, dimension]``) or ``.parquet`` (columns ``sentence``, ``vector``).
        encoder: What encodes.
        key: What the vectors depend on (model, data and their hashes, options). Work of an earlier run is taken up
            only if its key is equal.
        dtype: Of the numbers in the file, ``float32`` or ``float16``.
        overwrite: Replace a finished output.
        advance: Called with the number of rows finished since the last call.

    Returns:
        Rows in the finished file.

    Raises:
        InputError: Another suffix, the output exists, there is no sentence, or a number is too large for float16.
    """
    target = checked_output(output, overwrite=overwrite)
    kind = np.dtype(dtype).newbyteorder("<")
    key = {**key, "dtype": kind.name}
    part, state = target.with_name(target.name + ".part"), target.with_name(target.name + ".part.json")
    done = _resumable(part, state, key, kind.itemsize)
    # Opened before the part, so that input that cannot be read leaves nothing behind.
    stream_of_sentences = iter(sentences())
    advance(done["rows"])
    if done["rows"] == 0:
        # Before the part is written: an old state would vouch for the new vectors, should this run be killed.
        state.unlink(missing_ok=True)
    with part.open("r+b" if part.exists() else "w+b") as stream:
        stream.truncate(done["rows"] * done["dimension"] * kind.itemsize)
        stream.seek(0, os.SEEK_END)
        for block in _blocks(itertools.islice(stream_of_sentences, done["rows"], None)):
            vectors = _converted(encoder.encode(block), kind)
            stream.write(vectors.tobytes())
            stream.flush()
            os.fsync(stream.fileno())
            done = {"key": key, "rows": done["rows"] + len(block), "dimension": vectors.shape[1]}
            write_json(state, done)
            advance(len(block))
    if done["rows"] == 0:
        part.unlink()
        raise InputError("there is no sentence to embed")
    _finish(target, part, sentences, (done["rows"], done["dimension"]), kind)
    part.unlink()
    state.unlink()
    return int(done["rows"])


def _resumable(part: Path, state: Path, key: dict[str, Any], size: int) -> dict[str, Any]:
    fresh = {"key": key, "rows": 0, "dimension": 0}
    if not (part.exists() and state.exists()):
        return fresh
    try:
        done: dict[str, Any] = json.loads(state.read_text(encoding="utf-8"))
    except ValueError:
        return fresh
    if done.get("key") != key or part.stat().st_size < done["rows"] * done["dimension"] * size:
        logger.warning("%s holds vectors of another model, data or setting; starting again", part)
        return fresh
    logger.info("%s: going on after %d rows", part, done["rows"])
    return done


def _blocks(sentences: Iterator[str]) -> Iterator[list[str]]:
    while block := list(itertools.islice(sentences, _BLOCK)):
        yield block


def _converted(vectors: Vectors, kind: np.dtype[Any]) -> NDArray[Any]:
    with np.errstate(over="ignore"):
        converted = np.ascontiguousarray(vectors, dtype=kind)
    if kind.itemsize < 4 and np.isinf(converted).any() and np.isfinite(vectors).all():
        raise InputError(f"a vector holds {np.abs(vectors).max():.3g}, too much for {kind.name}; store float32")
    return converted


def _finish(
    target: Path, part: Path, sentences: Callable[[], Iterable[str]], shape: tuple[int, int], kind: np.dtype[Any]
) -> None:
    with atomic_path(target) as temporary, part.open("rb") as source:
        if target.suffix == ".npy":
            with temporary.open("wb") as stream:
                header = {"descr": kind.str, "fortran_order": False, "shape": shape}
                np.lib.format.write_array_header_1_0(stream, header)
                while block := source.read(1 << 22):
                    stream.write(block)
        else:
            _write_parquet(temporary, source, iter(sentences()), shape, kind)


def _write_parquet(
    path: Path, source: BinaryIO, sentences: Iterator[str], shape: tuple[int, int], kind: np.dtype[Any]
) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows, dimension = shape
    vector = pa.list_(pa.from_numpy_dtype(kind), dimension)
    schema = pa.schema([("sentence", pa.string()), ("vector", vector)])
    with pq.ParquetWriter(path, schema) as writer:
        for block in _blocks(itertools.islice(sentences, rows)):
            values = np.frombuffer(source.read(len(block) * dimension * kind.itemsize), dtype=kind)
            vectors = pa.FixedSizeListArray.from_arrays(pa.array(values), dimension)
            writer.write_table(pa.table([pa.array(block), vectors], schema=schema))
