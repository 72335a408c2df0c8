"""What a run would take: read off the ledger, tried on a local model, bounded for an endpoint."""

from __future__ import annotations

import pytest

from sentsmith.llm.answering import ask
from sentsmith.llm.backend import Decoding, Prompt
from sentsmith.llm.estimating import estimate
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.questions import Question, Unreadable
from sentsmith.llm.spending import Price

GREEDY = Decoding(max_new_tokens=8)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "a.sqlite") as ledger:
        yield ledger


def readable(text):
    if text.startswith("?"):
        raise Unreadable("no answer")
    return text


def questions(*texts, task="say", parse=readable):
    return [Question(task, (text,), Prompt(text), parse) for text in texts]


def rows(count, **options):
    return questions(*(f"row {number}" for number in range(count)), **options)


def echo(prompt, decoding):
    return f"{prompt.text} said"


def test_a_local_model_is_tried_before_it_is_estimated_and_the_ledger_keeps_it(ledger, scripted):
    ask(rows(10), scripted(echo), ledger, GREEDY)
    backend = scripted(lambda prompt, decoding: "one two" if "row" in prompt.text else "one two three four five")
    asked = [*rows(100), *questions(*(f"a longer line {number}" for number in range(200)), task="other"), *rows(20)]
    found = estimate(asked, backend, ledger, GREEDY, price=Price(1e6, 2e6))
    # "say" has a history (3 tokens an answer), "other" has none.
    assert [text for text, _ in backend.seen][:2] == ["a longer line 0", "a longer line 12"]
    assert len(backend.seen) == 16
    assert (found.requests, found.known, found.bound) == (90 + 184, 10 + 20 + 16, False)
    assert (found.prompt_tokens, found.answer_tokens) == (90 * 2 + 184 * 4, 90 * 3 + 184 * 5)
    assert found.seconds == pytest.approx(274 * 0.5)
    assert found.money == pytest.approx(found.prompt_tokens + 2 * found.answer_tokens)
    outcome = ask(asked, scripted(echo), ledger, GREEDY)
    assert (outcome.asked, outcome.skipped) == (found.requests, found.known)
    assert estimate(asked, backend, ledger, GREEDY).requests == 0


def test_plain_answers_say_nothing_of_guided_ones(ledger, scripted):
    backend = scripted(lambda prompt, decoding: "a b c d e f" if prompt.against else "a")
    ask(rows(20), backend, ledger, GREEDY)
    guided = [Question("say", (), Prompt(f"row {row}", against="not this"), readable) for row in range(50)]
    backend.seen.clear()
    found = estimate([*guided, *rows(30)], backend, ledger, GREEDY)
    assert (found.requests, found.prompt_tokens, found.answer_tokens) == (34 + 10, 34 * 4 + 10 * 2, 34 * 6 + 10)
    assert len(backend.seen) == 16


def test_an_endpoint_is_not_asked_to_estimate(ledger, scripted):
    backend = scripted(echo, guides=False)
    found = estimate(rows(50), backend, ledger, GREEDY, price=Price(1e6, 1e6))
    assert backend.seen == []
    assert (found.requests, found.known, found.prompt_tokens, found.answer_tokens) == (50, 0, 100, 400)
    assert (found.seconds, found.money, found.bound) == (None, 500.0, True)
    ask(rows(5), backend, ledger, GREEDY)
    backend.concurrency = 5
    found = estimate(rows(50), backend, ledger, GREEDY)
    assert (found.requests, found.known, found.answer_tokens, found.bound) == (45, 5, 135, False)
    assert (found.seconds, found.money) == (pytest.approx(45 * 0.5 / 5), None)


def test_of_many_prompts_an_even_sample_is_counted(ledger, scripted, monkeypatch):
    monkeypatch.setattr("sentsmith.llm.estimating._COUNTED", 50)
    backend = scripted(echo, guides=False)
    # Short and long ones alternate; the mean is 6.
    texts = [f"{number}" + " w" * (10 * (number % 3 == 0) + number % 2) for number in range(3000)]
    found = estimate(questions(*texts), backend, ledger, GREEDY)
    exact = sum(len(text.split()) for text in texts)
    assert found.requests == 3000
    assert found.prompt_tokens == pytest.approx(exact, rel=0.15)
    backend.count_tokens = lambda texts: [len(texts)] * len(texts)
    assert estimate(questions(*texts), backend, ledger, GREEDY).prompt_tokens <= 3000 * 100


def test_an_estimate_tries_as_often_as_the_run_will(ledger, scripted):
    backend = scripted(lambda prompt, decoding: "?")
    estimate(rows(3), backend, ledger, GREEDY, retries=0)
    assert (len(backend.seen), ledger.counts()) == (3, {"quarantined": 3})
