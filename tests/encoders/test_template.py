"""Prompts: what a template takes, how it is filled, and cut so that its end survives."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as some
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from sentsmith.encoders.template import IN_CONTEXT, REPRESENTATIVE_WORD, Template, tokenize, with_full_stop
from sentsmith.errors import InputError, SettingsError

CONDITIONAL = Template("reads {condition} with {sentence} is on")
WORDS = ["a", "dog", "plays", "guitar", "and", "sings", "never", "again", "in", "the", "house"]


def test_the_papers_prompts():
    """METHODS.md §2; the quotation mark at the end is meant."""
    filled = Template(REPRESENTATIVE_WORD).fill({"sentence": "A dog."})
    assert filled.text == 'The representative word for sentence A dog. is:"'
    assert filled.text[slice(*filled.spans["sentence"])] == "A dog."
    filled = Template(IN_CONTEXT).fill({"sentence": "A dog.", "condition": "the {sentence}"})
    # What a field holds is no template.
    assert filled.text == 'Given the context the {sentence}, summarize the sentence A dog. in one word:"'
    assert [filled.text[slice(*filled.spans[name])] for name in ("condition", "sentence")] == [
        "the {sentence}",
        "A dog.",
    ]


@pytest.mark.parametrize(
    "text",
    ["", "no place", "{sentence} {sentence}", "{condition}", "{sentence} {text}", "{condition}{sentence}{condition}"],
)
def test_templates_that_are_refused(text):
    with pytest.raises(SettingsError) as caught:
        Template(text)
    assert "it needs {sentence} once, may have {condition} once, and no other {field}" in str(caught.value)


def test_items_of_the_wrong_kind():
    plain = Template("{sentence} .")
    assert plain.values("a dog") == {"sentence": "a dog"}
    assert CONDITIONAL.values(["a dog", "size"]) == {"sentence": "a dog", "condition": "size"}
    for item in ("ab", ("a",), ("a", "b", "c"), ("a", None), ("a", 3), None, 7):
        with pytest.raises(InputError, match=r"wants \(sentence, condition\), not"):
            CONDITIONAL.values(item)
    with pytest.raises(InputError, match=r"has no \{condition\}, so it takes sentences, not \('a', 'b'\)"):
        plain.values(("a", "b"))


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ("A dog", "A dog."),
        ("A dog.", "A dog."),
        (" A dog ", "A dog."),
        ("A dog?", "A dog."),
        ('A "dog"', 'A "dog"'),
        ("A dog'", "A dog'"),
        ("A dog!", "A dog!."),
        ("", ""),
    ],
)
def test_full_stops_as_the_authors_set_them(given, wanted):
    assert with_full_stop(given) == wanted


@hypothesis_settings(max_examples=30, deadline=None)
@given(
    sentence=some.lists(some.sampled_from([*WORDS, "xylophone"]), max_size=30).map(" ".join),
    condition=some.lists(some.sampled_from(WORDS), max_size=30).map(" ".join),
    longest=some.integers(10, 40),
)
def test_what_is_too_long_loses_words_of_its_longest_field(tokenizer, sentence, condition, longest):
    values = {"sentence": sentence, "condition": condition}
    whole = tokenize(CONDITIONAL, [values], tokenizer, None)[0]
    cut = tokenize(CONDITIONAL, [values], tokenizer, longest)[0]
    assert len(cut.ids) == min(len(whole.ids), longest)
    # The prompt stands as it did: "[CLS] reads" in front, "is on [SEP]" behind.
    assert tokenizer.decode(cut.ids[:2]) == tokenizer.decode(whole.ids[:2])
    assert tokenizer.decode(cut.ids[-3:]) == "is on [SEP]"
    text = tokenizer.decode(cut.ids)
    kept = {
        "condition": text.partition("reads")[2].partition(" with")[0].split(),
        "sentence": text.partition(" with")[2].rpartition(" is on")[0].split(),
    }
    # No field is cut below the length of the other (but for words that were cut themselves).
    short = min(kept, key=lambda name: len(tokenizer.tokenize(values[name])))
    if len(tokenizer.tokenize(values[short])) <= (longest - 6) // 2:
        assert kept[short] == values[short].split()
    for name, words in kept.items():
        assert values[name].startswith(" ".join(words))
    if len(whole.ids) <= longest:
        assert cut == whole
        return
    if kept["sentence"]:
        assert tokenizer.decode([i for i, own in zip(cut.ids, cut.own, strict=True) if own]).split() == kept["sentence"]


def test_no_room_for_the_prompt(tokenizer):
    values = {"sentence": "a dog", "condition": "size"}
    found = tokenize(CONDITIONAL, [values], tokenizer, 6)[0].ids
    assert tokenizer.decode(found) == "[CLS] reads with is on [SEP]"
    with pytest.raises(InputError, match=r"has 6 tokens without any sentence, and 5 are allowed"):
        tokenize(CONDITIONAL, [values], tokenizer, 5)


def test_characters_of_several_tokens_go_whole():
    """A byte-level tokenizer has four tokens for an emoji, all at one place: a cut inside it must come to an end."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE(vocab={letter: i for i, letter in enumerate(letters)}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    bytewise = PreTrainedTokenizerFast(tokenizer_object=backend)
    template, values = Template('{sentence} is:"'), {"sentence": "ab \N{GUITAR}\N{GUITAR}"}
    found = [len(tokenize(template, [values], bytewise, longest)[0].ids) for longest in (16, 15, 12, 11, 7, 6, 5)]
    # One guitar less, then both and the blank before them, then letters.
    assert found == [16, 12, 12, 7, 7, 6, 5]


def test_an_empty_sentence_is_read_at_the_end(tokenizer):
    row = tokenize(Template("reads {sentence} ,"), [{"sentence": ""}], tokenizer, None)[0]
    assert row.own == [False] * (len(row.ids) - 1) + [True]
