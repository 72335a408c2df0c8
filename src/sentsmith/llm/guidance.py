"""Guided decoding, the arithmetic: two sets of logits into one, and one token out of it.

Both methods that let a language model write draw the next token from ``a·l(prompt) + b·l(against)`` over the same
prefix: MultiCSR (contrastive generation, METHODS.md §3) is (1, −ω), directional ranking (§6) is (1+λ, −λ), which is
classifier-free guidance of scale 1+λ. Raw logits and log-softmax are equivalent: what they differ by is a constant per
row, and a softmax or an argmax does not see it.
"""

from __future__ import annotations

import hashlib
import json
import math
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from sentsmith.llm.backend import Prompt

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

_NEVER = -math.inf


def combine_logits(first: Tensor, second: Tensor, *, first_weight: float, second_weight: float) -> Tensor:
    """Return ``first_weight·first + second_weight·second``, with what either one forbids kept out.

    A token that is −inf in ``first`` stays −inf, and one that is −inf only in ``second`` becomes −inf, whatever the
    signs of the weights. Where that leaves a row without a finite entry, the row is ``first``'s own. A
    ``second_weight`` of exactly 0 drops the second term with all its infinities.

    Args:
        first: ``[…, vocab]``, logits (or log-probabilities) under the prompt.
        second: The same shape, under the prompt that is steered by.
        first_weight: a.
        second_weight: b.

    Returns:
        ``[…, vocab]``, float32 or wider.

    Raises:
        ValueError: The shapes differ, or there is no vocabulary to choose from.
    """
    if first.shape != second.shape or first.dim() == 0 or first.shape[-1] == 0:
        raise ValueError(f"logits of shapes {list(first.shape)} and {list(second.shape)}: must be equal, […, vocab]")
    dtype = torch.promote_types(torch.promote_types(first.dtype, second.dtype), torch.float32)
    first = first.to(dtype)
    banned = torch.isneginf(first)
    combined = first * first_weight
    if second_weight != 0:
        second = second.to(dtype)
        combined.add_(second, alpha=second_weight)
        banned |= torch.isneginf(second)
    # In place, and over the NaN that 0·inf and inf−inf have left.
    combined.masked_fill_(banned, _NEVER)
    return torch.where(_lost(combined), first, combined)


def keep_plausible(combined: Tensor, first: Tensor, *, floor: float) -> Tensor:
    """Remove the tokens that are implausible under the prompt itself (Li et al. 2022, contrastive decoding, eq. 3).

    Kept are those with ``p_first ≥ floor·max p_first``. Steering away from a second prompt can otherwise lift a token
    that is hopeless under both, because it is a little more hopeless under the second.

    Args:
        combined: ``[…, vocab]``, of :func:`combine_logits`.
        first: The same shape, the logits under the prompt.
        floor: In [0, 1]; 0 keeps everything, 1 only the prompt's likeliest token.

    Returns:
        ``[…, vocab]``, −inf where removed. Where no kept token is finite, the plausible ones get ``first``'s logits.
    """
    if floor <= 0:
        return combined
    first = first.to(combined.dtype)
    least = first.amax(dim=-1, keepdim=True) + math.log(floor)
    implausible = first < least
    kept = combined.masked_fill(implausible, _NEVER)
    return torch.where(_lost(kept), first.masked_fill(implausible, _NEVER), kept)


def _lost(logits: Tensor) -> Tensor:
    """Return ``[…, 1]``: whether no token of the row can be chosen; NaN is kept, so that it is noticed."""
    return torch.isneginf(logits.amax(dim=-1, keepdim=True))


def choose(logits: Tensor, *, temperature: float, top_p: float, uniform: Tensor | None) -> Tensor:
    """Choose one token per row.

    Args:
        logits: ``[rows, vocab]``, at least one finite entry per row.
        temperature: 0 takes the likeliest token; above it, a token is drawn from ``softmax(logits / temperature)``.
        top_p: Draw from the smallest set of likeliest tokens whose probabilities reach this share (Holtzman et al.
            2020).
        uniform: ``[rows]`` in [0, 1), the one random number each row's token is drawn by: the token at which the
            cumulated probability, in the order of the vocabulary, passes it. Not read at temperature 0.

    Returns:
        int64 ``[rows]``.

    Raises:
        ValueError: The temperature is above 0 and there is not one number per row.
    """
    if temperature == 0:
        return logits.argmax(dim=-1)
    if uniform is None or uniform.shape != logits.shape[:-1]:
        raise ValueError(f"drawing from {list(logits.shape)} logits takes one uniform number per row")
    # The largest logit becomes 0 before the division, so that no temperature overflows.
    scaled = (logits.float() - logits.amax(dim=-1, keepdim=True)) / temperature
    cumulated = _nucleus(scaled, top_p).softmax(dim=-1).cumsum(dim=-1)
    total = cumulated[..., -1:]
    # A number that rounds up to 1 would pass the end and choose a token of probability 0, or none.
    target = torch.minimum(uniform[..., None].to(total) * total, torch.nextafter(total, torch.zeros_like(total)))
    return torch.searchsorted(cumulated, target, right=True).squeeze(-1)


def _nucleus(scores: Tensor, top_p: float) -> Tensor:
    """Return the scores, −inf outside of the smallest set of likeliest tokens that reaches ``top_p``."""
    if top_p >= 1:
        return scores
    ascending, order = scores.sort(dim=-1)
    dropped = ascending.softmax(dim=-1).cumsum(dim=-1) <= 1 - top_p
    dropped[..., -1] = False
    return scores.masked_fill(dropped.scatter(-1, order, dropped), _NEVER)


def draws(prompt: Prompt, seed: int, count: int) -> NDArray[np.float64]:
    """Return the uniform numbers, one per step, by which the answer to a prompt is drawn.

    They depend on the seed and the prompt's two texts alone: not on the prompts beside it, nor on how many numbers
    are asked for (the first ones stay the same).

    Args:
        prompt: The pair that is answered.
        seed: Of the run.
        count: How many.

    Returns:
        float64 ``[count]`` in [0, 1).
    """
    import numpy as np

    digest = hashlib.sha256(json.dumps([seed, prompt.text, prompt.against]).encode()).digest()
    key = np.frombuffer(digest[:16], dtype="<u8")
    return np.random.Generator(np.random.Philox(key=key)).random(count)
