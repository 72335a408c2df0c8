"""Held-out written data: lists in their order, triplets the right way round."""

import numpy as np
import pytest

from sentsmith.corpus.rows import Ranking, Triplet
from sentsmith.errors import InputError
from sentsmith.evaluation.ordering import ranking_correlation, triplet_accuracy


class Angles:
    """The vector of the sentence "a 30" is at 30 degrees."""

    def encode(self, sentences):
        angles = np.radians([float(text.split()[-1]) for text in sentences])
        return np.stack([np.cos(angles), np.sin(angles)], axis=1).astype(np.float32)


def test_lists_are_scored_by_their_order():
    lists = [
        ["a 0", "a 10", "a 20", "a 30", "a 40"],
        ["a 0", "a 40", "a 30", "a 20", "a 10"],
        Ranking(("a 90", "a 80", "a 120", "a 40", "a 20")),
        ["a 0", "a 10", "a 30", "a 20", "a 40"],
    ]
    np.testing.assert_allclose(ranking_correlation(Angles(), lists), [1, -1, 1, 0.8])


def test_the_first_sentence_is_not_ranked_itself():
    """With it, a list of three whose two others are swapped would still correlate positively (0.5)."""
    assert ranking_correlation(Angles(), [["a 0", "a 20", "a 10"]]) == pytest.approx([-1])


def test_a_constant_encoder_orders_nothing(constant):
    assert ranking_correlation(constant, [["a", "b", "c"]]).tolist() == [0.0]
    assert triplet_accuracy(constant, [("a", "b", "c")]).tolist() == [0.0]


def test_triplets_are_right_when_the_positive_is_nearer(bag_of_words):
    triplets = [("a 0", "a 10", "a 20"), Triplet("a 0", "a 50", "a 20"), ("a 0", "a 10", "b 10")]
    values = triplet_accuracy(Angles(), triplets)
    assert values.tolist() == [1.0, 0.0, 0.0]
    assert values.dtype == np.float64


def test_sentences_are_embedded_once(bag_of_words):
    ranking_correlation(bag_of_words, [["a", "b", "c"], ["a", "c", "d"]])
    triplet_accuracy(bag_of_words, [("a", "b", "c"), ("a", "b", "d")])
    assert bag_of_words.calls == [["a", "b", "c", "d"], ["a", "b", "c", "d"]]


def test_nothing_and_too_short_lists_are_errors(bag_of_words):
    with pytest.raises(InputError, match="no ranked lists"):
        ranking_correlation(bag_of_words, [])
    with pytest.raises(InputError, match="ranked list 2 has 2 sentences"):
        ranking_correlation(bag_of_words, [["a", "b", "c"], ["a", "b"]])
    with pytest.raises(InputError, match="no triplets"):
        triplet_accuracy(bag_of_words, [])
