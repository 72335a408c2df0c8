"""Autoencoders of all layers together: against one plain run per layer, killed and gone on with, and found again."""

from __future__ import annotations

import json
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional

from sentsmith.errors import InputError, SentsmithError
from sentsmith.methods.freeze import autoencoders
from sentsmith.methods.freeze.autoencoders import FitSettings, epoch_batches, fit, held_out_rows
from sentsmith.methods.freeze.decoders import Autoencoders
from sentsmith.methods.freeze.layer_encoders import LayerEncoders, Standardise, layer_moments
from sentsmith.methods.freeze.summed import SummedCodes

LAYERS, WIDTH, ROWS = 4, 10, 90
BOTTLENECKS = (6, 3, 6, 2)
# So quick that layers overshoot, and stop at different epochs.
SETTINGS = FitSettings(epochs=14, batch_size=16, learning_rate=0.05, held_out=0.2, patience=3, seed=5)
KEY = {"model": "tiny"}


@pytest.fixture
def vectors(tmp_path):
    """Return a memory map of layers that grow, lie off the origin and have few directions."""
    dice = np.random.default_rng(0)
    hidden = dice.normal(size=(LAYERS, ROWS, 3)) @ dice.normal(size=(LAYERS, 3, WIDTH))
    values = (hidden + 0.3 * dice.normal(size=hidden.shape) + 4) * (10.0 ** np.arange(LAYERS))[:, None, None]
    np.save(tmp_path / "vectors.npy", values.transpose(1, 0, 2).reshape(ROWS, -1).astype(np.float32))
    return np.load(tmp_path / "vectors.npy", mmap_mode="r")


def drawn(kind="layers", bottlenecks=BOTTLENECKS):
    torch.manual_seed(1)
    encoders = LayerEncoders(len(bottlenecks), WIDTH, bottlenecks).double()
    return encoders if kind == "layers" else SummedCodes(encoders, 8).double()


def of_layer(model: Autoencoders, layer: int):
    """Return copies of one layer's weights, in the order of :func:`decoded`."""
    number, stack = next((n, s) for n, s in enumerate(model.coder.stacks) if layer in s.places)
    linears = [*stack.linears, model.decoders[number].last]
    tensors = [stack.norm_weight, stack.norm_bias, *(t for own in linears for t in (own.weight, own.bias))]
    return [tensor[stack.places.index(layer)].detach().clone().requires_grad_() for tensor in tensors]


def decoded(x, norm_weight, norm_bias, first, first_bias, second, second_bias, third, third_bias):
    """One plain autoencoder."""
    hidden = functional.gelu(functional.layer_norm(x, x.shape[-1:], norm_weight, norm_bias) @ first + first_bias)
    return (hidden @ second + second_bias) @ third + third_bias


def plain_run(vectors, layer, weights, settings):
    """Train one layer alone, by hand; returns its losses until it stopped, and its best weights."""
    x = torch.from_numpy(np.array(vectors)).double().view(ROWS, LAYERS, WIDTH)[:, layer]
    train, held = held_out_rows(ROWS, settings)
    mean = x[train].mean(0)
    rms = x[train].var(0, correction=0).mean().sqrt()
    optimiser = torch.optim.AdamW(weights, lr=settings.learning_rate)
    losses, best = [], None
    for epoch in range(1, settings.epochs + 1):
        for rows in epoch_batches(train, settings, epoch):
            optimiser.zero_grad()
            functional.mse_loss(mean + rms * decoded(x[rows], *weights), x[rows]).div(rms**2).backward()
            optimiser.step()
        with torch.no_grad():
            losses.append(functional.mse_loss(mean + rms * decoded(x[held], *weights), x[held]).item())
        if losses[-1] == min(losses):
            best = [tensor.detach().clone() for tensor in weights]
        if len(losses) - 1 - int(np.argmin(losses)) >= settings.patience:
            break
    baseline = (x[held] - mean).square().mean().item()
    return losses, best, 1 - min(losses) / baseline


def test_together_is_the_same_as_one_run_per_layer(vectors, tmp_path):
    """Losses of every epoch, which was best, where each layer stopped, and the weights that are kept."""
    coder = drawn()
    train, _ = held_out_rows(ROWS, SETTINGS)
    generator = torch.Generator().manual_seed(SETTINGS.seed + autoencoders._DECODERS)
    twin = Autoencoders(drawn(), *layer_moments(vectors, LAYERS, train), generator=generator)
    begun = [of_layer(twin, layer) for layer in range(LAYERS)]
    found = fit(coder, vectors, tmp_path, KEY, SETTINGS)
    stopped = set()
    for layer in range(LAYERS):
        losses, best, explained = plain_run(vectors, layer, begun[layer], SETTINGS)
        together = [epoch[layer] for epoch in found.history]
        np.testing.assert_allclose(together[: len(losses)], losses, rtol=1e-6)
        np.testing.assert_allclose(together[len(losses) :], min(losses), rtol=1e-6)
        assert found.epochs[layer] == int(np.argmin(losses)) + 1
        assert found.loss[layer] == pytest.approx(min(losses), rel=1e-6)
        assert found.explained[layer] == pytest.approx(explained, rel=1e-5)
        stack = next(stack for stack in coder.stacks if layer in stack.places)
        own = stack.linears[0].weight[stack.places.index(layer)]
        torch.testing.assert_close(own.detach(), best[2], rtol=1e-6, atol=1e-7)
        stopped.add(len(losses))
    assert len(stopped) > 1, "all layers stopped together: nothing was shown of stopping apart"
    assert min(stopped) < len(found.history)
    assert found.loss == sorted(found.loss), "what grows by ten from layer to layer costs more"
    assert min(found.explained) > 0.3


@pytest.mark.parametrize("kind", ["layers", "summed"])
def test_a_killed_fit_ends_with_the_same_numbers(vectors, tmp_path, monkeypatch, kind):
    """Killed in epoch 4, with noise; then found, and not found under another key or other settings."""
    settings = replace(SETTINGS, noise=0.1, epochs=5)
    whole = drawn(kind)
    expected = fit(whole, vectors, tmp_path / "whole", KEY, settings)

    def killed(rows, settings, epoch):
        if epoch == 4:
            raise KeyboardInterrupt
        return epoch_batches(rows, settings, epoch)

    monkeypatch.setattr(autoencoders, "_SAVE_SECONDS", 0.0)
    monkeypatch.setattr(autoencoders, "epoch_batches", killed)
    with pytest.raises(KeyboardInterrupt):
        fit(drawn(kind), vectors, tmp_path / "again", KEY, settings)
    seen = []
    monkeypatch.setattr(autoencoders, "epoch_batches", lambda *a: seen.append(a[2]) or epoch_batches(*a))
    again = drawn(kind)
    result = fit(again, vectors, tmp_path / "again", KEY, settings)
    assert seen == list(range(4, len(expected.history) + 1))
    assert replace(result, seconds=0) == replace(expected, seconds=0)
    for one, other in zip(whole.parameters(), again.parameters(), strict=True):
        assert torch.equal(one, other)
    assert sorted(path.name for path in (tmp_path / "again").iterdir()) == [autoencoders.WEIGHTS, autoencoders.RESULT]

    found = drawn(kind)
    seen.clear()
    assert fit(found, vectors, tmp_path / "again", KEY, settings) == result
    assert not seen
    assert all(torch.equal(one, other) for one, other in zip(whole.parameters(), found.parameters(), strict=True))
    fit(drawn(kind), vectors, tmp_path / "again", {"model": "other"}, replace(settings, epochs=2))
    assert seen == [1, 2]
    note = json.loads((tmp_path / "again" / autoencoders.RESULT).read_text())
    assert note["key"]["model"] == "other"


def test_layers_do_not_learn_from_each_other(vectors, tmp_path):
    """With other numbers in one layer, the others' losses are what they were."""
    settings = replace(SETTINGS, epochs=3)
    first = fit(drawn(), vectors, tmp_path / "a", KEY, settings)
    changed = np.array(vectors)
    changed[:, WIDTH : 2 * WIDTH] = np.random.default_rng(9).normal(size=(ROWS, WIDTH))
    second = fit(drawn(), changed, tmp_path / "b", KEY, settings)
    assert second.loss[1] != first.loss[1]
    kept = [0, 2, 3]
    np.testing.assert_allclose([second.loss[i] for i in kept], [first.loss[i] for i in kept], rtol=1e-9)


def test_summed_codes_stop_together_and_cost_more_than_independent_ones(vectors, tmp_path):
    """All layers out of eight numbers: one best epoch, by the sum of what each loses in units of its own."""
    settings = replace(SETTINGS, epochs=8, patience=8)
    summed = fit(drawn("summed"), vectors, tmp_path / "summed", KEY, settings)
    _, variance = layer_moments(vectors, LAYERS, held_out_rows(ROWS, settings)[0])
    history = np.array(summed.history)
    best = int((history / variance.mean(axis=1)).sum(axis=1).argmin())
    assert summed.epochs == [best + 1] * LAYERS
    assert summed.loss == history[best].tolist()
    assert (history.argmin(axis=0) != best).any(), "each layer was best then: nothing was shown of a common end"
    apart = fit(drawn(bottlenecks=(6, 6, 6, 6)), vectors, tmp_path / "apart", KEY, settings)
    assert 0.2 < np.mean(summed.explained) < np.mean(apart.explained)


def test_float16_and_standardised_latents(vectors, tmp_path):
    """A store in float16 gives nearly the same; standardised latents are reconstructed in their own units."""
    settings = replace(SETTINGS, epochs=1)
    first = fit(drawn(), vectors, tmp_path / "a", KEY, settings)
    halves = (np.array(vectors)).astype(np.float16)
    second = fit(drawn(), halves, tmp_path / "b", KEY, settings)
    np.testing.assert_allclose(second.history[0], first.history[0], rtol=0.01)
    standardise = Standardise(LAYERS, WIDTH)
    standardise.measure(vectors)
    third = fit(drawn(), vectors, tmp_path / "c", KEY, settings, standardise=standardise)
    baseline = [loss / (1 - share) for loss, share in zip(third.loss, third.explained, strict=True)]
    np.testing.assert_allclose(baseline, 1, rtol=0.3)
    z = (np.array(vectors) - standardise.mean.flatten().numpy()) / standardise.deviation.flatten().numpy()
    same = fit(drawn(), z.astype(np.float32), tmp_path / "d", KEY, settings)
    np.testing.assert_allclose(third.history[0], same.history[0], rtol=1e-4)


def test_memory_that_is_used_again_is_not_taken_for_what_it_was():
    """A backward pass of a step that another step has written over is refused, not wrong."""
    model = Autoencoders(drawn(), np.zeros((LAYERS, WIDTH)), np.ones((LAYERS, WIDTH)))
    x = torch.randn(7, LAYERS, WIDTH, dtype=torch.float64)
    first = model(x)
    model(x[:3])
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        first.sum().backward()


def test_more_noise_reconstructs_less(vectors, tmp_path):
    """Noise of the layers' own size hides what is to be reconstructed."""
    settings = replace(SETTINGS, epochs=3)
    clear, noisy = (fit(drawn(), vectors, tmp_path / str(n), KEY, replace(settings, noise=n)) for n in (0.0, 3.0))
    assert np.mean(noisy.explained) < np.mean(clear.explained) - 0.1


def test_a_constant_layer_and_a_deeper_autoencoder(vectors, tmp_path):
    """A layer that always says the same has nothing to explain, and is no division by zero."""
    constant = np.array(vectors)
    constant[:, :WIDTH] = 7
    torch.manual_seed(0)
    found = fit(
        LayerEncoders(LAYERS, WIDTH, (6, 3, 6, 6), depth=2), constant, tmp_path, KEY, replace(SETTINGS, epochs=6)
    )
    assert found.explained[0] == 0
    assert min(found.explained[1:]) > 0.1


def test_batches_hold_every_row_once():
    """In another order each epoch, none far smaller than the others, rows sorted for the disk."""
    rows, _ = held_out_rows(100, SETTINGS)
    first, second = list(epoch_batches(rows, SETTINGS, 1)), list(epoch_batches(rows, SETTINGS, 2))
    assert np.array_equal(np.sort(np.concatenate(first)), rows)
    assert {len(batch) for batch in first} == {16}
    assert all(np.array_equal(batch, np.sort(batch)) for batch in first)
    assert not all(np.array_equal(a, b) for a, b in zip(first, second, strict=True))
    assert [len(batch) for batch in epoch_batches(np.arange(33), SETTINGS, 1)] == [11, 11, 11]


def test_what_cannot_be_fitted(vectors, tmp_path):
    """Too few rows, another width, a rate that diverges, and damaged files: a line each."""
    with pytest.raises(InputError, match="2 sentences are too few"):
        fit(drawn(), vectors[:2], tmp_path, KEY, SETTINGS)
    with pytest.raises(InputError, match="4 layers of 10 are needed"):
        fit(drawn(), vectors[:, :-1], tmp_path, KEY, SETTINGS)
    with pytest.raises(SentsmithError, match="lower learning rate"):
        fit(drawn().float(), vectors, tmp_path, KEY, replace(SETTINGS, learning_rate=1e30))
    (tmp_path / autoencoders.CHECKPOINT).write_bytes(b"not a checkpoint")
    with pytest.raises(InputError, match="delete it"):
        fit(drawn(), vectors, tmp_path, KEY, SETTINGS)
