"""The arithmetic of guided decoding: worked numbers, infinities, the plausibility floor, and drawing a token."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from transformers.generation.logits_process import TopPLogitsWarper

from sentsmith.llm.backend import Prompt
from sentsmith.llm.guidance import choose, combine_logits, draws, keep_plausible

INF = math.inf


def row(*values):
    return torch.tensor([values], dtype=torch.float32)


def close(found, expected, tolerance=1e-6):
    torch.testing.assert_close(found, torch.as_tensor(expected, dtype=found.dtype), atol=tolerance, rtol=0)


def random_logits(rows, vocab, seed=0):
    return 4 * torch.randn(rows, vocab, generator=torch.Generator().manual_seed(seed))


# -- vectors -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shift", [0.0, 7.0])
@pytest.mark.parametrize("form", [lambda x: x, lambda x: x.log_softmax(-1)], ids=["logits", "log_softmax"])
def test_the_vector_of_multicsr(form, shift):
    logits, noisy = torch.tensor([2.0, 1.5, 0.5, -1.0]), torch.tensor([3.0, 0.0, 0.5, -2.0]) + shift
    found = combine_logits(form(logits), form(noisy), first_weight=1, second_weight=-0.3)
    close(found.softmax(-1), [0.313743, 0.46805, 0.148202, 0.070006])
    assert logits.argmax() == 0
    assert found.argmax() == 1
    if shift == 0:
        close(combine_logits(logits, noisy, first_weight=1, second_weight=-0.3), [1.1, 1.5, 0.35, -0.4])


@pytest.mark.parametrize(
    ("strength", "expected"),
    [(0.5, [-0.869508, -0.419508, -2.469508]), (1.5, [-1.180801, 0.569199, -2.980801])],
)
def test_the_vector_of_ranking(strength, expected):
    """On log-probabilities; the classifier-free form s·(c − u) + u is the same."""
    last, before = (torch.tensor(x).log_softmax(-1) for x in ([1, 0.8, -0.5], [1.5, 0, 0.2]))
    found = combine_logits(last, before, first_weight=1 + strength, second_weight=-strength)
    close(found, expected)
    close(found, (1 + strength) * (last - before) + before)
    # Under greedy decoding it is MultiCSR's form with ω = λ/(1+λ).
    same = combine_logits(last, before, first_weight=1, second_weight=-strength / (1 + strength))
    close(same * (1 + strength), found)


def test_probabilities_do_not_see_constants():
    first, second = random_logits(50, 30), random_logits(50, 30, 1)
    weights = {"first_weight": 1.7, "second_weight": -0.6}
    raw = combine_logits(first, second, **weights).softmax(-1)
    close(combine_logits(first.log_softmax(-1), second.log_softmax(-1), **weights).softmax(-1), raw)
    close(combine_logits(first + 3, second - 5, **weights).softmax(-1), raw)


# -- infinities ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("second_weight", [-2.0, -0.3, 0.0, 0.5])
@pytest.mark.parametrize("first_weight", [-1.0, 0.0, 1.0, 1.5])
def test_what_the_prompt_forbids_stays_forbidden(first_weight, second_weight):
    first, second = row(-INF, 1, 2, -INF), row(3, 1, 0, -INF)
    found = combine_logits(first, second, first_weight=first_weight, second_weight=second_weight)
    assert found.isneginf().tolist() == [[True, False, False, True]]
    close(found[0, 1:3], first_weight * first[0, 1:3] + second_weight * second[0, 1:3])


@pytest.mark.parametrize("second_weight", [-0.3, 0.5])
def test_what_only_the_other_forbids_never_wins(second_weight):
    found = combine_logits(row(9, 1, 2), row(-INF, 1, 0), first_weight=1, second_weight=second_weight)
    assert found.isneginf().tolist() == [[True, False, False]]


def test_without_a_second_weight_nothing_of_the_second_matters():
    first = row(9, -INF, 2)
    for second in (row(-INF, 0, INF), row(math.nan, 1, 1)):
        assert combine_logits(first, second, first_weight=1, second_weight=0).equal(first)


def test_a_row_that_would_have_nothing_left():
    first = torch.tensor([[5.0, -INF, 2.0], [5.0, 1.0, 2.0], [-INF, -INF, -INF]])
    second = torch.tensor([[-INF, 4.0, -INF], [0.0, -INF, 0.0], [1.0, 1.0, 1.0]])
    found = combine_logits(first, second, first_weight=2, second_weight=-1)
    assert found.tolist() == [[5.0, -INF, 2.0], [10.0, -INF, 4.0], [-INF, -INF, -INF]]


def test_a_number_that_is_none_is_not_hidden():
    assert combine_logits(row(math.nan, 1), row(0, 0), first_weight=1, second_weight=-1).isnan().any()


def test_shapes_and_types():
    for first, second in ((row(1, 2), row(1, 2, 3)), (torch.zeros(2, 3), torch.zeros(3)), (row(), row())):
        with pytest.raises(ValueError, match="must be equal"):
            combine_logits(first, second, first_weight=1, second_weight=-1)
    half = torch.zeros(2, 5, 7, dtype=torch.bfloat16)
    assert combine_logits(half, half, first_weight=1, second_weight=-1).dtype == torch.float32
    assert combine_logits(half.double(), half, first_weight=1, second_weight=-1).dtype == torch.float64
    first, second = row(1, 2), row(3, -INF)
    combine_logits(first, second, first_weight=2, second_weight=-1)
    assert first.equal(row(1, 2))
    assert second.equal(row(3, -INF))


# -- the floor -----------------------------------------------------------------------------------------------------


def test_the_floor_keeps_what_reaches_a_share_of_the_likeliest():
    first = torch.tensor([[0.5, 0.3, 0.15, 0.05]]).log()
    combined = row(0, 1, 2, 3)
    for floor, kept in ((0, 4), (0.05, 4), (0.25, 3), (0.31, 2), (0.59, 2), (0.61, 1), (1, 1)):
        found = keep_plausible(combined, first, floor=floor)
        assert found.isfinite().sum() == kept, floor
        assert found.argmax() == kept - 1
        assert found[found.isfinite()].equal(combined[0, :kept])


def test_a_floor_over_a_row_that_the_other_prompt_forbids():
    first, second = row(5, 4.9, 0), row(-INF, -INF, 0)
    combined = combine_logits(first, second, first_weight=1, second_weight=-1)
    assert combined.argmax() == 2
    assert keep_plausible(combined, first, floor=0.5).equal(row(5, 4.9, -INF))


# -- drawing -------------------------------------------------------------------------------------------------------


def test_no_temperature_takes_the_likeliest():
    logits = random_logits(40, 25)
    assert choose(logits, temperature=0, top_p=0.5, uniform=None).equal(logits.argmax(-1))


@pytest.mark.parametrize(("temperature", "top_p"), [(1.0, 1.0), (0.7, 1.0), (1.5, 0.8), (1.0, 0.3)])
def test_draws_have_the_probabilities(temperature, top_p):
    """Numbers spread evenly over [0, 1) must give each token its share, to one number."""
    logits, count = random_logits(1, 30, seed=3), 20_000
    logits[0, 4] = -INF
    uniform = (torch.arange(count, dtype=torch.float64) + 0.5) / count
    found = choose(logits.expand(count, -1), temperature=temperature, top_p=top_p, uniform=uniform)
    warped = TopPLogitsWarper(top_p)(None, logits / temperature) if top_p < 1 else logits / temperature
    expected = warped.softmax(-1)[0]
    shares = torch.bincount(found, minlength=30) / count
    close(shares, expected, 2 / count)
    assert (shares[expected == 0] == 0).all()


@pytest.mark.parametrize("top_p", [0.05, 0.5, 0.9, 0.999])
def test_the_set_of_top_p_is_that_of_transformers(top_p):
    logits = random_logits(200, 60)
    logits[:, 7] = -INF
    allowed = TopPLogitsWarper(top_p)(None, logits).isfinite()
    reached = torch.zeros_like(allowed)
    for number in torch.linspace(0, 1, 401, dtype=torch.float64):
        chosen = choose(logits, temperature=1, top_p=top_p, uniform=number.expand(200))
        reached[torch.arange(200), chosen] = True
    assert not (reached & ~allowed).any()
    likely = logits.softmax(-1) > 0.01
    assert reached[likely].equal(allowed[likely])


@pytest.mark.parametrize("temperature", [1e-40, 1e-6, 1e-3])
def test_a_temperature_near_nought_takes_the_likeliest(temperature):
    logits = random_logits(40, 25) * 100
    for number in (0.0, 0.5, 1 - 1e-12):
        found = choose(logits, temperature=temperature, top_p=1, uniform=torch.full((40,), number, dtype=torch.float64))
        assert found.equal(logits.argmax(-1))


def test_the_ends_of_the_interval():
    logits = row(-INF, 0, 0, -INF)
    for number, token in ((0.0, 1), (0.49, 1), (0.51, 2), (1 - 2**-53, 2)):
        uniform = torch.tensor([number], dtype=torch.float64)
        assert choose(logits, temperature=1, top_p=1, uniform=uniform).item() == token
    for uniform in (None, torch.zeros(2)):
        with pytest.raises(ValueError, match="one uniform number per row"):
            choose(logits, temperature=1, top_p=1, uniform=uniform)


def test_numbers_belong_to_a_prompt_and_a_seed():
    prompt = Prompt("a", against="b")
    first = draws(prompt, 0, 8)
    assert np.array_equal(first, draws(Prompt("a", against="b"), 0, 8))
    assert np.array_equal(first, draws(prompt, 0, 100)[:8])
    others = [(Prompt("a"), 0), (Prompt("a", against=""), 0), (Prompt("b", against="a"), 0), (prompt, 1)]
    found = [first, *(draws(other, seed, 8) for other, seed in others)]
    assert len({tuple(numbers) for numbers in found}) == 5
    many = draws(prompt, 0, 20_000)
    assert many.min() >= 0
    assert many.max() < 1
    assert abs(many.mean() - 0.5) < 0.01
