"""One call, every sentence once, and what becomes of blanks and NaN."""

import numpy as np
import pytest

from sentsmith.errors import SentsmithError
from sentsmith.evaluation.embedded import Embedded, similarity_of


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


class Nearness:
    """Vectors of letter counts, whose similarity is not the cosine but minus the L1 distance."""

    def encode(self, sentences):
        return np.array([[text.count(letter) for letter in "abcd"] for text in sentences], dtype=np.float32)

    def pair_scores(self, first, second):
        return -np.abs(first - second).sum(axis=1)


def test_pairs_are_scored_by_the_cosine_unless_the_model_has_a_similarity_of_its_own(bag_of_words):
    first, second = ["a b", "c", ""], ["a b", "d", "."]
    plain = Embedded([*first, *second], bag_of_words).similarity(first, second)
    assert plain[[0, 2]] == pytest.approx([1, 1])
    assert -1 <= plain[1] < 1
    assert similarity_of(bag_of_words) == "cosine"
    own = Embedded([*first, *second, "aa", "bbb"], Nearness())
    assert own.similarity(["aa", "c"], ["bbb", "c"]).tolist() == [-5, 0]
    assert similarity_of(Nearness()) == "own"


def test_what_is_no_similarity_is_told(caplog):
    class Broken(Nearness):
        def pair_scores(self, first, second):
            return np.array([np.nan, 2.0])

    embedded = Embedded(["a", "b"], Broken())
    assert embedded.similarity(["a", "b"], ["b", "a"]).tolist() == [0, 2]
    assert "1 of 2 scores of pairs are not finite" in caplog.text
    with pytest.raises(SentsmithError, match=r"shape \(2,\) for 1 pairs"):
        embedded.similarity(["a"], ["b"])


def test_whoever_measures_pairs_against_gold_asks_the_model(tmp_path):
    from sentsmith.corpus.rows import Conditional
    from sentsmith.evaluation.conditional import score_conditional
    from sentsmith.evaluation.diagnostics import diagnose
    from sentsmith.evaluation.pairs import read_scored_pairs
    from sentsmith.evaluation.sts import StsSubset, StsTask, score_pairs
    from sentsmith.evaluation.suite import measure
    from sentsmith.training.selection import ScoredPairsJudge

    # The nearest by L1 are the farthest by angle.
    file = tmp_path / "dev.csv"
    file.write_text("a,b,5\naa,bbb,3\naaaaaaaa,a,0\nbbb,bbbb,4.5\n")
    pairs = read_scored_pairs(file)
    model = Nearness()
    by_hand = [-2, -5, -7, -1]  # of which -2 should be the highest
    assert score_pairs(model, pairs) == pytest.approx(0.8)
    assert ScoredPairsJudge.of_files([file]).score(model) == pytest.approx(80)
    assert diagnose(model, pairs).score == pytest.approx(80)
    task = StsTask("STSB-dev", "dev", (StsSubset("STSB", pairs),))
    result = measure(model, {"sts-dev": [task]}, name="m")
    assert result["scores"]["STSB-dev"] == pytest.approx(80)
    assert result["details"]["tasks"]["STSB-dev"]["pearson"] == pytest.approx(
        100 * np.corrcoef(by_hand, pairs.gold)[0, 1]
    )
    assert result["details"]["tasks"]["STSB-dev"]["similarity"] == "own"
    assert "similarity" not in result["details"]

    class Conditioned(Nearness):
        def encode(self, sentences):
            return super().encode([text for text, _ in sentences])

    rows = [
        Conditional(one, two, "c", 1 + gold * 0.8)
        for one, two, gold in zip(pairs.sentences1, pairs.sentences2, pairs.gold, strict=True)
    ]
    assert score_conditional(Conditioned(), rows) == pytest.approx(0.8)


def test_what_ranks_by_cosines_says_that_they_are_not_the_models_similarity(tmp_path, caplog, bag_of_words):
    from sentsmith.evaluation.suite import evaluate

    (tmp_path / "l.jsonl").write_text('{"sentences": ["a b c", "a b", "a"]}\n')
    for model in (bag_of_words, Nearness()):
        assert not caplog.text
        result = evaluate(model, suites=["lists"], lists=[tmp_path / "l.jsonl"], name="m")
        assert "similarity" not in result["details"]["tasks"]["l"]
    assert "m: lists ranks by the cosine of its vectors, which is not its own similarity" in caplog.text
