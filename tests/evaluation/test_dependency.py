"""Intra-sentence dependency: the paper's number, scipy's, and the suite over a real model."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError
from sentsmith.evaluation.dependency import (
    Dependency,
    measure_dependency,
    sentence_dependency,
    table,
)


def test_worked_numbers():
    tokens = np.array([[1.0, 0.5, 0.2, 0.1], [0.9, 0.4, 0.3, 0.0], [0.0, 1.0, 0.5, 0.2], [0.3, 0.2, 0.9, 1.0]])
    # Of two tokens, the score is that of the one that is no pivot.
    alone = sentence_dependency(tokens[[[0, 3], [1, 3], [2, 3]]], np.ones((3, 2)), "last")
    np.testing.assert_allclose(alone, [-0.8, -0.8, -0.4])
    np.testing.assert_allclose(sentence_dependency(tokens[None], np.ones((1, 4)), "last"), [-0.666667], atol=1e-6)


@pytest.mark.parametrize("pivot", ["first", "last"])
def test_equal_to_scipy_with_ties_and_padding_on_either_side(pivot):
    dice = np.random.default_rng(0)
    tokens = dice.integers(0, 5, size=(6, 7, 20)).astype(np.float32)
    mask = np.zeros((6, 7), dtype=np.int64)
    for row, (start, end) in enumerate([(0, 7), (0, 4), (3, 7), (2, 5), (5, 6), (0, 0)]):
        mask[row, start:end] = 1
    tokens[mask == 0] = np.nan  # padding is never read
    found = sentence_dependency(tokens, mask, pivot)
    for row in range(4):
        real = tokens[row][mask[row] == 1]
        place = 0 if pivot == "first" else len(real) - 1
        expected = [spearmanr(real[place], real[other])[0] for other in range(len(real)) if other != place]
        assert found[row] == pytest.approx(np.mean(expected), abs=1e-12)
    # One token, and none at all: nothing to compare with.
    assert np.isnan(found[4:]).all()


def test_what_has_no_ranks_counts_as_zero_and_what_is_not_finite_spoils_its_sentence_only():
    tokens = np.random.default_rng(0).normal(size=(3, 3, 8))
    mask = np.ones((3, 3), dtype=np.int64)
    tokens[1, 2] = 7.0
    tokens[2, 0, 0] = np.inf
    tokens[2, 1, 0] = np.nan
    first, flat, bad = sentence_dependency(tokens, mask, "last")
    assert first == pytest.approx(np.mean([spearmanr(tokens[0, 2], tokens[0, other])[0] for other in (0, 1)]))
    assert flat == 0
    assert np.isnan(bad)
    with pytest.raises(ValueError, match=r"tokens \[B, T, d\] and a mask"):
        sentence_dependency(tokens, mask[:, :2], "last")


def test_summary_is_a_box_plot():
    scores = np.array([0.0, 0.1, 0.1, 0.2, 0.2, 0.3, 0.95])
    found = Dependency(scores, "last", single=2, not_finite=1).summary()
    assert found["mean"] == pytest.approx(scores.mean())
    assert (found["median"], found["quartiles"]) == (0.2, [pytest.approx(0.1), pytest.approx(0.25)])
    assert (found["whiskers"], found["beyond"], found["sentences"]) == ([0.0, 0.3], 1, 7)
    assert (found["pivot"], found["without_second_token"], found["not_finite"]) == ("last", 2, 1)
    columns, rows = table([{"model": "m", "dependency": found}, {"model": "other"}])
    assert rows == [["m", "last", "7", "0.264", "0.200", "0.100 to 0.250", "0.000 to 0.300"]]
    assert len(columns) == len(rows[0])


@pytest.mark.parametrize(("name", "kind", "place"), [("tiny_bert", "first", 0), ("tiny_llama", "last", -1)])
def test_models_are_read_at_their_own_pivot(request, sentences, name, kind, place):
    encoder = as_encoder(load(request.getfixturevalue(name), device="cpu"))
    texts = [*sentences[:20], sentences[0], " ", ""]
    found = measure_dependency(encoder, texts)
    assert (found.pivot, len(found.scores), found.single) == (kind, 20, 0)
    for row in (0, 7):
        states = encoder.model.encode(sentences[row], output_value="token_embeddings").cpu().numpy()
        others = np.delete(states, place, axis=0)
        expected = np.mean([spearmanr(states[place], other)[0] for other in others])
        assert found.scores[row] == pytest.approx(expected, abs=2e-3)
    other = measure_dependency(encoder, texts, pivot="last" if kind == "first" else "first")
    assert abs(other.scores - found.scores).max() > 0.01


def test_sentences_of_one_token_are_counted(tiny_llama):
    model = load(tiny_llama, device="cpu")
    model.max_seq_length = 2
    tokens = len(model.tokenizer("man")["input_ids"])
    assert tokens == 3  # [CLS] man [SEP]: cut to two
    assert measure_dependency(as_encoder(model), ["man", "dog"]).single == 0
    model.tokenizer.backend_tokenizer.post_processor = None
    found = measure_dependency(as_encoder(model), ["man", "the dog", "cat"])
    assert (found.single, len(found.scores)) == (2, 1)
    with pytest.raises(InputError, match="a sentence of two tokens or more"):
        measure_dependency(as_encoder(model), ["man"])


def test_an_encoder_without_a_model_is_an_error(bag_of_words):
    with pytest.raises(InputError, match="no SentenceTransformer inside"):
        measure_dependency(bag_of_words, ["a dog"])
