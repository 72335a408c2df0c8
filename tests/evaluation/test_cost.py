"""What a sentence vector costs."""

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.sentence_transformer.modules import Dense, Pooling, StaticEmbedding, Transformer
from torch import nn

from sentsmith.encoders.loading import load
from sentsmith.errors import InputError
from sentsmith.evaluation.cost import count_gmacs, score_per_gmac

LAYERS, WIDTH, INNER = 2, 32, 64


def by_hand(tokens):
    """Multiply-accumulates of the tiny BERT: projections, scores, attention × value, feed-forward, pooler."""
    projections = 4 * tokens * WIDTH * WIDTH
    attention = 2 * tokens * tokens * WIDTH
    inner = 2 * tokens * WIDTH * INNER
    return LAYERS * (projections + attention + inner) + WIDTH * WIDTH


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("tokens", [1, 7, 32])
def test_the_count_is_that_of_the_formula(tiny_bert, attention, tokens):
    model = load(tiny_bert, device="cpu")
    model[0].model.set_attn_implementation(attention)
    assert count_gmacs(model, tokens=tokens) * 1e9 == pytest.approx(by_hand(tokens))


def test_every_module_counts(tiny_bert):
    plain = load(tiny_bert, device="cpu")
    wider = SentenceTransformer(modules=[plain[0], plain[1], Dense(WIDTH, 5)], device="cpu")
    assert (count_gmacs(wider) - count_gmacs(plain)) * 1e9 == pytest.approx(WIDTH * 5)


def test_two_towers_cost_twice(tiny_bert):
    class Towers(nn.Module):
        def __init__(self):
            super().__init__()
            self.towers = nn.ModuleList([Transformer(str(tiny_bert)) for _ in range(2)])
            self.tokenizer = self.towers[0].tokenizer
            self.preprocess = self.towers[0].preprocess

        def forward(self, features):
            vectors = [tower(dict(features))["token_embeddings"] for tower in self.towers]
            return {**features, "token_embeddings": sum(vectors)}

    twin = SentenceTransformer(modules=[Towers(), Pooling(WIDTH)], device="cpu")
    assert count_gmacs(twin) == pytest.approx(2 * count_gmacs(load(tiny_bert, device="cpu")))


def test_the_model_is_left_as_it_was(tiny_bert):
    model = load(tiny_bert, device="cpu")
    model.train()
    count_gmacs(model)
    assert all(module.training for module in model.modules())
    assert torch.backends.cuda.flash_sdp_enabled()


def test_a_length_that_cannot_be_is_an_error(tiny_bert):
    model = load(tiny_bert, device="cpu")
    with pytest.raises(InputError, match="one token or more, not 0"):
        count_gmacs(model, tokens=0)
    with pytest.raises(InputError, match="reads at most 64 tokens, not 65"):
        count_gmacs(model, tokens=65)


def test_a_model_that_reads_no_tokens_is_an_error(tokenizer):
    model = SentenceTransformer(modules=[StaticEmbedding(tokenizer, embedding_dim=4)], device="cpu")
    with pytest.raises(InputError, match="reads no tokens"):
        count_gmacs(model)


def test_score_per_gmac():
    assert score_per_gmac(80.0, 0.5) == 160.0
    for cost in (0.0, -1.0, float("nan")):
        with pytest.raises(InputError, match="positive cost"):
            score_per_gmac(80.0, cost)
