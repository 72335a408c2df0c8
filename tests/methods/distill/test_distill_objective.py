"""Fusion and the distillation loss against worked numbers, and where they are easy to get wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from torch.autograd import gradcheck

from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.loading import load
from sentsmith.methods.distill.objective import DistillLoss, fuse, vector_mse

FIRST = torch.tensor([[1.0, 2.0], [0.0, 1.0]])
SECOND = torch.tensor([[0.5, -1.0], [2.0, 2.0]])
THIRD = torch.tensor([[2.0, 2.0], [1.0, -1.0]])
STUDENT = torch.tensor([[1.0, 1.0], [2.0, 2.0]])
TWIN = torch.tensor([[1.5, 1.0], [2.0, 3.0]])


def test_worked_numbers():
    close = {"rtol": 0, "atol": 1e-6}
    torch.testing.assert_close(fuse([FIRST, SECOND], [1, 1]), TWIN, **close)
    torch.testing.assert_close(
        fuse([FIRST, SECOND, THIRD], [0.3, 0.3, 0.7]), torch.tensor([[1.85, 1.7], [1.3, 0.2]]), **close
    )
    # The mean over the elements, not the sum over the dimensions (0.625).
    assert vector_mse(STUDENT, TWIN).item() == pytest.approx(0.3125, abs=1e-6)


def test_one_model_is_weighted_too():
    torch.testing.assert_close(fuse([FIRST], [0.5]), FIRST / 2)


def test_gradient():
    student = STUDENT.double().requires_grad_()
    assert gradcheck(lambda x: vector_mse(x, TWIN.double()), (student,))
    teacher = TWIN.clone().requires_grad_()
    vector_mse(STUDENT.clone().requires_grad_(), teacher).backward()
    assert teacher.grad is None


def test_the_gradient_vanishes_at_the_teacher():
    student = TWIN.clone().requires_grad_()
    loss = vector_mse(student, TWIN)
    loss.backward()
    assert loss.item() == 0
    assert not student.grad.any()


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_half_precision_is_widened(dtype):
    student, teacher = torch.full((2, 3), 1000.0, dtype=dtype), torch.zeros(2, 3)
    with torch.autocast("cpu", torch.bfloat16):
        loss = vector_mse(student, teacher)
        total = fuse([student, student], [0.001, 1.0])
    # 1000² overflows float16, and bf16 has no 1001.
    assert loss.dtype == total.dtype == torch.float32
    assert loss.item() == pytest.approx(1e6)
    assert total[0, 0].item() == pytest.approx(1001.0)


def test_float64_stays():
    assert vector_mse(STUDENT.double(), TWIN.double()).dtype == torch.float64


@pytest.mark.parametrize(
    ("vectors", "weights", "message"),
    [
        ([], [], "one weight per model, not 0 for 0"),
        ([FIRST, SECOND], [1.0], "not 1 for 2"),
        ([FIRST, SECOND[:1]], [1.0, 1.0], r"one shape, not \[\[2, 2\], \[1, 2\]\]"),
        ([FIRST[0]], [1.0], r"\[n, d\]"),
    ],
)
def test_fuse_refuses(vectors, weights, message):
    with pytest.raises(ValueError, match=message):
        fuse(vectors, weights)


def test_shapes_that_would_broadcast_are_refused():
    with pytest.raises(ValueError, match=r"not \[2, 2\] and \[1, 2\]"):
        vector_mse(STUDENT, TWIN[:1])


@pytest.fixture
def model(tiny_bert):
    return load(tiny_bert)


@pytest.fixture
def targets(model, sentences, tmp_path):
    """Return a file of the model's own vectors of all sentences."""
    np.save(tmp_path / "targets.npy", model.encode(sentences, convert_to_numpy=True))
    return tmp_path / "targets.npy"


def test_rows_are_looked_up_by_label(model, sentences, targets):
    loss = DistillLoss(model, targets, chunking=Chunking(tokens=40, min_rows=2))
    rows = [50, 3, 17, 59, 0]
    features = model.preprocess([sentences[row] for row in rows])
    assert loss([features], torch.tensor(rows)).item() < 1e-10
    assert loss([features], torch.tensor(rows[::-1])).item() > 1e-3


def test_the_model_runs_once_per_row(model, sentences, targets):
    seen = []
    model[0].register_forward_hook(lambda module, args, output: seen.append(len(output["input_ids"])))
    loss = DistillLoss(model, targets)
    loss([model.preprocess(sentences[:9])], torch.arange(9).flip(0)).backward()
    assert sum(seen) == 9
    assert any(weights.grad is not None and weights.grad.any() for weights in model.parameters())


def test_the_targets_are_not_read_as_a_whole(model, targets):
    assert isinstance(DistillLoss(model, targets).targets, np.memmap)


def test_the_loss_refuses_what_it_cannot_use(model, sentences, targets):
    loss, features = DistillLoss(model, targets), model.preprocess(sentences[:2])
    with pytest.raises(ValueError, match="not 1 and no labels"):
        loss([features])
    with pytest.raises(ValueError, match="not 2 and labels"):
        loss([features, features], torch.arange(2))
