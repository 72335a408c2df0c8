"""Do ranked lists drift: small cases by hand, larger ones against loops and scipy."""

import numpy as np
import pytest
from scipy.stats import kendalltau

from sentsmith.corpus.rows import Ranking
from sentsmith.errors import InputError
from sentsmith.evaluation import drift as module
from sentsmith.evaluation.drift import drift, shuffled_across


class Angles:
    """The vector of the sentence "a 30" is at 30 degrees; remembers how many sentences it was asked."""

    def __init__(self):
        self.calls = []

    def encode(self, sentences):
        self.calls.append(list(sentences))
        angles = np.radians([float(text.split()[-1]) for text in sentences])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def at(*angles, name="a"):
    return [f"{name} {angle}" for angle in angles]


def by_loops(vectors):
    """The shares of one list, as the definition says them."""
    unit = vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
    cosines, size = np.round(unit @ unit.T, 6), len(vectors)
    rows = []
    for j in range(size):
        right = [cosines[j, k] > cosines[j, k + 1] for k in range(j + 1, size - 1)]
        left = [cosines[j, k] > cosines[j, k - 1] for k in range(j - 1, 0, -1)]
        rows.append(right + left)
    tau = kendalltau(cosines[0, 1:], -np.arange(size - 1)).statistic
    return np.mean([pair for row in rows for pair in row]), np.mean(rows[0]), 0.0 if np.isnan(tau) else tau


def test_a_list_that_drifts_and_the_same_backwards():
    found = drift(Angles(), [at(0, 10, 20, 30, 40), at(0, 40, 30, 20, 10)])
    np.testing.assert_allclose(found.tau, [1, -1])
    np.testing.assert_allclose(found.in_order_first, [1, 0])
    # Backwards, by row: 0 has none of 3 pairs in order. 40, to the right: 30, 20, 10, both. 30: 20, 10 to the right;
    # 40, 0 to the left, where 10 degrees come before 30. 20, to the left: 30, 40, 0, the last pair a tie. 10, to the
    # left: 20, 30, 40, 0, the last one nearer than the one before it.
    np.testing.assert_allclose(found.in_order, [1, (2 + 2 + 1 + 2) / 12])
    assert found.lengths.tolist() == found.distinct.tolist() == [5, 5]


def test_the_pairs_of_a_list_of_four_by_hand():
    found = drift(Angles(), [Ranking(tuple(at(0, 30, 10, 20)))])
    # From 0: 30, 10, 20 degrees: one of three pairs of the order, one of two neighbouring pairs.
    np.testing.assert_allclose(found.tau, [-1 / 3])
    np.testing.assert_allclose(found.in_order_first, [1 / 2])
    # From 30 to the right 20, 10: wrong. From 10 to the left 20, 10: wrong. From 20 to the left 10, 10, 20: a tie is
    # not in order, the other pair is. With the first row's: two of six.
    np.testing.assert_allclose(found.in_order, [2 / 6])


def test_the_mean_similarity_of_positions():
    found = drift(Angles(), [at(0, 60, 90), at(0, 90, 180, 120)])
    half, root = 0.5, np.sqrt(3) / 2
    expected = [
        [1, (half + 0) / 2, (0 - 1) / 2, -half],
        [(half + 0) / 2, 1, (root + 0) / 2, root],
        [(0 - 1) / 2, (root + 0) / 2, 1, half],
        [-half, root, half, 1],
    ]
    np.testing.assert_allclose(found.positions, expected, atol=1e-6)
    assert found.positions.dtype == np.float64
    assert found.lengths.tolist() == [3, 4]


def test_the_measures_are_what_loops_and_scipy_find():
    generator = np.random.default_rng(3)
    # Few different sentences: lists repeat themselves, and cosines tie.
    lists = [[f"a {angle}" for angle in generator.integers(0, 25, size=size)] for size in (3, 9, 33, 3, 9, 12, 9)]
    encoder = Angles()
    found = drift(encoder, lists)
    in_order, first, tau = zip(*(by_loops(encoder.encode(sentences)) for sentences in lists), strict=True)
    np.testing.assert_allclose(found.in_order, in_order)
    np.testing.assert_allclose(found.in_order_first, first)
    np.testing.assert_allclose(found.tau, tau)
    assert found.distinct.tolist() == [len(set(sentences)) for sentences in lists]


def test_blocks_change_nothing(monkeypatch):
    generator = np.random.default_rng(4)
    lists = [at(*generator.integers(0, 180, size=size)) for size in (5, 4, 5, 5, 4, 6)]
    whole = drift(Angles(), lists)
    monkeypatch.setattr(module, "_ELEMENTS", 100)
    parts = drift(Angles(), lists)
    for name in ("positions", "lengths", "distinct", "tau", "in_order", "in_order_first"):
        np.testing.assert_allclose(getattr(parts, name), getattr(whole, name))


def test_sentences_are_embedded_once():
    encoder = Angles()
    drift(encoder, [at(0, 10, 20), at(0, 20, 40)])
    assert encoder.calls == [at(0, 10, 20, 40)]


def test_without_differences_nothing_is_in_order(constant):
    found = drift(constant, [list("abc"), list("abcd"), list("aaa")])
    assert found.tau.tolist() == found.in_order.tolist() == found.in_order_first.tolist() == [0, 0, 0]
    assert found.distinct.tolist() == [3, 4, 1]
    np.testing.assert_allclose(found.positions, np.ones((4, 4)))


def test_equal_vectors_tie_although_they_are_rounded_differently():
    class Rounded:
        def encode(self, sentences):
            noise = np.array([[1e-7 * place, 0] for place in range(len(sentences))])
            return (np.array([[0.6, 0.8]]) + noise).astype(np.float32)

    found = drift(Rounded(), [list("abcdef")])
    assert (found.tau.tolist(), found.in_order.tolist()) == ([0], [0])


def test_a_vector_of_zeros_is_similar_to_nothing():
    class Zeros:
        def encode(self, sentences):
            return np.zeros((len(sentences), 2), dtype=np.float32)

    assert not drift(Zeros(), [list("abc")]).positions.any()


def test_shuffling_keeps_sentences_and_lengths():
    lists = [Ranking(("a", "b", "c")), ["d", "e", "f", "g"], ["a", "h", "i"]]
    shuffled = shuffled_across(lists, seed=1)
    assert [len(sentences) for sentences in shuffled] == [3, 4, 3]
    assert sorted(text for sentences in shuffled for text in sentences) == list("aabcdefghi")
    assert shuffled == shuffled_across(lists, seed=1)
    assert shuffled != shuffled_across(lists, seed=2)
    # Across the lists, not within each of them.
    assert any(set(after) - set(before) for after, before in zip(shuffled[1:2], lists[1:2], strict=True))


def test_shuffled_lists_have_no_order():
    generator = np.random.default_rng(5)
    lists = [at(*(start + np.arange(9))) for start in generator.uniform(0, 180, size=400)]
    assert drift(Angles(), lists).tau.mean() == pytest.approx(1)
    found = drift(Angles(), shuffled_across(lists, seed=0))
    assert found.tau.mean() == pytest.approx(0, abs=0.05)
    assert found.in_order.mean() == pytest.approx(0.5, abs=0.03)
    assert found.in_order_first.mean() == pytest.approx(0.5, abs=0.03)


def test_nothing_and_short_lists_are_errors(constant):
    with pytest.raises(InputError, match="no ranked lists"):
        drift(constant, [])
    with pytest.raises(InputError, match="ranked list 2 has 2 sentences"):
        drift(constant, [list("abc"), list("ab")])
