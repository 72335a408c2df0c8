"""Two towers in one model: their sum, their files, their poolers and readouts, and what cannot be joined."""

from __future__ import annotations

import copy
import json

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

import sentsmith
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import rebuilt
from sentsmith.errors import InputError, SettingsError
from sentsmith.methods.jtcse.cross import CrossPlan
from sentsmith.methods.jtcse.objective import JTCSELoss, Parts
from sentsmith.methods.jtcse.towers import (
    Joint,
    TwinTower,
    renew_poolers,
    require_poolers,
    tower_pair,
    twin,
    with_readout,
)
from sentsmith.training.settings import TrainingSettings
from sentsmith.training.trainer import make_trainer
from sentsmith.training.weights import save_weights


def vectors(model, sentences):
    return as_encoder(model).encode(sentences)


def raw(folder):
    return load(folder, device="cpu")


def widened(features):
    """Return the same sentences with 9 more columns of padding."""
    return {key: torch.nn.functional.pad(features[key], (0, 9)) for key in ("input_ids", "attention_mask")}


@pytest.fixture(scope="module")
def model(pair_of_berts):
    return pair_of_berts()


@pytest.fixture(scope="module")
def saved(model, tmp_path_factory):
    folder = tmp_path_factory.mktemp("twin") / "model"
    model.save_pretrained(str(folder), create_model_card=False)
    return folder


# The sum ------------------------------------------------------------------------------------------------------------


def test_the_vector_is_the_sum(model, tiny_bert, other_bert, sentences):
    one, two = (vectors(raw(folder), sentences) for folder in (tiny_bert, other_bert))
    np.testing.assert_allclose(vectors(model, sentences), one + two, atol=1e-5)
    np.testing.assert_allclose(model.encode(sentences), one + two, atol=1e-5)
    assert np.abs(one - two).max() > 0.5


def test_a_closing_normalisation_is_left_out(tiny_bert, other_bert, model, sentences):
    normalized = [rebuilt(start, [*start, Normalize()]) for start in map(raw, (tiny_bert, other_bert))]
    np.testing.assert_array_equal(vectors(twin(*normalized), sentences), vectors(model, sentences))


def test_neither_poolers_nor_cross_attention_take_part(pair_of_berts, sentences):
    model = pair_of_berts()
    before = vectors(model, sentences)
    pair = tower_pair(model)
    pair.joint = Joint(cross=CrossPlan((0, 1), "carry"))
    with torch.no_grad():
        for encoder in pair.encoders:
            encoder.pooler.dense.weight.fill_(7.0)
    np.testing.assert_array_equal(vectors(model, sentences), before)
    assert "streams" not in model(model.preprocess(sentences[:2]))
    model.train()
    assert model(model.preprocess(sentences[:2]))["streams"].shape == (2, 6 * 32)


def test_batch_and_padding_do_not_matter(model, sentences):
    alone = np.concatenate([vectors(model, [sentence]) for sentence in sentences[:8]])
    np.testing.assert_allclose(vectors(model, sentences)[:8], alone, atol=1e-5)
    features = model.preprocess(sentences[:8])
    wider = widened(features)
    with torch.no_grad():
        found = [model(given)["sentence_embedding"] for given in (features, wider)]
    torch.testing.assert_close(*found, rtol=0, atol=1e-5)


@pytest.mark.parametrize("readout", ["cls", "mean", "first_last"])
def test_padding_does_not_matter_to_the_streams(model, sentences, readout):
    pair = tower_pair(with_readout(copy.deepcopy(model), readout))
    features = pair.preprocess(sentences[:6])
    wider = widened(features)
    joint = Joint(cross=CrossPlan((0, 1), "carry"))
    with torch.no_grad():
        for one, two in zip(pair.streams(features, joint), pair.streams(wider, joint), strict=True):
            torch.testing.assert_close(one, two, rtol=0, atol=1e-5)


def test_the_length_limit_is_that_of_both(pair_of_berts, sentences):
    model = pair_of_berts()
    assert model.max_seq_length == 64
    model.max_seq_length = 5
    pair = tower_pair(model)
    assert [tower.max_seq_length for tower in pair.pair] == [5, 5]
    assert model.preprocess(sentences)["input_ids"].shape[1] == 5
    assert model.get_embedding_dimension() == 32


# Files --------------------------------------------------------------------------------------------------------------


def test_saved_and_loaded(model, saved, sentences):
    listed = json.loads((saved / "modules.json").read_text())
    assert [entry["type"] for entry in listed] == ["sentsmith.methods.jtcse.towers.TwinTower"]
    before = vectors(model, sentences)
    again = sentsmith.load(saved, device="cpu")
    assert isinstance(again[0], TwinTower)
    assert not again.training
    np.testing.assert_array_equal(vectors(again, sentences), before)
    trusted = SentenceTransformer(str(saved), device="cpu", local_files_only=True, trust_remote_code=True)
    np.testing.assert_array_equal(vectors(trusted, sentences), before)


def test_plain_loading_raises(saved):
    with pytest.raises(ValueError, match=r"TwinTower.*\n?.*trust_remote_code"):
        SentenceTransformer(str(saved), device="cpu", local_files_only=True)


def test_a_tower_can_be_used_alone(saved, tiny_bert, other_bert, sentences):
    for name, start in (("tower_1", tiny_bert), ("tower_2", other_bert)):
        alone = SentenceTransformer(str(saved / name), device="cpu", local_files_only=True)
        np.testing.assert_array_equal(vectors(alone, sentences), vectors(raw(start), sentences))


def test_a_dtype_reaches_both_towers(saved):
    half = load(saved, device="cpu", dtype="bfloat16")
    assert {weights.dtype for weights in half.parameters()} == {torch.bfloat16}


def test_pickled_weights_in_a_tower_are_refused(model, tmp_path):
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    weights = tmp_path / "m" / "tower_2" / "model.safetensors"
    torch.save(tower_pair(model).encoders[1].state_dict(), weights.with_name("pytorch_model.bin"))
    weights.unlink()
    with pytest.raises(InputError, match=r"tower_2.*holds pickled weights"):
        load(tmp_path / "m")
    # Whoever trusts the code does not have to trust the weights.
    with pytest.raises(OSError, match="safetensors"):
        SentenceTransformer(str(tmp_path / "m"), device="cpu", local_files_only=True, trust_remote_code=True)


def test_a_tower_that_is_gone(model, tmp_path):
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    (tmp_path / "m" / "tower_2").rename(tmp_path / "elsewhere")
    with pytest.raises(InputError, match="lacks tower_1 or tower_2; save the model again"):
        load(tmp_path / "m")


@pytest.mark.parametrize("own_poolers", [False, True])
def test_a_checkpoint_of_the_trainer_is_loaded(pair_of_berts, tiny_distilbert, sentences, tmp_path, own_poolers):
    from datasets import Dataset

    def make(seed):
        torch.manual_seed(seed)
        model = twin(raw(tiny_distilbert), raw(tiny_distilbert)) if own_poolers else pair_of_berts()
        if own_poolers:
            renew_poolers(tower_pair(model))
        with torch.no_grad():
            for weights in model.parameters():
                weights.add_(0.01 * torch.randn_like(weights))
        return model

    kept, model = make(1), make(2)
    trainer = make_trainer(
        model,
        JTCSELoss(model),
        Dataset.from_dict({"sentence": sentences}),
        TrainingSettings(),
        work=tmp_path / "work",
        precision="fp32",
        evaluator=None,
        callbacks=[],
        progress=False,
    )
    (tmp_path / "checkpoint-1").mkdir()
    save_weights(kept, tmp_path / "checkpoint-1" / "trained.safetensors")
    trainer._load_from_checkpoint(str(tmp_path / "checkpoint-1"))
    one, two = kept.state_dict(), model.state_dict()
    assert one.keys() == two.keys()
    assert any("poolers" in name for name in one) is own_poolers
    assert all(torch.equal(one[name], two[name].cpu()) for name in one)


# Readouts -----------------------------------------------------------------------------------------------------------


def hidden_states(pair, features):
    return [encoder(**features, output_hidden_states=True).hidden_states for encoder in pair.encoders]


def mean_of(tokens, mask):
    return (tokens * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)


def by_hand(readout, first, last, mask):
    """Return the sentence vector, given the first block's and the last layer's output."""
    if readout == "cls":
        return last[:, 0]
    return mean_of(last if readout == "mean" else (first + last) / 2, mask)


@torch.no_grad()
@pytest.mark.parametrize("readout", ["cls", "mean", "first_last"])
def test_readouts(model, sentences, readout):
    changed = with_readout(copy.deepcopy(model), readout)
    pair = tower_pair(changed)
    features = pair.preprocess(sentences[:6])
    mask = features["attention_mask"]
    states = hidden_states(pair, {key: features[key] for key in ("input_ids", "attention_mask")})
    own = [by_hand(readout, found[1], found[-1], mask) for found in states]
    np.testing.assert_allclose(vectors(changed, sentences[:6]), sum(own), atol=1e-5)
    # In training: the pooler reads the readout, and the cross stream stands in for the last layer in it.
    streams = pair.streams(features, Joint(cross=CrossPlan((1,))))
    poolers = [encoder.pooler.dense for encoder in pair.encoders]
    pooled = [torch.tanh(vector @ dense.weight.T + dense.bias) for vector, dense in zip(own, poolers, strict=True)]
    for found, expected in zip(streams[:4], [*own, *pooled], strict=True):
        torch.testing.assert_close(found, expected, rtol=0, atol=1e-5)
    whole = tower_pair(with_readout(copy.deepcopy(model), "cls"))
    for index, (stream, found) in enumerate(zip(streams[4:], states, strict=True)):
        crossed = tokens_of_the_cross_stream(whole, features, index)
        torch.testing.assert_close(stream, by_hand(readout, found[1], crossed, mask), rtol=0, atol=1e-5)
        assert (stream - own[index]).abs().max() > 1e-3


def tokens_of_the_cross_stream(pair, features, index):
    """Return all token vectors of a tower's cross stream: a readout that leaves them as they are."""
    kept = []
    pooling = pair.pair[index][1]
    handle = pooling.register_forward_pre_hook(lambda module, args: kept.append(args[0]["token_embeddings"]))
    pair.streams(features, Joint(cross=CrossPlan((1,))))
    handle.remove()
    return kept[-1]


@torch.no_grad()
def test_the_pooler_as_readout(model, sentences, tmp_path):
    changed = with_readout(copy.deepcopy(model), "pooler")
    one, two = (tower_pair(model).pair[index] for index in (0, 1))
    expected = sum(
        np.tanh(vectors(tower, sentences) @ dense.weight.numpy().T + dense.bias.numpy())
        for tower, dense in ((tower, tower[0].model.pooler.dense) for tower in (one, two))
    )
    np.testing.assert_allclose(vectors(changed, sentences), expected, atol=1e-5)
    changed.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    np.testing.assert_array_equal(vectors(load(tmp_path / "m", device="cpu"), sentences), vectors(changed, sentences))


def test_readouts_that_are_not_there(model, tiny_bert, tiny_distilbert):
    with pytest.raises(SettingsError, match="readout 'max' is unknown; use one of cls, mean, first_last, pooler"):
        with_readout(model, "max")
    with pytest.raises(SettingsError, match="a model of two towers is needed, not one that begins with Transformer"):
        with_readout(raw(tiny_bert), "cls")
    with pytest.raises(SettingsError, match="DistilBertModel has no pooler"):
        with_readout(twin(raw(tiny_distilbert), raw(tiny_distilbert)), "pooler")


# Poolers ------------------------------------------------------------------------------------------------------------


@pytest.fixture
def without_pooler(tiny_distilbert):
    return twin(raw(tiny_distilbert), raw(tiny_distilbert))


def test_towers_without_pooler(without_pooler, sentences, tmp_path):
    pair = tower_pair(without_pooler)
    hint = "DistilBertModel has no pooler, .*; train a new one with jtcse.pooler fresh, or switch jtcse.ictm off"
    with pytest.raises(SettingsError, match=hint):
        require_poolers(pair)
    with pytest.raises(SettingsError, match=hint):
        JTCSELoss(without_pooler)
    before = vectors(without_pooler, sentences)
    renew_poolers(pair)
    require_poolers(pair)
    np.testing.assert_array_equal(vectors(without_pooler, sentences), before)
    without_pooler.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    again = load(tmp_path / "m", device="cpu")
    np.testing.assert_array_equal(vectors(again, sentences), before)
    for one, two in zip(pair.poolers.parameters(), tower_pair(again).poolers.parameters(), strict=True):
        assert torch.equal(one, two)
    assert not torch.equal(*(pooler.dense.weight for pooler in pair.poolers))


def test_towers_without_pooler_learn(without_pooler, sentences):
    features = [without_pooler.preprocess(sentences[:5])]
    without_pooler.train()
    bare = JTCSELoss(without_pooler, parts=Parts(ictm=False, cross=False))(features)
    assert set(bare) == {"nce_1", "nce_2", "icnce"}
    renew_poolers(tower_pair(without_pooler))
    found = JTCSELoss(without_pooler)(features)
    assert set(found) == {"nce_1", "nce_2", "icnce", "ictm"}
    found["ictm"].backward()
    for pooler in tower_pair(without_pooler).poolers:
        assert pooler.dense.weight.grad.abs().max() > 1e-6
    with pytest.raises(SettingsError, match="attention cannot cross between towers of DistilBertModel"):
        JTCSELoss(without_pooler, cross=CrossPlan((1,)))


def test_poolers_are_renewed_in_their_place(pair_of_berts):
    model = pair_of_berts()
    pair = tower_pair(model)
    before = [encoder.pooler.dense.weight.clone() for encoder in pair.encoders]
    torch.manual_seed(0)
    renew_poolers(pair)
    assert len(pair.poolers) == 0
    for old, encoder in zip(before, pair.encoders, strict=True):
        dense = encoder.pooler.dense
        assert not torch.allclose(old, dense.weight)
        assert dense.weight.std().item() == pytest.approx(0.3, rel=0.1)  # the model's own initializer_range
        assert not dense.bias.any()


def test_a_pooler_that_cannot_read_the_vectors(tiny_bert):
    narrow = [rebuilt(start, [*start, Dense(32, 8)]) for start in map(raw, (tiny_bert, tiny_bert))]
    with pytest.raises(SettingsError, match="pooler of BertModel reads vectors of 32, and the tower's have 8"):
        JTCSELoss(twin(*narrow))


# What cannot be joined ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def unlike(save_tiny, tiny_llama, tiny_distilbert):
    """Return models that are no second tower for the tiny BERT."""
    from tokenizers import BertWordPieceTokenizer
    from transformers import BertModel, BertTokenizerFast

    words = [*"abcdefghijklmnopqrstuvwxyz", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]
    vocabulary = {word: index for index, word in enumerate(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *words])}
    letters = BertTokenizerFast(tokenizer_object=BertWordPieceTokenizer(vocabulary)._tokenizer, model_max_length=64)
    return {
        "width": save_tiny(BertModel, hidden_size=16),
        "depth": save_tiny(BertModel, num_hidden_layers=3),
        "heads": save_tiny(BertModel, num_attention_heads=2),
        "tokenizer": save_tiny(BertModel, tokenizer=letters),
        "architecture": tiny_distilbert,
        "llama": tiny_llama,
        "decoder": save_tiny(BertModel, is_decoder=True),
    }


@pytest.mark.parametrize(
    ("which", "message"),
    [
        ("width", "the towers differ in width: 32 and 16; both need the same"),
        ("depth", "the towers differ in number of layers: 2 and 3; both need the same"),
        ("heads", "the towers differ in number of attention heads: 4 and 2; both need the same"),
        ("architecture", "the towers differ in architecture: bert and distilbert; both need the same"),
        ("tokenizer", "the towers have different tokenizers; both need the same, since they read the same tokens"),
        ("llama", "LlamaModel is a decoder; the towers are encoders, such as BERT or RoBERTa"),
        ("decoder", "BertModel is a decoder; the towers are encoders, such as BERT or RoBERTa"),
    ],
)
def test_towers_that_do_not_go_together(tiny_bert, unlike, which, message):
    with pytest.raises(SettingsError) as caught:
        twin(raw(tiny_bert), raw(unlike[which]))
    assert str(caught.value) == message


def test_two_decoders_are_decoders_too(unlike):
    with pytest.raises(SettingsError, match="LlamaModel is a decoder"):
        twin(raw(unlike["llama"]), raw(unlike["llama"]))


def test_a_tower_that_is_no_transformer(model, tiny_bert):
    with pytest.raises(SettingsError, match="a tower begins with a transformer, not with TwinTower"):
        twin(model, raw(tiny_bert))


def test_towers_of_different_vectors_are_refused(tiny_bert):
    model = load(tiny_bert, device="cpu")
    short = rebuilt(model, [*model, Dense(32, 8)])
    with pytest.raises(SettingsError, match="sentence vectors are 32 and 8 long"):
        twin(model, short)


def test_the_shorter_limit_of_both_holds(tiny_bert, other_bert):
    first, second = load(tiny_bert, device="cpu"), load(other_bert, device="cpu")
    second.max_seq_length = 7
    assert twin(first, second).max_seq_length == 7
