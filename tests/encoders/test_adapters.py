"""LoRA: what it adds, what it leaves, merged and alone; a base in 4 bits where bitsandbytes runs."""

from __future__ import annotations

import shutil
import sys

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from transformers import AutoModel, GPT2Config, LlamaConfig

from sentsmith.encoders import loading
from sentsmith.encoders.adapters import add_lora, has_adapter, merge_adapter, quantisation
from sentsmith.encoders.decoder import make_encoder
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, MissingExtraError, SettingsError

pytest.importorskip("peft")

TINY = {"vocab_size": 64, "hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "initializer_range": 0.3}
CONFIGS = {
    "llama": LlamaConfig(**TINY, intermediate_size=64, num_key_value_heads=2),
    "gpt2": GPT2Config(
        vocab_size=64, n_embd=32, n_layer=2, n_head=4, initializer_range=0.3, bos_token_id=1, eos_token_id=2
    ),
}


def trained(model):
    return {name: weights for name, weights in model.named_parameters() if weights.requires_grad}


def states(model):
    with torch.no_grad():
        return model(input_ids=torch.arange(1, 13).reshape(2, 6), use_cache=False).last_hidden_state


def stir(model):
    """Give the adapter other weights, as training does."""
    torch.manual_seed(1)
    with torch.no_grad():
        for weights in trained(model).values():
            weights.normal_(std=0.3)


@pytest.mark.parametrize("name", CONFIGS)
def test_put_on_and_merged(name):
    torch.manual_seed(0)
    model = AutoModel.from_config(CONFIGS[name]).eval()
    names, before = set(model.state_dict()), states(model)
    merge_adapter(model)  # nothing to merge
    add_lora(model, rank=3, alpha=6.0, dropout=0.5)
    model.eval()
    assert has_adapter(model)
    assert torch.equal(states(model), before)
    assert trained(model)
    assert all("lora_" in weights for weights in trained(model))
    # Every linear layer has one.
    with_adapter = {weights.partition(".lora_")[0].rpartition(".")[2] for weights in trained(model)}
    assert (
        with_adapter
        == {
            "llama": {"q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"},
            "gpt2": {"c_attn", "c_proj", "c_fc"},
        }[name]
    )
    with pytest.raises(SettingsError, match="has an adapter already; merge it first"):
        add_lora(model, rank=3, alpha=6.0, dropout=0.0)
    stir(model)
    after = states(model)
    assert (after - before).abs().max() > 0.1
    merge_adapter(model)
    torch.testing.assert_close(states(model), after, atol=1e-5, rtol=1e-5)
    assert not has_adapter(model)
    assert set(model.state_dict()) == names
    assert all(weights.requires_grad for weights in model.parameters())


def test_as_many_weights_as_the_paper_says():
    """METHODS.md §2: of LLaMA-2-7B, rank 32 has 79.95M; 32 layers alike."""
    with torch.device("meta"):
        model = AutoModel.from_config(LlamaConfig(intermediate_size=11008, num_hidden_layers=1))
        add_lora(model, rank=32, alpha=32.0, dropout=0.1)
    assert sum(weights.numel() for weights in trained(model).values()) * 32 == 79_953_920


def test_the_scale_is_alpha_over_rank():
    differences = []
    for alpha in (4.0, 8.0):
        torch.manual_seed(0)
        model = AutoModel.from_config(CONFIGS["llama"])
        before = {name: weights.clone() for name, weights in model.named_parameters()}
        add_lora(model, rank=4, alpha=alpha, dropout=0.0)
        stir(model)
        merge_adapter(model)
        differences.append({name: weights - before[name] for name, weights in model.named_parameters()})
    for name, one in differences[0].items():
        torch.testing.assert_close(2 * one, differences[1][name], atol=1e-5, rtol=1e-4)
    assert differences[0]["layers.0.mlp.down_proj.weight"].abs().max() > 0.01


@pytest.fixture
def encoder(tiny_llama, tmp_path):
    """Return an encoder with a stirred adapter, and the folder of its base."""
    base = tmp_path / "base"
    shutil.copytree(tiny_llama, base)
    model = make_encoder(base, template="a {sentence} ,", both_ways_from=0, device="cpu")
    add_lora(model[0].model, rank=2, alpha=2.0, dropout=0.1)
    stir(model[0].model)
    return model, base


def test_saved_alone(encoder, tmp_path, sentences):
    model, base = encoder
    vectors = as_encoder(model).encode(sentences[:6])
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    weights = list((tmp_path / "m").rglob("*.safetensors"))
    assert [file.name for file in weights] == ["adapter_model.safetensors"]
    # By itself it would be put on a base that looks backwards only.
    for loads in (AutoModel.from_pretrained, SentenceTransformer):
        with pytest.raises(ValueError, match="Unrecognized model"):
            loads(str(tmp_path / "m" / "0_Decoder"))
    again = load(tmp_path / "m", device="cpu")
    # Saved again, it names its base as before.
    assert again[0].model.peft_config["default"].base_model_name_or_path == str(base)
    assert again[0].both_ways_from == 0
    np.testing.assert_allclose(as_encoder(again).encode(sentences[:6]), vectors, atol=1e-6)
    # Loaded, it is whole, and is made into a model without the base.
    merge_adapter(again[0].model)
    again.save_pretrained(str(tmp_path / "merged"), create_model_card=False)
    shutil.rmtree(base)
    merged = load(tmp_path / "merged", device="cpu")
    np.testing.assert_allclose(as_encoder(merged).encode(sentences[:6]), vectors, atol=2e-5)
    with pytest.raises(InputError) as caught:
        load(tmp_path / "m", device="cpu")
    message, config = str(caught.value), tmp_path / "m" / "0_Decoder" / "decoder_adapter_config.json"
    assert f"is an adapter whose base {str(base)!r} is not there (" in message
    assert message.endswith(f"put it back, or change base_model_name_or_path in {config}")
    assert "\n" not in message


def test_the_base_is_found_as_any_model_is(encoder, tmp_path, monkeypatch, sentences):
    model, base = encoder
    vectors = as_encoder(model).encode(sentences[:6])
    for adapter in model[0].model.peft_config.values():
        adapter.base_model_name_or_path = "someone/base"
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    monkeypatch.setattr(loading, "_download", {"someone/base": base}.__getitem__)
    again = load(tmp_path / "m", device="cpu")
    np.testing.assert_allclose(as_encoder(again).encode(sentences[:6]), vectors, atol=1e-6)
    assert again[0].model.peft_config["default"].base_model_name_or_path == "someone/base"
    (base / "model.safetensors").rename(base / "pytorch_model.bin")
    with pytest.raises(InputError, match="holds pickled weights"):
        load(tmp_path / "m", device="cpu")
    config = tmp_path / "m" / "0_Decoder" / "decoder_adapter_config.json"
    config.write_text("{}", encoding="utf-8")
    with pytest.raises(InputError, match="is no adapter's config with a base_model_name_or_path; save the model again"):
        load(tmp_path / "m", device="cpu")


def test_without_the_libraries(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    monkeypatch.setitem(sys.modules, "bitsandbytes", None)
    with pytest.raises(MissingExtraError, match=r"'peft'.*pip install 'sentsmith\[llm\]'"):
        add_lora(None, rank=1, alpha=1.0, dropout=0.0)
    with pytest.raises(MissingExtraError, match=r"'bitsandbytes'.*pip install 'sentsmith\[quantised\]'"):
        quantisation("nf4")
    assert quantisation("none") == {}


def test_four_bits(tiny_llama):
    pytest.importorskip("bitsandbytes")
    plain, model = (
        make_encoder(tiny_llama, template="a {sentence} ,", device="cpu", model_kwargs=quantisation(kind))
        for kind in ("none", "nf4")
    )
    layer = model[0].model.layers[0].self_attn.q_proj
    assert type(layer).__name__ == "Linear4bit"
    add_lora(model[0].model, rank=2, alpha=2.0, dropout=0.0)
    assert all("lora_" in name for name in trained(model))
    one, two = (as_encoder(each).encode(["a dog sings", "the book"]) for each in (plain, model))
    cosines = (one * two).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    assert (cosines > 0.8).all()
    assert not np.allclose(one, two, atol=1e-4)
    with pytest.raises(SettingsError, match="cannot be merged into quantised weights"):
        merge_adapter(model[0].model)
