"""A task made from any text: find the next sentence of the same paragraph.

Nobody has to judge anything: writers put sentences that belong together side by side. The task tells two
models apart on a user's own text, where no gold scores exist.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentsmith.encoders.protocol import Encoder
from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.lines import rejoin
from sentsmith.evaluation.similarity import unit_rows

_BLOCK = 1024  # queries compared with all candidates at a time


@dataclass(frozen=True, eq=False)
class NextSentenceTask:
    """Queries, and where each one's next sentence stands among the candidates.

    Attributes:
        queries: ``[n]``.
        candidates: ``[m]``, the next sentences of all queries, each once.
        targets: int64 ``[n]``, indices into ``candidates``.
    """

    queries: tuple[str, ...]
    candidates: tuple[str, ...]
    targets: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.queries)


@dataclass(frozen=True, eq=False)
class Continuity:
    """One value for each query.

    Attributes:
        reciprocal_rank: float64 ``[n]``, 1 / rank of the next sentence.
        accuracy_at_1: float64 ``[n]``, 1.0 where the next sentence comes first.
        accuracy_at_10: float64 ``[n]``, 1.0 where it is among the first ten.
        candidates: Among how many sentences each was sought, for judging chance.
    """

    reciprocal_rank: NDArray[np.float64]
    accuracy_at_1: NDArray[np.float64]
    accuracy_at_10: NDArray[np.float64]
    candidates: int


def paragraphs_of_lines(lines: Iterable[str]) -> list[list[str]]:
    """Group lines, one sentence each, into paragraphs at blank lines.

    A text without blank lines is one paragraph: its consecutive lines count as neighbours.
    """
    paragraphs: list[list[str]] = [[]]
    for line in lines:
        if line.strip():
            paragraphs[-1].append(line)
        elif paragraphs[-1]:
            paragraphs.append([])
    return [paragraph for paragraph in paragraphs if paragraph]


def next_sentence_task(paragraphs: Sequence[Sequence[str]], *, seed: int, limit: int = 1000) -> NextSentenceTask:
    """Make the task from the pairs of consecutive sentences of each paragraph.

    A pair of two equal sentences is left out, and so is a pair that occurred before.

    Args:
        paragraphs: Each a list of sentences in order.
        seed: Chooses which pairs are taken when there are more than ``limit``.
        limit: At most this many queries.

    Raises:
        InputError: There are fewer than two pairs with different next sentences, or ``limit`` is less than 2.
    """
    if limit < 2:
        raise InputError(f"limit={limit}: a next-sentence task needs two queries or more")
    pairs = list(
        dict.fromkeys(
            (first, second)
            for paragraph in paragraphs
            for first, second in itertools.pairwise(filter(None, map(rejoin, paragraph)))
            if first != second
        )
    )
    if len(pairs) > limit:
        rows = np.sort(np.random.default_rng(seed).choice(len(pairs), size=limit, replace=False))
        pairs = [pairs[row] for row in rows]
    candidates = {text: row for row, text in enumerate(dict.fromkeys(second for _, second in pairs))}
    if len(candidates) < 2:
        raise InputError(
            f"the text gives {len(candidates)} next sentences to tell apart; two or more are needed: give "
            "a text whose paragraphs (or consecutive lines) hold several sentences"
        )
    targets = np.array([candidates[second] for _, second in pairs], dtype=np.int64)
    return NextSentenceTask(tuple(first for first, _ in pairs), tuple(candidates), targets)


def measure_continuity(encoder: Encoder, task: NextSentenceTask) -> Continuity:
    """Rank the candidates of each query by cosine and see where its next sentence comes.

    A query that is itself a candidate (it follows another query) is not offered to itself: it would always
    come first.
    Candidates with equal cosines share their average rank, so a model that tells nothing apart gets chance.
    """
    embedded = Embedded([*task.queries, *task.candidates], encoder)
    candidates = unit_rows(embedded.rows(task.candidates))
    place = {text: row for row, text in enumerate(task.candidates)}
    ranks = np.empty(len(task))
    for start in range(0, len(task), _BLOCK):
        queries = task.queries[start : start + _BLOCK]
        scores = unit_rows(embedded.rows(queries)) @ candidates.T
        own = [(row, place[text]) for row, text in enumerate(queries) if text in place]
        for row, column in own:
            scores[row, column] = -np.inf
        target = np.take_along_axis(scores, task.targets[start : start + _BLOCK, None], axis=1)
        # Those above the target push it down by a rank each, those level with it by half a rank.
        above, level = (scores > target).sum(axis=1), (scores == target).sum(axis=1) - 1
        ranks[start : start + _BLOCK] = 1 + above + level / 2
    return Continuity(
        reciprocal_rank=1 / ranks,
        accuracy_at_1=(ranks <= 1).astype(np.float64),
        accuracy_at_10=(ranks <= 10).astype(np.float64),
        candidates=len(task.candidates),
    )
