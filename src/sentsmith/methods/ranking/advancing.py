"""Many lists on their way together: each asks for its next sentence, all are answered, each goes one step on.

A list is a chain: what it asks next depends on what it was answered. So its questions are not known beforehand, and
they are nowhere but in the ledger: a list that was stopped in the middle is read off the ledger up to its last answer.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from sentsmith.llm.backend import Decoding
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.outputs import answer_of, was_lost
from sentsmith.llm.questions import Question, Unreadable, key_of
from sentsmith.methods.ranking.validation import REPETITION, repeats_itself


class Way(Protocol):
    """How lists are written: what is asked for next."""

    count: int
    """How many sentences follow the seed."""
    answers: int
    """How many answers a whole list takes."""

    def question(self, sentences: Sequence[str]) -> Question:
        """Return the question whose answer goes on with this list (its seed first); one sentence a line."""
        ...


@dataclass(slots=True)
class Draft:
    """A list on its way.

    Attributes:
        sentences: The seed, and what was written so far.
        answers: How many answers that took.
        reason: Why the list was dropped; None where it was not.
        answer: The raw answer that it was dropped for; None where it was not for one.
        lost: That answer never came.
    """

    sentences: list[str]
    answers: int = 0
    reason: str | None = None
    answer: str | None = None
    lost: bool = False


@dataclass(frozen=True, slots=True)
class Lists:
    """The lists that grow from some seeds, as far as a ledger knows them.

    Attributes:
        seeds: One a list.
        way: How they are written.
        repeats: Drop a list that ends in a sentence which it holds so often.
        ledger: Where the answers are.
        model: The name of the backend that is asked.
        decoding: As it is asked.
    """

    seeds: Sequence[str]
    way: Way
    repeats: int
    ledger: Ledger
    model: str
    decoding: Decoding

    def questions(self, together: int, advance: Callable[[int], None] = lambda _: None) -> Iterator[Question | None]:
        """Yield what is to be asked, in rounds for :func:`~sentsmith.llm.answering.ask`: a None ends each.

        A round holds a question of each list that is under way. A list that ends makes room for the next seed in the
        same round, so that rounds stay full. What the ledger knows is asked too (and not answered again): a run that
        was stopped goes through the same rounds, and the model meets in each what is not known yet.

        A list whose answer was lost is left for another run.

        Args:
            together: Lists under way at a time.
            advance: Called with the number of questions that a dropped list will not ask.
        """
        waiting = map(_draft, self.seeds)
        asked: list[tuple[Draft, Question]] = []
        while True:
            going = [draft for draft, question in asked if self._goes_on(draft, question, advance)]
            going += itertools.islice(waiting, together - len(going))
            if not going:
                return
            asked = [(draft, self.way.question(draft.sentences)) for draft in going]
            yield from (question for _, question in asked)
            yield None

    def drafts(self) -> Iterator[tuple[Draft, Question | None]]:
        """Yield each list as far as it is written, and its next question: None where it is whole or dropped."""
        for draft in map(_draft, self.seeds):
            question: Question | None = self.way.question(draft.sentences)
            while question is not None and self._took(draft, question):
                question = self.way.question(draft.sentences) if self._open(draft) else None
            yield draft, question

    def _goes_on(self, draft: Draft, question: Question, advance: Callable[[int], None]) -> bool:
        if not self._took(draft, question):
            return False
        if draft.reason is not None:
            advance(self.way.answers - draft.answers)
        return self._open(draft)

    def _open(self, draft: Draft) -> bool:
        return draft.reason is None and len(draft.sentences) <= self.way.count

    def _took(self, draft: Draft, question: Question) -> bool:
        """Go on by the answer, if there is one, and tell whether there was."""
        record = self.ledger.get(key_of(question, self.model, self.decoding))
        try:
            value = answer_of(record, question)
        except Unreadable as error:
            draft.answers += 1
            draft.reason = str(error)
            if record is not None:
                draft.answer, draft.lost = record.answer, was_lost(record)
            return True
        if value is None:
            return False
        draft.answers += 1
        draft.sentences += str(value).split("\n")
        if not self._open(draft) and repeats_itself(draft.sentences, self.repeats):
            draft.reason = REPETITION
        return True


def _draft(seed: str) -> Draft:
    return Draft([seed])


def whole(seed: str, rest: Iterable[str], repeats: int) -> Draft:
    """Return a list that was written without a model."""
    draft = Draft([seed, *rest])
    if repeats_itself(draft.sentences, repeats):
        draft.reason = REPETITION
    return draft
