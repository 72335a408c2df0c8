"""The representative word: as the library's own decoding says it, whole, judged, by the right head."""

import json

import pytest
import torch
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM

from sentsmith.errors import InputError
from sentsmith.methods.bellm import words
from sentsmith.methods.bellm.encoder import write_encoder

# Short: of the usual prompt, the tests' tokenizer makes a token of each letter.
TEMPLATE = "someone sings {sentence} not a"


@pytest.fixture(scope="module")
def make_lm(tmp_path_factory, tokenizer):
    """Return a function that saves a tiny language model with its head."""

    def make(seed=0, *, width=32, tied=False):
        torch.manual_seed(seed)
        config = LlamaConfig(
            vocab_size=len(tokenizer),
            hidden_size=width,
            num_hidden_layers=2,
            num_attention_heads=4,
            intermediate_size=48,
            max_position_embeddings=64,
            pad_token_id=0,
            eos_token_id=None,
            initializer_range=0.6,
            tie_word_embeddings=tied,
        )
        folder = tmp_path_factory.mktemp("lm")
        LlamaForCausalLM(config).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture(scope="module")
def lm(make_lm):
    return make_lm()


@pytest.fixture(scope="module")
def said_by_the_library(lm, sentences, tokenizer):
    """What transformers' own greedy decoding says of each sentence, one by one."""
    model = AutoModelForCausalLM.from_pretrained(lm)
    said = []
    for sentence in sentences[:12]:
        ids = tokenizer(TEMPLATE.format(sentence=sentence), return_tensors="pt")["input_ids"]
        answer = model.generate(
            ids, attention_mask=torch.ones_like(ids), max_new_tokens=words.TOKENS, do_sample=False, pad_token_id=0
        )
        said.append(tokenizer.decode(answer[0, ids.shape[1] :]))
    return said


def test_says_what_the_library_says(lm, sentences, said_by_the_library):
    expected = [words.word_for(*pair) for pair in zip(sentences, said_by_the_library, strict=False)]
    counts, done = words.summary(expected), []
    assert counts["different"] > 3  # else this would prove little
    found = words.representative_words(*words.open_speaker(lm, template=TEMPLATE), sentences[:12], advance=done.append)
    assert found == expected
    assert done == [12]


def test_layers_that_look_both_ways_read_the_whole_prompt_again(lm, sentences):
    model, head = words.open_speaker(lm, template=TEMPLATE, both_ways_from="n-2")
    found = words.representative_words(model, head, sentences[:6])
    decoder, expected = model[0], []
    for sentence in sentences[:6]:
        ids, said = model.preprocess([sentence])["input_ids"], []
        for _ in range(words.TOKENS):
            states = decoder({"input_ids": ids, "attention_mask": torch.ones_like(ids)})["token_embeddings"]
            said.append(int(head(states[0, -1]).argmax()))
            ids = torch.cat([ids, torch.tensor([[said[-1]]])], dim=1)
        expected.append(words.word_for(sentence, decoder.tokenizer.decode(said)))
    assert found == expected
    decoder.look_both_ways(None)
    assert found != words.representative_words(model, head, sentences[:6])

    # A prompt that is too long is cut so that there is room to speak.
    decoder.max_seq_length = 20
    widths = []
    decoder.register_forward_pre_hook(lambda _, args: widths.append(args[0]["input_ids"].shape[1]))
    words.representative_words(model, head, [" ".join(sentences)])
    assert widths[0] == 20 - words.TOKENS
    assert max(widths) < 20


@pytest.mark.parametrize(
    ("said", "word", "whole"),
    [
        ('dog"', "dog", True),
        (" dog is", "dog", True),
        ("dog", "dog", False),
        ("ice-", "ice", False),
        ("ice-cream.", "ice-cream", True),
        ("don't ", "don't", True),
        ("naïve</s>", "naïve", True),
        ('"', "", True),
        ("</s>", "", True),
        ("", "", False),
        (" ", "", False),
        ("caf\ufffd", "caf", False),
        ("_", "", True),
    ],
)
def test_where_a_word_ends(said, word, whole):
    assert words.word_for("", said).word == word
    assert words._is_whole(said) is whole


def test_what_is_counted():
    said = [("A dog runs.", 'Dog"'), ("A dog runs.", "animal "), ("The end.", "the "), ("A.", '"'), ("A cat.", "dog.")]
    found = [words.word_for(*each) for each in said]
    assert [each.frequent for each in found] == [False, False, True, True, False]
    assert [each.in_sentence for each in found] == [True, False, True, False, False]
    counts = {"sentences": 5, "infrequent": 0.6, "in_sentence": 0.4, "no_word": 0.2, "different": 3}
    assert words.summary(found) == counts
    with pytest.raises(InputError, match="no sentence"):
        words.summary([])


def test_the_head_of_a_saved_model(lm, make_lm, tmp_path, tiny_llama, sentences):
    def said(name, head=None):
        return words.representative_words(*words.open_speaker(name, head=head, template=TEMPLATE), sentences[:4])

    write_encoder(lm, tmp_path / "untied")
    with pytest.raises(InputError, match="give --head FOLDER, its base"):
        words.open_speaker(tmp_path / "untied")
    assert said(tmp_path / "untied", head=lm) == said(lm)
    with pytest.raises(InputError, match="give its base"):
        words.open_speaker(tmp_path / "untied", head=make_lm(width=16))
    with pytest.raises(InputError, match="has no head"):
        words.open_speaker(tiny_llama)
    tied = make_lm(1, tied=True)
    write_encoder(tied, tmp_path / "tied")
    assert said(tmp_path / "tied") == said(tied)


def test_the_verb(lm, command, sentence_file, sentences, tmp_path):
    output = tmp_path / "words.jsonl"
    arguments = ("words", sentence_file, "--model", lm, "--template", TEMPLATE, "--limit", 12, "--output", output)
    code, said, _ = command(*arguments, "--json")
    assert code == 0
    answer, rows = json.loads(said), [json.loads(line) for line in output.read_text(encoding="utf-8").splitlines()]
    assert [row["sentence"] for row in rows] == sentences[:12]
    assert answer["examples"] == rows[:10]
    assert answer["infrequent"] == sum(not row["frequent"] for row in rows) / 12
    code, _, error = command(*arguments)
    assert code == 2
    assert "exists" in error


@pytest.mark.slow
def test_a_real_model_names_who_it_is_about(nli_lm, data_dir):
    from itertools import islice

    from sentsmith.corpus.reading import read_sentences

    texts = list(islice(read_sentences(data_dir / "sts" / "STSBenchmark" / "dev.csv", column="1"), 60))
    model, head = words.open_speaker(nli_lm, template="{sentence} The")
    counts = words.summary(words.representative_words(model, head, texts))
    assert counts["infrequent"] > 0.8
    assert counts["in_sentence"] > 0.5
    assert counts["different"] > 5
    # It was trained on whole sentences: at a quotation mark it ends its text, and has no word.
    model, head = words.open_speaker(nli_lm)
    assert words.summary(words.representative_words(model, head, texts))["no_word"] > 0.9
