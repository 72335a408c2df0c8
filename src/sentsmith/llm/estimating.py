"""What a run would take, before it is started."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from sentsmith.llm.answering import ask
from sentsmith.llm.backend import Backend, Decoding
from sentsmith.llm.ledger import Ledger, Usage
from sentsmith.llm.questions import Question, key_of
from sentsmith.llm.spending import Price

# Prompts whose tokens are counted, at most twice as many; the others are taken to be like them.
_COUNTED = 512
# What a local model is asked to learn how long its answers are and how long they take.
_TRIED = 16
# A task, and whether its prompts steer: the same task is answered otherwise, and slower, where they do.
_Kind = tuple[str, bool]


@dataclass(frozen=True, slots=True)
class Estimate:
    """What is still to be asked, and what it takes.

    Attributes:
        requests: Questions that have no settled answer; retries are not foreseen.
        known: Questions that have one already, or came twice.
        prompt_tokens: To be read.
        answer_tokens: To be written; where ``bound`` is True, the most that can be.
        seconds: Of wall-clock time; None where nothing of this model is known.
        money: The price; None where none was given.
        bound: Nothing is known of how long the answers of a task are, so the limit stands in for it.
        dropped: Lists of which an answer is known that cannot be read: nothing more is asked for them.
    """

    requests: int
    known: int
    prompt_tokens: int
    answer_tokens: int
    seconds: float | None
    money: float | None
    bound: bool
    dropped: int = 0


class _Sample:
    """An even sample of a stream whose length is not known: every 1st, then every 2nd, every 4th … element."""

    def __init__(self, most: int) -> None:
        self.items: list[Question] = []
        self._most, self._stride, self._seen = most, 1, 0

    def add(self, item: Question) -> None:
        if self._seen % self._stride == 0:
            self.items.append(item)
        self._seen += 1
        if len(self.items) > self._most:
            self.items = self.items[::2]
            self._stride *= 2


def estimate(
    questions: Iterable[Question],
    backend: Backend,
    ledger: Ledger,
    decoding: Decoding,
    *,
    price: Price | None = None,
    retries: int = 1,
) -> Estimate:
    """Tell what :func:`~sentsmith.llm.answering.ask` of these questions would take.

    How long answers are, and how long they take, is read off the ledger's answers of this model, task by task, guided
    ones and others apart. Where there are none, a local model is asked 16 questions, spread evenly (the ledger keeps
    them, so the run does not ask them again). An endpoint costs money and is not asked: answers count with their limit,
    and the time stays unknown.

    Args:
        questions: Read once, to the end.
        backend: The model.
        ledger: What is known already.
        decoding: As it will be asked.
        price: Of a million tokens.
        retries: How often an unreadable answer will be asked again.
    """
    open_, known, samples = _survey(questions, backend, ledger, decoding)
    history = ledger.history(backend.name)
    unknown = [kind for kind in open_ if kind not in history]
    if unknown and backend.local:
        tried = [question for kind in unknown for question in _even(samples[kind].items, _TRIED)]
        outcome = ask(tried, backend, ledger, decoding, price=price, retries=retries)
        for question in tried:
            open_[_kind(question)] -= 1
        known += outcome.asked
        history = ledger.history(backend.name)
    return _total(open_, known, samples, history, backend, decoding, price)


def _kind(question: Question) -> _Kind:
    return question.task, question.prompt.against is not None


def _survey(
    questions: Iterable[Question], backend: Backend, ledger: Ledger, decoding: Decoding
) -> tuple[Counter[_Kind], int, dict[_Kind, _Sample]]:
    """Return how many questions of each kind are open, how many are not, and a sample of the open ones of each."""
    open_: Counter[_Kind] = Counter()
    known = 0
    samples: dict[_Kind, _Sample] = {}
    seen: set[bytes] = set()
    for question in questions:
        key = key_of(question, backend.name, decoding)
        # Half of a key tells questions apart, and a million of them fit in memory.
        short = bytes.fromhex(key)[:16]
        record = None if short in seen else ledger.get(key)
        if short in seen or (record is not None and record.state != "retry"):
            known += 1
            continue
        seen.add(short)
        open_[_kind(question)] += 1
        samples.setdefault(_kind(question), _Sample(2 * _COUNTED)).add(question)
    return open_, known, samples


def _total(
    open_: Counter[_Kind],
    known: int,
    samples: dict[_Kind, _Sample],
    history: dict[_Kind, Usage],
    backend: Backend,
    decoding: Decoding,
    price: Price | None,
) -> Estimate:
    read = written = seconds = 0.0
    bound = False
    for kind, count in open_.items():
        read += count * _mean_tokens(samples[kind].items, backend)
        usage = history.get(kind)
        if usage is None:
            bound = bound or count > 0
            written += count * decoding.max_new_tokens
        else:
            written += count * usage.answer_tokens / usage.answers
            seconds += count * usage.seconds / usage.answers
    seconds /= backend.concurrency
    return Estimate(
        requests=open_.total(),
        known=known,
        prompt_tokens=round(read),
        answer_tokens=round(written),
        seconds=None if bound else seconds,
        money=None if price is None else price.of(read, written),
        bound=bound,
    )


def _mean_tokens(questions: list[Question], backend: Backend) -> float:
    texts = [
        text for question in questions for text in (question.prompt.text, question.prompt.against) if text is not None
    ]
    return sum(backend.count_tokens(texts)) / len(questions)


def _even(items: list[Question], count: int) -> list[Question]:
    step = max(1, len(items) / count)
    return [items[int(index * step)] for index in range(min(count, len(items)))]
