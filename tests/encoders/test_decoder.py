"""A decoder as an encoder: its prompt, its tokens, padding sides, saving and loading, and what refuses to load it."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoModel,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedTokenizerFast,
    Qwen3Config,
)

import sentsmith
from sentsmith.encoders import decoder
from sentsmith.encoders.decoder import make_encoder
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.layers import final_norm_of
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, SentsmithError, SettingsError

TEMPLATE = "a {sentence} is ,"
CONDITIONAL = "near {condition} , {sentence} is ,"
SHARED = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 2,
    "eos_token_id": 3,
    "initializer_range": 0.3,
}
CONFIGS = {
    "mistral": lambda size: MistralConfig(**SHARED, vocab_size=size, num_key_value_heads=2, sliding_window=5),
    "qwen3": lambda size: Qwen3Config(**SHARED, vocab_size=size, num_key_value_heads=2, head_dim=8),
    "gpt-neox": lambda size: GPTNeoXConfig(**SHARED, vocab_size=size),
    "gpt2": lambda size: GPT2Config(
        vocab_size=size, n_embd=32, n_layer=2, n_head=4, n_positions=64, initializer_range=0.3, bos_token_id=2,
        eos_token_id=3,
    ),
}  # fmt: skip


@pytest.fixture(scope="module")
def folder_of(tmp_path_factory, tokenizer, tiny_llama):
    """Return a function from an architecture to the folder of a tiny model."""

    def make(name):
        if name == "llama":
            return tiny_llama
        torch.manual_seed(0)
        folder = tmp_path_factory.mktemp(name)
        AutoModel.from_config(CONFIGS[name](len(tokenizer))).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return make


@pytest.fixture
def encoder(tiny_llama):
    """Return a function that makes an encoder of the tiny LLaMA."""

    def make(template=TEMPLATE, **options):
        return make_encoder(tiny_llama, template=template, device="cpu", **options)

    return make


def encode(model, items):
    return as_encoder(model).encode(items)


def test_what_the_model_reads(encoder, tokenizer):
    model = encoder()
    features = model.preprocess(["dog sings", "", "the old man plays the guitar"], max_length=10)
    texts = [
        tokenizer.decode(ids[real.bool()])
        for ids, real in zip(features["input_ids"], features["attention_mask"], strict=True)
    ]
    assert texts == [
        "[CLS] a dog sings is, [SEP]",
        "[CLS] a is, [SEP]",
        "[CLS] a the old man plays the is, [SEP]",
    ]
    own = [
        tokenizer.decode(ids[mark.bool()])
        for ids, mark in zip(features["input_ids"], features["sentence_mask"], strict=True)
    ]
    assert own == ["dog sings", "[SEP]", "the old man plays the"]
    assert features["sentence_mask"].dtype == torch.int64
    # By the model's own limit, and whatever the limit, the last token is the prompt's.
    model.max_seq_length = 8
    assert model.preprocess(["the old man plays the guitar"])["input_ids"].shape == (1, 8)
    assert model[0].last_id == tokenizer.sep_token_id
    with pytest.raises(SettingsError, match="prompt 'query: ': this model reads sentences inside its own"):
        model.preprocess(["a"], prompt="query: ")
    with pytest.raises(InputError, match="5 tokens without any sentence, and 4 are allowed"):
        model.preprocess(["dog"], max_length=4)


def test_full_stops(encoder, tokenizer):
    plain, stopped = (encoder(full_stop=full).preprocess(["a dog ?"])["input_ids"][0] for full in (False, True))
    assert (tokenizer.decode(plain), tokenizer.decode(stopped)) == (
        "[CLS] a a dog? is, [SEP]",
        "[CLS] a a dog. is, [SEP]",
    )


def test_sentences_with_conditions(encoder, tokenizer):
    model = encoder(CONDITIONAL, readout="mean", both_ways_from=0)
    features = model.preprocess([("dog sings", "the house")])
    assert tokenizer.decode(features["input_ids"][0]) == "[CLS] near the house, dog sings is, [SEP]"
    assert tokenizer.decode(features["input_ids"][0][features["sentence_mask"][0].bool()]) == "dog sings"
    same, other = encode(model, [("dog sings", "the house"), ("dog sings", "the book")])
    assert not np.allclose(same, other)
    with pytest.raises(InputError, match=r"wants \(sentence, condition\), not 'dog'"):
        encode(model, ["dog"])


@pytest.mark.parametrize("readout", ["last", "mean", "all"])
def test_the_readouts_read_the_decoders_own_tokens(encoder, readout, sentences):
    model = encoder(readout=readout, both_ways_from=0)
    vectors = encode(model, sentences[:6])
    for sentence, vector in zip(sentences[:6], vectors, strict=True):
        features = model.preprocess([sentence])
        with torch.no_grad():
            tokens = model[0](dict(features))["token_embeddings"][0]
        own = features["sentence_mask"][0].bool()
        wanted = {"last": tokens[-1], "mean": tokens[own].mean(dim=0), "all": tokens.mean(dim=0)}[readout]
        np.testing.assert_allclose(vector, wanted, atol=2e-5)


def test_a_wrong_last_token_is_noticed(encoder):
    """Say, features that another tokenizer made, which cut the prompt."""
    model = encoder()
    features = model.preprocess(["dog sings"])
    cut = {key: value[:, :-1] for key, value in features.items() if isinstance(value, torch.Tensor)}
    with pytest.raises(SentsmithError, match="which ends the prompt; was it cut by another tokenizer"):
        model(cut)


@pytest.mark.parametrize(
    "name",
    ["llama", "gpt2", *(pytest.param(each, marks=pytest.mark.slow) for each in ("mistral", "qwen3", "gpt-neox"))],
)
def test_saved_and_restored(name, folder_of, tmp_path, sentences):
    model = make_encoder(
        folder_of(name), template=TEMPLATE, both_ways_from=0, readout="mean", device="cpu", full_stop=True
    )
    assert not np.allclose(
        encode(model, sentences[:8]),
        encode(make_encoder(folder_of(name), template=TEMPLATE, readout="mean", device="cpu"), sentences[:8]),
        atol=1e-2,
    )
    # The padding's side makes no difference, for learned positions neither; with the shortest row first and last.
    vectors = encode(model, sentences[:8])
    model.tokenizer.padding_side = "left"
    features = model.preprocess(sentences[:2])
    assert features["attention_mask"][:, -1].tolist() == [1, 1]
    np.testing.assert_allclose(encode(model, sentences[:8]), vectors, atol=2e-5)
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    again = sentsmith.load(tmp_path / "m", device="cpu")
    kept = again[0]
    assert (kept.both_ways_from, kept.template, kept.full_stop, kept.pad_leak) == (0, TEMPLATE, True, False)
    assert (again[1].readout, again[1].last_id) == ("mean", model[0].last_id)
    np.testing.assert_array_equal(encode(again, sentences[:8]), vectors)


@pytest.mark.slow
def test_in_other_processes(encoder, sentences):
    model = encoder(both_ways_from=0, readout="mean")
    found = model.encode(sentences[:8], device=["cpu", "cpu"], chunk_size=4)
    np.testing.assert_allclose(found, encode(model, sentences[:8]), atol=2e-5)


@pytest.fixture(scope="module")
def saved(tiny_llama, tmp_path_factory):
    """Return the folder of a saved encoder."""
    folder = tmp_path_factory.mktemp("saved") / "m"
    model = make_encoder(tiny_llama, template=TEMPLATE, both_ways_from=0, device="cpu")
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


def test_nothing_loads_it_as_if_it_were_causal(saved, sentences):
    with pytest.raises(ValueError, match="trust_remote_code"):
        SentenceTransformer(str(saved), device="cpu")
    with pytest.raises(ValueError, match="Unrecognized model"):
        AutoModel.from_pretrained(saved)
    inside = next(saved.glob("0_*"))
    for loads in (AutoModel.from_pretrained, SentenceTransformer):
        with pytest.raises(ValueError, match="Unrecognized model"):
            loads(str(inside))
    for ours in (load, make_encoder):
        with pytest.raises(InputError) as caught:
            ours(inside)
        assert str(caught.value) == f"{inside}: is part of a model, its decoder; give the model, {saved}"
    trusted = SentenceTransformer(str(saved), device="cpu", trust_remote_code=True)
    assert trusted[0].both_ways_from == 0
    np.testing.assert_array_equal(encode(trusted, sentences[:4]), encode(load(saved, device="cpu"), sentences[:4]))


def test_a_damaged_folder(saved, tmp_path):
    def damaged(change):
        folder = tmp_path / change.__name__
        shutil.copytree(saved, folder)
        place = next(folder.glob("0_*")) / "sentence_bert_config.json"
        values = json.loads(place.read_text(encoding="utf-8"))
        change(values)
        place.write_text(json.dumps(values), encoding="utf-8")
        with pytest.raises(InputError) as caught:
            load(folder, device="cpu")
        return str(caught.value)

    def too_deep(values):
        values["both_ways_from"] = 9

    def no_sentence(values):
        values["template"] = "a"

    def no_padding(values):
        del values["pad_leak"]

    assert damaged(no_padding).endswith("sentence_bert_config.json: has no 'pad_leak'; save the model again")
    assert "layer 9 cannot be the first that looks both ways" in damaged(too_deep)
    assert "it needs {sentence} once" in damaged(no_sentence)


def test_the_setting_without_effect_is_warned_of(encoder, caplog, sentences):
    plain = encode(encoder(), sentences[:5])
    assert not caplog.records
    model = encoder(both_ways_from=1)
    assert "only the last layer looks both ways and the last token is read" in caplog.text
    assert "begin at layer 0" in caplog.text
    np.testing.assert_allclose(encode(model, sentences[:5]), plain, atol=2e-5)
    caplog.clear()
    encoder(both_ways_from=1, readout="mean")
    encoder(both_ways_from=0)
    # Padding that is seen changes the last token too.
    encoder(both_ways_from=1, pad_leak=True)
    assert not caplog.records
    encoder(layers=1, both_ways_from=0)
    assert caplog.messages[0].endswith("for an effect, read the mean")


def test_layers_are_kept_and_added(encoder, tmp_path, sentences):
    model = encoder(layers=1, added_layers=2, both_ways_from=1, final_norm=False)
    assert model[0].model.config.num_hidden_layers == 3
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    again = load(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(encode(again, sentences[:5]), encode(model, sentences[:5]))
    assert final_norm_of(again) is None
    for count in (0, 3):
        with pytest.raises(SettingsError, match=f"the first {count} layers of 2 cannot be kept"):
            encoder(layers=count)


@pytest.fixture
def joining(sentences, tmp_path):
    """Return a decoder whose tokenizer adds no token at the end and joins a sentence's last sign with the prompt's."""
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    texts = [f'the word for {text}{end}is:"' for text in sentences for end in ('"', ' ."', " ")]
    backend.train_from_iterator(
        [*texts, *['."', '?"'] * 50],
        trainers.BpeTrainer(vocab_size=300, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()),
    )
    folder = tmp_path / "joining"
    model = AutoModel.from_config(LlamaConfig(**SHARED, vocab_size=300))
    model.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=backend, model_max_length=64).save_pretrained(folder)
    return folder


def test_a_tokenizer_without_an_end_token(joining, sentences):
    apart = make_encoder(joining, template='the word for {sentence} is:"', both_ways_from=0, device="cpu")
    rows = apart.preprocess(["a dog", "a dog ."])
    columns = rows["attention_mask"].sum(dim=1) - 1
    assert {int(row[column]) for row, column in zip(rows["input_ids"], columns, strict=True)} == {apart[0].last_id}
    # Here the sentence's own full stop goes into the last token: there is not one that ends every prompt.
    joined = make_encoder(joining, template='the {sentence}"', both_ways_from=0, device="cpu")
    rows = joined.preprocess(["a dog", "a dog."])
    columns = rows["attention_mask"].sum(dim=1) - 1
    assert len({int(row[column]) for row, column in zip(rows["input_ids"], columns, strict=True)}) == 2
    assert joined[0].last_id is None
    texts = ["a dog", "a dog.", "a dog?", *sentences[:3]]
    vectors = encode(joined, texts)
    for text, vector in zip(texts, vectors, strict=True):
        with torch.no_grad():
            tokens = joined[0](joined.preprocess([text]))["token_embeddings"][0]
        np.testing.assert_allclose(vector, tokens[-1], atol=2e-5)


def test_it_is_tried_again_on_another_device(encoder, monkeypatch):
    model, tried = encoder(both_ways_from=0), []
    monkeypatch.setattr(decoder, "check_sight", tried.append)
    SentenceTransformer(modules=list(model), device="cpu")
    assert tried == []
    model[0]._tried_on = torch.device("cuda")
    SentenceTransformer(modules=list(model), device="cpu")
    assert tried == [model[0].model]


def test_what_is_no_decoder(tiny_bert, tmp_path):
    for start in (None, 0):
        with pytest.raises(SettingsError, match="is no decoder"):
            make_encoder(tiny_bert, both_ways_from=start, device="cpu")
    with pytest.raises(InputError, match="no such folder"):
        make_encoder(tmp_path / "nowhere")
