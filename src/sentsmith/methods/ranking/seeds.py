"""The seeds of ranked lists: sentences drawn evenly over the meanings in a corpus, once, and kept.

Embedding a corpus takes longer than drawing from it, and k-means may fall out otherwise on another machine. So the
drawn seeds lie in a file, and a run that is taken up again reads them there.
"""

from __future__ import annotations

import glob
import hashlib
import json
import logging
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith import __version__
from sentsmith.errors import InputError
from sentsmith.files import sha256, write_json
from sentsmith.llm.parsing import one_line

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)


def distinct(sentences: Iterable[str]) -> list[str]:
    """Return each sentence once, where it first stands; white space tells none apart, for models read one line."""
    found: dict[str, str] = {}
    for sentence in sentences:
        found.setdefault(one_line(sentence), sentence)
    return list(found.values())


def draw_seeds(
    sentences: Sequence[str],
    *,
    clusters: int,
    per_cluster: int,
    model: str,
    seed: int,
    kept: Path,
    progress: bool = False,
) -> list[str]:
    """Draw the sentences that lists begin with: k-means over their vectors, then some at random from each cluster.

    The paper takes 20 from each of 1,000 clusters (Ranking sentences, METHODS.md §6); which model's vectors it
    clusters, it does not say. What was drawn lies in ``kept``, under what it depends on: the sentences, the weights of
    the model, and the numbers below. A run with the same reads it there. While the sentences are being embedded, the
    vectors lie beside ``kept``, so that a run that was killed goes on; then they are removed.

    Args:
        sentences: Each counts once (:func:`distinct`).
        clusters: How many.
        per_cluster: Sentences from each; a smaller cluster gives all it has.
        model: Folder, hub name, or minilm.
        seed: Fixes the clusters and the draw.
        kept: A JSON file; seeds of other sentences or numbers in it are replaced.
        progress: Draw a bar while embedding.

    Returns:
        The seeds, in the order of the sentences: at most ``clusters · per_cluster``.

    Raises:
        InputError: A count is below 1, there are fewer distinct sentences than clusters, the model cannot be loaded,
            or ``kept`` is a file of another kind.
    """
    texts = distinct(sentences)
    _check(len(texts), clusters, per_cluster)
    found = _read(kept)
    from sentsmith.encoders.loading import resolve

    folder = resolve(model)
    vectors_of = {
        "sentences": hashlib.sha256(json.dumps(texts).encode()).hexdigest(),
        "model": sha256(folder),
        "version": __version__,
    }
    key = {**vectors_of, "clusters": clusters, "per_cluster": per_cluster, "seed": seed}
    if found is not None and found["key"] == key:
        logger.info("%s: %d seeds, drawn by an earlier run", kept, len(found["seeds"]))
        return list(found["seeds"])
    if found is not None:
        logger.warning("%s holds seeds of another model, data or setting; drawing again", kept)
    from sentsmith.corpus.sampling import sample_kmeans

    vectors = _embedded(texts, folder, vectors_of, kept, progress=progress)
    seeds = sample_kmeans(texts, vectors, clusters=clusters, per_cluster=per_cluster, seed=seed)
    write_json(kept, {"key": key, "seeds": seeds})
    for file in kept.parent.glob(glob.escape(kept.name) + ".*.npy*"):
        file.unlink()
    return seeds


def _check(distinct: int, clusters: int, per_cluster: int) -> None:
    if clusters < 1 or per_cluster < 1:
        raise InputError(f"clusters {clusters}, sentences per cluster {per_cluster}: both must be at least 1")
    if clusters > distinct:
        raise InputError(
            f"{clusters} clusters of {distinct} different sentences: ask for no more clusters than sentences"
        )


def _read(kept: Path) -> dict[str, Any] | None:
    """Return what an earlier run has kept; None if there is nothing."""
    if not kept.exists():
        return None
    try:
        found = json.loads(kept.read_text(encoding="utf-8"))
        if isinstance(found["key"], dict) and isinstance(found["seeds"], list):
            return dict(found)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    # It is written whole or not at all: this is nobody's half-written list, but somebody's file.
    raise InputError("is no file of seeds; remove it, or give the output another name", path=kept)


def _embedded(
    sentences: list[str], folder: Path, key: dict[str, Any], kept: Path, *, progress: bool
) -> NDArray[np.float32]:
    """Return the sentences' vectors, ``[n, d]``; what a killed run has embedded is not embedded again."""
    import numpy as np
    from tqdm import tqdm

    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load
    from sentsmith.encoders.vectorfile import embed_file

    # The name says what the vectors are of, so that a finished file can be trusted: the clusters are found after it.
    name = hashlib.sha256(json.dumps(key).encode()).hexdigest()[:16]
    file = kept.with_name(f"{kept.name}.{name}.npy")
    if not file.exists():
        logger.info("embedding %d sentences, of which the seeds are drawn", len(sentences))
        with tqdm(desc="seeds", total=len(sentences), unit=" rows", file=sys.stderr, disable=not progress) as bar:
            embed_file(lambda: sentences, file, as_encoder(load(folder)), key=key, advance=bar.update)
    vectors: NDArray[np.float32] = np.load(file, allow_pickle=False)
    return vectors
