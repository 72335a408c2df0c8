"""Vectors do not depend on batch-mates, and are the ones that sentence-transformers gives."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, Normalize

from sentsmith.encoders import embedding
from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.embedding import ModelEncoder, as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import with_pooling

# Float32 sums of a row differ in their last digits with the shape of the matrix they are part of.
TOLERANCE = 1e-5


def close(first, second):
    return np.abs(first - second).max() < TOLERANCE


@pytest.fixture(scope="module")
def model(tiny_bert):
    return load(tiny_bert, device="cpu")


@pytest.fixture(params=["cls", "mean", "last", "first_last"])
def pooled(request, tiny_bert):
    return with_pooling(load(tiny_bert, device="cpu"), request.param)


def test_a_sentence_does_not_depend_on_its_batch_mates(pooled, sentences):
    encoder = as_encoder(pooled)
    alone = np.concatenate([encoder.encode([sentence]) for sentence in sentences[:20]])
    assert alone.std(axis=0).min() > 1e-2
    assert close(encoder.encode(sentences)[:20], alone)
    assert close(encoder.encode([*sentences[:20], "the man " * 40])[:20], alone)
    assert close(encoder.encode(sentences[19::-1])[::-1], alone)
    for chunking in (Chunking(1, 1), Chunking(40, 3), Chunking(10**6, 1)):
        assert close(ModelEncoder(pooled, chunking=chunking).encode(sentences[:20]), alone)


def test_a_decoder_does_not_read_its_padding(tiny_llama, sentences):
    model = with_pooling(load(tiny_llama, device="cpu"), "last")
    for side in ("left", "right"):
        model.tokenizer.padding_side = side
        encoder = as_encoder(model)
        alone = encoder.encode([sentences[0]])
        assert close(encoder.encode([sentences[0], "the man " * 25])[:1], alone)


def test_equal_to_sentence_transformers(pooled, sentences):
    expected = pooled.encode(sentences, batch_size=7)
    found = as_encoder(pooled).encode(sentences)
    assert found.dtype == np.float32
    assert close(found, expected)


def test_blocks_join_in_order(model, sentences, monkeypatch):
    whole = as_encoder(model).encode(sentences)
    monkeypatch.setattr(embedding, "_BLOCK", 7)
    assert close(as_encoder(model).encode(sentences), whole)


def test_an_empty_list_has_no_rows_and_the_right_width(model):
    vectors = as_encoder(model).encode([])
    assert vectors.shape == (0, 32)
    assert vectors.dtype == np.float32


@pytest.mark.parametrize("text", ["", "   "])
def test_an_empty_sentence_has_a_finite_vector(model, sentences, text):
    vectors = as_encoder(model).encode([sentences[0], text])
    assert np.isfinite(vectors).all()
    assert close(vectors, model.encode([sentences[0], text]))
    assert close(vectors[:1], as_encoder(model).encode([sentences[0]]))


def test_one_string_is_refused(model):
    with pytest.raises(TypeError, match="not one string"):
        as_encoder(model).encode("a dog sleeps .")


def test_every_module_keeps_its_mode(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu").train()
    # A part that stays frozen while the rest trains.
    model[0].model.embeddings.eval()
    before = [module.training for module in model.modules()]
    first, second = as_encoder(model).encode(sentences[:2]), as_encoder(model).encode(sentences[:2])
    assert [module.training for module in model.modules()] == before
    assert (first == second).all()
    monkey = ModelEncoder(model)
    monkey._block = lambda *_: 1 / 0
    with pytest.raises(ZeroDivisionError):
        monkey.encode(sentences[:2])
    assert [module.training for module in model.modules()] == before


def test_the_vectors_carry_no_gradient(model, sentences):
    as_encoder(model).encode(sentences[:2])
    assert all(parameter.grad is None for parameter in model.parameters())


def test_prompts(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu")
    plain = as_encoder(model).encode(sentences[:4])
    model.prompts = {"query": "the man reads ", "document": ""}
    assert close(as_encoder(model).encode(sentences[:4]), plain)
    named = ModelEncoder(model, prompt="the man reads ").encode(sentences[:4])
    assert not close(named, plain)
    assert close(named, model.encode(sentences[:4], prompt_name="query"))
    model.default_prompt_name = "query"
    assert close(as_encoder(model).encode(sentences[:4]), named)
    assert close(ModelEncoder(model, prompt="").encode(sentences[:4]), plain)


def test_a_pooling_that_leaves_the_prompt_out(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu")
    model[1].include_prompt = False
    expected = model.encode(sentences, prompt="the man reads ")
    assert close(ModelEncoder(model, prompt="the man reads ").encode(sentences), expected)
    model[1].include_prompt = True
    assert not close(model.encode(sentences, prompt="the man reads "), expected)


def test_truncated_dimensions(tiny_bert, sentences):
    model = load(tiny_bert, device="cpu")
    model.truncate_dim = 8
    assert close(as_encoder(model).encode(sentences[:4]), model.encode(sentences[:4]))
    assert as_encoder(model).encode(sentences[:4]).shape == (4, 8)
    assert as_encoder(model).encode([]).shape == (0, 8)


def test_a_head_and_a_normalisation(model, sentences):
    headed = SentenceTransformer(modules=[*model, Dense(32, 5), Normalize()], device="cpu")
    vectors = as_encoder(headed).encode(sentences)
    assert vectors.shape == (60, 5)
    assert np.linalg.norm(vectors, axis=1) == pytest.approx(1, abs=1e-5)
    assert close(vectors, headed.encode(sentences))


def test_bf16_is_near_fp32_and_other_formats_are_refused(model, sentences):
    exact, half = as_encoder(model).encode(sentences), as_encoder(model, precision="bf16").encode(sentences)
    assert half.dtype == np.float32
    assert 0 < np.abs(exact - half).max() < 0.2
    with pytest.raises(ValueError, match="use one of fp32, bf16"):
        as_encoder(model, precision="int3")


def test_encoding_leaves_the_random_numbers_alone(model, sentences):
    state = torch.get_rng_state()
    as_encoder(model).encode(sentences[:3])
    assert torch.equal(torch.get_rng_state(), state)


def test_cut_vectors_are_cut_block_by_block(tiny_bert, sentences):
    """What is cut off is not kept until all sentences are through, nor behind the rows that are handed out."""
    model = load(tiny_bert, device="cpu")
    whole = ModelEncoder(model).encode(sentences[:10])
    model.truncate_dim = 8
    found = ModelEncoder(model).encode(sentences[:10])
    assert found.flags.c_contiguous
    np.testing.assert_array_equal(found, whole[:, :8])
    with torch.no_grad():
        block = ModelEncoder(model)._block(model, sentences[:4], 8)
    assert block.base is None or block.base.nbytes == block.nbytes
