"""Asking: every question ends parsed or quarantined, once, and what was answered is never asked again."""

from __future__ import annotations

import pytest

from sentsmith.errors import SentsmithError, SettingsError
from sentsmith.llm.answering import ask
from sentsmith.llm.backend import Answer, Decoding, Prompt
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.questions import Question, Unreadable, key_of
from sentsmith.llm.spending import Budget, Price

GREEDY = Decoding(max_new_tokens=8)


@pytest.fixture
def ledger(tmp_path):
    with Ledger(tmp_path / "a.sqlite") as ledger:
        yield ledger


def readable(text):
    if text.startswith("?"):
        raise Unreadable("no answer: it begins with a question mark")
    return text


def questions(*texts, task="say", parse=readable):
    return [Question(task, (text,), Prompt(text), parse) for text in texts]


def rows(count, **options):
    return questions(*(f"row {number}" for number in range(count)), **options)


def echo(prompt, decoding):
    return f"{prompt.text} said"


def record(ledger, text, backend, decoding=GREEDY, **options):
    (question,) = questions(text, **options)
    return ledger.get(key_of(question, backend.name, decoding))


def test_each_question_gets_its_value_and_a_second_run_asks_nothing(ledger, scripted):
    backend = scripted(echo)
    settled = []
    outcome = ask(rows(10), backend, ledger, GREEDY, price=Price(1e6, 2e6), advance=settled.append)
    assert (outcome.asked, outcome.parsed, outcome.quarantined, outcome.skipped) == (10, 10, 0, 0)
    assert (outcome.prompt_tokens, outcome.answer_tokens, outcome.money) == (20, 30, 80.0)
    assert not outcome.stopped
    assert sum(settled) == 10
    found = record(ledger, "row 3", backend)
    assert (found.state, found.value, found.answer, found.attempts) == ("parsed", "row 3 said", "row 3 said", 1)
    assert (found.prompt_tokens, found.answer_tokens, found.seconds, found.price) == (2, 3, 0.5, 8.0)
    assert backend.closed == 1

    again = scripted(echo)
    settled.clear()
    outcome = ask(rows(12), again, ledger, GREEDY, advance=settled.append)
    assert (outcome.asked, outcome.parsed, outcome.skipped, outcome.money) == (2, 2, 10, None)
    assert [text for text, _ in again.seen] == ["row 10", "row 11"]
    assert sum(settled) == 12


def test_other_settings_or_another_model_are_other_questions(ledger, scripted):
    ask(rows(3), scripted(echo), ledger, GREEDY)
    assert ask(rows(3), scripted(echo), ledger, Decoding(max_new_tokens=9)).asked == 3
    assert ask(rows(3), scripted(echo, name="other"), ledger, GREEDY).asked == 3
    assert ledger.counts() == {"parsed": 9}


@pytest.mark.parametrize("block", [1, 4, 100])
def test_the_same_question_is_asked_once(ledger, scripted, block):
    backend = scripted(lambda prompt, decoding: "?" if "1" in prompt.text else "yes", block=block)
    outcome = ask(rows(4) * 5, backend, ledger, GREEDY, advance=(settled := []).append)
    assert (outcome.asked, outcome.parsed, outcome.quarantined, outcome.skipped) == (4, 3, 1, 16)
    assert len(backend.seen) == 5
    assert sum(settled) == 20


def test_questions_are_read_as_the_model_gets_to_them(ledger, scripted):
    read = []

    def stream():
        for question in rows(100):
            read.append(question)
            yield question

    backend = scripted(lambda prompt, decoding: str(len(read)), block=5)
    ask(stream(), backend, ledger, GREEDY)
    assert [int(record(ledger, f"row {row}", backend).value) for row in (0, 7, 99)] == [5, 10, 100]


def test_an_unreadable_answer_is_drawn_once_more_after_the_others(ledger, scripted):
    backend = scripted(lambda prompt, decoding: "?" if decoding.temperature == 0 and "1" in prompt.text else "yes")
    outcome = ask(rows(3), backend, ledger, GREEDY)
    assert (outcome.asked, outcome.parsed, outcome.quarantined) == (3, 3, 0)
    assert [text for text, _ in backend.seen] == ["row 0", "row 1", "row 2", "row 1"]
    drawn = backend.seen[-1][1]
    assert (drawn.temperature, drawn.top_p, drawn.seed, drawn.max_new_tokens) == (0.7, 0.95, 1, 8)
    found = record(ledger, "row 1", backend)
    # Both answers were paid for.
    assert (found.value, found.reason, found.attempts, found.answer_tokens, found.seconds) == ("yes", None, 2, 2, 1.0)
    (row,) = [row for row in ledger.rows() if row["prompt"] == "row 1"]
    assert '"temperature": 0.7' in row["parameters"]


def test_the_seed_of_a_greedy_run_changes_no_answer(ledger, scripted):
    def reply(prompt, decoding):
        return "?" if decoding.temperature == 0 else str(decoding.seed)

    backend = scripted(reply)
    ask(rows(1), backend, ledger, GREEDY.model_copy(update={"seed": 5}))
    assert record(ledger, "row 0", backend).value == "1"
    assert ask(rows(1), scripted(reply), ledger, GREEDY).skipped == 1


def test_sampling_keeps_its_temperature_and_changes_its_seed(ledger, scripted):
    backend = scripted(lambda prompt, decoding: "?")
    ask(rows(1), backend, ledger, Decoding(temperature=0.3, top_p=0.5, seed=5), retries=2)
    assert [(decoding.temperature, decoding.top_p, decoding.seed) for _, decoding in backend.seen] == [
        (0.3, 0.5, 5),
        (0.3, 0.5, 6),
        (0.3, 0.5, 7),
    ]


@pytest.mark.parametrize("retries", [0, 1, 3])
def test_what_stays_unreadable_is_quarantined_with_its_reason(ledger, scripted, retries):
    backend = scripted(lambda prompt, decoding: "?" if "1" in prompt.text else "yes")
    outcome = ask(rows(3), backend, ledger, GREEDY, retries=retries)
    assert (outcome.asked, outcome.parsed, outcome.quarantined) == (3, 2, 1)
    assert outcome.reasons == {"no answer": 1}
    found = record(ledger, "row 1", backend)
    assert (found.state, found.value, found.answer) == ("quarantined", None, "?")
    assert (found.reason, found.attempts) == ("no answer: it begins with a question mark", 1 + retries)
    assert len(backend.seen) == 3 + retries
    assert ask(rows(3), backend, ledger, GREEDY, retries=retries).skipped == 3


@pytest.mark.parametrize(
    ("answer", "parse", "reason"),
    [
        (Answer("cut o", finished=False, prompt_tokens=1, answer_tokens=8, seconds=0.1), str, "unfinished"),
        ("nan", float, "wrong type"),
        ("x", lambda text: None, "wrong type"),
        ("x", lambda text: True, "wrong type"),
    ],
)
def test_what_is_no_value_is_unreadable(ledger, scripted, answer, parse, reason):
    outcome = ask(rows(1, parse=parse), scripted(lambda prompt, decoding: answer), ledger, GREEDY)
    assert outcome.reasons == {reason: 1}


def failed(lost, reason="answered 503: busy"):
    return Answer("", finished=False, prompt_tokens=0, answer_tokens=0, seconds=0.0, failure=reason, lost=lost)


def test_a_failure_is_quarantined_without_a_second_attempt(ledger, scripted):
    backend = scripted(lambda prompt, decoding: failed(lost="2" in prompt.text) if prompt.text != "row 0" else "yes")
    outcome = ask(rows(3), backend, ledger, GREEDY)
    assert (outcome.asked, outcome.parsed, outcome.quarantined) == (3, 1, 2)
    assert outcome.reasons == {"answered 503": 2}
    assert len(backend.seen) == 3
    found = record(ledger, "row 1", backend)
    assert (found.state, found.reason, found.attempts) == ("quarantined", "answered 503: busy", 0)


def test_a_failure_of_the_second_attempt_is_quarantined_too(ledger, scripted):
    backend = scripted(lambda prompt, decoding: failed(lost=True) if decoding.temperature else "?")
    assert ask(rows(1), backend, ledger, GREEDY).reasons == {"answered 503": 1}
    found = record(ledger, "row 0", backend)
    assert (found.answer, found.attempts, found.reason) == ("?", 1, "answered 503: busy")


@pytest.mark.parametrize("block", [1, 7, 100])
def test_twenty_lost_in_a_row_stop_the_run_and_are_asked_again(ledger, scripted, block):
    backend = scripted(lambda prompt, decoding: "yes" if int(prompt.text[4:]) < 10 else failed(lost=True), block=block)
    with pytest.raises(SentsmithError, match=r"requests in a row got no answer .*503.*kept in .*run the same") as error:
        ask(rows(100), backend, ledger, GREEDY)
    assert "\n" not in str(error.value)
    assert backend.closed == 1
    assert backend.pulled <= 30 + block
    assert ledger.counts() == {"parsed": 10}
    outcome = ask(rows(100), scripted(echo), ledger, GREEDY)
    assert (outcome.asked, outcome.skipped) == (90, 10)


def test_lost_ones_between_answers_do_not_stop_the_run(ledger, scripted):
    # Three times nineteen in a row; forty prompts that the model cannot take.
    def reply(prompt, decoding):
        number = int(prompt.text[4:])
        if number >= 60:
            return failed(lost=False, reason="too long: 900 tokens")
        return "yes" if number % 20 == 19 else failed(lost=True)

    outcome = ask(rows(100), scripted(reply, block=1), ledger, GREEDY)
    assert (outcome.parsed, outcome.reasons) == (3, {"answered 503": 57, "too long": 40})


def test_the_quarantined_are_asked_again_on_request(ledger, scripted):
    def reply(prompt, decoding):
        if prompt.text == "row 0":
            return "yes"
        return "?" if prompt.text == "row 1" else failed(lost=True)

    ask(rows(3), scripted(reply), ledger, GREEDY)
    again = scripted(lambda prompt, decoding: "?" if prompt.text == "row 1" else "yes")
    outcome = ask(rows(3) * 2, again, ledger, GREEDY, retry_quarantined=True)
    assert (outcome.asked, outcome.parsed, outcome.quarantined, outcome.skipped) == (2, 1, 1, 4)
    # What was unreadable twice is drawn with a seed of its own; what never was answered is asked as at first.
    assert [(text, decoding.temperature, decoding.seed) for text, decoding in again.seen] == [
        ("row 2", 0.0, 0),
        ("row 1", 0.7, 2),
    ]
    assert record(ledger, "row 1", again).attempts == 3
    assert record(ledger, "row 2", again).state == "parsed"


def test_an_unreadable_answer_of_a_killed_run_is_not_asked_as_at_first(ledger, scripted):
    class KilledError(Exception):
        pass

    def reply(prompt, decoding):
        if decoding.temperature:
            raise KilledError
        return "?"

    backend = scripted(reply)
    with pytest.raises(KilledError):
        ask(rows(2), backend, ledger, GREEDY)
    assert backend.closed == 2
    assert ledger.counts() == {"retry": 2}
    backend = scripted(echo)
    outcome = ask(rows(3), backend, ledger, GREEDY)
    assert (outcome.asked, outcome.parsed, outcome.skipped) == (3, 3, 0)
    assert sorted((text, decoding.temperature) for text, decoding in backend.seen) == [
        ("row 0", 0.7),
        ("row 1", 0.7),
        ("row 2", 0.0),
    ]


def test_without_retries_what_a_killed_run_left_to_retry_is_given_up(ledger, scripted):
    def stop(prompt, decoding):
        if decoding.temperature:
            raise KeyboardInterrupt
        return "?"

    with pytest.raises(KeyboardInterrupt):
        ask(rows(2), scripted(stop), ledger, GREEDY)
    outcome = ask(rows(2), scripted(echo), ledger, GREEDY, retries=0)
    assert (outcome.asked, outcome.quarantined, ledger.counts()) == (2, 2, {"quarantined": 2})


def test_many_unreadable_answers_are_asked_again_in_between(ledger, scripted, monkeypatch):
    monkeypatch.setattr("sentsmith.llm.answering._WAITING", 10)
    backend = scripted(lambda prompt, decoding: "?" if decoding.temperature == 0 else "yes")
    outcome = ask(rows(50), backend, ledger, GREEDY)
    assert (outcome.asked, outcome.parsed) == (50, 50)
    first = [decoding.temperature for _, decoding in backend.seen].index(0.7)
    assert first <= 14


def test_the_budget_is_never_passed_and_used_up(ledger, scripted):
    # A request reads 2 tokens and may write 8; it does write 3.
    for tokens, asked in ((4, 0), (9, 0), (10, 1), (14, 1), (15, 2), (1000, 100)):
        with Ledger(ledger.path.with_name(f"{tokens}")) as fresh:
            outcome = ask(rows(100), scripted(echo), fresh, GREEDY, budget=Budget(tokens=tokens))
            assert (outcome.asked, outcome.parsed, outcome.stopped) == (asked, asked, asked < 100), tokens
            assert outcome.prompt_tokens + outcome.answer_tokens <= tokens


@pytest.mark.parametrize("block", [1, 16, 64])
def test_a_budget_leaves_less_than_one_request_whatever_the_backend_reads_ahead(ledger, scripted, block):
    backend = scripted(lambda prompt, decoding: "?" if "7" in prompt.text else echo(prompt, decoding), block=block)
    outcome = ask(rows(100), backend, ledger, GREEDY, budget=Budget(tokens=200))
    assert outcome.stopped
    assert 190 < outcome.prompt_tokens + outcome.answer_tokens <= 200
    # What is in the ledger is what was paid for; another run finishes the rest.
    assert sum(row["prompt_tokens"] + row["answer_tokens"] for row in ledger.rows()) <= 200
    rest = ask(rows(100), scripted(echo), ledger, GREEDY)
    assert not rest.stopped
    assert ledger.counts().get("retry") is None
    assert sum(ledger.counts().values()) == 100


def test_a_budget_in_money(ledger, scripted):
    price = Price(prompt=1_000_000, answer=10_000_000)  # 2·1 + 3·10 = 32 a request, at most 2 + 80
    outcome = ask(rows(100), scripted(echo), ledger, GREEDY, budget=Budget(money=178.0), price=price)
    assert (outcome.asked, outcome.stopped, outcome.money) == (4, True, 128.0)
    assert ask(rows(4), scripted(echo), ledger, GREEDY, budget=Budget(money=1e-9), price=price).stopped is False
    with pytest.raises(SettingsError, match="needs the price"):
        ask(rows(1), scripted(echo), ledger, GREEDY, budget=Budget(money=1.0))


def test_negative_retries_are_refused(ledger, scripted):
    with pytest.raises(SettingsError, match="retries -1"):
        ask(rows(1), scripted(echo), ledger, GREEDY, retries=-1)


def test_a_backend_that_keeps_an_answer_to_itself_is_found_out(ledger, scripted):
    class Forgetful(scripted):
        def answers(self, prompts, decoding):
            for batch in super().answers(prompts, decoding):
                yield batch[1:]

    with pytest.raises(SentsmithError, match="left 3 prompts without an answer"):
        ask(rows(10), Forgetful(echo), ledger, GREEDY)
    assert ledger.counts() == {"parsed": 7}


def chains(ledger, backend, count, length, decoding=GREEDY):
    """Yield the questions of chains in rounds: each says again what the one before it was answered."""
    texts = [f"chain {number}" for number in range(count)]
    for _ in range(length):
        asked = [*questions(*texts)]
        yield from asked
        yield None
        found = [ledger.get(key_of(question, backend.name, decoding)) for question in asked]
        texts = [record.value for record in found if record is not None and record.state == "parsed"]
        assert not any(record is not None and record.state == "retry" for record in found)


def longer(prompt, decoding):
    return f"{prompt.text} on"


@pytest.mark.parametrize("block", [1, 2, 4, 100])
def test_questions_can_wait_for_the_answers_of_earlier_ones(ledger, scripted, block):
    backend = scripted(longer, block=block)
    outcome = ask(chains(ledger, backend, 4, 3), backend, ledger, GREEDY)
    assert (outcome.asked, outcome.parsed, outcome.skipped, outcome.stopped) == (12, 12, 0, False)
    assert [text for text, _ in backend.seen] == [
        f"chain {number}{' on' * step}" for step in range(3) for number in range(4)
    ]
    # What is known is gone through again, and nobody is asked; what is new goes on from there.
    again = scripted(longer, block=block)
    outcome = ask(chains(ledger, again, 4, 4), again, ledger, GREEDY)
    assert (outcome.asked, outcome.skipped) == (4, 12)
    assert [text for text, _ in again.seen] == [f"chain {number} on on on" for number in range(4)]


def test_an_unreadable_answer_is_asked_again_before_the_questions_go_on(ledger, scripted):
    backend = scripted(lambda prompt, decoding: "?" if decoding.temperature == 0 else longer(prompt, decoding))
    outcome = ask(chains(ledger, backend, 3, 2), backend, ledger, GREEDY)
    assert (outcome.asked, outcome.parsed) == (6, 6)
    assert [decoding.temperature for _, decoding in backend.seen] == [0.0] * 3 + [0.7] * 3 + [0.0] * 3 + [0.7] * 3


def test_a_budget_stops_questions_that_wait_and_a_later_run_goes_on(ledger, scripted):
    # A question reads 2, 3, 4 … tokens, may write 8, and writes one more than it read.
    backend = scripted(longer, block=3)
    outcome = ask(chains(ledger, backend, 4, 3), backend, ledger, GREEDY, budget=Budget(tokens=40))
    assert outcome.stopped
    assert 4 < outcome.asked < 12
    assert outcome.prompt_tokens + outcome.answer_tokens <= 40
    rest = ask(chains(ledger, backend, 4, 3), backend, ledger, GREEDY)
    assert (rest.asked, rest.skipped, rest.stopped) == (12 - outcome.asked, outcome.asked, False)


def test_waiting_for_nothing_is_found_out(ledger, scripted):
    for stream in ([None], [*rows(2), None, None], [None, *rows(1)]):
        with pytest.raises(ValueError, match="None twice"):
            ask(iter(stream), scripted(echo), ledger, GREEDY)
    # At the end, or between, it only says that nothing more is ready.
    assert ask([*rows(1), None, *rows(3), None], scripted(echo), ledger, GREEDY).skipped == 3


def test_what_was_lost_holds_up_no_one(ledger, scripted):
    backend = scripted(lambda prompt, decoding: failed(lost=True) if "1" in prompt.text else longer(prompt, decoding))
    outcome = ask(chains(ledger, backend, 3, 2), backend, ledger, GREEDY)
    assert (outcome.asked, outcome.parsed, outcome.reasons) == (5, 4, {"answered 503": 1})
