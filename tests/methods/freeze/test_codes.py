"""Codes by layer, heads, and the one vector that ranks as the head of non-negative weights does."""

import numpy as np
import pytest
import torch
from scipy.stats import rankdata

from sentsmith.errors import SettingsError
from sentsmith.methods.freeze.codes import LayerCodes
from sentsmith.methods.freeze.objective import layer_cosines

L, D = 4, 12


def states(rows=40, seed=0):
    return torch.randn(rows, L * D, generator=torch.Generator().manual_seed(seed))


def make(**options):
    torch.manual_seed(1)
    codes = LayerCodes(L, D, **options)
    if codes.mlp is None:
        torch.nn.init.normal_(codes.weight)
    return codes.eval()


def vectors(codes, given):
    with torch.no_grad():
        return codes({"sentence_embedding": given})["sentence_embedding"].numpy()


def scores(codes, first, second):
    with torch.no_grad():
        return codes.similarity(layer_cosines(codes.encode(first), codes.encode(second))).double().numpy()


KINDS = [
    {"start": "cosines"},
    {"start": "pca", "bottlenecks": (3, 5, 5, 8)},
    {"start": "scratch", "bottlenecks": (3, 3, 6, 6)},
    {"start": "autoencoder", "bottlenecks": (4,) * L, "depth": 2, "normalise": True},
    {"start": "scratch", "bottlenecks": (3, 6), "kept": (0, 2)},
    {"start": "scratch", "bottlenecks": (3, 3, 6, 6), "combine": "summed"},
]


@pytest.mark.parametrize("kind", KINDS)
def test_the_vector_of_a_nonnegative_head_ranks_as_the_head_does(kind):
    codes = make(head="nonnegative", **kind)
    first, second = states(seed=1), states(seed=2)
    one, two = vectors(codes, first), vectors(codes, second)
    np.testing.assert_allclose(np.linalg.norm(one, axis=1), 1, rtol=1e-5)
    assert one.shape[1] == codes.get_embedding_dimension()
    dots, learned = (one * two).sum(axis=1), scores(codes, first, second)
    total = sum(codes.weights)
    np.testing.assert_allclose(1 / (1 + np.exp(-(dots * total + codes.bias.item()))), learned, rtol=1e-4)
    np.testing.assert_array_equal(rankdata(dots.round(5)), rankdata(np.log(learned / (1 - learned)).round(5)))
    assert codes.pair_scores is None
    # No pair scores above a sentence and itself.
    assert scores(codes, first, first).min() >= learned.max()


@pytest.mark.parametrize("head", ["linear", "mlp"])
@pytest.mark.parametrize("kind", KINDS[:5])
def test_a_free_head_scores_pairs_of_vectors_as_it_scores_pairs(kind, head):
    codes = make(head=head, **kind)
    first, second = states(seed=1), states(seed=2)
    one, two = vectors(codes, first), vectors(codes, second)
    np.testing.assert_allclose(codes.pair_scores(one, two), scores(codes, first, second), rtol=1e-4)
    with torch.no_grad():
        cosines = layer_cosines(codes.encode(first), codes.encode(second)).numpy()
    np.testing.assert_allclose(codes.layer_similarities(one, two), cosines, atol=1e-5)
    # Its vectors' own cosine is the plain mean of the layers'.
    np.testing.assert_allclose((one * two).sum(axis=1), cosines.mean(axis=1), atol=1e-5)
    assert (codes.weights is None) == (head == "mlp")


def test_a_head_begins_as_the_mean_of_the_cosines():
    for head in ("linear", "nonnegative"):
        codes = LayerCodes(L, D, head=head)
        assert codes.weights == pytest.approx([6 / L] * L)


def test_layers_left_out_are_not_read():
    codes = make(start="cosines", kept=(0, 3), head="nonnegative")
    given, other = states(), states()
    other[:, D : 3 * D] = 7.0
    np.testing.assert_array_equal(vectors(codes, given), vectors(codes, other))
    other[:, :D] = 7.0
    assert not np.allclose(vectors(codes, given), vectors(codes, other))


def test_maps_onto_all_directions_keep_the_cosines_and_fewer_keep_the_longest():
    given = states(400) * torch.logspace(0, -2, D).repeat(L)
    whole = make(start="pca", bottlenecks=(D,) * L)
    whole.encoders.measure(given.numpy())
    np.testing.assert_allclose(
        layer_cosines(whole.encode(given[:50]), whole.encode(given[50:100])).detach(),
        layer_cosines(*(part.view(-1, L, D) for part in (given[:50], given[50:100]))),
        atol=1e-5,
    )
    few = make(start="pca", bottlenecks=(2, 3, 2, 2))
    few.encoders.measure(given.numpy())
    lengths = few.encode(given).detach().square().sum(dim=-1).sum(dim=0)
    leading = [
        np.linalg.eigvalsh(np.cov(part.T, bias=True) + np.outer(part.mean(0), part.mean(0)))[-b:].sum() * 400
        for part, b in zip(given.view(-1, L, D).transpose(0, 1).double().numpy(), (2, 3, 2, 2), strict=True)
    ]
    np.testing.assert_allclose(lengths, leading, rtol=1e-4)


def test_noise_is_of_training_only():
    codes = make(start="pca", bottlenecks=(4,) * L)
    codes.noise = 0.5
    assert torch.equal(codes.encode(states()), codes.encode(states()))
    codes.train()
    assert not torch.equal(codes.encode(states()), codes.encode(states()))


def test_half_precision_vectors_of_a_store_are_widened():
    codes = make(start="scratch", bottlenecks=(4,) * L)
    assert codes.encode(states().half()).dtype == torch.float32


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("head", ["linear", "mlp", "nonnegative"])
def test_saved_and_loaded(tmp_path, kind, head):
    codes = make(head=head, **kind)
    if codes.normalise:
        codes.standardise.measure(states(100).numpy())
    codes.save(str(tmp_path))
    again = LayerCodes.load(str(tmp_path)).eval()
    np.testing.assert_array_equal(vectors(again, states()), vectors(codes, states()))
    np.testing.assert_array_equal(scores(again, states(), states(seed=3)), scores(codes, states(), states(seed=3)))


def test_what_is_refused():
    for name in ("head", "combine", "start"):
        with pytest.raises(SettingsError, match=f"{name} 'other' is unknown; use one of"):
            LayerCodes(L, D, **{name: "other"})
