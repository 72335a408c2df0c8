"""The chunked forward pass computes what the plain one computes: vectors, loss and every gradient."""

from __future__ import annotations

import copy

import pytest
import torch

from sentsmith.encoders.chunked import Chunking, forward, join, plan, trim
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import with_pooling
from sentsmith.methods.simcse.objective import info_nce


def _gradients(model, features, rows, vectors_of):
    model.zero_grad()
    vectors = vectors_of(model, features)
    loss = info_nce(*vectors.split(rows), temperature=0.05)
    loss.backward()
    gradients = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    return loss.item(), gradients


def _plain(model, features):
    return model(dict(features))["sentence_embedding"]


def _assert_same(first, second):
    assert first[0] == pytest.approx(second[0], abs=1e-5)
    assert first[1].keys() == second[1].keys()
    # A comparison of zeros with zeros would prove nothing.
    assert max(gradient.abs().max() for gradient in first[1].values()) > 1e-3
    for name in first[1]:
        torch.testing.assert_close(first[1][name], second[1][name], atol=1e-5, rtol=1e-4, msg=name)


@pytest.mark.parametrize("recompute", [False, True])
@pytest.mark.parametrize(("tokens", "min_rows"), [(1, 1), (64, 1), (96, 7), (100_000, 1)])
@pytest.mark.parametrize("pooling", ["cls", "mean", "last", "first_last"])
def test_loss_and_gradients_equal_the_plain_pass(tiny_bert, sentences, pooling, tokens, min_rows, recompute):
    model = with_pooling(load(tiny_bert, device="cpu"), pooling)
    columns = [model.preprocess(sentences[i : i + 19]) for i in (0, 19, 38)]
    features = join(columns)
    chunking = Chunking(tokens, min_rows, recompute)
    assert len(plan(features["attention_mask"].sum(1), chunking)) > 1 or tokens == 100_000
    expected = _gradients(model, features, 19, _plain)
    _assert_same(expected, _gradients(model, features, 19, lambda m, f: forward(m, f, chunking)))


@pytest.mark.parametrize("side", ["left", "right"])
def test_a_decoder_padded_on_either_side(tiny_llama, sentences, side):
    model = with_pooling(load(tiny_llama, device="cpu"), "last")
    model.tokenizer.padding_side = side
    features = join([model.preprocess(sentences[:30])])
    expected = _gradients(model, features, 15, _plain)
    _assert_same(expected, _gradients(model, features, 15, lambda m, f: forward(m, f, Chunking(64, 2))))


def test_recomputing_repeats_the_same_dropout(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu").train()
    features = join([model.preprocess(sentences[:20])] * 2)

    def run(recompute):
        torch.manual_seed(3)
        return _gradients(model, features, 20, lambda m, f: forward(m, f, Chunking(96, 4, recompute)))

    kept, again = run(recompute=False), run(recompute=True)
    _assert_same(kept, again)
    torch.manual_seed(4)
    other = _gradients(model, features, 20, lambda m, f: forward(m, f, Chunking(96, 4)))
    assert other[0] != pytest.approx(kept[0], abs=1e-6)


def test_dropout_tells_two_copies_of_a_sentence_apart(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu").train()
    features = join([model.preprocess(sentences[:4])] * 2)
    first, second = forward(model, features, Chunking(64, 2)).split(4)
    assert (first - second).abs().min(dim=1).values.max() > 0


def test_recomputing_keeps_no_activations(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu").train()
    features = join([model.preprocess(sentences * 8)])

    def held(recompute):
        sizes = []

        def keep(tensor):
            sizes.append(tensor.numel() * tensor.element_size())
            return tensor

        with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
            forward(model, features, Chunking(256, 1, recompute))
        return sum(sizes)

    assert held(recompute=True) < held(recompute=False) / 20


def test_the_plan_is_a_permutation_by_falling_length():
    lengths = torch.tensor([3, 9, 1, 9, 4, 4, 0])
    chunks = plan(lengths, Chunking(tokens=18, min_rows=1))
    assert torch.cat(chunks).tolist() == [1, 3, 4, 5, 0, 2, 6]
    assert [len(chunk) for chunk in chunks] == [2, 4, 1]
    assert [len(chunk) for chunk in plan(lengths, Chunking(tokens=1, min_rows=3))] == [3, 3, 1]


def test_trim_drops_columns_that_are_padding_everywhere():
    mask = torch.tensor([[0, 1, 1, 0], [0, 0, 1, 0]])
    ids = torch.tensor([[7, 1, 2, 7], [7, 7, 3, 7]])
    trimmed = trim({"attention_mask": mask, "input_ids": ids})
    assert trimmed["input_ids"].tolist() == [[1, 2], [7, 3]]
    assert trimmed["attention_mask"].tolist() == [[1, 1], [0, 1]]


def test_join_pads_on_the_side_that_is_padded():
    left = {"attention_mask": torch.tensor([[0, 1], [1, 1]]), "input_ids": torch.tensor([[9, 1], [2, 3]])}
    wide = {"attention_mask": torch.tensor([[1, 1, 1]]), "input_ids": torch.tensor([[4, 5, 6]])}
    assert join([left, wide], pad_token_id=9)["input_ids"].tolist() == [[9, 9, 1], [9, 2, 3], [4, 5, 6]]
    right = {"attention_mask": torch.tensor([[1, 0]]), "input_ids": torch.tensor([[1, 9]])}
    assert join([right, wide], pad_token_id=9)["input_ids"].tolist() == [[1, 9, 9], [4, 5, 6]]


def test_chunking_refuses_nonsense():
    with pytest.raises(ValueError, match="at least 1"):
        Chunking(tokens=0)


def test_the_model_is_left_as_it_was(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu")
    before = copy.deepcopy(model.state_dict())
    forward(model, join([model.preprocess(sentences[:9])]), Chunking(32, 2))
    assert all(torch.equal(before[name], value) for name, value in model.state_dict().items())
