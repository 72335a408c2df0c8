"""Translation models: the same text whatever stands beside it; nothing cut silently, nothing loaded unsafely."""

from __future__ import annotations

import json
import random
import shutil
import sys

import pytest
import torch

from sentsmith.errors import InputError, MissingExtraError, SentsmithError, SettingsError
from sentsmith.llm.translation import MarianTranslator, model_names


@pytest.fixture
def copied(there, tmp_path):
    """Return a copy of a translation model that a test may damage."""
    return shutil.copytree(there, tmp_path / "model")


def by_hand(folder, sentence):
    """Return what transformers itself writes for one sentence alone."""
    from transformers import AutoTokenizer, MarianMTModel

    tokenizer, model = AutoTokenizer.from_pretrained(folder), MarianMTModel.from_pretrained(folder).eval()
    ids = tokenizer(sentence, return_tensors="pt")
    output = model.generate(ids["input_ids"], attention_mask=ids["attention_mask"], max_new_tokens=60)
    return tokenizer.decode(output[0], skip_special_tokens=True)


@pytest.mark.parametrize(
    ("spec", "names"),
    [
        ("a,b", ("a", "b")),
        ("./there , ../back", ("./there", "../back")),
        ("marian:en-fr-en", ("Helsinki-NLP/opus-mt-en-fr", "Helsinki-NLP/opus-mt-fr-en")),
        ("marian:en-zh-en", ("Helsinki-NLP/opus-mt-en-zh", "Helsinki-NLP/opus-mt-zh-en")),
    ],
)
def test_the_two_models(spec, names):
    assert model_names(spec) == names


@pytest.mark.parametrize(
    "spec", ["", "a", "a,", ",b", "a,b,c", "marian:en-fr", "marian:en-fr-de", "marian:en-en-en", "marian:en-fr-en,b"]
)
def test_models_named_otherwise(spec):
    with pytest.raises(SettingsError, match=r"use THERE,BACK.*or marian:en-fr-en"):
        model_names(spec)


def test_it_writes_what_transformers_writes(there, sentences):
    found = MarianTranslator(there, device="cpu").translate(sentences[:5])
    assert found == [by_hand(there, sentence) for sentence in sentences[:5]]
    assert len(set(found)) == 5
    assert all(found)


@pytest.mark.parametrize("beams", [1, 3])
def test_a_translation_does_not_depend_on_its_batch(there, sentences, beams):
    sentences = sentences[:12]
    alone = MarianTranslator(there, device="cpu", batch_tokens=1, num_beams=beams)
    one_by_one = dict(zip(sentences, alone.translate(sentences), strict=True))
    assert len(set(one_by_one.values())) > 8
    shuffled = random.Random(1).sample(sentences, len(sentences))
    for tokens in (100, 100_000):
        together = MarianTranslator(there, device="cpu", batch_tokens=tokens, num_beams=beams)
        assert together.translate(shuffled) == [one_by_one[sentence] for sentence in shuffled]
    assert alone.translate(sentences[3:4]) == [one_by_one[sentences[3]]]


def test_beams_are_another_search(there, sentences):
    greedy, beams = (MarianTranslator(there, device="cpu", num_beams=beams).translate(sentences) for beams in (1, 4))
    assert greedy != beams


def test_the_models_own_defaults_do_not_interfere(make_translator, there, sentences, caplog):
    """Published Marian models come with beams and a length of their own."""
    other = make_translator(7, num_beams=4, max_length=12, early_stopping=True, renormalize_logits=True)
    found = MarianTranslator(other, device="cpu").translate(sentences)
    assert found == MarianTranslator(there, device="cpu").translate(sentences)
    assert not caplog.records


def test_a_model_of_before_generation_settings_had_a_file(there, copied, sentences):
    settings = json.loads((copied / "generation_config.json").read_text())
    config = json.loads((copied / "config.json").read_text())
    old = {
        "num_beams": 4,
        "max_length": 512,
        "add_bias_logits": False,
        "classif_dropout": 0.0,
        "normalize_before": False,
    }
    kept = {key: settings[key] for key in ("bad_words_ids", "no_repeat_ngram_size", "exponential_decay_length_penalty")}
    (copied / "config.json").write_text(json.dumps(config | old | kept))
    (copied / "generation_config.json").unlink()
    found = MarianTranslator(copied, device="cpu").translate(sentences)
    assert found == MarianTranslator(there, device="cpu").translate(sentences)


def test_batches_are_sorted_and_as_large_as_told(there, sentences, monkeypatch):
    translator = MarianTranslator(there, device="cpu", batch_tokens=128)
    shapes, generate = [], translator.model.generate

    def spy(input_ids, attention_mask, **options):
        shapes.append(tuple(input_ids.shape))
        assert (input_ids.ne(0) == attention_mask.bool()).all()
        return generate(input_ids=input_ids, attention_mask=attention_mask, **options)

    monkeypatch.setattr(translator.model, "generate", spy)
    translator.translate(sentences)
    assert sum(rows for rows, _ in shapes) == 60
    assert all(rows * width <= 128 for rows, width in shapes)
    assert [width for _, width in shapes] == sorted((width for _, width in shapes), reverse=True)
    tokens = sum(len(row) for row in translator.tokenizer(sentences)["input_ids"])
    assert sum(rows * width for rows, width in shapes) < 1.15 * tokens


def test_what_has_no_translation_is_empty(there, sentences):
    translator = MarianTranslator(there, device="cpu")
    long = " ".join(["dog"] * 70)
    whole = translator.translate(sentences)
    assert translator.translate([long, sentences[0], " ", sentences[1], ""]) == ["", whole[0], "", whole[1], ""]
    assert translator.translate([]) == []
    # 62 words and the tokenizer's two marks fill the model's 64 places.
    assert translator.translate([" ".join(["dog"] * 62)]) != [""]
    assert translator.translate([" ".join(["dog"] * 63)]) == [""]


def test_a_translation_without_an_end_is_none(there, sentences):
    whole = MarianTranslator(there, device="cpu").translate(sentences)
    tight = MarianTranslator(there, device="cpu", max_new_tokens=12).translate(sentences)
    assert all(short in ("", long) for short, long in zip(tight, whole, strict=True))
    assert 10 < tight.count("") < 50


def test_a_limit_beyond_the_models_places(make_translator, sentences):
    """A model that never ends by itself runs to its last place, and no further."""
    endless = make_translator(7, no_repeat_ngram_size=0, exponential_decay_length_penalty=None)
    assert MarianTranslator(endless, device="cpu", max_new_tokens=1000).translate(sentences[:3]) == [""] * 3


@pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")
def test_marians_own_tokenizer(make_translator, tmp_path, sentences, caplog):
    """Published Marian models have two sentencepiece models and a vocabulary."""
    import sentencepiece
    from transformers import MarianTokenizer

    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(sentences), model_prefix=str(tmp_path / "source"), vocab_size=55, minloglevel=2
    )
    shutil.copy(tmp_path / "source.model", tmp_path / "target.model")
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(tmp_path / "source.model"))
    names = ["</s>", "<unk>", *(pieces.id_to_piece(i) for i in range(3, len(pieces))), "<pad>"]
    (tmp_path / "vocab.json").write_text(json.dumps({name: i for i, name in enumerate(names)}))
    files = (str(tmp_path / name) for name in ("source.model", "target.model", "vocab.json"))
    tokenizer = MarianTokenizer(*files)
    folder = make_translator(11, tokenizer=tokenizer)
    assert (folder / "source.spm").is_file()
    translator = MarianTranslator(folder, device="cpu")
    assert type(translator.tokenizer).__name__ == "MarianTokenizer"
    found = translator.translate(sentences)
    assert found[:12] == [text for one in sentences[:12] for text in translator.translate([one])]
    assert found[0] == by_hand(folder, sentences[0])
    assert len(set(found)) > 40
    assert not any(mark in text for text in found for mark in ("▁", "</s>", "<pad>"))
    assert "languages" not in caplog.text

    vocabulary = json.loads((folder / "vocab.json").read_text())
    del vocabulary[names[-2]]
    (folder / "vocab.json").write_text(json.dumps({**vocabulary, ">>fra<<": len(names) - 2}))
    MarianTranslator(folder, device="cpu")
    assert "knows several languages (>>fra<< …) and chooses one by itself" in caplog.text


def test_marians_tokenizer_without_sentencepiece(copied, monkeypatch):
    (copied / "source.spm").write_bytes(b"")
    monkeypatch.setitem(sys.modules, "sentencepiece", None)
    with pytest.raises(MissingExtraError, match=r"needs 'sentencepiece'.*sentsmith\[llm\]"):
        MarianTranslator(copied)


# -- models that cannot translate ---------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_llama"])
def test_a_model_that_is_no_encoder_decoder(kind, request):
    with pytest.raises(
        InputError, match=r"of kind '(bert|llama)', which is no encoder-decoder; give a translation model"
    ):
        MarianTranslator(request.getfixturevalue(kind))


def test_a_model_without_its_head(copied):
    from transformers import BartConfig, BartForSequenceClassification

    config = BartConfig(
        vocab_size=83,
        d_model=16,
        encoder_layers=1,
        decoder_layers=1,
        encoder_attention_heads=2,
        decoder_attention_heads=2,
        encoder_ffn_dim=32,
        decoder_ffn_dim=32,
        tie_word_embeddings=False,
    )
    BartForSequenceClassification(config).save_pretrained(copied)
    with pytest.raises(InputError, match=r"lacks .* weight\(s\) of a translation model"):
        MarianTranslator(copied)


def test_pickled_weights(there, copied):
    from transformers import MarianMTModel

    model = MarianMTModel.from_pretrained(there)
    (copied / "model.safetensors").unlink()
    torch.save(model.state_dict(), copied / "pytorch_model.bin")
    with pytest.raises(InputError, match=r"pytorch_model.bin: holds pickled weights"):
        MarianTranslator(copied)


def test_a_hub_model_whose_weights_are_all_pickled(copied, monkeypatch):
    (copied / "model.safetensors").unlink()
    monkeypatch.setattr("sentsmith.llm.loading.resolve", lambda _: copied)
    with pytest.raises(
        InputError, match=r"'Helsinki-NLP/opus-mt-en-fr' has no weights in safetensors on the hub.*conver"
    ):
        MarianTranslator("Helsinki-NLP/opus-mt-en-fr")


def test_a_hub_that_cannot_be_reached():
    with pytest.raises(SentsmithError, match=r"cannot be reached; give the folders of two translation") as caught:
        MarianTranslator("Helsinki-NLP/opus-mt-en-fr")
    assert caught.value.exit_code == 1
    with pytest.raises(InputError, match="no such folder"):
        MarianTranslator("./none")


@pytest.mark.parametrize("damage", ["weights", "tokenizer", "no end"])
def test_a_damaged_model(copied, damage):
    if damage == "weights":
        (copied / "model.safetensors").write_bytes(b"no weights")
        message = "cannot be loaded as a model"
    elif damage == "tokenizer":
        for file in copied.glob("*token*"):
            file.unlink()
        message = "cannot be loaded as a model"
    else:
        for name in ("config.json", "generation_config.json"):
            values = json.loads((copied / name).read_text())
            (copied / name).write_text(json.dumps(values | {"eos_token_id": None, "forced_eos_token_id": None}))
        message = "names no end-of-sentence"
    with pytest.raises(InputError, match=message):
        MarianTranslator(copied)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ({"batch_tokens": 0}, "batch tokens 0: must be at least 1"),
        ({"max_new_tokens": 1}, "max_new_tokens 1: must be at least 2"),
        ({"num_beams": 0}, "beams 0: must be at least 1"),
    ],
)
def test_numbers_too_small(there, setting, message):
    with pytest.raises(SettingsError, match=message):
        MarianTranslator(there, **setting)
