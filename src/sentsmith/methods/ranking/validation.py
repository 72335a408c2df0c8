"""Which written lists are good for nothing, as the paper tells them (METHODS.md §6).

An answer of several lines, or without an end, is told by whoever reads it; here is what only a whole list shows.
"""

from __future__ import annotations

from collections.abc import Sequence

REPETITION = "repetition"
"""The reason of a list that writes one sentence again and again."""


def repeats_itself(sentences: Sequence[str], times: int) -> bool:
    """Tell whether the last sentence, or the one before it, occurs so often in the whole list.

    A model that has run into a circle of one or two sentences stays there, so its list ends in it. Sentences are
    compared exactly, as in the paper.

    Args:
        sentences: The list, its seed first.
        times: How often is too often.
    """
    return any(sentences.count(sentence) >= times for sentence in sentences[-2:])
