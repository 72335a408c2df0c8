"""Intra-sentence dependency: how far the tokens of a sentence say the same as the token its vector is read from.

BeLLM's pilot study (Li and Li 2024, §2; METHODS §8). The score of a token is Spearman's correlation, across the d
dimensions of the last layer's states, with the pivot: the first token (CLS) of an encoder, the last one of a decoder.
The score of a sentence is the mean over its other tokens; padding is none of them, the tokens of a prompt are. The
suite ``dependency`` measures it over STS-B's dev part, where the paper takes the test part; no label is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, cast

import numpy as np
from numpy.typing import NDArray

from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

DEPENDENCY = "dependency"
Pivot = Literal["first", "last"]
COLUMNS = ("mean", "median", "quartiles", "whiskers")
"""Of tables: names in a summary, the latter two being pairs."""

_REACH = 1.5  # quartile distances that a whisker may be long


@dataclass(frozen=True, eq=False)
class Dependency:
    """The dependency of many sentences.

    Attributes:
        scores: float64 ``[n]`` in [-1, 1], one for each sentence that has one.
        pivot: The token that the others were compared with.
        single: How many sentences had no second token, and are left out.
        not_finite: How many had states that are no finite numbers, and are left out.
    """

    scores: NDArray[np.float64]
    pivot: Pivot
    single: int
    not_finite: int

    def summary(self) -> dict[str, Any]:
        """Return what ``results.json`` holds: what a box plot shows, and how many sentences it is of.

        Whiskers end at the last score within 1.5 quartile distances of the box; ``"beyond"`` counts those outside.
        """
        low, median, high = (float(value) for value in np.quantile(self.scores, (0.25, 0.5, 0.75)))
        reach = _REACH * (high - low)
        inside = self.scores[(self.scores >= low - reach) & (self.scores <= high + reach)]
        return {
            "mean": float(self.scores.mean()),
            "median": median,
            "quartiles": [low, high],
            # Of very few sentences a quartile may lie between the last score within reach and the box.
            "whiskers": [min(float(inside.min()), low), max(float(inside.max()), high)],
            "beyond": len(self.scores) - len(inside),
            "sentences": len(self.scores),
            "pivot": self.pivot,
            "without_second_token": self.single,
            "not_finite": self.not_finite,
        }


def sentence_dependency(tokens: NDArray[Any], mask: NDArray[Any], pivot: Pivot) -> NDArray[np.float64]:
    """Return how far the tokens of each sentence of a batch agree with its pivot.

    A token's score is Spearman's correlation of its vector with the pivot's, across dimensions, ties averaged, and 0
    where all numbers of a vector are the same (it has no ranks); a sentence's is the mean over its other tokens.

    Args:
        tokens: ``[B, T, d]``, any float type.
        mask: ``[B, T]``, 1 (or True) for real tokens, on whichever side the padding is; padding is never read.
        pivot: ``"first"`` or ``"last"`` real token.

    Returns:
        float64 ``[B]``; NaN for a sentence with fewer than two tokens, or one that is not finite.

    Raises:
        ValueError: The shapes do not fit each other.
    """
    if tokens.ndim != 3 or tokens.shape[:2] != mask.shape:
        raise ValueError(f"dependency needs tokens [B, T, d] and a mask [B, T], given {tokens.shape} and {mask.shape}")
    real = mask.astype(bool)
    counts = real.sum(axis=1)
    scores = np.full(len(tokens), np.nan)
    some = counts > 1
    if not some.any():
        return scores
    ranks = _unit_ranks(tokens[some][real[some]])
    ends = np.cumsum(counts[some])
    starts = ends - counts[some]
    pivots = starts if pivot == "first" else ends - 1
    to_pivot = np.einsum("td,td->t", ranks, ranks[np.repeat(pivots, counts[some])])
    to_pivot[pivots] = np.where(np.isnan(to_pivot[pivots]), np.nan, 0.0)
    scores[some] = np.add.reduceat(to_pivot, starts) / (counts[some] - 1)
    return scores


def measure_dependency(encoder: Encoder, sentences: Iterable[str], *, pivot: Pivot | None = None) -> Dependency:
    """Measure the dependency of the different sentences, by the states that the model's first module returns.

    Args:
        encoder: A :class:`~sentsmith.encoders.embedding.ModelEncoder` whose first module is a transformer.
        sentences: Repetitions and empty ones don't count.
        pivot: What a sentence's vector is taken to be read from; by default the first token, the last of a decoder.

    Raises:
        InputError: The encoder cannot be looked into, or no sentence has a second token.
    """
    from sentsmith.encoders.layers import is_decoder
    from sentsmith.encoders.taps import model_inside

    inside = model_inside(encoder)
    chosen: Pivot = pivot or ("last" if is_decoder(inside.model) else "first")
    texts = [text for text in dict.fromkeys(sentences) if text.strip()]
    found = inside.encode_by(_scorer(inside.model, chosen), texts) if texts else np.empty((0, 2), dtype=np.float32)
    scores, counts = found[:, 0].astype(np.float64), found[:, 1]
    finite = np.isfinite(scores)
    single = int((counts < 2).sum())
    if not finite.any():
        raise InputError("dependency needs a sentence of two tokens or more, and states that are finite numbers")
    return Dependency(scores[finite], chosen, single, int((~finite).sum()) - single)


def table(results: Sequence[Mapping[str, Any]]) -> tuple[list[str], list[list[str]]]:
    """Return the columns and the rows of a table of results; those without the suite have no row."""
    rows = [
        [str(result["model"]), found["pivot"], str(found["sentences"]), *(_cell(found[key]) for key in COLUMNS)]
        for result in results
        if (found := result.get(DEPENDENCY)) is not None
    ]
    return ["model", "pivot", "sentences", *COLUMNS], rows


def _cell(value: float | Sequence[float]) -> str:
    return f"{value:.3f}" if isinstance(value, float) else " to ".join(f"{end:.3f}" for end in cast("Any", value))


def _scorer(model: SentenceTransformer, pivot: Pivot) -> nn.Module:
    """Return a module that runs the model's first one and gives each sentence's score and its number of tokens."""
    import torch
    from torch import Tensor, nn

    class Scorer(nn.Module):
        def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
            output = model[0](dict(features))
            mask = output["attention_mask"].cpu()
            scores = sentence_dependency(output["token_embeddings"].float().cpu().numpy(), mask.numpy(), pivot)
            columns = torch.stack([torch.from_numpy(scores), mask.sum(dim=1).double()], dim=1)
            return {"sentence_embedding": columns}

    return Scorer()


def _unit_ranks(vectors: NDArray[Any]) -> NDArray[np.float64]:
    """Return the ranks of each row's numbers, centred and of length 1: their dot products are Spearman's."""
    from scipy.stats import rankdata

    ranks = rankdata(vectors, axis=-1).astype(np.float64)
    ranks -= ranks.mean(axis=-1, keepdims=True)
    lengths = np.linalg.norm(ranks, axis=-1, keepdims=True)
    return cast("NDArray[np.float64]", ranks / np.where(lengths == 0, 1.0, lengths))
