"""Cross-attention between two towers against the same thing written out, number by number."""

from __future__ import annotations

import copy
import math
from contextlib import ExitStack
from types import SimpleNamespace

import pytest
import torch
import transformers
from transformers import BertConfig, BertModel, RobertaModel

from sentsmith.errors import SettingsError
from sentsmith.methods.jtcse.cross import (
    CrossPlan,
    Recorder,
    context,
    cross_streams,
    crossed_layers,
    first_crossed,
    layers_of,
)

SIZES = {
    "vocab_size": 50,
    "hidden_size": 16,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,
}
KINDS = {"bert": BertModel, "roberta": RobertaModel}
PAD = {"bert": 0, "roberta": 1}
LENGTHS = (5, 2, 4)
CLOSE = {"rtol": 0, "atol": 1e-9}


def tower(kind, seed, implementation="sdpa", dropout=0.0):
    torch.manual_seed(seed)
    config = kind.config_class(**SIZES, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    model = kind(config).double().eval()
    # Fresh normalisations and biases are 1 and 0, which would hide that one of them was left out.
    with torch.no_grad():
        for name, weights in model.named_parameters():
            if "LayerNorm" in name or name.endswith("bias"):
                weights.add_(0.3 * torch.randn_like(weights))
    model.set_attn_implementation(implementation)
    return model


@pytest.fixture(scope="module", params=["sdpa", "eager"])
def implementation(request):
    return request.param


@pytest.fixture(scope="module", params=["bert", "roberta"])
def towers(request, implementation):
    """Return two different towers, and padded sentences of different length as they read them."""
    kind = KINDS[request.param]
    ids = torch.randint(5, 50, (3, max(LENGTHS)), generator=torch.Generator().manual_seed(3))
    mask = (torch.arange(max(LENGTHS)) < torch.tensor(LENGTHS)[:, None]).long()
    inputs = {"input_ids": ids.where(mask == 1, PAD[request.param]), "attention_mask": mask}
    return SimpleNamespace(pair=[tower(kind, seed, implementation) for seed in (1, 2)], inputs=inputs, mask=mask)


def ran(pair, inputs, plan):
    """Return the cross streams, what was recorded, and the hidden states of both towers' layers."""
    layers = [layers_of(model) for model in pair]
    recorders = [Recorder(tower[first_crossed(plan)]) for tower in layers]
    with ExitStack() as stack:
        for recorder in recorders:
            stack.enter_context(recorder.recording())
        found = [model(**inputs, output_hidden_states=True) for model in pair]
    return cross_streams(plan, layers, recorders), recorders, [output.hidden_states for output in found]


# By hand ------------------------------------------------------------------------------------------------------------


def linear(module, vectors):
    return vectors @ module.weight.T + module.bias


def normalised(module, vectors):
    centred = vectors - vectors.mean(-1, keepdim=True)
    return centred / (centred.square().mean(-1, keepdim=True) + module.eps).sqrt() * module.weight + module.bias


def attended(layer, hidden, other_layer, other_hidden, mask):
    """Return softmax(QKᵀ/√d_head)V with V of the other tower, one row, head and token at a time."""
    query, key = (linear(part, hidden) for part in (layer.attention.self.query, layer.attention.self.key))
    value = linear(other_layer.attention.self.value, other_hidden)
    found = torch.zeros_like(hidden)
    width = hidden.shape[-1] // SIZES["num_attention_heads"]
    for row in range(len(hidden)):
        real = [token for token in range(hidden.shape[1]) if mask[row, token]]
        for head in range(SIZES["num_attention_heads"]):
            cut = slice(head * width, (head + 1) * width)
            for token in range(hidden.shape[1]):
                scores = [math.exp(query[row, token, cut] @ key[row, k, cut] / math.sqrt(width)) for k in real]
                for score, k in zip(scores, real, strict=True):
                    found[row, token, cut] += score / sum(scores) * value[row, k, cut]
    return found


def finished(layer, crossed, hidden):
    """Return the rest of a layer: dense and residual and normalisation, feed-forward and residual and normalisation."""
    after = normalised(layer.attention.output.LayerNorm, linear(layer.attention.output.dense, crossed) + hidden)
    inner = linear(layer.intermediate.dense, after)
    inner = 0.5 * inner * (1 + torch.erf(inner / math.sqrt(2)))
    return normalised(layer.output.LayerNorm, linear(layer.output.dense, inner) + after)


def crossed_by_hand(layers, hidden, mask):
    return [
        finished(layers[own], attended(layers[own], hidden[own], layers[other], hidden[other], mask), hidden[own])
        for own, other in ((0, 1), (1, 0))
    ]


@torch.no_grad()
def test_the_context_is_own_attention_over_the_other_values(towers):
    _, recorders, states = ran(towers.pair, towers.inputs, CrossPlan((3,)))
    layers = [layers_of(model)[3] for model in towers.pair]
    before = [hidden[3] for hidden in states]
    for own, other in ((0, 1), (1, 0)):
        torch.testing.assert_close(recorders[own].hidden, before[own], rtol=0, atol=0)
        mine, theirs = recorders[own].projected, recorders[other].projected
        found = context(layers[own].attention.self, mine["query"], mine["key"], theirs["value"], recorders[own].mask)
        expected = attended(layers[own], before[own], layers[other], before[other], towers.mask)
        torch.testing.assert_close(found, expected, **CLOSE)
        own_context = attended(layers[own], before[own], layers[own], before[own], towers.mask)
        assert (found - own_context).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2, 4])
def test_last_is_a_side_branch_of_the_last_layer(towers, count):
    plan = CrossPlan(crossed_layers(4, count))
    streams, _, states = ran(towers.pair, towers.inputs, plan)
    expected = crossed_by_hand([layers_of(model)[3] for model in towers.pair], [h[3] for h in states], towers.mask)
    for stream, wanted, main in zip(streams, expected, states, strict=True):
        torch.testing.assert_close(stream, wanted, **CLOSE)
        assert (stream - main[4]).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("count", [1, 2, 4])
def test_carry_passes_the_later_layers_and_crosses_again(towers, count):
    plan = CrossPlan(crossed_layers(4, count), "carry")
    streams, _, states = ran(towers.pair, towers.inputs, plan)
    layers = [layers_of(model) for model in towers.pair]
    carried = [hidden[plan.layers[0]] for hidden in states]
    for index in range(plan.layers[0], 4):
        here = [tower[index] for tower in layers]
        if index in plan.layers:
            carried = crossed_by_hand(here, carried, towers.mask)
        else:
            carried = [
                finished(layer, attended(layer, hidden, layer, hidden, towers.mask), hidden)
                for layer, hidden in zip(here, carried, strict=True)
            ]
    for stream, wanted in zip(streams, carried, strict=True):
        torch.testing.assert_close(stream, wanted, **CLOSE)


@torch.no_grad()
def test_counts_matter_to_carry_and_not_to_last(towers):
    """In `last` only the last crossed layer is read, which is the last layer whatever the count."""
    found = {
        (mode, count): ran(towers.pair, towers.inputs, CrossPlan(crossed_layers(4, count), mode))[0][0]
        for mode in ("last", "carry")
        for count in (1, 2, 4)
    }
    assert torch.equal(found["last", 1], found["last", 2])
    assert torch.equal(found["last", 1], found["last", 4])
    assert torch.equal(found["last", 1], found["carry", 1])
    assert (found["carry", 1] - found["carry", 2]).abs().max() > 0.1
    assert (found["carry", 2] - found["carry", 4]).abs().max() > 0.1


@torch.no_grad()
@pytest.mark.parametrize("mode", ["last", "carry"])
def test_equal_towers_cross_into_their_own_streams(towers, mode):
    pair = [towers.pair[0], copy.deepcopy(towers.pair[0])]
    streams, _, states = ran(pair, towers.inputs, CrossPlan(crossed_layers(4, 2), mode))
    for stream in streams:
        torch.testing.assert_close(stream, states[0][4], **CLOSE)


@torch.no_grad()
@pytest.mark.parametrize("mode", ["last", "carry"])
def test_padding_is_left_out(towers, mode):
    plan = CrossPlan(crossed_layers(4, 2), mode)
    streams, _, _ = ran(towers.pair, towers.inputs, plan)
    pad = towers.pair[0].config.pad_token_id
    more = {
        "input_ids": torch.nn.functional.pad(towers.inputs["input_ids"], (0, 6), value=pad),
        "attention_mask": torch.nn.functional.pad(towers.mask, (0, 6)),
    }
    wider, _, _ = ran(towers.pair, more, plan)
    for row, length in enumerate(LENGTHS):
        alone = {name: value[row : row + 1, :length] for name, value in towers.inputs.items()}
        single, _, _ = ran(towers.pair, alone, plan)
        for stream, wide, one in zip(streams, wider, single, strict=True):
            torch.testing.assert_close(wide[row, :length], stream[row, :length], **CLOSE)
            torch.testing.assert_close(one[0], stream[row, :length], **CLOSE)


@torch.no_grad()
def test_padding_on_the_left_is_left_out_too(towers):
    pad = towers.pair[0].config.pad_token_id
    plan = CrossPlan((1, 3), "carry")
    for row, length in enumerate(LENGTHS):
        alone = {name: value[row : row + 1, :length] for name, value in towers.inputs.items()}
        shifted = {
            "input_ids": torch.nn.functional.pad(alone["input_ids"], (2, 0), value=pad),
            "attention_mask": torch.nn.functional.pad(alone["attention_mask"], (2, 0)),
        }
        offset = pad + 1 if isinstance(towers.pair[0], RobertaModel) else 0
        positions = torch.arange(length)[None] + offset
        alone["position_ids"] = positions
        shifted["position_ids"] = torch.nn.functional.pad(positions, (2, 0), value=pad)
        for one, two in zip(ran(towers.pair, alone, plan)[0], ran(towers.pair, shifted, plan)[0], strict=True):
            torch.testing.assert_close(one, two[:, 2:], **CLOSE)


def test_both_towers_learn_and_the_main_streams_do_not_notice(towers):
    plain = [model(**towers.inputs).last_hidden_state for model in towers.pair]
    streams, recorders, states = ran(towers.pair, towers.inputs, CrossPlan((1, 3), "carry"))
    for main, found in zip(plain, states, strict=True):
        assert torch.equal(main, found[4])
    streams[0].square().sum().backward()
    for model in towers.pair:
        gradient = layers_of(model)[3].attention.self.value.weight.grad
        # Tower I's stream reads tower II's values at the crossing, and its own nowhere in the last layer.
        assert (gradient is None) == (model is towers.pair[0])
        assert layers_of(model)[0].intermediate.dense.weight.grad.abs().max() > 1e-6
        model.zero_grad()
    for recorder in recorders:
        attention = recorder.layer.attention.self
        hooks = [attention._forward_pre_hooks, *(part._forward_hooks for part in attention.children())]
        assert not any(hooks)


def test_hooks_go_when_the_pass_fails():
    model = tower(BertModel, 0)
    recorder = Recorder(layers_of(model)[3])
    with pytest.raises(RuntimeError, match="stop"), recorder.recording():
        raise RuntimeError("stop")
    attention = recorder.layer.attention.self
    assert not attention._forward_pre_hooks
    assert not attention.query._forward_hooks


def test_the_attention_drops_weights_in_training_only():
    model = tower(BertModel, 1, dropout=0.5)
    attention = layers_of(model)[0].attention.self
    parts = torch.randn(3, 2, 5, 16, dtype=torch.float64)
    quiet = context(attention, *parts, None)
    assert torch.equal(quiet, context(attention, *parts, None))
    model.train()
    torch.manual_seed(0)
    assert not torch.allclose(context(attention, *parts, None), quiet)


@pytest.mark.parametrize("implementation", ["sdpa", "eager"])
def test_worked_numbers(implementation):
    """One head of width 2, no bias; row vectors, so the library's weights are transposed."""
    config = BertConfig(hidden_size=2, num_attention_heads=1, attention_probs_dropout_prob=0.0)
    config._attn_implementation = implementation
    first, second = (transformers.models.bert.modeling_bert.BertSelfAttention(config) for _ in range(2))
    weights = {
        first.query: [[1.0, 0.0], [0.0, 1.0]],
        first.key: [[0.0, 1.0], [1.0, 0.0]],
        first.value: [[2.0, 0.0], [0.0, 1.0]],
        second.value: [[1.0, 1.0], [0.0, 1.0]],
    }
    with torch.no_grad():
        for module, matrix in weights.items():
            module.weight.copy_(torch.tensor(matrix).T)
            module.bias.zero_()
    own = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]]])
    other = torch.tensor([[[0.5, 0.5], [1.0, -1.0], [0.0, 2.0]]])
    query, key = first.query(own), first.key(own)
    close = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(
        context(first, query, key, first.value(own), None)[0],
        torch.tensor([[1.197776, 0.802224], [1.604448, 0.598888], [1.50349, 0.751745]]),
        **close,
    )
    torch.testing.assert_close(
        context(first, query, key, second.value(other), None)[0],
        torch.tensor([[0.5, 1.0], [0.398332, 1.203336], [0.372383, 1.255235]]),
        **close,
    )


# Which layers -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("depth", "count", "layers"),
    [
        (12, 6, (1, 3, 5, 7, 9, 11)),
        (12, None, (1, 3, 5, 7, 9, 11)),
        (12, 1, (11,)),
        (12, 3, (3, 7, 11)),
        (12, 12, tuple(range(12))),
        (12, 0, ()),
        (6, None, (1, 3, 5)),
        (5, None, (4,)),
        (9, None, (2, 5, 8)),
        (1, None, (0,)),
        (2, None, (1,)),
    ],
)
def test_crossed_layers(depth, count, layers):
    assert crossed_layers(depth, count) == layers


@pytest.mark.parametrize(("depth", "count", "allowed"), [(12, 5, "0, 1, 2, 3, 4, 6, 12"), (4, 8, "0, 1, 2, 4")])
def test_a_count_that_does_not_divide(depth, count, allowed):
    with pytest.raises(SettingsError) as caught:
        crossed_layers(depth, count)
    assert str(caught.value) == (
        f"jtcse.cross_layers {count} does not divide the {depth} layers of the towers; use one of {allowed}"
    )


def test_a_plan_that_crosses_nowhere():
    with pytest.raises(ValueError, match=r"crosses nowhere; no plan at all \(None\) says so"):
        CrossPlan(crossed_layers(4, 0))


def tiny(name):
    kind = getattr(transformers, name)
    sizes = {**SIZES, "num_hidden_layers": 1}
    if name == "DistilBertModel":
        sizes = {"vocab_size": 50, "dim": 16, "n_layers": 1, "n_heads": 4, "hidden_dim": 24}
    if name == "EsmModel":
        sizes |= {"position_embedding_type": "rotary", "pad_token_id": 1, "mask_token_id": 2}
    return kind(kind.config_class(**sizes))


@pytest.mark.parametrize("name", ["BertModel", "RobertaModel", "XLMRobertaModel", "CamembertModel", "ElectraModel"])
def test_layers_built_as_berts(name):
    assert len(layers_of(tiny(name))) == 1


@pytest.mark.parametrize(
    "name",
    [
        "DistilBertModel",
        "LlamaModel",
        "MPNetModel",
        "AlbertModel",
        # These have all that is read, and something besides: normalisation before attention, rotation, adapters.
        "RobertaPreLayerNormModel",
        "XLMRobertaXLModel",
        "EsmModel",
        "XmodModel",
    ],
)
def test_layers_built_otherwise(name):
    message = f"attention cannot cross between towers of {name}: .*; use jtcse.cross_layers 0 \\(TNCSE\\)"
    with pytest.raises(SettingsError, match=message):
        layers_of(tiny(name))
