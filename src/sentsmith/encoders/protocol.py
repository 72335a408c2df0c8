"""What the evaluation, the search and the report know of a model: it encodes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Vectors = NDArray[np.float32]
"""``[sentences, dimension]`` float32."""


class Encoder(Protocol):
    """Anything that turns sentences into vectors.

    ``sentence_transformers.SentenceTransformer`` fits through :func:`sentsmith.encoders.embedding.as_encoder`.
    """

    def encode(self, sentences: Sequence[str]) -> Vectors:
        """Return float32 ``[len(sentences), dimension]``, in the order given, evaluation mode, no gradient.

        The vector of a sentence does not depend on the other sentences of the call.
        """
        ...
