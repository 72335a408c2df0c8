"""E_CLS and attention maps, on real tiny encoders."""

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Pooling, Transformer
from torch import nn
from torch.nn.functional import softmax

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError
from sentsmith.evaluation.attention import (
    attention_maps,
    cls_energy,
    find_encoders,
    measure_cls_energy,
    watch_cls_energy,
)


@pytest.fixture(scope="module")
def bert(tiny_bert):
    return load(tiny_bert, device="cpu")


@pytest.fixture(scope="module")
def tiny_roberta(tmp_path_factory, tokenizer):
    from transformers import RobertaConfig, RobertaModel

    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("tiny-roberta")
    config = RobertaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        num_hidden_layers=3,
        num_attention_heads=2,
        intermediate_size=64,
        max_position_embeddings=66,
        pad_token_id=tokenizer.pad_token_id,
        initializer_range=0.3,
    )
    RobertaModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def roberta(tiny_roberta):
    return load(tiny_roberta, device="cpu")


class Towers(nn.Module):
    """Two encoders side by side, in one module, whose vectors are added: what a twin-tower model looks like."""

    def __init__(self, first, second):
        super().__init__()
        self.towers = nn.ModuleList([first, second])
        self.tokenizer = first.tokenizer
        self.preprocess = first.preprocess

    def forward(self, features):
        vectors = [tower(dict(features))["token_embeddings"] for tower in self.towers]
        return {**features, "token_embeddings": sum(vectors)}


@pytest.fixture(scope="module")
def twin(tiny_bert):
    torch.manual_seed(2)
    first, second = Transformer(str(tiny_bert)), Transformer(str(tiny_bert))
    for weight in second.parameters():
        weight.data.mul_(1 + 0.2 * torch.randn_like(weight))
    return SentenceTransformer(modules=[Towers(first, second), Pooling(32, pooling_mode="cls")], device="cpu").eval()


def contexts_by_hand(encoder, ids):
    """The context of each layer for one sentence without padding, from the layers' own weights."""
    hidden = encoder.embeddings(input_ids=ids)
    contexts, weights = [], []
    for layer in encoder.encoder.layer:
        own = layer.attention.self
        q, k, v = (
            part(hidden).view(*hidden.shape[:2], own.num_attention_heads, -1).transpose(1, 2)
            for part in (own.query, own.key, own.value)
        )
        spread = softmax(q @ k.transpose(2, 3) / own.attention_head_size**0.5, dim=-1)
        contexts.append((spread @ v).transpose(1, 2).reshape(hidden.shape))
        weights.append(spread[0])
        inner = layer.attention.output(contexts[-1], hidden)
        hidden = layer.output(layer.intermediate(inner), inner)
    return contexts, torch.stack(weights)


def energy_by_hand(context):
    return float(context[0, 0].norm() / context[0, 1:].norm())


CT = [[1.197776, 0.802224], [1.604448, 0.598888], [1.50349, 0.751745]]
CACT = [[0.5, 1.0], [0.398332, 1.203336], [0.372383, 1.255235]]


@pytest.mark.parametrize(("rows", "expected"), [(CT, 0.600747), (CACT, 0.613511)])
def test_worked_example(rows, expected):
    found = cls_energy(torch.tensor([rows], dtype=torch.float64), torch.ones(1, 3))
    assert found.dtype == torch.float64
    assert found.item() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("pads", [(0, 4), (4, 0), (2, 3)])
@pytest.mark.parametrize("filling", [7.0, float("nan"), float("inf")])
def test_padding_on_either_side_changes_nothing(pads, filling):
    left, right = pads
    context = torch.full((2, left + 3 + right, 2), filling)
    context[0, left : left + 3] = torch.tensor(CT)
    context[1, left : left + 3] = torch.tensor(CACT)
    mask = torch.zeros(2, left + 3 + right, dtype=torch.long)
    mask[:, left : left + 3] = 1
    assert cls_energy(context, mask).tolist() == pytest.approx([0.600747, 0.613511], abs=1e-6)


def test_a_sentence_with_nothing_to_compare_with_is_nan():
    context = torch.ones(3, 2, 4)
    context[2, 1] = 0
    found = cls_energy(context, torch.tensor([[1, 0], [1, 1], [1, 1]]))
    assert found.isnan().tolist() == [True, False, True]
    assert cls_energy(torch.ones(1, 2, 4), torch.zeros(1, 2)).isnan().all()


def test_low_precision_is_widened():
    context = torch.tensor([CT])
    exact = cls_energy(context.bfloat16().double(), torch.ones(1, 3))
    assert cls_energy(context.bfloat16(), torch.ones(1, 3)).item() == pytest.approx(exact.item(), abs=1e-6)


def test_wrong_shapes_are_errors():
    with pytest.raises(InputError, match=r"given \(1, 3, 2\) and \(1, 4\)"):
        cls_energy(torch.ones(1, 3, 2), torch.ones(1, 4))


@pytest.mark.parametrize("kind", ["bert", "roberta"])
@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_every_layers_energy_is_that_of_the_formula(kind, attention, request, sentences):
    model = request.getfixturevalue(kind)
    (encoder,) = find_encoders(model).values()
    few = sentences[:9]
    expected = []
    with torch.no_grad():
        for text in few:
            contexts, _ = contexts_by_hand(encoder, model.tokenizer(text, return_tensors="pt")["input_ids"])
            expected.append([energy_by_hand(context) for context in contexts])
    before = encoder.config._attn_implementation
    encoder.set_attn_implementation(attention)
    try:
        # Sentences of different length in one batch: each sees padding.
        found = measure_cls_energy(model, few)
    finally:
        encoder.set_attn_implementation(before)
    (tower,) = found.towers
    assert tower.by_layer == pytest.approx(np.mean(expected, axis=0), rel=1e-4)
    assert found.by_layer == tower.by_layer
    assert found.mean == pytest.approx(np.mean(expected), rel=1e-4)
    assert (found.sentences, found.without) == (9, 0)


def test_sentences_of_one_token_are_left_out(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu")
    model.max_seq_length = 64
    plain = model.preprocess

    def without_special_tokens(texts, **_):
        features = plain(texts)
        return {key: value[:, 1:] for key, value in features.items() if isinstance(value, torch.Tensor)}

    model.preprocess = without_special_tokens
    with watch_cls_energy(model) as meter:
        # "[SEP]" alone is left of an empty sentence.
        as_encoder(model).encode([*sentences[:3], ""])
    assert (meter.result().sentences, meter.result().without) == (3, 1)
    with pytest.raises(InputError, match="two tokens or more"):
        measure_cls_energy(model, [""])


def test_each_tower_counts_and_the_mean_is_of_both(twin, sentences):
    towers = find_encoders(twin)
    assert [type(tower).__name__ for tower in towers.values()] == ["BertModel", "BertModel"]
    found = measure_cls_energy(twin, sentences[:6])
    assert [tower.name for tower in found.towers] == list(towers)
    first, second = (np.array(tower.by_layer) for tower in found.towers)
    assert not np.allclose(first, second)
    assert found.by_layer == pytest.approx((first + second) / 2)
    assert found.mean == pytest.approx((first.mean() + second.mean()) / 2)
    maps = attention_maps(twin, sentences[0])
    assert [found.name for found in maps] == list(towers)
    assert not np.allclose(maps[0].weights, maps[1].weights)


@pytest.mark.parametrize("kind", ["bert", "roberta"])
def test_attention_maps_are_the_softmax(kind, request):
    model = request.getfixturevalue(kind)
    (encoder,) = find_encoders(model).values()
    (found,) = attention_maps(model, "the man plays guitar .")
    assert found.tokens == ("[CLS]", "the", "man", "plays", "guitar", ".", "[SEP]")
    with torch.no_grad():
        ids = model.tokenizer("the man plays guitar .", return_tensors="pt")["input_ids"]
        _, expected = contexts_by_hand(encoder, ids)
    assert found.weights.dtype == np.float32
    assert found.weights == pytest.approx(expected.numpy(), abs=1e-5)
    assert found.weights.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
def test_the_model_is_left_as_it_was(tiny_bert, attention, sentences):
    model = load(tiny_bert, device="cpu")
    (encoder,) = find_encoders(model).values()
    encoder.set_attn_implementation(attention)
    model.train()
    encoder.pooler.eval()
    modes = [module.training for module in model.modules()]
    attention_maps(model, sentences[0])
    measure_cls_energy(model, sentences[:2])
    assert encoder.config._attn_implementation == attention
    assert [module.training for module in model.modules()] == modes
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_error_inside_leaves_the_model_as_it_was(tiny_bert, monkeypatch):
    model = load(tiny_bert, device="cpu")
    (encoder,) = find_encoders(model).values()
    monkeypatch.setattr(encoder, "set_attn_implementation", lambda name: None)
    with pytest.raises(InputError, match="gives no attention weights away"):
        attention_maps(model, "a man")
    assert encoder.config._attn_implementation == "sdpa"
    assert not any(module._forward_hooks or module._forward_pre_hooks for module in model.modules())


def test_an_architecture_that_cannot_be_read_is_named(tiny_llama):
    with pytest.raises(InputError, match="the attention of LlamaModel cannot be read; BERT, RoBERTa"):
        measure_cls_energy(load(tiny_llama, device="cpu"), ["a man"])


def test_a_model_without_an_encoder_is_an_error():
    with pytest.raises(InputError, match="holds no transformers encoder"):
        attention_maps(nn.Sequential(nn.Linear(2, 2)), "a man")


def test_a_model_inside_another_is_not_counted_twice(tiny_bert):
    from transformers import BertForMaskedLM

    outer = nn.ModuleDict({"whole": BertForMaskedLM.from_pretrained(tiny_bert)})
    outer["again"] = outer["whole"]
    assert list(find_encoders(outer)) == ["whole"]


def test_a_sentence_that_the_tokenizer_pads_is_shown_without_its_padding(tiny_bert):
    model = load(tiny_bert, device="cpu")
    plain = model.preprocess
    pad = {"input_ids": 0, "attention_mask": 0, "token_type_ids": 0}
    model.preprocess = lambda texts, **_: {
        key: nn.functional.pad(plain(texts)[key], (2, 3), value=value) for key, value in pad.items()
    }
    (found,) = attention_maps(model, "a dog runs")
    assert found.tokens == ("[CLS]", "a", "dog", "runs", "[SEP]")
    assert found.weights.shape == (2, 4, 5, 5)
    assert found.weights.sum(axis=-1) == pytest.approx(1.0, abs=1e-5)
