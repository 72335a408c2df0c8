"""The mask and the masked loss against worked numbers, and their properties."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.nn.functional import normalize

from sentsmith.methods.multicsr.objective import (
    bce_logit_zero,
    false_negative_keep,
    keep_below,
    released_keep,
    released_keep_of,
)
from sentsmith.methods.simcse.objective import info_nce

# Worked by hand from the equations: cosines of three anchors with positives and hard negatives, by the model in
# training and by the frozen one.
SIM_POS = [[0.8, 0.3, 0.1], [0.25, 0.75, 0.2], [0.05, 0.15, 0.7]]
SIM_NEG = [[0.4, 0.2, 0.0], [0.1, 0.5, 0.3], [-0.1, 0.05, 0.35]]
ETA_POS = [[0.97, 0.92, 0.1], [0.3, 0.88, 0.9], [0.2, 0.1, 0.95]]
ETA_NEG = [[0.93, 0.4, 0.2], [0.1, 0.3, 0.89], [0.95, 0.2, 0.91]]
MASK = [[1, 0, 1, 1, 1, 1], [1, 1, 0, 1, 1, 1], [1, 1, 1, 0, 1, 1]]
EQ5_ROWS = {0.05: [0.000388, 0.006902, 0.000933], 0.5: [0.942697, 1.094063, 0.946399]}
EQ7_ROWS = {0.05: [0.000342, 0.006885, 0.000933], 0.5: [0.78801, 0.975884, 0.864795]}
EQ5_MEAN = {0.05: 0.002741, 0.5: 0.994387}
EQ7_MEAN = {0.05: 0.00272, 0.5: 0.87623}
OWN_MASKABLE = {0.05: 0.002305, 0.5: 0.721831}
BCE_MEAN = {0.05: 0.00077, 0.5: 0.256996}
# The numbers are rounded to six digits.
CLOSE = {"abs": 1e-6}


def both(positives, negatives):
    return torch.tensor([[*one, *two] for one, two in zip(positives, negatives, strict=True)], dtype=torch.float64)


def vectors_with(cosines):
    """Return anchors, positives and negatives with these cosines ``[n, 2n]``; the anchors are axes."""
    size, count = cosines.shape
    candidates = torch.zeros(count, size + count, dtype=torch.float64)
    candidates[:, :size] = cosines.T
    own = torch.arange(count)
    candidates[own, size + own] = (1 - cosines.square().sum(dim=0)).sqrt()
    return torch.eye(size, size + count, dtype=torch.float64), *candidates.chunk(2)


def rows_of(vectors, temperature, keep=None):
    """Return the loss of each anchor, computed here."""
    logits = vectors[0] @ torch.cat(vectors[1:]).T / temperature
    if keep is not None:
        logits = logits.masked_fill(~keep, -torch.inf)
    return (logits.logsumexp(dim=1) - logits.diagonal()).tolist()


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_worked_numbers(temperature):
    vectors = vectors_with(both(SIM_POS, SIM_NEG))
    keep = keep_below(both(ETA_POS, ETA_NEG), threshold=0.9)
    assert keep.tolist() == [[bool(one) for one in row] for row in MASK]
    found = info_nce(*vectors, temperature=temperature, keep=keep).item()
    assert found == pytest.approx(EQ7_MEAN[temperature], **CLOSE)
    assert rows_of(vectors, temperature, keep) == pytest.approx(EQ7_ROWS[temperature], **CLOSE)
    assert found == pytest.approx(sum(rows_of(vectors, temperature, keep)) / 3, abs=1e-12)
    assert info_nce(*vectors, temperature=temperature).item() == pytest.approx(EQ5_MEAN[temperature], **CLOSE)
    assert rows_of(vectors, temperature) == pytest.approx(EQ5_ROWS[temperature], **CLOSE)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_each_row_alone(temperature):
    """A row's loss is what the mean loses when the other anchors are their own positives' only candidates."""
    vectors = vectors_with(both(SIM_POS, SIM_NEG))
    keep = keep_below(both(ETA_POS, ETA_NEG), threshold=0.9)
    for row, expected in enumerate(EQ7_ROWS[temperature]):
        alone = torch.eye(3, 6, dtype=torch.bool)
        alone[row] = keep[row]
        assert 3 * info_nce(*vectors, temperature=temperature, keep=alone).item() == pytest.approx(expected, **CLOSE)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_the_authors_loss(temperature):
    vectors = vectors_with(both(SIM_POS, SIM_NEG))
    keep = released_keep_of(both(ETA_POS, ETA_NEG), threshold=0.9)
    # Own hard negatives may go (0.93 and 0.91), 0.9 itself stays.
    assert keep.tolist() == [
        [True, False, True, False, True, True],
        [True, True, True, True, True, True],
        [True, True, True, False, True, False],
    ]
    found = bce_logit_zero(*vectors, temperature=temperature, keep=keep).item()
    assert found == pytest.approx(BCE_MEAN[temperature], **CLOSE)


@pytest.mark.parametrize("temperature", [0.05, 0.5])
def test_the_own_hard_negative_would_make_a_difference(temperature):
    keep = keep_below(both(ETA_POS, ETA_NEG), threshold=0.9)
    keep[[0, 2], [3, 5]] = False
    found = info_nce(*vectors_with(both(SIM_POS, SIM_NEG)), temperature=temperature, keep=keep).item()
    assert found == pytest.approx(OWN_MASKABLE[temperature], **CLOSE)


def test_a_batch_of_one_keeps_its_hard_negative():
    vectors = vectors_with(torch.tensor([[0.8, 0.4]], dtype=torch.float64))
    frozen = vectors_with(torch.tensor([[0.1, 0.1]], dtype=torch.float64))
    frozen = (frozen[0], frozen[0] + 0.1 * frozen[1], frozen[0] + 0.1 * frozen[2])
    keep = false_negative_keep(*frozen, threshold=0.9)
    assert keep.tolist() == [[True, True]]
    assert info_nce(*vectors, temperature=0.05, keep=keep).item() == pytest.approx(0.000335, **CLOSE)


def test_sigma_itself_is_masked():
    anchors = torch.tensor([[1.0, 0.0], [0.0, 1.0]])
    positives = torch.tensor([[1.0, 0.0], [0.6, 0.8]])
    negatives = torch.tensor([[0.8, 0.6], [-1.0, 0.0]])
    expected = {
        # Anchor 0 has 0.6 with the other's positive, anchor 1 has 0.6 with the other's hard negative.
        0.6: [[True, False, True, True], [True, True, False, True]],
        0.6001: [[True, True, True, True], [True, True, True, True]],
        -2.0: [[True, False, True, False], [False, True, False, True]],
    }
    for threshold, keep in expected.items():
        for dtype in (torch.float32, torch.float64):
            found = false_negative_keep(
                *(part.to(dtype) for part in (anchors, positives, negatives)), threshold=threshold
            )
            assert found.tolist() == keep
    released = released_keep(anchors, positives, negatives, threshold=0.6)
    assert released.tolist() == [[True, True, False, True], [True, True, True, True]]


def test_length_does_not_matter_and_zero_vectors_are_kept():
    torch.manual_seed(0)
    vectors = torch.randn(3, 6, 4)
    keep = false_negative_keep(*vectors, threshold=0.3)
    assert not keep.all()
    assert torch.equal(keep, false_negative_keep(100 * vectors[0], 0.01 * vectors[1], vectors[2], threshold=0.3))
    vectors[1, 2] = 0
    assert false_negative_keep(*vectors, threshold=0.3)[:, 2].all()


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_half_precision_is_widened_before_the_cosine(dtype):
    torch.manual_seed(0)
    vectors = torch.randn(3, 400, 8).to(dtype)
    wanted = false_negative_keep(*vectors.float(), threshold=0.4)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(false_negative_keep(*vectors, threshold=0.4), wanted)
    # In half precision the product itself is rounded, and some candidates fall on the other side.
    narrow = normalize(vectors[0], dim=1) @ normalize(torch.cat([vectors[1], vectors[2]]), dim=1).T
    assert not torch.equal(keep_below(narrow, threshold=0.4), wanted)


def test_the_mask_has_no_gradient():
    vectors = torch.randn(3, 4, 5, requires_grad=True)
    assert not false_negative_keep(*vectors, threshold=0.5).requires_grad


@pytest.mark.parametrize("rule", [false_negative_keep, released_keep])
@pytest.mark.parametrize("shapes", [((3, 4), (2, 4), (3, 4)), ((3, 4), (3, 4), (3, 5)), ((4,), (4,), (4,))])
def test_shapes_that_do_not_fit(rule, shapes):
    with pytest.raises(ValueError, match=r"must all be \[B, d\] of one shape"):
        rule(*(torch.ones(shape) for shape in shapes), threshold=0.9)


@given(rows=st.integers(1, 7), seed=st.integers(0, 1000), threshold=st.floats(-1, 1), temperature=st.floats(0.02, 2))
def test_masked_is_at_most_unmasked(rows, seed, threshold, temperature):
    dice = torch.Generator().manual_seed(seed)
    vectors, frozen = torch.randn(2, 3, rows, 6, generator=dice, dtype=torch.float64)
    keep = false_negative_keep(*frozen, threshold=threshold)
    masked, plain = (info_nce(*vectors, temperature=temperature, keep=mask).item() for mask in (keep, None))
    assert 0 <= masked <= plain + 1e-12
    if keep.all():
        assert masked == plain


@given(rows=st.integers(1, 7), seed=st.integers(0, 1000), threshold=st.floats(1.001, 100))
def test_sigma_above_one_is_equation_5(rows, seed, threshold):
    dice = torch.Generator().manual_seed(seed)
    vectors = torch.randn(3, rows, 6, generator=dice)
    keep = false_negative_keep(*vectors[[0, 0, 0]], threshold=threshold)
    assert keep.all()
    masked, plain = (info_nce(*vectors, temperature=0.05, keep=mask) for mask in (keep, None))
    assert torch.equal(masked, plain)


def test_a_masked_entry_has_no_gradient():
    """Hard negative 2 is masked for all other anchors, so that it is moved by its own anchor alone."""
    torch.manual_seed(0)
    vectors = torch.randn(3, 4, 6, dtype=torch.float64, requires_grad=True)
    keep = torch.ones(4, 8, dtype=torch.bool)
    keep[[0, 1, 3], 6] = False
    (gradient,) = torch.autograd.grad(info_nce(*vectors, temperature=0.5, keep=keep), vectors)
    changed = vectors.detach().clone()
    changed[0, [0, 1, 3]] = torch.randn(3, 6, dtype=torch.float64)
    changed[0, [0, 1, 3]].requires_grad_()
    changed = changed.requires_grad_()
    keep[2] = False
    (alone,) = torch.autograd.grad(info_nce(*changed, temperature=0.5, keep=keep), changed)
    assert gradient[2, 2].abs().max() > 1e-3
    assert (alone[2, 2] == 0).all()
    # The authors' code leaves a masked entry in the sum, as a cosine of 0: nothing moves it there either.
    (released,) = torch.autograd.grad(bce_logit_zero(*changed, temperature=0.5, keep=keep), changed)
    assert (released[2, 2] == 0).all()
    assert released[2, 0].abs().max() > 0


def test_the_authors_loss_under_autocast_and_in_half_precision():
    torch.manual_seed(0)
    vectors = torch.randn(3, 4, 8).bfloat16()
    keep = released_keep(*vectors, threshold=0.2)
    expected = bce_logit_zero(*vectors.float(), temperature=0.05, keep=keep)
    with torch.autocast("cpu", torch.bfloat16):
        found = bce_logit_zero(*vectors, temperature=0.05, keep=keep)
    assert found.dtype == torch.float32
    assert torch.isfinite(found)
    assert found.item() == pytest.approx(expected.item(), abs=1e-7)


def test_the_authors_gradient_is_smaller_by_the_entries():
    """The averaging over B × 2B entries makes a weak loss: METHODS' 1/(2B), here seen within a factor of four."""
    torch.manual_seed(0)
    vectors = torch.randn(3, 32, 64, requires_grad=True)
    keep = torch.ones(32, 64, dtype=torch.bool)
    lengths = []
    for loss in (
        info_nce(*vectors, temperature=0.05, keep=keep),
        bce_logit_zero(*vectors, temperature=0.05, keep=keep),
    ):
        (gradient,) = torch.autograd.grad(loss, vectors)
        lengths.append(gradient.norm())
    assert 1 / 4 < lengths[1] / lengths[0] * 64 < 4
