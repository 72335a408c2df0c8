"""What a sentence vector costs: multiply-accumulates, and the score they buy (METHODS §8, "Cost").

Counted are the operations that make up the work of a transformer: matrix products (linear layers, attention scores,
attention × value) and convolutions, one multiply-accumulate for two floating-point operations. Not counted are
additions of biases and residuals, softmax, normalisation, activations and embedding look-ups. Per token these grow with
the width and the products with its square, so that they hardly count in models of the usual width.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import torch

from sentsmith.encoders.chunked import trim
from sentsmith.encoders.embedding import evaluation_mode
from sentsmith.errors import InputError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

TOKENS = 32


def count_gmacs(model: SentenceTransformer, *, tokens: int = TOKENS) -> float:
    """Return the billions of multiply-accumulates for the vector of one sentence, in a batch of its own.

    The model is run once and the operations counted, so whatever it is made of counts: two towers, dense layers.

    Args:
        model: Any model that reads tokens.
        tokens: The length of the sentence, special tokens included.

    Raises:
        InputError: ``tokens`` is not positive or more than the model reads, or the model reads no tokens.
    """
    from torch.nn.attention import SDPBackend, sdpa_kernel
    from torch.utils.flop_counter import FlopCounterMode

    features = _sentence(model, tokens)
    # The fused attention kernel of the CPU is not among those that torch counts; its plain form is.
    with (
        evaluation_mode(model),
        torch.no_grad(),
        sdpa_kernel(SDPBackend.MATH),
        FlopCounterMode(display=False) as counter,
    ):
        model(features)
    return float(counter.get_total_flops()) / 2 / 1e9


def score_per_gmac(score: float, gmacs: float) -> float:
    """Return η: the points of a score (times 100) that each GMAC buys.

    Raises:
        InputError: ``gmacs`` is not a positive number.
    """
    if not (math.isfinite(gmacs) and gmacs > 0):
        raise InputError(f"a score per GMAC needs a positive cost, not {gmacs}")
    return score / gmacs


def _sentence(model: SentenceTransformer, tokens: int) -> dict[str, torch.Tensor]:
    """Return the features of one sentence of exactly ``tokens`` tokens; which tokens they are costs nothing."""
    if tokens < 1:
        raise InputError(f"a sentence has one token or more, not {tokens}")
    # As many words as tokens are at least as many tokens.
    features = model.preprocess([" ".join(["the"] * tokens)])
    tensors = {
        key: value.to(model.device)
        for key, value in features.items()
        if isinstance(value, torch.Tensor) and value.dim() == 2
    }
    if not {"input_ids", "attention_mask"} <= tensors.keys():
        raise InputError("the model reads no tokens (input_ids, attention_mask); its cost cannot be counted")
    tensors = trim(tensors)
    width = tensors["input_ids"].shape[1]
    if width < tokens:
        raise InputError(f"the model reads at most {width} tokens, not {tokens}; give a smaller number of tokens")
    return {key: value[:, :tokens] for key, value in tensors.items()}
