"""Corruption: one change a step, drawn from the seed and the sentence alone, and a drift that a model sees."""

from __future__ import annotations

import gzip
import itertools
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, SettingsError
from sentsmith.methods.ranking.corruption import Words, corrupt

CORPUS = ["a dog runs in the park .", "the bird sings .", "a man reads the book on the house ."]
WORDS = Words.of(CORPUS)
# What seed 0 makes of the first sentence, in every later version: a list that is begun is gone on with.
PINNED = ["a dog runs in the park", "a dog runs in the", "dog a runs in the"]
TEXTS = st.lists(st.sampled_from(["a", "dog", "runs", "the", "Zebra", "."]), min_size=1, max_size=9).map(" ".join)


def change(before, after):
    """Return which one change makes the one list of words the other; fails if it takes more, or none."""
    if len(after) == len(before) - 1:
        assert after in [before[:i] + before[i + 1 :] for i in range(len(before))]
        return "drop"
    assert len(after) == len(before)
    differ = [i for i, (a, b) in enumerate(zip(before, after, strict=True)) if a != b]
    if len(differ) == 1:
        assert after[differ[0]] in WORDS.words
        return "replace"
    first, second = differ
    assert (after[first], after[second]) == (before[second], before[first])
    return "swap"


@settings(max_examples=60, deadline=None)
@given(TEXTS, st.integers(0, 5))
def test_each_step_is_one_change_and_half_of_the_words_stay(sentence, seed):
    rows = [row.split() for row in [sentence, *corrupt(sentence, 32, WORDS, seed=seed)]]
    assert len(rows) == 33
    for before, after in itertools.pairwise(rows):
        change(before, after)
    assert min(map(len, rows)) >= max(1, len(rows[0]) / 2)


def test_the_three_changes_are_drawn_evenly():
    sentence = "one two three four five six seven eight nine ten"
    rows = [[sentence.split(), corrupt(sentence, 1, WORDS, seed=seed)[0].split()] for seed in range(3000)]
    found = Counter(change(*row) for row in rows)
    # Three standard deviations of 1,000 ± 26.
    assert all(abs(found[what] - 1000) < 78 for what in ("drop", "swap", "replace")), found
    dropped = Counter(word for before, after in rows if len(after) == 9 for word in set(before) - set(after))
    assert len(dropped) == 10
    assert max(dropped.values()) < 2 * min(dropped.values())


def test_a_word_is_drawn_by_its_frequency_among_the_others():
    words = Words.of(["b b b a", "c c c c c c"])
    grid = [(step + 0.5) / 700 for step in range(700)]
    assert Counter(words.other("b", u) for u in grid) == {"a": 100, "c": 600}
    assert Counter(words.other("c", u) for u in grid) == {"a": 175, "b": 525}
    assert Counter(words.other("a", u) for u in grid) == {"b": 233, "c": 467}
    assert Counter(words.other("unknown", u) for u in grid) == {"a": 70, "b": 210, "c": 420}
    assert words.other("b", np.nextafter(1, 0)) == "c"


def test_short_sentences_and_few_words():
    pair = Words.of(["yes no"])
    # One word: only replaced, to and fro where the corpus has but two.
    assert corrupt("yes", 4, pair, seed=0) == ["no", "yes", "no", "yes"]
    assert set(corrupt("maybe", 20, pair, seed=0)) == {"yes", "no"}
    # Two words that are the same cannot change places; one of them may go, not both.
    for seed in range(20):
        rows = corrupt("yes yes", 6, pair, seed=seed)
        assert rows[0] in ("yes", "yes no", "no yes")
        assert all(one != other for one, other in itertools.pairwise(["yes yes", *rows]))


def test_white_space_is_one_space():
    rows = corrupt("  a\tdog\n runs  ", 32, WORDS, seed=0)
    assert all(row == " ".join(row.split()) for row in rows)
    assert "a dog runs" not in rows


def test_a_sentence_of_some_words_does_not_come_back():
    for seed in range(50):
        rows = [CORPUS[0], *corrupt(CORPUS[0], 32, WORDS, seed=seed)]
        assert len(set(rows)) == 33


def test_the_seed_and_the_sentence_decide_not_the_order_nor_the_count():
    backwards = Words.of(CORPUS[::-1])
    rows = corrupt(CORPUS[0], 32, WORDS, seed=7)
    assert corrupt(CORPUS[0], 32, backwards, seed=7) == rows
    assert corrupt(CORPUS[0], 5, WORDS, seed=7) == rows[:5]
    assert corrupt(CORPUS[0], 0, WORDS, seed=7) == []
    assert corrupt(CORPUS[0], 32, WORDS, seed=8) != rows
    assert corrupt(CORPUS[0], 3, WORDS, seed=0) == PINNED


def test_bad_input():
    with pytest.raises(InputError, match="a sentence without a word cannot be corrupted; remove empty rows"):
        corrupt(" \n", 3, WORDS, seed=0)
    with pytest.raises(SettingsError, match="count -1: must be 0 or more"):
        corrupt("a dog", -1, WORDS, seed=0)
    with pytest.raises(InputError, match="the sentences hold 1 different words; at least 2 are needed"):
        Words.of(["yes yes", "yes"])


def test_half_a_surrogate_pair_is_a_word_like_others():
    assert corrupt("\ud800 dog", 3, WORDS, seed=0) != corrupt("\ud801 dog", 3, WORDS, seed=0)


@pytest.mark.slow
def test_the_meaning_drifts_away_step_by_step(data_dir):
    """A model sees that: the cosine to the first sentence falls from step to step, to a third of what it was."""
    with gzip.open(data_dir / "captions" / "task2_test_2016.1.en.gz", "rt", encoding="utf-8") as stream:
        captions = stream.read().splitlines()
    words, places = Words.of(captions), [0, 1, 3, 7, 15, 31]
    drawn = random.Random(0).sample(captions, 50)
    lists = [corrupt(sentence, 32, words, seed=0) for sentence in drawn]
    texts = [
        text for sentence, rows in zip(drawn, lists, strict=True) for text in [sentence, *(rows[i] for i in places)]
    ]
    vectors = load("minilm", device="cpu").encode(texts, normalize_embeddings=True)
    vectors = vectors.reshape(len(drawn), len(places) + 1, -1)
    near = np.einsum("nd,nkd->nk", vectors[:, 0], vectors[:, 1:]).mean(axis=0)
    assert (np.diff(near) < -0.02).all(), near
    assert near[0] > 0.9
    assert near[-1] < 0.37
