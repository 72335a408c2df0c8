"""The encoders of all layers, side by side: against plain modules, one per layer, and in half precision."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from sentsmith.errors import InputError
from sentsmith.methods.freeze.layer_encoders import LayerEncoders, Standardise, layer_moments
from sentsmith.methods.freeze.summed import SummedCodes

WIDTH = 12
BOTTLENECKS = (5, 3, 5, 7)  # not one behind the other


def plain(encoders: LayerEncoders, layer: int) -> nn.Sequential:
    """Return one layer's encoder as torch's own modules, with copies of its weights."""
    stack = next(stack for stack in encoders.stacks if layer in stack.places)
    place, b = stack.places.index(layer), encoders.bottlenecks[layer]
    norm = nn.LayerNorm(encoders.width)
    norm.weight.data, norm.bias.data = stack.norm_weight[place].data.clone(), stack.norm_bias[place].data.clone()
    modules = [norm]
    for number, own in enumerate(stack.linears):
        linear = nn.Linear(encoders.width if number == 0 else b, b)
        linear.weight.data = own.weight[place].data.T.clone()
        linear.bias.data = own.bias[place, 0].data.clone()
        modules += [linear, nn.GELU()] if number < encoders.depth else [linear]
    return nn.Sequential(*modules)


def latents(rows=6, layers=4, dtype=torch.float64):
    return torch.randn(rows, layers, WIDTH, generator=torch.Generator().manual_seed(3), dtype=torch.float64).to(dtype)


def drawn(bottlenecks=BOTTLENECKS, depth=1):
    """Return encoders whose normalisation is no longer the identity."""
    torch.manual_seed(0)
    encoders = LayerEncoders(len(bottlenecks), WIDTH, bottlenecks, depth=depth).double()
    for stack in encoders.stacks:
        nn.init.uniform_(stack.norm_weight, 0.5, 1.5)
        nn.init.uniform_(stack.norm_bias, -0.5, 0.5)
    return encoders


@pytest.mark.parametrize("depth", [1, 3])
@pytest.mark.parametrize("bottlenecks", [BOTTLENECKS, (4, 4, 4)])
def test_codes_and_gradients_are_those_of_plain_modules(bottlenecks, depth):
    """The same cosine loss of codes, padding included, through both."""
    encoders = drawn(bottlenecks, depth)
    singles = [plain(encoders, layer) for layer in range(len(bottlenecks))]
    x = latents(layers=len(bottlenecks))
    codes = encoders(x)
    expected = [single(x[:, layer]) for layer, single in enumerate(singles)]
    for layer, b in enumerate(bottlenecks):
        torch.testing.assert_close(codes[:, layer, :b], expected[layer], rtol=1e-12, atol=1e-12)
        assert codes[:, layer, b:].count_nonzero() == 0
    assert [row.tolist().count(True) for row in encoders.kept] == list(bottlenecks)
    assert encoders.kept.shape == codes.shape[1:]
    nn.functional.cosine_similarity(codes[:3], codes[3:], dim=-1).square().sum().backward()
    sum(nn.functional.cosine_similarity(code[:3], code[3:], dim=-1).square().sum() for code in expected).backward()
    for stack in encoders.stacks:
        for place, layer in enumerate(stack.places):
            norm, *rest = [module for module in singles[layer] if list(module.parameters())]
            torch.testing.assert_close(stack.norm_weight.grad[place], norm.weight.grad)
            torch.testing.assert_close(stack.norm_bias.grad[place], norm.bias.grad)
            for own, linear in zip(stack.linears, rest, strict=True):
                torch.testing.assert_close(own.weight.grad[place], linear.weight.grad.T)
                torch.testing.assert_close(own.bias.grad[place, 0], linear.bias.grad)


def test_a_layer_depends_on_its_own_latents_alone():
    """Changing one layer's latents changes that layer's codes and no other's."""
    encoders, x = drawn(), latents()
    changed = x.clone()
    changed[:, 2] += torch.randn(WIDTH, dtype=torch.float64)
    moved = (encoders(changed) - encoders(x)).abs().amax(dim=(0, 2)) > 0
    assert moved.tolist() == [False, False, True, False]


def test_initial_numbers_are_drawn_as_torchs_linear_draws_them():
    """Uniform within 1/√inputs of the layer's own inputs, normalisation the identity, and by the global seed."""
    torch.manual_seed(1)
    first = LayerEncoders(2, 400, (100, 25))
    torch.manual_seed(1)
    again = LayerEncoders(2, 400, (100, 25))
    assert all(torch.equal(a, b) for a, b in zip(first.parameters(), again.parameters(), strict=True))
    for stack, b in zip(first.stacks, (100, 25), strict=True):
        for linear, inputs in zip(stack.linears, (400, b), strict=True):
            assert 0.95 * inputs**-0.5 < linear.weight.abs().max() <= inputs**-0.5
            assert linear.weight.std().item() == pytest.approx((3 * inputs) ** -0.5, rel=0.1)
        assert stack.norm_weight.eq(1).all()
        assert stack.norm_bias.eq(0).all()


def test_half_precision_latents_and_autocast():
    """Large float16 latents are normalised in float32; under autocast the codes are near those without."""
    encoders = drawn().float()
    x = latents(dtype=torch.float32)
    large = (x * 20_000).half()  # their squares are beyond float16
    torch.testing.assert_close(encoders(large), encoders(large.float()))
    with torch.autocast("cpu", torch.bfloat16):
        rough = encoders(x)
    assert rough.dtype == torch.bfloat16
    torch.testing.assert_close(rough.float(), encoders(x), rtol=0.05, atol=0.05)
    half = drawn().bfloat16()
    assert half(x.bfloat16()).dtype == torch.bfloat16


def test_gpt2_mediums_encoders_are_within_a_tenth_of_the_model():
    """METHODS: about 13.4M weights for 24 layers of 1,024 with 256 and 512."""
    with torch.device("meta"):
        encoders = LayerEncoders(24, 1024, [256] * 12 + [512] * 12)
    assert encoders.parameter_count() == 13_436_928
    assert [len(stack.places) for stack in encoders.stacks] == [12, 12]


@pytest.mark.parametrize(
    ("layers", "width", "bottlenecks", "depth"),
    [(2, 4, [3], 1), (1, 4, [0], 1), (0, 4, [], 1), (1, 0, [2], 1), (1, 4, [2], 0)],
)
def test_sizes_that_make_no_encoder(layers, width, bottlenecks, depth):
    """One line that says what was given."""
    with pytest.raises(ValueError, match="nothing below 1"):
        LayerEncoders(layers, width, bottlenecks, depth=depth)


def test_summed_codes_are_the_sum_of_the_projections():
    """Against a loop; and only as wide as asked for."""
    encoders, x = drawn(), latents()
    summed = SummedCodes(encoders, 9).double()
    codes, start, total = encoders(x), 0, 0
    for stack in encoders.stacks:
        for layer in stack.places:
            b = stack.bottleneck
            total = total + codes[:, layer, :b] @ summed.up[start : start + b]
            start += b
    assert start == len(summed.up) == sum(BOTTLENECKS)
    torch.testing.assert_close(summed(x), total)
    assert SummedCodes(encoders).dimension == WIDTH
    with pytest.raises(ValueError, match="dimension must be at least 1, not 0"):
        SummedCodes(encoders, 0)


def test_standardise_measures_a_file_in_blocks(tmp_path, monkeypatch):
    """Mean 0 and deviation 1 afterwards; a constant coordinate is only moved; kept in the state dict."""
    monkeypatch.setattr("sentsmith.methods.freeze.layer_encoders._BLOCK", 7 * 3 * WIDTH)  # 7 rows at once
    values = np.random.default_rng(0).normal(size=(50, 3 * WIDTH)) * 5 + 1000
    values[:, 4] = 1234.5
    np.save(tmp_path / "v.npy", values.astype(np.float32))
    vectors = np.load(tmp_path / "v.npy", mmap_mode="r")
    module = Standardise(3, WIDTH)
    x = torch.from_numpy(np.array(vectors)).unflatten(1, (3, WIDTH))
    assert torch.equal(module(x), x)
    module.measure(vectors)
    z = module(x).flatten(1).double()
    moved = torch.arange(3 * WIDTH) != 4
    torch.testing.assert_close(z.mean(0), torch.zeros(3 * WIDTH).double(), rtol=0, atol=1e-4)
    torch.testing.assert_close(z.std(0, correction=0)[moved], torch.ones(3 * WIDTH - 1).double(), rtol=1e-4, atol=0)
    assert z[:, 4].count_nonzero() == 0
    other = Standardise(3, WIDTH)
    other.load_state_dict(module.state_dict())
    assert torch.equal(other(x), module(x))
    mean, variance = layer_moments(vectors, 3, np.arange(10, 31))
    part = np.asarray(vectors)[10:31].astype(np.float64).reshape(21, 3, WIDTH)
    np.testing.assert_allclose(mean, part.mean(axis=0), rtol=1e-12)
    np.testing.assert_allclose(variance, part.var(axis=0), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("broken", [np.inf, np.nan])
def test_values_that_are_not_finite_name_their_layer(broken):
    """A residual stream beyond float16 is found before anything is trained."""
    vectors = np.ones((5, 3 * WIDTH), np.float16)
    vectors[2, WIDTH + 1] = broken
    with pytest.raises(InputError, match="layer 2 are not all finite; store them as float32"):
        layer_moments(vectors, 3)
    with pytest.raises(InputError, match="no vectors"):
        layer_moments(vectors[:0], 3)
