"""Target refinement and ListMLE: worked vectors (METHODS.md §6), the sign rule as a property, padding."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from sentsmith.methods.ranking.objective import list_mle, rank_targets, refine_similarities


def matrix(*rows):
    return torch.tensor(rows, dtype=torch.float64)


# Vector ranking_algorithm1_n4.
PHI = matrix([1.0, 0.5, 0.7, 0.6], [0.5, 1.0, 0.4, 0.45], [0.7, 0.4, 1.0, 0.3], [0.6, 0.45, 0.3, 1.0])
REFINED = matrix(
    [1.0, 0.59531, 0.65121, 0.55121],
    [0.59531, 1.0, 0.424693, 0.425307],
    [0.65121, 0.424693, 1.0, 0.3],
    [0.55121, 0.425307, 0.3, 1.0],
)
LITERAL = matrix(
    [1.0, 0.45121, 0.79531, 0.55121],
    [0.45121, 1.0, 0.375307, 0.474693],
    [0.79531, 0.375307, 1.0, 0.3],
    [0.55121, 0.474693, 0.3, 1.0],
)
STUDENT = matrix([1.0, 0.9, 0.8, 0.2], [0.9, 1.0, 0.6, 0.1], [0.8, 0.6, 1.0, 0.5], [0.2, 0.1, 0.5, 1.0])
# Vector ranking_sign_trap_n5: in the third row the fourth column must rise and the fifth fall.
TRAP = matrix(
    [1.0, 0.9, 0.8, 0.7, 0.6],
    [0.9, 1.0, 0.85, 0.75, 0.65],
    [0.8, 0.85, 1.0, 0.5, 0.55],
    [0.7, 0.75, 0.5, 1.0, 0.4],
    [0.6, 0.65, 0.55, 0.4, 1.0],
)


def near(found, wanted, tolerance=1e-6):
    torch.testing.assert_close(found, wanted, atol=tolerance, rtol=0)


def similarities(n, seed):
    points = torch.randn(n, 5, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    units = torch.nn.functional.normalize(points, dim=1)
    return units @ units.T


def test_the_worked_example():
    refined = refine_similarities(PHI, omega=0.5)
    near(refined, REFINED)
    assert not torch.allclose(refined, LITERAL, atol=1e-2)
    order = refined.argsort(dim=-1, descending=True, stable=True)
    assert order.tolist() == [[0, 2, 1, 3], [1, 0, 3, 2], [2, 0, 1, 3], [3, 0, 1, 2]]


def test_the_sign_trap():
    change = refine_similarities(TRAP, omega=0.7) - TRAP
    wanted = torch.zeros(5, 5, dtype=torch.float64)
    wanted[2, 3] = wanted[3, 2] = 0.034401
    wanted[2, 4] = wanted[4, 2] = -0.034401
    near(change, wanted)
    # The authors' code lowers both.
    wanted[2, 3] = wanted[3, 2] = -0.034401
    near(refine_similarities(TRAP, omega=0.7, absolute_column_sign=True) - TRAP, wanted)


def test_the_authors_sign_is_right_in_the_first_row():
    phi = similarities(9, 3)
    ours = refine_similarities(phi, omega=0.5)
    theirs = refine_similarities(phi, omega=0.5, absolute_column_sign=True)
    near(theirs[0], ours[0])
    assert not torch.allclose(theirs, ours)


@given(st.integers(1, 12), st.integers(0, 1000), st.floats(0.01, 3.0))
def test_a_value_rises_exactly_if_it_stands_too_far_back(n, seed, omega):
    """Eq. 6, within each row from the diagonal on: raise where the teacher's rank is behind the list's."""
    phi = similarities(n, seed)
    change = refine_similarities(phi, omega=omega) - phi
    for row in range(n):
        values = phi[row, row:]
        by_teacher = torch.empty(len(values), dtype=torch.int64)
        by_teacher[values.argsort(descending=True)] = torch.arange(len(values))
        required = torch.arange(len(values))
        assert torch.equal(change[row, row:].sign(), (by_teacher - required).sign().double())
    near(change, change.T)


@given(st.integers(2, 10), st.integers(0, 1000))
def test_small_omega_corrects_in_part(n, seed):
    phi = similarities(n, seed)
    change = (refine_similarities(phi, omega=1.0) - phi).abs().triu()
    ordered = torch.stack([torch.cat([phi[i, :i], phi[i, i:].sort(descending=True).values]) for i in range(n)])
    wanted = (ordered - phi).abs().triu()
    assert bool((change <= wanted + 1e-12).all())


def test_what_changes_nothing():
    near(refine_similarities(PHI, omega=0.0), PHI, 0.0)
    place = torch.arange(6, dtype=torch.float64)
    ordered = 1 - (place[:, None] - place).abs() / 10
    near(refine_similarities(ordered, omega=0.7), ordered, 0.0)
    near(refine_similarities(matrix([1.0]), omega=0.5), matrix([1.0]), 0.0)


def test_scale_of_the_authors_code():
    near(refine_similarities(PHI, omega=0.5, phi_scale=20.0), refine_similarities(20 * PHI, omega=0.5))


def test_ties_stay_where_they_are():
    phi = matrix([1.0, 0.5, 0.5], [0.5, 1.0, 0.5], [0.5, 0.5, 1.0])
    near(refine_similarities(phi, omega=0.7), phi, 0.0)


def test_rank_targets():
    assert rank_targets(PHI).tolist() == [[0, -1, -2, -3], [-1, 0, -1, -2], [-2, -1, 0, -1], [-3, -2, -1, 0]]
    assert rank_targets(torch.zeros(2, 3, 3)).shape == (2, 3, 3)


# ListMLE ------------------------------------------------------------------------------------------------------------


def one_row(scores, targets):
    """Return the loss of a single row: the others are equal to it."""
    n = len(scores)
    return list_mle(matrix(scores).expand(n, n), matrix(targets).expand(n, n))


def test_the_worked_rows():
    near(one_row([0.2, 0.5, 0.1], [3.0, 1.0, 2.0]), torch.tensor(2.093114, dtype=torch.float64))
    near(one_row([0.3, 0.1, 0.2], [1.0, 1.0, 0.0]), torch.tensor(1.74634, dtype=torch.float64))
    assert float(one_row([0.7], [2.0])) == 0.0


def test_the_worked_list():
    near(list_mle(STUDENT, REFINED), torch.tensor(11.092907 / 4, dtype=torch.float64))
    near(list_mle(STUDENT / 0.05, REFINED), torch.tensor(6.642208, dtype=torch.float64))
    compat = list_mle(STUDENT / 0.05, REFINED, log_epsilon=1e-7)
    near(compat, torch.tensor(6.803583, dtype=torch.float64))


def test_the_first_row_alone():
    # Vector ranking_algorithm1_n4 gives the loss of each row.
    near(list_mle(STUDENT, REFINED, first_row_only=True), torch.tensor(2.533893, dtype=torch.float64))
    two = list_mle(torch.stack([STUDENT, 2 * STUDENT]), torch.stack([REFINED, REFINED]), first_row_only=True)
    near(
        two, (list_mle(STUDENT, REFINED, first_row_only=True) + list_mle(2 * STUDENT, REFINED, first_row_only=True)) / 2
    )


@given(st.integers(1, 8), st.integers(0, 1000))
def test_the_definition(n, seed):
    scores = similarities(n, seed) / 0.05
    targets = similarities(n, seed + 1)
    rows = []
    for s, y in zip(scores, targets, strict=True):
        ranked = s[y.argsort(descending=True, stable=True)]
        rows.append(sum(torch.logsumexp(ranked[i:], 0) - ranked[i] for i in range(n)))
    near(list_mle(scores, targets), torch.stack(rows).mean(), 1e-9)


def test_only_the_order_of_the_targets_counts():
    near(list_mle(STUDENT, REFINED), list_mle(STUDENT, REFINED.exp() * 7 - 3))
    assert float(list_mle(STUDENT, REFINED)) != pytest.approx(float(list_mle(STUDENT, -REFINED)), abs=1e-3)


def test_the_best_scores_are_those_in_the_order_of_the_targets():
    targets = similarities(6, 1)
    agreeing = list_mle(targets / 0.05, targets)
    assert float(agreeing) < float(list_mle(similarities(6, 2) / 0.05, targets))


def test_no_gradient_flows_into_the_targets():
    scores, targets = STUDENT.clone().requires_grad_(), REFINED.clone().requires_grad_()
    list_mle(scores, targets).backward()
    assert scores.grad.abs().sum() > 0
    assert targets.grad is None


@pytest.mark.parametrize("log_epsilon", [0.0, 1e-7])
def test_a_step_of_lists_of_different_lengths_is_the_mean_of_each_alone(log_epsilon):
    sizes = torch.tensor([5, 1, 7, 2])
    scores = torch.full((4, 7, 7), 3.0, dtype=torch.float64)
    phi = torch.full((4, 7, 7), torch.nan, dtype=torch.float64)
    for index, size in enumerate(sizes.tolist()):
        scores[index, :size, :size] = similarities(size, index) / 0.05
        phi[index, :size, :size] = similarities(size, index + 10)
    scores.requires_grad_()
    refined = refine_similarities(phi, omega=0.5, sizes=sizes)
    loss = list_mle(scores, refined, sizes=sizes, log_epsilon=log_epsilon)
    (gradient,) = torch.autograd.grad(loss, scores)
    alone = []
    for index, size in enumerate(sizes.tolist()):
        own = refine_similarities(phi[index, :size, :size], omega=0.5)
        near(refined[index, :size, :size], own, 1e-12)
        alone.append(list_mle(scores[index, :size, :size], own, log_epsilon=log_epsilon))
    near(loss, torch.stack(alone).mean(), 1e-12)
    (wanted,) = torch.autograd.grad(torch.stack(alone).mean(), scores)
    near(gradient, wanted, 1e-12)


def test_half_precision_is_widened():
    assert list_mle(STUDENT.bfloat16(), REFINED).dtype == torch.float32


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: refine_similarities(torch.zeros(2, 3), omega=0.5), r"must be \[n, n\]"),
        (lambda: refine_similarities(PHI, omega=-0.1), "omega must be 0 or more"),
        (lambda: refine_similarities(PHI, omega=float("nan")), "omega must be 0 or more"),
        (lambda: list_mle(torch.zeros(0, 0), torch.zeros(0, 0)), r"must be \[n, n\]"),
        (lambda: list_mle(STUDENT, REFINED[:3, :3]), "must have one shape"),
    ],
)
def test_wrong_calls(call, message):
    with pytest.raises(ValueError, match=message):
        call()
