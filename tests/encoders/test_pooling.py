"""Each readout against hand computation from the hidden states."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import rebuilt, with_pooling, without_normalize
from sentsmith.errors import InputError


def by_hand(model, features, pooling):
    mask = features["attention_mask"]
    inputs = {key: value for key, value in features.items() if isinstance(value, torch.Tensor)}
    with torch.no_grad():
        states = model[0].model(**inputs, output_hidden_states=True).hidden_states
    last = states[-1]
    if pooling == "cls":
        return last[:, 0]
    if pooling == "last":
        return torch.stack([row[keep.nonzero().max()] for row, keep in zip(last, mask, strict=True)])
    tokens = last if pooling == "mean" else (states[1] + last) / 2
    return torch.stack([row[keep.bool()].mean(dim=0) for row, keep in zip(tokens, mask, strict=True)])


ALL = ("cls", "mean", "last", "first_last")
CASES = [(kind, pooling, "right") for kind in ("tiny_bert", "tiny_llama") for pooling in ALL]
CASES += [("tiny_llama", pooling, "left") for pooling in ALL[1:]]


@pytest.mark.parametrize(("kind", "pooling", "side"), CASES)
def test_readout(request, sentences, kind, pooling, side):
    model = with_pooling(load(request.getfixturevalue(kind), device="cpu"), pooling)
    model.tokenizer.padding_side = side
    features = model.preprocess(sentences[:8])
    assert (features["attention_mask"] == 0).any()
    with torch.no_grad():
        found = model(dict(features))["sentence_embedding"]
    torch.testing.assert_close(found, by_hand(model, features, pooling), atol=1e-5, rtol=1e-5)


def test_readouts_differ(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu")
    vectors = [with_pooling(model, kind).encode(sentences[:1])[0] for kind in ("cls", "mean", "last", "first_last")]
    for i, first in enumerate(vectors):
        for second in vectors[:i]:
            assert abs(first - second).max() > 1e-2


@pytest.mark.parametrize("pooling", ["cls", "mean", "last", "first_last"])
def test_it_survives_saving_in_the_plain_format(tiny_bert, sentences, tmp_path, pooling):
    model = with_pooling(load(tiny_bert, device="cpu"), pooling)
    model.save_pretrained(str(tmp_path / "m"), create_model_card=False)
    again = SentenceTransformer(str(tmp_path / "m"), device="cpu", local_files_only=True)
    assert abs(again.encode(sentences) - model.encode(sentences)).max() < 1e-6


def test_a_head_goes_and_a_closing_normalisation_stays(tiny_bert):
    model = load(tiny_bert, device="cpu")
    headed = SentenceTransformer(modules=[*model, Dense(32, 4), Normalize()], device="cpu")
    names = [type(module).__name__ for module in with_pooling(headed, "cls")]
    assert names == ["Transformer", "Pooling", "Normalize"]
    assert [type(module).__name__ for module in with_pooling(model, "cls")] == ["Transformer", "Pooling"]


def test_weights_are_shared_and_prompts_kept(tiny_bert):
    model = load(tiny_bert, device="cpu")
    model.prompts, model.default_prompt_name = {"query": "find: "}, "query"
    model.similarity_fn_name = "dot"
    other = with_pooling(model, "last")
    assert next(other.parameters()) is next(model.parameters())
    assert (other.prompts["query"], other.default_prompt_name, other.similarity_fn_name) == ("find: ", "query", "dot")


def test_the_layer_weights_of_first_last_are_not_trained(tiny_bert):
    model = with_pooling(load(tiny_bert, device="cpu"), "first_last")
    assert [p.requires_grad for name, p in model.named_parameters() if "layer_weights" in name] == [False]


def test_unknown_poolings_and_other_models_are_refused(tiny_bert):
    model = load(tiny_bert, device="cpu")
    with pytest.raises(InputError, match="use one of cls, mean, last, first_last"):
        with_pooling(model, "max")
    with pytest.raises(InputError, match="not for Dense"):
        with_pooling(SentenceTransformer(modules=[Dense(4, 4)], device="cpu"), "cls")


def test_without_normalize(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu")
    assert without_normalize(model) is model
    raw = without_normalize(rebuilt(model, [*model, Normalize()]))
    assert raw[0] is model[0]
    assert (raw.encode(sentences[:3]) == model.encode(sentences[:3])).all()


def test_poolings_that_share_weights_do_not_disturb_each_other(tiny_bert, sentences):
    model = load(tiny_bert)
    first_last = with_pooling(model, "first_last")
    before = first_last.encode(sentences[:4])
    with_pooling(model, "mean")
    assert np.array_equal(first_last.encode(sentences[:4]), before)
