from __future__ import annotations

import collections
import logging

import numpy as np
import pytest

from sentsmith.corpus.datasets import data_hash, to_dataset
from sentsmith.corpus.rows import Pair, Ranking, Triplet
from sentsmith.corpus.sampling import sample_kmeans, sample_random
from sentsmith.errors import InputError


def test_random_sample_is_in_order_fixed_by_the_seed_and_without_repeats():
    names = [str(i) for i in range(1000)]
    one = sample_random(iter(names), 50, seed=1)
    assert one == sample_random(names, 50, seed=1) != sample_random(names, 50, seed=2)
    assert len(set(one)) == 50
    assert one == sorted(one, key=int)


def test_every_sentence_has_the_same_chance():
    counts = collections.Counter()
    for seed in range(2000):
        counts.update(sample_random("abcdefghij", 3, seed=seed))
    # 600 expected each, standard deviation 20.5.
    assert len(counts) == 10
    assert all(500 < count < 700 for count in counts.values())


def test_asking_for_more_than_there_is(caplog):
    with caplog.at_level(logging.INFO, logger="sentsmith"):
        assert sample_random(["a", "b"], 5, seed=0) == ["a", "b"]
    assert "there are no more" in caplog.text
    with pytest.raises(InputError, match="count 0"):
        sample_random(["a"], 0, seed=0)


def clouds():
    """Return three clouds of directions with 50, 30 and 4 sentences, of very different lengths."""
    draw = np.random.default_rng(0)
    centres, sizes = np.eye(3, 8, dtype=np.float32), (50, 30, 4)
    vectors = [centres[i] + 0.05 * draw.standard_normal((size, 8)) for i, size in enumerate(sizes)]
    scale = draw.uniform(0.1, 10, size=(84, 1))
    names = [f"{i}-{j}" for i, size in enumerate(sizes) for j in range(size)]
    return names, (np.concatenate(vectors) * scale).astype(np.float32)


def test_kmeans_draws_the_same_number_from_each_cluster(caplog):
    names, vectors = clouds()
    with caplog.at_level(logging.INFO, logger="sentsmith"):
        sample = sample_kmeans(names, vectors, clusters=3, per_cluster=10, seed=0)
    assert collections.Counter(name[0] for name in sample) == {"0": 10, "1": 10, "2": 4}
    assert "1 of 3 clusters hold fewer than 10" in caplog.text
    assert sample == [name for name in names if name in set(sample)]
    assert sample == sample_kmeans(names, vectors, clusters=3, per_cluster=10, seed=0)
    assert sample != sample_kmeans(names, vectors, clusters=3, per_cluster=10, seed=1)


def test_wrong_calls_of_kmeans():
    names, vectors = clouds()
    for arguments, reason in [
        ((names[:-1], vectors, 3, 1), r"shape \(84, 8\); one row for each of the 83"),
        ((names, vectors, 85, 1), "85 clusters of 84"),
        ((names, vectors, 0, 1), "at least 1"),
        ((names, np.where(vectors > 1, np.nan, vectors), 3, 1), "NaN"),
    ]:
        sentences, given, clusters, each = arguments
        with pytest.raises(InputError, match=reason):
            sample_kmeans(sentences, given, clusters=clusters, per_cluster=each, seed=0)


def test_a_data_set_has_the_columns_in_order():
    assert to_dataset([Triplet("a", "b", "c")]).column_names == ["anchor", "positive", "negative"]
    pairs = to_dataset([Pair("a", "b", 0.5), Pair("c", "d", 1.0)])
    assert pairs[1] == {"sentence1": "c", "sentence2": "d", "score": 1.0}
    assert to_dataset([Ranking(("a", "b"))])[0] == {"sentences": ["a", "b"]}
    with pytest.raises(InputError, match="no rows"):
        to_dataset([])
    with pytest.raises(InputError, match="several kinds in one data set: Pair, Triplet"):
        to_dataset([Triplet("a", "b", "c"), Pair("a", "b", 0.5)])


def test_data_hash(tmp_path):
    (tmp_path / "a.txt").write_text("a\n")
    first = data_hash(tmp_path / "a.txt")
    (tmp_path / "a.txt").write_text("b\n")
    assert data_hash(tmp_path / "a.txt") != first
    with pytest.raises(InputError, match="does not exist"):
        data_hash(tmp_path / "no.txt")
