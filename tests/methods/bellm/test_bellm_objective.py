"""AnglE's terms and the loss of conditional STS against worked numbers, and beside SimCSE's loss."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.loading import load
from sentsmith.methods.bellm.objective import (
    BellmLoss,
    angle_loss,
    angle_similarity,
    conditional_parts,
    cosent,
    cosines_of_pairs,
)
from sentsmith.methods.simcse.objective import SimCSELoss

# Worked apart from this code: a pair (x, y) with label 1 and a pair (x, z) with label 0.
X, Y, Z = torch.tensor([[1, 0.5, 0.2, -0.3], [0.4, 1, -0.2, 0.6], [-1, 0.3, 0.5, 0.1]], dtype=torch.float64)
FIRST, SECOND, LABELS = torch.stack([X, X]), torch.stack([Y, Z]), torch.tensor([1, 0])


def test_worked_numbers():
    cosines = torch.tensor([0.8, 0.6, 0.5, 0.7], dtype=torch.float64)
    assert cosent(cosines, torch.tensor([1, 1, 0, 0])).item() == pytest.approx(2.158969, abs=1e-6)
    assert angle_similarity(FIRST, SECOND).tolist() == pytest.approx([0.245358, 1.186885], abs=1e-6)
    assert angle_loss(FIRST, SECOND, LABELS).item() == pytest.approx(18.830532, abs=1e-6)


def test_cosent_is_its_definition_for_labels_of_any_order():
    torch.manual_seed(0)
    scores = torch.rand(9, dtype=torch.float64)
    labels = torch.tensor([2.0, 1.0, 3.0, 1.0, 2.0, 5.0, 1.0, 3.0, 4.5])
    expected = 1 + sum(
        math.exp(7 * (scores[p] - scores[q])) for p in range(9) for q in range(9) if labels[p] < labels[q]
    )
    assert cosent(scores, labels, scale=7).item() == pytest.approx(math.log(expected), abs=1e-12)
    assert cosent(scores, torch.ones(9)).item() == 0
    # exp(2000) is beyond every float.
    assert cosent(100 * scores, labels).isfinite()


def test_angle_similarity_is_the_complex_product():
    torch.manual_seed(0)
    u, v = torch.randn(2, 5, 8, dtype=torch.float64)
    z, w = (torch.complex(*rows.chunk(2, dim=1)) for rows in (u, v))
    product = (z * w.conj()).sum(dim=1)
    expected = (product.real + product.imag).abs() / (u.norm(dim=1) * v.norm(dim=1))
    torch.testing.assert_close(angle_similarity(3 * u, 0.1 * v), expected)
    assert angle_similarity(torch.zeros_like(u), v).tolist() == [0.0] * 5


def test_half_precision_and_autocast_are_computed_in_single():
    torch.manual_seed(0)
    u, v = torch.randn(2, 16, 8)
    labels, pairs = torch.arange(16) % 5 + 1, torch.arange(16) // 2
    for loss in (
        lambda u, v: angle_loss(u, v, labels),
        lambda u, v: cosent(cosines_of_pairs(u, v), labels),
        lambda u, v: sum(conditional_parts(u, v, labels, pairs=pairs).values()),
    ):
        with torch.autocast("cpu", torch.bfloat16):
            assert loss(u, v).item() == pytest.approx(loss(u.double(), v.double()).item(), abs=1e-5)
        assert loss(u.bfloat16(), v.bfloat16()).dtype == torch.float32


def vectors_with(cosines):
    """Return vectors ``[N, 2]`` of these cosines."""
    turned = torch.tensor([[value, math.sqrt(1 - value**2)] for value in cosines], dtype=torch.float64)
    return torch.tensor([[2.0, 0.0]], dtype=torch.float64).expand(len(cosines), 2), 3 * turned


def test_conditional_parts_by_hand():
    # Two quadruplets (pairs 7 and 3, their rows apart), a pair with equal scores, and one with a single condition.
    cosines, scores, pairs = [0.9, 0.1, 0.2, 0.6, 0.5, 0.4, 0.0], [5, 4, 1, 2, 3, 3, 1], [7, 3, 7, 3, 1, 1, 9]
    first, second = vectors_with(cosines)
    scores, pairs = torch.tensor(scores, dtype=torch.float32), torch.tensor(pairs)
    parts = conditional_parts(first, second, scores, hinge_weight=0.5, pairs=pairs)
    errors = [c - (s - 1) / 4 for c, s in zip(cosines, scores.tolist(), strict=True)]
    assert parts["mse"].item() == pytest.approx(sum(error**2 for error in errors) / 7, abs=1e-9)
    # max(0, 1 + (1 − cos⁺) − (1 − cos⁻)): of pair 7 1 − 0.9 + 0.2; of pair 3 1 − 0.1 + 0.6.
    assert parts["hinge"].item() == pytest.approx(0.5 * (0.3 + 1.5) / 2, abs=1e-9)
    assert list(conditional_parts(first, second, scores, hinge_weight=0, pairs=pairs)) == ["mse"]
    # Nothing but equal scores and single conditions: no quadruplet.
    lone = conditional_parts(first[4:], second[4:], scores[4:], pairs=pairs[4:])
    assert lone["hinge"].item() == 0
    # Far enough apart: the hinge is at rest.
    first, second = vectors_with([1.0, -0.5])
    assert conditional_parts(first, second, torch.tensor([4, 2]), pairs=torch.zeros(2))["hinge"].item() == 0


def test_of_three_conditions_each_two_are_a_quadruplet():
    first, second = vectors_with([0.5, 0.3, 0.1])
    found = conditional_parts(first, second, torch.tensor([3.0, 2.0, 1.0]), pairs=torch.zeros(3))["hinge"]
    assert found.item() == pytest.approx((0.8 + 0.8 + 0.6) / 3, abs=1e-9)


def test_gradients():
    torch.manual_seed(1)
    parts = [torch.randn(6, 4, dtype=torch.float64, requires_grad=True) for _ in range(2)]
    labels, pairs = torch.tensor([1, 5, 2, 4, 3, 3]), torch.tensor([0, 0, 1, 1, 2, 2])
    assert gradcheck(lambda u, v: angle_loss(u, v, labels, scale=2), parts)
    assert gradcheck(lambda u, v: cosent(cosines_of_pairs(u, v), labels, scale=2), parts)
    assert gradcheck(lambda u, v: tuple(conditional_parts(u, v, labels, hinge_weight=0.7, pairs=pairs).values()), parts)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: angle_similarity(torch.ones(2, 3), torch.ones(2, 3)), "need an even length, not 3"),
        (lambda: angle_similarity(torch.ones(2, 4), torch.ones(3, 4)), r"both must be \[B, d\]"),
        (lambda: cosent(torch.ones(3), torch.ones(2)), r"must both be \[n\], not \[3\] and \[2\]"),
        (lambda: cosent(torch.ones(3), torch.ones(3), scale=0), "scale must be above 0, not 0"),
        (
            lambda: conditional_parts(torch.ones(2, 4), torch.ones(2, 4), torch.ones(3), pairs=torch.ones(3)),
            r"must be \[2\] like the vectors",
        ),
        (
            lambda: conditional_parts(
                torch.ones(2, 4), torch.ones(2, 4), torch.ones(2), pairs=torch.ones(2), hinge_weight=-1
            ),
            "hinge_weight must be 0 or more, not -1",
        ),
        (lambda: BellmLoss(None, contrastive_weight=0), "one of them above 0"),
        (lambda: BellmLoss(None, angle_weight=-1), "weights must be 0 or more"),
    ],
)
def test_what_does_not_fit_is_refused(call, message):
    with pytest.raises(ValueError, match=message):
        call()


@pytest.fixture
def model(tiny_bert):
    return load(tiny_bert, device="cpu").double().eval()


@pytest.fixture
def batch(model, sentences):
    # The last row repeats the first: something to mask.
    columns = [[*sentences[i : i + 7], sentences[i]] for i in (0, 20, 40)]
    return [model.preprocess(column) for column in columns]


def learned(model, loss, batch):
    """Return the value of a loss and every parameter's gradient."""
    model.zero_grad()
    value = loss(batch)
    value = sum(value.values()) if isinstance(value, dict) else value
    value.backward()
    return value.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], abs=1e-9)
    assert found[1].keys() == expected[1].keys()
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, atol=1e-9, rtol=1e-6)


@pytest.mark.parametrize("mask_duplicates", [True, False])
def test_without_angles_terms_it_is_simcse(model, batch, mask_duplicates):
    same = {"temperature": 0.1, "hard_negative_log_weight": 0.3, "mask_duplicates": mask_duplicates}
    expected = learned(model, SimCSELoss(model, **same), batch)
    assert_same(learned(model, BellmLoss(model, **same), batch), expected)
    value, gradients = learned(model, BellmLoss(model, **same, contrastive_weight=3), batch)
    assert_same((value / 3, {name: gradient / 3 for name, gradient in gradients.items()}), expected)


def test_parts_are_weighted_and_come_from_the_whole_batch(model, batch):
    loss = BellmLoss(model, contrastive_weight=2, cosine_weight=3, angle_weight=0.5)
    parts = {name: value.item() for name, value in loss(batch).items()}
    anchors, positives, negatives = (model(dict(column))["sentence_embedding"] for column in batch)
    first, second = torch.cat([anchors, anchors]), torch.cat([positives, negatives])
    labels = torch.tensor([1] * 8 + [0] * 8)
    expected = {
        "contrastive": 2 * SimCSELoss(model)(batch).item(),
        "cosine": 3 * cosent(cosines_of_pairs(first, second), labels).item(),
        "angle": 0.5 * angle_loss(first, second, labels).item(),
    }
    assert parts == pytest.approx(expected, abs=1e-9)
    assert list(BellmLoss(model, contrastive_weight=0, angle_weight=1)(batch)) == ["angle"]
    assert loss.get_config_dict()["cosine_weight"] == 3
    masked, counted = (BellmLoss(model, cosine_weight=1, mask_duplicates=mask)(batch) for mask in (True, False))
    assert masked["contrastive"] < counted["contrastive"]
    with pytest.raises(ValueError, match="three text columns"):
        loss(batch[:2])


@pytest.mark.parametrize("recompute", [False, True])
def test_chunks_change_nothing(model, batch, recompute):
    whole, cut = (
        BellmLoss(model, cosine_weight=1, angle_weight=1, chunking=chunking)
        for chunking in (Chunking(10**6, 100), Chunking(48, 2, recompute))
    )
    assert_same(learned(model, cut, batch), learned(model, whole, batch))


def gradients_in_parallel(rank, folder, columns):
    """Return what one of two processes has of the loss, each with half of the rows."""
    from torch.nn.parallel import DistributedDataParallel

    from sentsmith.encoders.loading import load

    model = load(folder, device="cpu").double().eval()
    parallel = DistributedDataParallel(model, find_unused_parameters=True)
    loss = BellmLoss(parallel, cosine_weight=1, angle_weight=1)
    return learned(model, loss, [model.preprocess(column[4 * rank : 4 * rank + 4]) for column in columns])


@pytest.mark.slow
def test_two_processes_are_one(in_two_processes, model, tiny_bert, sentences):
    columns = [sentences[i : i + 8] for i in (0, 20, 40)]
    loss = BellmLoss(model, cosine_weight=1, angle_weight=1)
    expected = learned(model, loss, [model.preprocess(column) for column in columns])
    for found in in_two_processes(gradients_in_parallel, tiny_bert, columns):
        assert_same(found, expected)
