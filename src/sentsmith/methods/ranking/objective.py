"""The mathematics of ranking sentences (METHODS.md §6): what order a list ought to have, and the loss that teaches it.

A list's sentences drift away from the first, so that the order they stand in says something about their meaning; a
teacher's similarities Φ say something too, and less reliably. :func:`refine_similarities` moves Φ towards the list's
order; :func:`list_mle` is small where the student ranks as the result does. Only the *order* within each row of the
targets matters to the loss.

Every function takes one list ``[n, n]``, or lists of one step ``[B, n, n]`` with the shorter ones padded: ``sizes``
then says how many sentences each has, and what stands beyond them is never read.
"""

from __future__ import annotations

import torch
from torch import Tensor

_BEYOND = -torch.inf


def refine_similarities(
    similarities: Tensor,
    *,
    omega: float,
    sizes: Tensor | None = None,
    phi_scale: float = 1.0,
    absolute_column_sign: bool = False,
) -> Tensor:
    """Return Φ̂: the teacher's similarities, moved towards descending along each list (Algorithm 1).

    ``Φ̂ = Φ + sign(Δ)·log(ω|Δ| + 1)``. For each row j and the columns from j on, Δ is the value that belongs at a
    column by the list's order (the row sorted descending) minus the value that stands there; below the diagonal Δ is
    mirrored. So, without ties, a value rises exactly if it stands further back in the teacher's order than in the
    list's (Eq. 6). With ω ≤ 1 a value moves by less than |Δ|.

    Args:
        similarities: Φ, symmetric, ``[n, n]`` or ``[B, n, n]``, floating.
        omega: ω, at least 0; 0 gives Φ itself.
        sizes: int64 ``[B]``, sentences per list; None: all have n.
        phi_scale: Φ is multiplied by it first. The authors' code appears to have had 20 (a temperature of 0.05).
        absolute_column_sign: The sign of the authors' code: a value rises if the place that it has in its row, sorted
            from the diagonal on and counted from there, is above its column, counted from the list's start. That agrees
            with Eq. 6 in the first row only.

    Returns:
        Φ̂, the shape and dtype of Φ.

    Raises:
        ValueError: Not square, or ω is negative.
    """
    _check_square(similarities, "similarities")
    if not omega >= 0:
        raise ValueError(f"omega must be 0 or more, not {omega}")
    scaled = similarities * phi_scale
    n = scaled.shape[-1]
    beyond = _beyond(scaled, sizes)
    # Left of the diagonal +∞, beyond the list −∞: sorting keeps both where they are, and sorts the part between.
    left = torch.ones(n, n, dtype=torch.bool, device=scaled.device).tril(-1)
    masked = scaled.masked_fill(left, torch.inf).masked_fill(beyond[..., None, :], _BEYOND)
    ordered, order = masked.sort(dim=-1, descending=True, stable=True)
    outside = left | beyond[..., None, :] | beyond[..., :, None]
    delta = (ordered - masked).masked_fill(outside, 0.0)
    if absolute_column_sign:
        delta = delta.abs() * _released_sign(order, delta)
    delta = delta.triu() + delta.triu(1).mT
    return scaled + delta.sign() * torch.log1p(omega * delta.abs())


def _released_sign(order: Tensor, delta: Tensor) -> Tensor:
    """Return +1 where the column, counted from the list's start, is below the sorted place counted from the row's."""
    n = order.shape[-1]
    # The place of each column in the sorted row, counted from the diagonal.
    place = order.argsort(dim=-1) - torch.arange(n, device=order.device)[:, None]
    column = torch.arange(n, device=order.device)
    return (place - column).to(delta.dtype).sign()


def rank_targets(similarities: Tensor) -> Tensor:
    """Return targets that hold the list's order and nothing of the teacher: ``−|j − k|``.

    Args:
        similarities: Whose shape, dtype and device the result has.
    """
    place = torch.arange(similarities.shape[-1], device=similarities.device)
    distance = (place[:, None] - place).abs()
    return -distance.to(similarities.dtype).expand_as(similarities)


def list_mle(
    scores: Tensor,
    targets: Tensor,
    *,
    sizes: Tensor | None = None,
    log_epsilon: float = 0.0,
    first_row_only: bool = False,
) -> Tensor:
    """Return the ListMLE loss (Xia et al. 2008) of a list, the mean over its rows; of several lists, their mean.

    For a row, ``Σ_i [LSE over l ≥ i of s[π_l] − s[π_i]]`` with π the columns sorted by target, descending; of equal
    targets the one further left comes first. The diagonal is a column as any other. The paper sums over the rows,
    which is the mean times n.

    Args:
        scores: s, the student's: cosine / τ. ``[n, n]`` or ``[B, n, n]``.
        targets: Φ̂, the same shape; only their order is read, and no gradient flows into them.
        sizes: int64 ``[B]``, sentences per list; None: all have n.
        log_epsilon: Added inside the logarithm, after the row's largest score was subtracted: the authors' code has
            1e-7, which visibly changes the loss at τ = 0.05.
        first_row_only: The loss of the first row in place of the mean over the rows.

    Returns:
        A scalar, at least float32.

    Raises:
        ValueError: Not square, or the shapes differ.
    """
    _check_square(scores, "scores")
    if scores.shape != targets.shape:
        raise ValueError(f"scores {list(scores.shape)} and targets {list(targets.shape)} must have one shape")
    scores = scores.to(torch.promote_types(scores.dtype, torch.float32))
    beyond = _beyond(scores, sizes)
    columns = beyond[..., None, :]
    order = targets.detach().masked_fill(columns, _BEYOND).argsort(dim=-1, descending=True, stable=True)
    ranked = scores.masked_fill(columns, _BEYOND).gather(-1, order)
    rest = _suffix_logsumexp(ranked, log_epsilon)
    # Beyond a list's end both are −∞, and their difference would be NaN, in the gradient too.
    terms = torch.where(columns, 0.0, rest) - torch.where(columns, 0.0, ranked)
    rows = terms.sum(dim=-1).masked_fill(beyond, 0.0)
    if first_row_only:
        return rows[..., 0].mean()
    length = (~beyond).sum(dim=-1)
    return (rows.sum(dim=-1) / length).mean()


def _suffix_logsumexp(ranked: Tensor, log_epsilon: float) -> Tensor:
    if log_epsilon == 0.0:
        return ranked.flip(-1).logcumsumexp(dim=-1).flip(-1)
    largest = ranked.amax(dim=-1, keepdim=True)
    sums = (ranked - largest).exp().flip(-1).cumsum(dim=-1).flip(-1)
    return (sums + log_epsilon).log() + largest


def _beyond(square: Tensor, sizes: Tensor | None) -> Tensor:
    """Return bool ``[…, n]``: which places a list does not have."""
    n = square.shape[-1]
    if sizes is None:
        return torch.zeros(square.shape[:-1], dtype=torch.bool, device=square.device)
    return torch.arange(n, device=square.device) >= sizes.to(square.device)[:, None]


def _check_square(values: Tensor, what: str) -> None:
    if values.dim() not in (2, 3) or values.shape[-1] != values.shape[-2] or values.shape[-1] == 0:
        raise ValueError(f"{what} must be [n, n], or [B, n, n] of several lists, not {list(values.shape)}")
