"""Retrieved demonstrations: the gold triplets whose premises are nearest to a sentence, as its worked examples."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

import numpy as np

from sentsmith.corpus.normalising import normal_form
from sentsmith.corpus.rows import Triplet
from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.errors import InputError, SettingsError
from sentsmith.llm.prompts import Exemplar

# What a block of comparisons may hold, in numbers.
_LARGEST_BLOCK = 1 << 24


class Demonstrations:
    """A pool of gold triplets, found by the premise; each premise counts once, by its first triplet.

    Args:
        pool: Triplets of a premise, an entailment and a contradiction. Held in memory, with a vector of each premise.
        encoder: Embeds the premises, once, and the sentences.
        count: L, the most demonstrations of a sentence.
        threshold: λ; the cosine that a premise must reach.

    Raises:
        InputError: The pool is empty.
        SettingsError: A count below 1, or a threshold outside [-1, 1].
    """

    def __init__(self, pool: Iterable[Triplet], encoder: Encoder, *, count: int, threshold: float) -> None:
        if count < 1 or not -1.0 <= threshold <= 1.0:
            raise SettingsError(
                f"{count} demonstrations above cosine {threshold}: at least 1, above a cosine from -1 to 1"
            )
        first: dict[str, Triplet] = {}
        for triplet in pool:
            first.setdefault(normal_form(triplet.anchor), triplet)
        if not first:
            raise InputError("the pool of demonstrations is empty")
        self._forms, self._triplets = list(first), list(first.values())
        self._places = {form: place for place, form in enumerate(self._forms)}
        self._encoder = encoder
        self._vectors = _unit(encoder.encode([triplet.anchor for triplet in self._triplets]))
        self._count, self._threshold = count, threshold

    def nearest(self, sentences: Sequence[str]) -> list[list[Triplet]]:
        """Return each sentence's demonstrations, the nearest last, where it stands right before the sentence.

        A sentence is never its own demonstration: a premise of the same normal form is passed over. Of equally near
        premises the pool's first comes out nearest.
        """
        if not sentences:
            return []
        vectors = _unit(self._encoder.encode(list(sentences)))
        rows = max(1, _LARGEST_BLOCK // len(self._triplets))
        found: list[list[Triplet]] = []
        for start in range(0, len(sentences), rows):
            cosines = vectors[start : start + rows] @ self._vectors.T
            for sentence, similar in zip(sentences[start : start + rows], cosines, strict=True):
                own = self._places.get(normal_form(sentence))
                if own is not None:
                    similar[own] = -np.inf
                found.append([self._triplets[place] for place in self._best(similar)])
        return found

    def _best(self, similar: Vectors) -> list[int]:
        near = np.flatnonzero(similar >= self._threshold)
        order = np.argsort(-similar[near], kind="stable")[: self._count]
        return [int(place) for place in near[order][::-1]]


def as_exemplars(triplets: Sequence[Triplet]) -> Mapping[str, list[Exemplar]]:
    """Return triplets as worked examples of the tasks ``entailment`` and ``contradiction``."""
    return {
        "entailment": [Exemplar(inputs=(row.anchor,), output=row.positive) for row in triplets],
        "contradiction": [Exemplar(inputs=(row.anchor,), output=row.negative) for row in triplets],
    }


def _unit(vectors: Vectors) -> Vectors:
    # A vector of zeros stays one, and is near to nothing.
    norms = np.linalg.norm(vectors, axis=1, keepdims=True)
    return np.divide(vectors, np.where(norms == 0, 1.0, norms), dtype=np.float32)
