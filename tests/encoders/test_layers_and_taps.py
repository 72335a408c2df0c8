"""Layers are found in every kind of transformer; what is tapped there is what the model says that ends there."""

import copy

import numpy as np
import pytest
import torch
import transformers
from torch import nn

from sentsmith.encoders.decoder import make_encoder
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.layers import append_layers, final_norm_of, is_decoder, keep_layers, layers_of
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import rebuilt, with_pooling
from sentsmith.encoders.taps import LayerTaps, encode_layers, model_inside
from sentsmith.errors import InputError, SettingsError

DEPTH = 3
SHARED = {
    "hidden_size": 16,
    "num_hidden_layers": DEPTH,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "initializer_range": 0.3,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "bos_token_id": None,
    "eos_token_id": None,
}
GROUPED = {**SHARED, "num_key_value_heads": 1, "head_dim": 8}
KINDS = {
    "Bert": (SHARED, None),
    "GPT2": (SHARED, "ln_f"),
    "GPTNeoX": (SHARED, "final_layer_norm"),
    "Llama": (GROUPED, "norm"),
    "Mistral": ({**GROUPED, "sliding_window": 4}, "norm"),
    "Qwen3": ({**GROUPED, "use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}, "norm"),
    "Gemma3Text": (GROUPED, "norm"),
}


@pytest.fixture(scope="module", params=KINDS)
def kind(request):
    return request.param


@pytest.fixture(scope="module")
def model(kind, tmp_path_factory, tokenizer):
    values, _ = KINDS[kind]
    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp(kind)
    config = getattr(transformers, f"{kind}Config")(vocab_size=len(tokenizer), **values)
    made = getattr(transformers, f"{kind}Model")(config)
    norm = final_norm_of(made)
    if norm is not None:
        # A norm of ones would hardly be told from none.
        nn.init.uniform_(getattr(*norm).weight, 0.2, 2.0)
    made.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return with_pooling(load(folder, device="cpu"), "mean")


def test_layers_and_final_norm_are_found(kind, model):
    layers, norm = layers_of(model), final_norm_of(model)
    assert layers is layers_of(model[0]) is layers_of(model[0].model)
    assert len(layers) == DEPTH
    assert (norm[1] if norm else None) == KINDS[kind][1]
    assert is_decoder(model) == (kind != "Bert")


def test_one_pass_says_what_each_truncated_model_says(kind, model, sentences):
    norms = (True,) if kind == "Bert" else (True, False)
    found = encode_layers(as_encoder(model), sentences[:12], norms=norms)
    assert found.shape == (len(norms), DEPTH + 1, 12, 16)
    assert found.dtype == np.float32
    for row, norm in enumerate(norms):
        for count in range(1, DEPTH + 1):
            cut = copy.deepcopy(model)
            keep_layers(cut, count, final_norm=norm)
            assert len(layers_of(cut)) == count
            np.testing.assert_allclose(found[row, count], as_encoder(cut).encode(sentences[:12]), atol=2e-5)
    np.testing.assert_allclose(found[0, DEPTH], as_encoder(model).encode(sentences[:12]), atol=2e-5)
    assert np.abs(np.diff(found, axis=1)).max(axis=(0, 2, 3)).min() > 1e-3
    if kind != "Bert":
        assert np.abs(found[0] - found[1]).max() > 1e-2


@pytest.mark.parametrize(
    "kind",
    [
        "Bert",
        "Gemma3Text",
        *(pytest.param(kind, marks=pytest.mark.slow) for kind in KINDS if kind not in ("Bert", "Gemma3Text")),
    ],
    indirect=True,
)
def test_the_config_knows_of_fewer_and_of_more_layers(kind, model, sentences, tmp_path):
    fewer, more = copy.deepcopy(model), copy.deepcopy(model)
    keep_layers(fewer, 2)
    append_layers(more, 2)
    last = layers_of(more)[-1]
    assert {module.layer_idx for module in last.modules() if hasattr(module, "layer_idx")} <= {DEPTH + 1}
    one, copied = next(last.parameters()), next(layers_of(more)[DEPTH - 1].parameters())
    assert torch.equal(one, copied)
    assert one is not copied
    for name, changed, depth in (("fewer", fewer, 2), ("more", more, DEPTH + 2)):
        changed[0].model.save_pretrained(tmp_path / name)
        model.tokenizer.save_pretrained(tmp_path / name)
        again = with_pooling(load(tmp_path / name, device="cpu"), "mean")
        assert len(layers_of(again)) == depth
        vectors = as_encoder(changed).encode(sentences[:4])
        np.testing.assert_allclose(as_encoder(again).encode(sentences[:4]), vectors, atol=1e-5)
        assert np.abs(as_encoder(model).encode(sentences[:4]) - vectors).max() > 1e-2


def test_layer_zero_is_the_embedding_layer_and_the_readout_is_the_models_own(tiny_llama, sentences):
    model = with_pooling(load(tiny_llama, device="cpu"), "last")
    model.truncate_dim = 8
    encoder = as_encoder(model)
    found = encode_layers(encoder, sentences, norms=(True, False))
    words = model[0].model.get_input_embeddings().weight
    for row, sentence in enumerate(sentences[:5]):
        ids = model.tokenizer(sentence)["input_ids"]
        np.testing.assert_allclose(found[1, 0, row], words[ids[-1]].detach().numpy()[:8], atol=1e-6)
    np.testing.assert_allclose(found[0, -1], encoder.encode(sentences), atol=1e-5)


def test_a_decoder_of_ours_is_tapped_with_its_prompt_and_its_readout(tiny_llama, sentences):
    model = make_encoder(tiny_llama, both_ways_from=0, readout="mean", device="cpu")
    encoder = as_encoder(model)
    found = encode_layers(encoder, sentences[:12])
    np.testing.assert_allclose(found[0, -1], encoder.encode(sentences[:12]), atol=1e-5)
    keep_layers(model, 1)
    np.testing.assert_allclose(found[0, 1], encoder.encode(sentences[:12]), atol=1e-5)


def test_counts_out_of_range_are_errors(tiny_llama):
    model = load(tiny_llama, device="cpu")
    for count in (0, 3):
        with pytest.raises(
            SettingsError, match=rf"first {count} layers of 2 cannot be kept; give a number from 1 to 2"
        ):
            keep_layers(model, count)
    with pytest.raises(SettingsError, match="-1 layers cannot be appended"):
        append_layers(model, -1)
    append_layers(model, 0)
    assert len(layers_of(model)) == 2


def test_what_cannot_be_tapped_is_an_error(tiny_bert):
    bert = load(tiny_bert, device="cpu")
    with pytest.raises(SettingsError, match="pooling mixes several layers"):
        encode_layers(as_encoder(with_pooling(bert, "first_last")), ["a dog"])
    bert[0].model.encoder.layer = nn.ModuleList(bert[0].model.encoder.layer[:1])
    with pytest.raises(SettingsError, match="of BertModel cannot be found: it has 0 lists of 2 modules"):
        LayerTaps(bert)
    with pytest.raises(SettingsError, match="layers of a Pooling cannot be told"):
        layers_of(rebuilt(bert, [bert[1]]))
    with pytest.raises(InputError, match="no SentenceTransformer inside"):
        model_inside(object())


def test_states_that_the_model_does_not_go_on_with_are_an_error(tiny_llama):
    model = load(tiny_llama, device="cpu")
    last = layers_of(model)[-1]
    taps = LayerTaps(model)
    forward = model[0].forward

    def shifted(features):
        output = forward(features)
        return {**output, "token_embeddings": output["token_embeddings"] + 1}

    model[0].forward = shifted
    with pytest.raises(SettingsError, match="LlamaModel cannot be tapped"):
        taps(model.preprocess(["a dog", "the man sings"]))
    assert not last._forward_hooks
