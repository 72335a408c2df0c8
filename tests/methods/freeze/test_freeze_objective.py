"""FREEZE's similarity and losses against worked numbers (METHODS §4, §12)."""

import pytest
import torch

from sentsmith.methods.freeze.objective import (
    FreezeLoss,
    layer_cosines,
    log_variance,
    squared_error,
    weighted_similarity,
)

PREDICTED, GOLD = [0.3, 0.6, 0.55, 0.9], [0.2, 0.8, 0.5, 1.0]


def test_log_variance_is_the_worked_number_and_so_is_its_gradient():
    predicted = torch.tensor(PREDICTED, dtype=torch.float64, requires_grad=True)
    gold = torch.tensor(GOLD, dtype=torch.float64)
    loss = log_variance(predicted, gold)
    loss.backward()
    assert float(loss) == pytest.approx(-4.253194, abs=1e-5)
    assert predicted.grad.tolist() == pytest.approx([4.835165, -5.714286, 3.076923, -2.197802], abs=1e-5)
    assert torch.autograd.gradcheck(log_variance, (predicted, gold))


def test_what_is_added_to_all_predictions_changes_nothing():
    moved = [value + 0.07 for value in PREDICTED]
    tensors = [torch.tensor(values, dtype=torch.float64) for values in (PREDICTED, moved, GOLD)]
    assert float(log_variance(tensors[1], tensors[2])) == pytest.approx(-4.253194, abs=1e-5)
    assert float(squared_error(tensors[0], tensors[2])) == pytest.approx(0.015625)
    assert float(squared_error(tensors[1], tensors[2])) != pytest.approx(0.015625)


def test_a_perfect_prediction_has_a_finite_loss_and_gradient():
    predicted = torch.tensor(GOLD, requires_grad=True)
    loss = log_variance(predicted, torch.tensor(GOLD))
    loss.backward()
    assert float(loss) == pytest.approx(-18.420681, abs=1e-4)
    assert torch.isfinite(predicted.grad).all()


def test_the_head_is_the_worked_number():
    first = torch.tensor([[1.0, 0.0], [1.0, 1.0], [0.0, 2.0]], dtype=torch.float64)
    second = torch.tensor([[1.0, 1.0], [1.0, 1.0], [2.0, 0.0]], dtype=torch.float64)
    weights, bias = torch.tensor([0.5, 1.0, -2.0], dtype=torch.float64), torch.tensor(-0.25, dtype=torch.float64)
    cosines = layer_cosines(first, second)
    assert cosines.tolist() == pytest.approx([0.707107, 1.0, 0.0], abs=1e-5)
    assert float(weighted_similarity(cosines, weights, bias)) == pytest.approx(0.750925, abs=1e-5)
    # A head of any sign: a sentence is less like itself than like another.
    same = weighted_similarity(layer_cosines(first, first), weights, bias)
    assert float(same) == pytest.approx(0.320821, abs=1e-5)


def test_half_precision_is_widened():
    half = torch.tensor([0.30, 0.31, 0.32], dtype=torch.bfloat16)
    assert log_variance(half, half.flip(0)).dtype == torch.float32
    assert layer_cosines(torch.ones(2, 3, 4, dtype=torch.float16), torch.ones(2, 3, 4)).dtype == torch.float32


def test_what_is_refused():
    with pytest.raises(ValueError, match=r"variance of 1 difference\(s\) is 0"):
        log_variance(torch.ones(1), torch.ones(1))
    with pytest.raises(ValueError, match=r"\[B\] each, not \[2\] and \[3\]"):
        log_variance(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="one shape"):
        layer_cosines(torch.ones(2, 3), torch.ones(3, 2))
    with pytest.raises(ValueError, match="'huber' is unknown; use one of log_variance, mse"):
        FreezeLoss(torch.nn.Sequential(), "huber")
