"""What a frozen model's layers say: against forward passes written by hand, and whatever the batch is padded to."""

import json
import math

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from torch.nn import functional

import sentsmith
from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.embedding import ModelEncoder, as_encoder
from sentsmith.encoders.layered import LayeredTransformer, attended, ended, make_layered
from sentsmith.errors import InputError, SettingsError

WIDTH, HEADS, LAYERS = 32, 4, 3


@pytest.fixture(scope="module")
def tiny_gpt2(tmp_path_factory, tokenizer):
    """Return the folder of a tiny GPT-2, whose last hidden state of the library has been through ``ln_f``."""
    from transformers import GPT2Config, GPT2Model

    torch.manual_seed(0)
    folder = tmp_path_factory.mktemp("tiny-gpt2")
    config = GPT2Config(
        vocab_size=len(tokenizer),
        n_embd=WIDTH,
        n_layer=LAYERS,
        n_head=HEADS,
        n_positions=64,
        bos_token_id=2,
        eos_token_id=3,
    )
    model = GPT2Model(config)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    # As GPT-2's own: token types would be added to its words.
    settings = json.loads((folder / "tokenizer_config.json").read_text())
    settings["model_input_names"] = ["input_ids", "attention_mask"]
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return folder


def _attention(query, key, value, *, causal):
    """Attend with several heads, over one sentence of ``[T, d]``."""
    length = len(query)
    heads = [part.view(length, HEADS, -1).transpose(0, 1) for part in (query, key, value)]
    scores = heads[0] @ heads[1].transpose(1, 2) / math.sqrt(query.shape[1] // HEADS)
    if causal:
        scores = scores.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
    return (scores.softmax(dim=-1) @ heads[2]).transpose(0, 1).reshape(length, -1)


def gpt2_by_hand(weights, ids):
    """Return the residual stream behind each block of GPT-2, ``[layers, T, d]``."""

    def norm(x, name):
        return functional.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"])

    def dense(x, name):
        return x @ weights[f"{name}.weight"] + weights[f"{name}.bias"]

    x, layers = weights["wte.weight"][ids] + weights["wpe.weight"][: len(ids)], []
    for layer in range(LAYERS):
        at = f"h.{layer}"
        query, key, value = dense(norm(x, f"{at}.ln_1"), f"{at}.attn.c_attn").chunk(3, dim=1)
        x = x + dense(_attention(query, key, value, causal=True), f"{at}.attn.c_proj")
        inner = functional.gelu(dense(norm(x, f"{at}.ln_2"), f"{at}.mlp.c_fc"), approximate="tanh")
        x = x + dense(inner, f"{at}.mlp.c_proj")
        layers.append(x)
    return torch.stack(layers)


def bert_by_hand(weights, ids):
    """Return what each layer of the tiny BERT leaves, ``[2, T, d]``."""

    def norm(x, name):
        return functional.layer_norm(x, (WIDTH,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-12)

    def dense(x, name):
        return x @ weights[f"{name}.weight"].T + weights[f"{name}.bias"]

    x = weights["embeddings.word_embeddings.weight"][ids] + weights["embeddings.position_embeddings.weight"][: len(ids)]
    x = norm(x + weights["embeddings.token_type_embeddings.weight"][0], "embeddings.LayerNorm")
    layers = []
    for layer in range(2):
        at = f"encoder.layer.{layer}"
        parts = [dense(x, f"{at}.attention.self.{name}") for name in ("query", "key", "value")]
        heads = dense(_attention(*parts, causal=False), f"{at}.attention.output.dense")
        x = norm(x + heads, f"{at}.attention.output.LayerNorm")
        inner = dense(functional.gelu(dense(x, f"{at}.intermediate.dense")), f"{at}.output.dense")
        x = norm(x + inner, f"{at}.output.LayerNorm")
        layers.append(x)
    return torch.stack(layers)


@pytest.mark.parametrize(("kind", "by_hand"), [("tiny_gpt2", gpt2_by_hand), ("tiny_bert", bert_by_hand)])
@pytest.mark.parametrize("readout", ["last", "mean", "sum"])
def test_layers_are_those_of_a_forward_pass_by_hand(request, tokenizer, sentences, kind, by_hand, readout):
    model = make_layered(request.getfixturevalue(kind), readout=readout, punctuation="as_is")
    weights = {name: value.detach() for name, value in model[0].model.named_parameters()}
    found = as_encoder(model).encode(sentences[:6])
    for sentence, vector in zip(sentences[:6], found, strict=True):
        states = by_hand(weights, torch.tensor(tokenizer(sentence)["input_ids"]))
        wanted = {"last": states[:, -1], "mean": states.mean(dim=1), "sum": states.sum(dim=1)}[readout]
        np.testing.assert_allclose(vector, wanted.flatten(), rtol=1e-4, atol=1e-4)


def test_the_final_norm_is_not_applied(tiny_gpt2, tokenizer, sentences):
    model = make_layered(tiny_gpt2, punctuation="as_is")
    ids = torch.tensor([tokenizer(sentences[0])["input_ids"]])
    library = model[0].model(input_ids=ids, output_hidden_states=True).hidden_states[-1][0, -1]
    last = torch.from_numpy(as_encoder(model).encode([sentences[0]])[0, -WIDTH:])
    assert not torch.allclose(last, library, atol=1e-2)
    assert torch.allclose(model[0].model.ln_f(last), library, atol=1e-5)


@pytest.mark.parametrize("kind", ["tiny_gpt2", "tiny_llama", "tiny_bert"])
@pytest.mark.parametrize("readout", ["last", "mean", "attention"])
def test_a_vector_does_not_depend_on_its_batch(request, sentences, kind, readout):
    model = make_layered(request.getfixturevalue(kind), readout=readout)
    if readout == "attention":
        torch.nn.init.normal_(model[0].query, std=3.0)
    together = ModelEncoder(model, chunking=Chunking(tokens=10_000)).encode(sentences[:8])
    alone = np.concatenate([as_encoder(model).encode([sentence]) for sentence in sentences[:8]])
    np.testing.assert_allclose(together, alone, rtol=1e-3, atol=1e-4)


def test_a_tokenizer_that_pads_left_is_turned_around(tiny_gpt2, tmp_path, sentences):
    from transformers import AutoTokenizer

    left = tmp_path / "left"
    SentenceTransformer(modules=[make_layered(tiny_gpt2)[0]])[0].model.save_pretrained(left)
    tokenizer = AutoTokenizer.from_pretrained(tiny_gpt2)
    tokenizer.padding_side = "left"
    tokenizer.pad_token = None
    tokenizer.save_pretrained(left)
    expected = as_encoder(make_layered(tiny_gpt2)).encode(sentences[:8])
    np.testing.assert_allclose(as_encoder(make_layered(left)).encode(sentences[:8]), expected, rtol=1e-3, atol=1e-4)


def test_attention_begins_at_the_mean_and_finds_its_token():
    tokens, mask = torch.randn(2, 5, 8), torch.tensor([[1, 1, 1, 1, 1], [1, 1, 1, 0, 0]])
    means = torch.stack([tokens[0].mean(dim=0), tokens[1, :3].mean(dim=0)])
    torch.testing.assert_close(attended(tokens, mask, torch.zeros(8)), means)
    strong = functional.layer_norm(tokens[1, 2], (8,)) * 1000
    torch.testing.assert_close(attended(tokens, mask, strong)[1], tokens[1, 2])


@pytest.mark.parametrize(
    ("sentence", "policy", "expected"),
    [
        ("A dog runs", "full_stop", "A dog runs."),
        (" A dog runs. ", "full_stop", "A dog runs."),
        ("Does it run?", "full_stop", "Does it run?"),
        ('He said "Run!"', "full_stop", 'He said "Run!"'),
        ("A dog runs ...", "none", "A dog runs"),
        ("Run!", "none", "Run"),
        ('He said "Run!"', "none", 'He said "Run"'),
        ("He left\N{HORIZONTAL ELLIPSIS}", "full_stop", "He left\N{HORIZONTAL ELLIPSIS}"),
        (" A dog ", "as_is", " A dog "),
        ("", "as_is", "."),
        ("?", "none", "."),
        ("", "full_stop", "."),
    ],
)
def test_endings(sentence, policy, expected):
    assert ended(sentence, policy) == expected


def test_one_policy_makes_sentences_alike_that_differ_in_their_end(tiny_llama):
    pair = ["the dog runs", "the dog runs ."]
    apart = as_encoder(make_layered(tiny_llama, punctuation="as_is")).encode(pair)
    assert not np.allclose(apart[0], apart[1], atol=1e-3)
    for policy in ("full_stop", "none"):
        first, second = as_encoder(make_layered(tiny_llama, punctuation=policy)).encode(pair)
        np.testing.assert_allclose(first, second, atol=1e-5)


@pytest.mark.parametrize("readout", ["last", "attention"])
def test_saved_and_loaded(tiny_llama, tmp_path, sentences, readout):
    model = make_layered(tiny_llama, readout=readout, punctuation="none")
    if readout == "attention":
        torch.nn.init.normal_(model[0].query)
    model.save_pretrained(str(tmp_path / "saved"))
    expected = as_encoder(model).encode(sentences[:5])
    np.testing.assert_array_equal(as_encoder(sentsmith.load(tmp_path / "saved")).encode(sentences[:5]), expected)
    with pytest.raises((ValueError, ImportError), match="trust_remote_code"):
        SentenceTransformer(str(tmp_path / "saved"))


def test_nothing_of_the_frozen_model_learns_or_drops_out(tiny_bert, sentences):
    model = make_layered(tiny_bert)
    model.train()
    features = model.preprocess(sentences[:4])
    first, second = (model(dict(features))["sentence_embedding"] for _ in range(2))
    assert torch.equal(first, second)
    assert not first.requires_grad
    assert not any(parameter.requires_grad for parameter in model.parameters())


def test_what_is_refused(tiny_bert, tmp_path):
    with pytest.raises(SettingsError, match="readout 'first' is unknown; use one of last, mean, sum, attention"):
        make_layered(tiny_bert, readout="first")
    with pytest.raises(SettingsError, match="punctuation 'dots'"):
        LayeredTransformer(str(tiny_bert), punctuation="dots")
    with pytest.raises(InputError, match="takes sentences, not tuple"):
        as_encoder(make_layered(tiny_bert)).encode([("a", "b")])
    make_layered(tiny_bert).save_pretrained(str(tmp_path / "ours"))
    with pytest.raises(InputError, match="begins with a LayeredTransformer"):
        make_layered(tmp_path / "ours")
