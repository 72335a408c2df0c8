import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.search import compare
from sentsmith.search.compare import Hit, nearest, unit


class Table:
    """Encodes a sentence as the vector written down for it."""

    def __init__(self, vectors):
        self.vectors = vectors

    def encode(self, sentences):
        return np.array([self.vectors[sentence] for sentence in sentences], dtype=np.float32)


class Random:
    def encode(self, sentences):
        rows = [np.random.default_rng(sum(sentence.encode())).normal(size=8) for sentence in sentences]
        return np.array(rows, dtype=np.float32)


def test_nearest_by_cosine_and_not_by_length():
    encoder = Table({"long": [10, 10], "near": [0.1, 0.01], "away": [-1, 0], "q": [2, 0]})
    (hits,) = nearest(encoder, ["long", "near", "away"], ["q"], 2)
    assert [(hit.sentence, hit.row) for hit in hits] == [("near", 1), ("long", 0)]
    assert hits[1].score == pytest.approx(np.sqrt(0.5), abs=1e-6)


def test_k_larger_than_the_text_gives_all_and_ties_keep_their_order():
    encoder = Table({"a": [1, 0], "b": [2, 0], "zero": [0, 0], "q": [1, 0]})
    (hits,) = nearest(encoder, ["b", "a", "zero"], ["q"], 10)
    assert hits == [Hit("b", 1.0, 0), Hit("a", 1.0, 1), Hit("zero", 0.0, 2)]


def test_blocks_change_nothing(monkeypatch):
    sentences = [f"sentence {i}" for i in range(57)]
    questions = [f"question {i}" for i in range(11)]
    whole = nearest(Random(), sentences, questions, 5)
    monkeypatch.setattr(compare, "_CELLS", 100)  # one question at a time
    assert [[hit.row for hit in hits] for hits in nearest(Random(), sentences, questions, 5)] == [
        [hit.row for hit in hits] for hits in whole
    ]
    assert len(whole) == 11
    assert all(hits[0].score >= hits[-1].score for hits in whole)


def test_bad_questions():
    with pytest.raises(InputError, match="0 hits were asked for"):
        nearest(Random(), ["a"], ["b"], 0)
    with pytest.raises(InputError, match="no sentence to search in"):
        nearest(Random(), [], ["b"], 1)
    assert nearest(Random(), ["a"], [], 1) == []


def test_unit_refuses_what_is_no_vector():
    with pytest.raises(InputError, match="sentence 2 holds numbers that are not finite"):
        unit(np.array([[1.0, 0.0], [np.nan, 0.0]], dtype=np.float32))
    with pytest.raises(InputError, match=r"shape \(3,\)"):
        unit(np.zeros(3, dtype=np.float32))
    assert unit(np.array([[3, 4], [0, 0]], dtype=np.float32)).tolist() == [
        [np.float32(0.6), np.float32(0.8)],
        [0, 0],
    ]
