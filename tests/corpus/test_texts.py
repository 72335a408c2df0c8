"""Normal forms, cleaning, splitting."""

from __future__ import annotations

import logging

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentsmith.corpus.cleaning import CleaningCounts, CleaningSettings, clean, tidy
from sentsmith.corpus.normalising import match_key, normal_form
from sentsmith.corpus.splitting import split_sentences
from sentsmith.errors import SettingsError
from sentsmith.settings import resolve


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ("It's a dog-house, isn't it?", "it 's a dog - house , is n't it ?"),
        ("It's a dog-house, isn't it?", "it ' s a dog house , isn ' t it ?"),
        ("It's here.", "It’s here"),
        ('"Hello" (he said)', "`` Hello '' -LRB- he said -RRB-"),
        ("I cannot go", "I can not go ."),
        ("You're gonna see", "you ' re gon na see"),
        ("1,650 people", "1 , 650 people"),
        ("ﬁne  Straße", "FINE\tSTRASSE"),
        ("caf\u00e9", "cafe\u0301"),
        ("u.s. troops", "U . S . troops"),
    ],
)
def test_copies_have_one_normal_form(first, second):
    assert normal_form(first) == normal_form(second) != ""


@pytest.mark.parametrize(
    ("first", "second"),
    [("a dog", "a cat"), ("it is", "is it"), ("हिन्दी", "हनद"), ("10 men", "1 man"), ("not it", "it")],
)
def test_different_sentences_keep_different_forms(first, second):
    assert match_key(first) != match_key(second)


def test_spaces_within_words_do_not_count_for_the_key():
    assert match_key("A cell phone.") == match_key("a cellphone")
    assert normal_form("A cell phone.") != normal_form("a cellphone")


def test_chinese_characters_are_words():
    assert normal_form("日本語。") == "日 本 語"


@given(st.text())
def test_the_normal_form_is_its_own_normal_form(text):
    assert match_key(normal_form(text)) == match_key(text)
    assert normal_form(text) == " ".join(normal_form(text).split())


def test_tidy():
    assert tidy("  a\u0000 b\u200b\tc\r\n d\ufeff \x1b[0m ") == "a b c d [0m"
    assert tidy("cafe\u0301") == "caf\u00e9"
    assert tidy("\ud800x") == "x"
    assert tidy("می\u200cخواهم") == "می\u200cخواهم"


def kept(sentences, **values):
    counts = CleaningCounts()
    return list(clean(sentences, CleaningSettings(**values), counts=counts)), counts


def test_duplicates_by_each_rule():
    copies = ["The dog runs.", "The dog runs.", "the dog runs !", "A dog runs."]
    assert kept(copies)[0] == ["The dog runs.", "A dog runs."]
    assert kept(copies, duplicates="exact")[0] == ["The dog runs.", "the dog runs !", "A dog runs."]
    assert kept(copies, duplicates="keep")[0] == copies


def test_texts_of_signs_only_are_not_copies_of_each_other():
    assert kept(["...", "!!!", "..."])[0] == ["...", "!!!"]


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ({"min_characters": 4}, ["four words are here", "many words are said here now"]),
        ({"max_characters": 19}, ["one", "four words are here"]),
        ({"min_words": 4}, ["four words are here", "many words are said here now"]),
        ({"max_words": 4}, ["one", "four words are here"]),
    ],
)
def test_each_limit_matters_and_is_inclusive(values, wanted):
    assert kept(["one", "four words are here", "many words are said here now"], **values)[0] == wanted


def test_what_is_dropped_is_counted_and_logged(caplog):
    with caplog.at_level(logging.INFO, logger="sentsmith"):
        _, counts = kept(["", " \t", "a", "one two", "ONE two.", "one two three four"], min_words=2, max_words=3)
    assert counts == CleaningCounts(read=6, kept=1, empty=2, too_short=1, too_long=1, duplicate=1)
    assert "kept 1 of 6 sentences; dropped: 2 empty, 1 too short, 1 too long, 1 duplicates" in caplog.text


def test_limits_that_leave_nothing_are_refused():
    with pytest.raises(SettingsError, match="min_words 5 is above max_words 4"):
        resolve(CleaningSettings, {"min_words": 5, "max_words": 4})


def test_cleaning_is_a_stream():
    def endless():
        number = 0
        while True:
            number += 1
            yield f"sentence number {number}"

    assert next(clean(endless())) == "sentence number 1"


def test_sentences_of_a_document():
    text = 'Dr. Smith went\nhome. He said "Hi there." Then left!\r\n\r\nA title\n\n\nIt costs 3.5 euros.  '
    assert split_sentences(text) == [
        "Dr. Smith went home.",
        'He said "Hi there."',
        "Then left!",
        "A title",
        "It costs 3.5 euros.",
    ]
    assert split_sentences(" \n\n ") == []
    assert split_sentences("今日は。元気です。", language="ja") == ["今日は。", "元気です。"]
    with pytest.raises(ValueError, match="language 'english please'"):
        split_sentences("a", language="english please")


@given(st.text())
def test_splitting_loses_nothing_but_space(text):
    assert "".join("".join(split_sentences(text)).split()) == "".join(text.split())
