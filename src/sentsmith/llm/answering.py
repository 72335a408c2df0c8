"""Asking a language model many questions: each is answered once, and every answer is kept in the ledger.

A question ends in one of two states: *parsed*, with a value, or *quarantined*, with a reason. In between it may be
unreadable once: it is then asked again, with sampling, because greedy decoding would only repeat itself.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace

from sentsmith.errors import SentsmithError, SettingsError
from sentsmith.llm.backend import Answer, Backend, Decoding, Prompt
from sentsmith.llm.ledger import Entry, Ledger, Record, State, kind_of
from sentsmith.llm.questions import Question, Unreadable, key_of
from sentsmith.llm.spending import Budget, Price, Spending

# So many requests in a row without any answer: the endpoint is down, and going on would quarantine everything.
_LOST_IN_A_ROW = 20
# So many unreadable answers are held in memory before they are asked again.
_WAITING = 4096
_NOTHING = Record("retry")


@dataclass(frozen=True, slots=True)
class Outcome:
    """What a run did; what it found done already is only in ``skipped``.

    Attributes:
        asked: Questions put to the model, a second attempt not counted again.
        skipped: Questions that were settled before, in an earlier run or as the same question in this one.
        parsed: Of those asked: answered with a value.
        quarantined: Of those asked: given up.
        reasons: Of the quarantined ones, their details left out.
        prompt_tokens: Read, over all attempts of this run.
        answer_tokens: Written, over all attempts of this run.
        seconds: Of wall-clock time.
        money: Spent; None where no price was given.
        stopped: The budget has no room for one more request, and there was one.
    """

    asked: int
    skipped: int
    parsed: int
    quarantined: int
    reasons: Counter[str]
    prompt_tokens: int
    answer_tokens: int
    seconds: float
    money: float | None
    stopped: bool


def ask(
    questions: Iterable[Question | None],
    backend: Backend,
    ledger: Ledger,
    decoding: Decoding,
    *,
    retries: int = 1,
    retry_quarantined: bool = False,
    budget: Budget | None = None,
    price: Price | None = None,
    advance: Callable[[int], None] = lambda _: None,
) -> Outcome:
    """Ask what the ledger has no answer to, and keep what comes in it.

    An answer that its question cannot read, or that did not come to its end, is asked again after the others: drawn at
    temperature 0.7 and top-p 0.95 if ``decoding`` is greedy, with another seed if it draws already. Unreadable again,
    it is quarantined with its reason. So is, at once, what the backend failed to get an answer to; these are no
    unreadable answers, and only ``retry_quarantined`` asks them again, in a later run.

    Args:
        questions: Read lazily, as the model gets to them. The same question twice is asked once. A None among them says
            that the next one depends on the answers: what was yielded before it is settled, and in the ledger, when the
            next element is read. (Not so what was lost, until somebody answers again.)
        backend: The model.
        ledger: Where answers are looked up and kept; each list that the backend hands over is one transaction.
        decoding: How tokens are chosen.
        retries: How often an unreadable answer is asked again.
        retry_quarantined: Ask again what an earlier run gave up (again with sampling, where it was unreadable).
        budget: What this run may use. It is never passed: before a request is handed out, the most that it can take
            (its prompt and ``max_new_tokens``) must fit beside what was used and what is under way. As far as can be
            known, that is: an endpoint's prompt tokens are estimated beforehand, and what it may bill for attempts
            that fail (a time-out, a broken answer) is said by nobody and not counted.
        price: Of a million tokens.
        advance: Called with the number of questions settled since the last call, skipped ones too.

    Raises:
        SentsmithError: 20 requests in a row were lost (see :class:`~sentsmith.llm.backend.Answer`), or the backend
            gave up. All other answers are kept; what was lost is not recorded, so that the next run asks it.
        SettingsError: ``retries`` is negative, or the budget is money and there is no price.
        ValueError: None came without a question since the last one: it would wait for ever.
    """
    if retries < 0:
        raise SettingsError(f"retries {retries}: must be 0 or more")
    run = _Run(iter(questions), backend, ledger, decoding, retries, retry_quarantined, Spending(budget, price), advance)
    return run.outcome()


def again(decoding: Decoding, attempt: int) -> Decoding:
    """Return how tokens are chosen after so many unreadable answers."""
    if attempt == 0:
        return decoding
    if decoding.temperature == 0:
        # The seed of a greedy run is not in the key of a question, so it may not choose the answer either.
        return decoding.model_copy(update={"temperature": 0.7, "top_p": 0.95, "seed": attempt})
    return decoding.model_copy(update={"seed": decoding.seed + attempt})


@dataclass(slots=True)
class _Open:
    """A question that is not settled, with what earlier attempts at it left."""

    key: str
    question: Question
    before: Record = _NOTHING


@dataclass(slots=True)
class _Run:
    questions: Iterator[Question | None]
    backend: Backend
    ledger: Ledger
    decoding: Decoding
    retries: int
    retry_quarantined: bool
    spending: Spending
    advance: Callable[[int], None]

    held: _Open | None = None
    under_way: dict[str, _Open] = field(default_factory=dict)
    # By the number of unreadable answers so far: each number has its own way to choose tokens.
    waiting: dict[int, dict[str, _Open]] = field(default_factory=dict)
    # In a row up to now; recorded once somebody answers again.
    lost: dict[str, tuple[_Open, Entry]] = field(default_factory=dict)
    reopened: set[str] = field(default_factory=set)
    exhausted: bool = False
    # Whether a question was read since the last None.
    read: bool = False
    stopped: bool = False
    asked: int = 0
    skipped: int = 0
    parsed: int = 0
    reasons: Counter[str] = field(default_factory=Counter)

    def outcome(self) -> Outcome:
        began = time.perf_counter()
        while not (self.exhausted or self.stopped):
            self.hand_over(0, self.first_time())
            while self.waiting and not self.stopped:
                attempt = min(self.waiting)
                self.hand_over(attempt, self.next_time(attempt))
                if not self.waiting[attempt]:
                    del self.waiting[attempt]
        self.record(list(self.lost.values()))
        return Outcome(
            asked=self.asked,
            skipped=self.skipped,
            parsed=self.parsed,
            quarantined=self.reasons.total(),
            reasons=self.reasons,
            prompt_tokens=self.spending.prompt_tokens,
            answer_tokens=self.spending.answer_tokens,
            seconds=time.perf_counter() - began,
            money=self.spending.money,
            stopped=self.stopped,
        )

    def hand_over(self, attempt: int, prompts: Iterator[tuple[str, Prompt]]) -> None:
        decoding = again(self.decoding, attempt)
        answers = self.backend.answers(prompts, decoding)
        try:
            for batch in answers:
                self.take(batch, decoding)
        finally:
            # A backend that is a generator has connections to close: now, not when the error is forgotten.
            close = getattr(answers, "close", None)
            if close is not None:
                close()
        if self.under_way:
            raise SentsmithError(f"{self.backend.name} left {len(self.under_way)} prompts without an answer")

    def first_time(self) -> Iterator[tuple[str, Prompt]]:
        """Yield what has no answer yet; ends early where answers must come first, or too many wait for another try."""
        while sum(map(len, self.waiting.values())) < _WAITING:
            if self.held is None:
                question = self.pull()
                if question is None:
                    return
                self.held = self.sorted_out(question)
            if self.held is not None:
                item = self.held
                if not self.affordable(item):
                    return
                self.held = None
                self.asked += 1
                self.under_way[item.key] = item
                yield item.key, item.question.prompt

    def pull(self) -> Question | None:
        """Return the next question; None at the end, or where the next one depends on answers that are to come."""
        for question in self.questions:
            if question is not None:
                self.read = True
                return question
            if not self.read:
                raise ValueError("questions: None twice, and no question in between: what should be answered before?")
            self.read = False
            if self.under_way or self.waiting:
                return None
        self.exhausted = True
        return None

    def next_time(self, attempt: int) -> Iterator[tuple[str, Prompt]]:
        """Yield what had so many unreadable answers; ends early where the budget must settle."""
        items = self.waiting[attempt]
        while items:
            item = next(iter(items.values()))
            if not self.affordable(item):
                return
            self.under_way[item.key] = items.pop(item.key)
            yield item.key, item.question.prompt

    def affordable(self, item: _Open) -> bool:
        if not self.spending.bounded:
            return True
        prompt = item.question.prompt
        texts = [prompt.text] if prompt.against is None else [prompt.text, prompt.against]
        most = sum(self.backend.count_tokens(texts))
        if self.spending.reserve(item.key, most, self.decoding.max_new_tokens):
            return True
        # While others are under way, they may turn out to cost less than was reserved.
        self.stopped = not self.spending.under_way
        return False

    def sorted_out(self, question: Question) -> _Open | None:
        """Return a question that is to be asked for the first time; None if it is settled, or waits now."""
        key = key_of(question, self.backend.name, self.decoding)
        record = None if self.known(key) else self.ledger.get(key)
        if record is None and not self.known(key):
            return _Open(key, question)
        if record is None or not self.reopens(key, record):
            self.skipped += 1
            self.advance(1)
            return None
        item = _Open(key, question, record)
        if record.attempts == 0:
            return item
        self.asked += 1
        if record.state == "retry" and record.attempts > self.retries:
            # An earlier run would have asked again, this one does not.
            given_up = replace(record, state="quarantined")
            self.record([(item, self.entry(item, given_up, again(self.decoding, record.attempts - 1)))])
        else:
            self.waiting.setdefault(record.attempts, {})[key] = item
        return None

    def known(self, key: str) -> bool:
        return key in self.under_way or key in self.lost or any(key in items for items in self.waiting.values())

    def reopens(self, key: str, record: Record) -> bool:
        if record.state == "quarantined" and self.retry_quarantined and key not in self.reopened:
            # The same question may come again after it was given up again.
            self.reopened.add(key)
            return True
        return record.state == "retry"

    def take(self, batch: list[tuple[str, Answer]], decoding: Decoding) -> None:
        results = []
        for key, answer in batch:
            item = self.under_way.pop(key)
            price = self.spending.settle(key, answer.prompt_tokens, answer.answer_tokens)
            result = item, self.entry(item, _after(item, answer, price, self.retries), decoding)
            if answer.failure is not None and answer.lost:
                self.lost[key] = result
                continue
            # Somebody is there: those before were lost one by one.
            results += [*self.lost.values(), result]
            self.lost.clear()
        self.record(results)
        if len(self.lost) >= _LOST_IN_A_ROW:
            *_, (_, last) = self.lost.values()
            raise SentsmithError(
                f"{self.backend.name}: {len(self.lost)} requests in a row got no answer (the last: "
                f"{last.record.reason}); everything before them is kept in {self.ledger.path}, and they are asked "
                "again when you run the same command again"
            )

    def entry(self, item: _Open, record: Record, decoding: Decoding) -> Entry:
        question = item.question
        return Entry(
            key=item.key,
            task=question.task,
            given=question.given,
            prompt=question.prompt.text,
            against=question.prompt.against,
            model=self.backend.name,
            parameters=decoding.model_dump(mode="json"),
            record=record,
        )

    def record(self, results: list[tuple[_Open, Entry]]) -> None:
        self.ledger.write(entry for _, entry in results)
        settled = 0
        for item, entry in results:
            record = entry.record
            if record.state == "retry":
                self.waiting.setdefault(record.attempts, {})[item.key] = replace(item, before=record)
                continue
            settled += 1
            if record.state == "parsed":
                self.parsed += 1
            else:
                self.reasons[kind_of(record.reason or "")] += 1
        if settled:
            self.advance(settled)


def _after(item: _Open, answer: Answer, price: float | None, retries: int) -> Record:
    """Return what is known of a question after one more answer, or after the failure to get one."""
    before = item.before
    total = replace(
        before,
        prompt_tokens=before.prompt_tokens + answer.prompt_tokens,
        answer_tokens=before.answer_tokens + answer.answer_tokens,
        seconds=before.seconds + answer.seconds,
        price=before.price if price is None else (before.price or 0.0) + price,
    )
    if answer.failure is not None:
        return replace(total, state="quarantined", reason=answer.failure)
    total = replace(total, answer=answer.text, attempts=before.attempts + 1)
    try:
        return replace(total, state="parsed", value=_value(item.question, answer), reason=None)
    except Unreadable as error:
        state: State = "retry" if total.attempts <= retries else "quarantined"
        return replace(total, state=state, reason=" ".join(str(error).split()))


def _value(question: Question, answer: Answer) -> str | float:
    if not answer.finished:
        raise Unreadable(f"unfinished: no end within {answer.answer_tokens} tokens")
    value = question.parse(answer.text)
    number = isinstance(value, int | float) and not isinstance(value, bool)
    if not isinstance(value, str) and not (number and math.isfinite(value)):
        raise Unreadable(f"wrong type: {value!r} is neither text nor a finite number")
    return value
