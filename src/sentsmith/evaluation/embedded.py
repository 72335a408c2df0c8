"""Every sentence is embedded once, however many tasks it is in."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterable, Sequence
from typing import Literal, cast

import numpy as np
from numpy.typing import NDArray

from sentsmith.encoders.protocol import Encoder, Vectors
from sentsmith.errors import SentsmithError
from sentsmith.evaluation.similarity import cosine

logger = logging.getLogger(__name__)

BLANK = "."
"""What stands for an empty sentence, as in SentEval's own examples: some models cannot encode zero tokens."""

Text = str | tuple[str, str]
"""A sentence, or a sentence and the condition under which it is read."""


Similarity = Literal["cosine", "own"]
"""What says how alike two sentences are: the cosine of their vectors, or the model by a rule of its own."""


def similarity_of(encoder: Encoder) -> Similarity:
    """Return what an encoder's pairs are measured by.

    An encoder whose ``pair_scores`` is a function of two arrays of vectors, ``[n, d]`` each, to ``[n]`` scores has its
    own similarity (:attr:`sentsmith.encoders.embedding.ModelEncoder.pair_scores`); all others have the cosine.
    """
    return "cosine" if getattr(encoder, "pair_scores", None) is None else "own"


class Embedded:
    """The vectors of a set of sentences, looked up by sentence.

    Attributes:
        blank: How many different sentences were empty (or white space only) and stand as :data:`BLANK`.
        measured_by: What :meth:`similarity` goes by.
        not_finite: How many vectors held NaN or infinity and are zeros now.
        seconds: How long the encoder took.
    """

    def __init__(self, sentences: Iterable[Text], encoder: Encoder) -> None:
        """Embed the different sentences of ``sentences`` with one call of ``encoder``; none for no sentence.

        Sentences with a condition go to the encoder as tuples, as :class:`~sentsmith.encoders.embedding.ModelEncoder`
        takes them, if its model does; they may not be mixed with others.

        Raises:
            SentsmithError: The encoder did not return one row per sentence.
        """
        unique = dict.fromkeys(sentences)
        self.blank = sum(map(_is_blank, unique))
        if self.blank:
            logger.info("%d empty sentences are embedded as %r", self.blank, BLANK)
        texts = list(dict.fromkeys(BLANK if _is_blank(sentence) else sentence for sentence in unique))
        self._rows = {text: row for row, text in enumerate(texts)}
        start = time.perf_counter()
        # An encoder promises to take sentences; who brings conditions has one that takes those.
        vectors = encoder.encode(cast("list[str]", texts)) if texts else np.empty((0, 0))
        self._vectors = _checked(np.asarray(vectors, dtype=np.float32), len(texts))
        self._pair_scores = getattr(encoder, "pair_scores", None)
        self.measured_by = similarity_of(encoder)
        self.seconds = time.perf_counter() - start
        bad = np.flatnonzero(~np.isfinite(self._vectors).all(axis=1))
        self.not_finite = len(bad)
        if self.not_finite:
            logger.warning("%d of %d vectors are not finite; they count as zeros", self.not_finite, len(texts))
            self._vectors = self._vectors.copy()
            self._vectors[bad] = 0

    def __len__(self) -> int:
        return len(self._vectors)

    def rows(self, sentences: Sequence[Text]) -> Vectors:
        """Return float32 ``[len(sentences), d]``, one row for each sentence in the order given.

        Raises:
            KeyError: A sentence was not embedded.
        """
        return self._vectors[[self._rows[BLANK if _is_blank(text) else text] for text in sentences]]

    def similarity(self, first: Sequence[Text], second: Sequence[Text]) -> NDArray[np.float64]:
        """Return how alike the model finds each sentence of ``first`` and the one of ``second`` in its place.

        That is the cosine of their vectors, unless the model has a similarity of its own (:func:`similarity_of`).

        Returns:
            float64 ``[len(first)]``. 0 where a score of the model's own is not finite, which is logged.

        Raises:
            KeyError: A sentence was not embedded.
            SentsmithError: The model's own similarity is not one number for each pair.
        """
        one, two = self.rows(first), self.rows(second)
        if self._pair_scores is None:
            return cosine(one, two)
        scores = np.array(self._pair_scores(one, two), dtype=np.float64)
        if scores.shape != (len(one),):
            raise SentsmithError(f"the model's own similarity has shape {scores.shape} for {len(one)} pairs")
        bad = ~np.isfinite(scores)
        if bad.any():
            logger.warning("%d of %d scores of pairs are not finite numbers; they count as 0", bad.sum(), len(scores))
            scores[bad] = 0.0
        return scores


def _is_blank(text: Text) -> bool:
    return isinstance(text, str) and not text.strip()


def _checked(vectors: Vectors, count: int) -> Vectors:
    if vectors.ndim != 2 or len(vectors) != count:
        raise SentsmithError(
            f"the encoder returned shape {vectors.shape} for {count} sentences; [{count}, d] is needed"
        )
    return vectors
