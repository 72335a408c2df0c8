"""Fewer sentences out of many: at random, or evenly over clusters."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

from sentsmith.errors import InputError

log = logging.getLogger(__name__)


def sample_random(sentences: Iterable[str], count: int, *, seed: int) -> list[str]:
    """Draw ``count`` sentences at random without replacement, in one pass, holding no more than ``count``.

    Reservoir sampling (Vitter 1985, algorithm R): every sentence has the same chance.

    Returns:
        The sample in its original order; all sentences when there are no more than ``count``.

    Raises:
        InputError: ``count`` is below 1.
    """
    if count < 1:
        raise InputError(f"count {count}: at least one sentence must be drawn")
    draw = np.random.default_rng(seed)
    kept: list[tuple[int, str]] = []
    for place, sentence in enumerate(sentences):
        if place < count:
            kept.append((place, sentence))
            continue
        slot = int(draw.integers(place + 1))
        if slot < count:
            kept[slot] = (place, sentence)
    if len(kept) < count:
        log.info("%d sentences were asked for and all %d taken: there are no more", count, len(kept))
    return [sentence for _, sentence in sorted(kept)]


def sample_kmeans(
    sentences: Sequence[str],
    vectors: NDArray[np.float32],
    *,
    clusters: int,
    per_cluster: int,
    seed: int,
) -> list[str]:
    """Draw sentences evenly over the meanings in a corpus: k-means, then some at random from each cluster.

    The seeds of directional ranking are drawn so (1,000 clusters, 20 from each).

    Args:
        sentences: ``n`` sentences.
        vectors: ``[n, d]``, one for each sentence; they are scaled to length 1 first, so that clusters follow
            the cosine.
        clusters: How many clusters.
        per_cluster: How many sentences from each; a smaller cluster gives all it has, which is logged.
        seed: Fixes the clusters and the draw.

    Returns:
        The sample in its original order.

    Raises:
        InputError: Fewer sentences than clusters, a vector too many or too few, a count below 1, or vectors
            that are not finite.
    """
    from sklearn.cluster import MiniBatchKMeans

    count = len(sentences)
    if vectors.ndim != 2 or len(vectors) != count:
        raise InputError(f"vectors have shape {vectors.shape}; one row for each of the {count} sentences is needed")
    if clusters < 1 or per_cluster < 1:
        raise InputError(f"clusters {clusters}, per_cluster {per_cluster}: both must be at least 1")
    if clusters > count:
        raise InputError(f"{clusters} clusters of {count} sentences: ask for no more clusters than sentences")
    if not np.isfinite(vectors).all():
        raise InputError("some vectors hold NaN or infinity; embed the sentences again")
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    unit = vectors / np.maximum(lengths, np.finfo(np.float32).tiny)
    # Batches of at least 4 × clusters keep the small clusters from starving; three starts, the best one
    # counts.
    batch = max(1024, 4 * clusters)
    labels = MiniBatchKMeans(clusters, batch_size=batch, n_init=3, random_state=seed).fit_predict(unit)
    return [sentences[place] for place in _draw_from_each(labels, clusters, per_cluster, seed)]


def _draw_from_each(labels: NDArray[np.int32], clusters: int, per_cluster: int, seed: int) -> list[int]:
    draw = np.random.default_rng(seed)
    chosen: list[int] = []
    small = 0
    for cluster in range(clusters):
        members = np.flatnonzero(labels == cluster)
        small += len(members) < per_cluster
        taken = draw.choice(members, size=min(per_cluster, len(members)), replace=False)
        chosen.extend(int(place) for place in taken)
    if small:
        log.info(
            "%d of %d clusters hold fewer than %d sentences and gave all they have: %d sentences drawn",
            small,
            clusters,
            per_cluster,
            len(chosen),
        )
    return sorted(chosen)
