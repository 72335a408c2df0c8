"""One call, every sentence once, and what becomes of blanks and NaN."""

import numpy as np
import pytest

from sentsmith.errors import SentsmithError
from sentsmith.evaluation.embedded import Embedded


def test_each_sentence_is_embedded_once_in_one_call(bag_of_words):
    embedded = Embedded(iter(["a b", "c", "a b", "c", "d"]), bag_of_words)
    assert bag_of_words.calls == [["a b", "c", "d"]]
    rows = embedded.rows(["c", "a b", "c"])
    np.testing.assert_array_equal(rows, bag_of_words.encode(["c", "a b", "c"]))
    assert rows.dtype == np.float32


def test_blank_sentences_stand_as_a_full_stop(bag_of_words):
    embedded = Embedded(["", "  ", "a", "."], bag_of_words)
    assert embedded.blank == 2
    assert bag_of_words.calls == [[".", "a"]]
    np.testing.assert_array_equal(embedded.rows(["", " "]), embedded.rows([".", "."]))


def test_vectors_that_are_not_finite_become_zeros(caplog):
    class Broken:
        def encode(self, sentences):
            return np.array([[1, np.nan], [1, 2], [np.inf, 0]], dtype=np.float32)

    embedded = Embedded(["a", "b", "c"], Broken())
    np.testing.assert_array_equal(embedded.rows(["a", "b", "c"]), [[0, 0], [1, 2], [0, 0]])
    assert embedded.not_finite == 2
    assert "2 of 3 vectors are not finite" in caplog.text


def test_an_encoder_that_loses_rows_is_an_error():
    class Short:
        def encode(self, sentences):
            return np.ones((len(sentences) - 1, 3), dtype=np.float32)

    with pytest.raises(SentsmithError, match=r"shape \(1, 3\) for 2 sentences"):
        Embedded(["a", "b"], Short())


def test_a_sentence_that_was_not_embedded_is_an_error(bag_of_words):
    with pytest.raises(KeyError):
        Embedded(["a"], bag_of_words).rows(["b"])
