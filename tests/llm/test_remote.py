"""Endpoints, over real HTTP: what they answer, what they refuse, and what becomes of it when they fail."""

from __future__ import annotations

import asyncio
import logging
import os
import random
import re
import signal
import ssl
import subprocess
import sys
import textwrap
import threading
import time
import traceback

import pytest
from openai._models import FinalRequestOptions

from sentsmith.errors import InputError, MissingExtraError, SentsmithError, SettingsError
from sentsmith.llm.answering import ask
from sentsmith.llm.backend import Decoding, Prompt
from sentsmith.llm.endpoint import read_completion
from sentsmith.llm.estimating import estimate
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.opening import open_backend
from sentsmith.llm.questions import Question, Unreadable, key_of
from sentsmith.llm.remote import RemoteBackend
from sentsmith.llm.spending import Budget, Price

GREEDY = Decoding(max_new_tokens=8)
KEY = "sk-a-very-secret-key-0123456789"


@pytest.fixture(autouse=True)
def _key(monkeypatch):
    monkeypatch.delenv("OPENAI_API_KEY", raising=False)
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def backend(endpoint, quick_retries):
    def make(**options):
        return RemoteBackend(endpoint.url, "m", **{"timeout": 2.0, "attempts": 3} | options)

    return make


def answered(backend, *texts, decoding=GREEDY):
    prompts = [(text, Prompt(text)) for text in texts]
    return dict(pair for batch in backend.answers(iter(prompts), decoding) for pair in batch)


def completion(text="yes", **choice):
    message = {"role": "assistant", "content": text}
    return {"choices": [{"index": 0, "finish_reason": "stop", "message": message} | choice]}


def test_what_is_sent_and_what_comes_back(endpoint, backend, monkeypatch):
    monkeypatch.setenv("OPENAI_API_KEY", f"{KEY}\n")
    endpoint.reply = lambda request, times: request["messages"][0]["content"].upper()
    found = answered(backend(), "häß\nlich")
    assert found["häß\nlich"].text == "HÄSS\nLICH"
    answer = found["häß\nlich"]
    assert (answer.finished, answer.prompt_tokens, answer.answer_tokens, answer.failure) == (True, 7, 3, None)
    assert 0 < answer.seconds < 2
    (request,) = endpoint.requests
    assert request == {
        "model": "m",
        "messages": [{"role": "user", "content": "häß\nlich"}],
        "temperature": 0.0,
        "max_tokens": 8,
    }
    assert endpoint.headers["authorization"] == f"Bearer {KEY}"


def test_draws_have_their_share_and_seed(endpoint, backend):
    answered(backend(), "a", decoding=Decoding(max_new_tokens=5, temperature=0.7, top_p=0.95, seed=3))
    (request,) = endpoint.requests
    assert {name: request[name] for name in ("temperature", "top_p", "seed", "max_tokens")} == {
        "temperature": 0.7,
        "top_p": 0.95,
        "seed": 3,
        "max_tokens": 5,
    }
    # No key is set: a local server gets a word that is none.
    assert endpoint.headers["authorization"] == "Bearer none"


def test_another_variable_may_hold_the_key(endpoint, backend, monkeypatch):
    monkeypatch.setenv("OTHER", KEY)
    answered(backend(key_env="OTHER"), "a")
    assert endpoint.headers["authorization"] == f"Bearer {KEY}"


@pytest.mark.parametrize("key_env", [None, "OPENAI_API_KEY", "OTHER"])
@pytest.mark.parametrize(
    ("url", "known"),
    [
        ("https://api.openai.com/v1", True),
        ("HTTPS://API.OpenAI.com/v1", True),
        ("http://localhost:8000/v1", True),
        ("http://127.8.9.1/v1", True),
        ("http://[::1]:8000/v1", True),
        ("https://api.openai.com.example.org/v1", False),
        ("https://example.org/api.openai.com/v1", False),
        ("https://localhost.example.org/v1", False),
        ("http://10.0.0.7:8000/v1", False),
    ],
)
def test_a_key_goes_to_its_own_host_or_where_it_is_told_to(monkeypatch, url, known, key_env):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    monkeypatch.setenv("OPENAI_ADMIN_KEY", KEY + "-of-the-admin")
    monkeypatch.setenv("OTHER", "sk-another-secret-key")
    sent = "sk-another-secret-key" if key_env == "OTHER" else KEY if known or key_env else "none"
    client = open_backend(f"{url}#m", key_env=key_env).client()
    request = client._build_request(FinalRequestOptions(method="post", url="/chat/completions", json_data={}))
    assert request.headers["authorization"] == f"Bearer {sent}"


def test_a_key_over_plain_http_is_warned_of_once(endpoint, monkeypatch, caplog):
    """The host is another one by name only: it is this machine under a name that says nothing of it."""
    monkeypatch.setattr("sentsmith.llm.remote._is_here", lambda host: False)
    monkeypatch.setenv("OTHER", KEY)
    warning = f"{endpoint.url} is plain http: whoever is on the way can read the key; use https"
    answered(RemoteBackend(endpoint.url, "m"), "a")
    assert caplog.records == []
    backend = RemoteBackend(endpoint.url, "m", key_env="OTHER")
    for _ in range(2):
        answered(backend, "a")
    assert [record.getMessage() for record in caplog.records] == [warning]


def test_a_host_without_a_key_is_told_how_it_gets_one(endpoint, backend, monkeypatch):
    monkeypatch.setattr("sentsmith.llm.remote._is_here", lambda host: False)
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint.reply = lambda request, times: (401, {}, {})
    with pytest.raises(SentsmithError, match=r"401: no key was sent, for .* is OpenAI's; name the .* with --key-env$"):
        answered(backend(), "a")
    assert endpoint.headers["authorization"] == "Bearer none"


@pytest.mark.parametrize(
    ("text", "tokens"),
    [("", 0), ("eight by", 2), ("eight b ü", 4), ("句子的向量", 5), ("предложение", 8), ("\ud800", 1)],
)
def test_an_estimate_is_no_less_than_other_scripts_take(text, tokens):
    assert RemoteBackend("http://localhost/v1", "m").count_tokens([text]) == [tokens]


def test_told_to_wait_too_long_it_gives_up_at_once(endpoint, backend):
    endpoint.reply = lambda request, times: (429, {"Retry-After": "121"}, {})
    assert answered(backend(), "a")["a"].lost
    assert endpoint.sent == {"a": 1}


def test_what_was_answered_beside_a_refusal_is_kept(endpoint, backend):
    """One is refused while the caller is busy with the answer before; the rest come in meanwhile."""
    busy, refused = threading.Event(), threading.Event()

    def reply(request, times):
        text = request["messages"][0]["content"]
        if text == "row 1":
            busy.wait(5)
            refused.set()
            return 402, {}, {}
        assert text == "row 0" or refused.wait(5)
        return "yes"

    endpoint.reply = reply
    found = []

    def consume(stream):
        for batch in stream:
            found.extend(key for key, _ in batch)
            busy.set()
            deadline = time.monotonic() + 5
            while (endpoint.under_way or len(endpoint.seen) < 6) and time.monotonic() < deadline:
                time.sleep(0.01)
            time.sleep(0.2)

    prompts = ((f"row {row}", Prompt(f"row {row}")) for row in range(6))
    with pytest.raises(SentsmithError, match="may not spend more"):
        consume(backend(concurrency=6).answers(prompts, GREEDY))
    assert sorted(found) == ["row 0", "row 2", "row 3", "row 4", "row 5"]


def test_what_has_to_be_asked_differently_is(endpoint, backend, caplog):
    def reply(request, times):
        if "max_tokens" in request:
            error = {"message": "Unsupported parameter: use 'max_completion_tokens'", "param": "max_tokens"}
            return 400, {}, {"error": error}
        if "seed" in request:
            return 422, {}, {"detail": [{"loc": ["body", "seed"], "msg": "extra field"}]}
        return "yes"

    endpoint.reply = reply
    texts = [f"row {row}" for row in range(20)]
    found = answered(backend(), *texts, decoding=Decoding(max_new_tokens=5, temperature=0.7))
    assert [found[text].text for text in texts] == ["yes"] * 20
    assert endpoint.requests[-1]["max_completion_tokens"] == 5
    assert [record.message for record in caplog.records if record.levelno == logging.WARNING] == [
        f"{endpoint.url}#m takes no seed: what it draws cannot be repeated"
    ]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (completion("a \ud83d\ude00 \ud800 b"), "a 😀 � b"),
        (completion([{"type": "text", "text": "a"}, {"type": "image"}, {"type": "text", "text": "b"}]), "ab"),
        (completion(None), ""),
        (completion() | {"usage": {"prompt_tokens": "7", "completion_tokens": True}}, "yes"),
        (completion() | {"usage": [1]}, "yes"),
    ],
)
def test_unusual_completions_are_read(endpoint, backend, body, expected):
    endpoint.reply = lambda request, times: body
    found = answered(backend(), "eight letters")["eight letters"]
    assert (found.text, found.failure) == (expected, None)
    # Without usable counts they are estimated: four bytes a token.
    assert found.prompt_tokens == 4
    assert endpoint.sent["eight letters"] == 1


def test_an_answer_cut_short_is_not_finished(endpoint, backend):
    endpoint.reply = lambda request, times: completion("and then", finish_reason="length")
    assert answered(backend(), "a")["a"].finished is False


WRONG = [
    "a string",
    [],
    None,
    17,
    {},
    {"choices": None},
    {"choices": []},
    {"choices": {}},
    {"choices": ["yes"]},
    {"choices": [{"message": "yes"}]},
    {"choices": [{"text": "yes"}]},
    completion(4.5),
    completion(True),
    completion({"text": "yes"}),
    completion(["yes"]),
    completion([{"type": "text", "text": None}]),
]


@pytest.mark.parametrize("body", WRONG, ids=lambda body: str(body)[:40])
def test_a_body_of_another_shape_is_no_completion(body):
    with pytest.raises(ValueError, match=r"is of type|is empty"):
        read_completion(body)


@pytest.mark.parametrize(
    ("fault", "reason"),
    [
        (("fault", "drop"), "connection failed: "),
        (("fault", "half"), "malformed answer: the body is not JSON"),
        ((200, {"Content-Type": "text/html"}, ("fault", "half")), "malformed answer: the body is not JSON"),
        ((200, {"Content-Length": 5000}, ("fault", "half")), "timed out: |connection failed: "),
        ((200, {}, {"choices": []}), "malformed answer: choices is empty"),
        ((200, {}, completion(5)), "malformed answer: content is of type int, not str"),
        ((500, {}, {"error": {"message": "out of memory"}}), "answered 500: .*out of memory"),
        ((503, {"Content-Type": "text/html"}, {}), "answered 503: "),
        ((408, {}, {}), "answered 408: "),
        ((429, {"Retry-After": "0.01"}, {}), "answered 429: "),
        (("fault", "hang"), "timed out: no answer within 0.3 s"),
        ((200, {}, ("fault", "drip")), "timed out: no answer within 0.3 s"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_a_fault_is_tried_again_and_then_named(endpoint, backend, fault, reason):
    endpoint.reply = lambda request, times: fault if "bad" in request["messages"][0]["content"] or times < 1 else "yes"
    found = answered(backend(timeout=0.3), "good", "bad")
    assert found["good"].text == "yes"
    assert endpoint.sent == {"good": 2, "bad": 3}
    assert re.match(reason, found["bad"].failure)
    assert (found["bad"].lost, found["bad"].text, "\n" in found["bad"].failure) == (True, "", False)


def test_the_wait_grows_and_retry_after_is_honoured(endpoint, monkeypatch):
    import anyio

    waits = []

    async def sleep(seconds):
        waits.append(seconds)

    monkeypatch.setattr("openai._base_client.anyio.sleep", sleep)
    assert anyio.sleep is sleep
    endpoint.reply = lambda request, times: "yes" if times == 5 else (503, {}, {})
    assert answered(RemoteBackend(endpoint.url, "m"), "a")["a"].text == "yes"
    assert all(0.75 * most <= wait <= most for wait, most in zip(waits, (0.5, 1, 2, 4, 8), strict=True))
    assert len(set(waits) & {0.5, 1, 2, 4, 8}) < 5
    waits.clear()
    endpoint.reply = lambda request, times: "yes" if times == 1 else (429, {"Retry-After": "17"}, {})
    assert answered(RemoteBackend(endpoint.url, "m"), "b")["b"].text == "yes"
    assert waits == [17]


@pytest.mark.parametrize(
    ("status", "body", "message"),
    [
        (401, {"error": {"message": f"Incorrect API key provided: {KEY}"}}, "401: OPENAI_API_KEY holds no key that it"),
        (403, {}, "403: OPENAI_API_KEY holds no key"),
        (404, {"error": {"message": "no model m"}}, r"404 .*no model m.*check the model's name"),
        (402, {}, "402 .*may not spend more"),
        (400, {"error": {"message": "temperature\nmust be 1"}}, "400: .*temperature must be 1.*a harmless prompt"),
    ],
)
def test_what_every_prompt_would_meet_stops_at_once(endpoint, backend, monkeypatch, status, body, message):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    endpoint.reply = lambda request, times: (status, {}, body)
    with pytest.raises(SentsmithError, match=message) as error:
        answered(backend(concurrency=2), *(f"row {row}" for row in range(50)))
    assert "\n" not in str(error.value)
    assert len(endpoint.seen) <= 5
    assert KEY not in "".join(traceback.format_exception(error.value))


def test_an_empty_account_stops_at_once(endpoint, backend):
    body = {"error": {"message": "You exceeded your current quota", "code": "insufficient_quota"}}
    endpoint.reply = lambda request, times: (429, {}, body)
    with pytest.raises(SentsmithError, match="may not spend more"):
        answered(backend(attempts=1), "a")


def test_no_key_is_told_from_a_wrong_one(endpoint, backend):
    endpoint.reply = lambda request, times: (401, {}, {})
    with pytest.raises(SentsmithError, match="OPENAI_API_KEY is not set; set it, or name another variable"):
        answered(backend(), "a")


@pytest.mark.parametrize("order", [["bad", "good"], ["good", "bad"], ["bad"]])
def test_one_refused_prompt_stops_nothing(endpoint, backend, order):
    def reply(request, times):
        bad = request["messages"][0]["content"] == "bad"
        return (400, {}, {"error": {"message": "8192 tokens at most"}}) if bad else "yes"

    endpoint.reply = reply
    found = answered(backend(concurrency=1), *order)
    assert found["bad"].failure == "answered 400: Error code: 400 - 8192 tokens at most"
    assert found["bad"].lost is False
    assert all(found[text].text == "yes" for text in order if text != "bad")


def test_nobody_listening_is_said_at_once_and_later_is_a_failure(endpoint, backend):
    with pytest.raises(SentsmithError, match=r"nobody answers there .*after 3 attempts; check the URL"):
        answered(RemoteBackend("http://127.0.0.1:9/v1", "m", attempts=3), "a")
    client = backend(concurrency=1)
    assert answered(client, "a")["a"].text == "yes"
    endpoint.close()
    assert answered(client, "b")["b"].lost


def test_so_many_under_way_and_never_more_read(endpoint, backend):
    read = []

    def prompts():
        for row in range(60):
            read.append(row)
            yield str(row), Prompt(f"row {row}")

    def reply(request, times):
        time.sleep(0.01)
        return "yes"

    endpoint.reply = reply
    count = 0
    for batch in backend(concurrency=4).answers(prompts(), GREEDY):
        count += len(batch)
        assert len(read) <= count + 4
    assert count == 60
    assert 2 <= endpoint.most <= 4


def test_a_straggler_holds_up_nobody(endpoint, backend):
    gate = threading.Event()

    def reply(request, times):
        if request["messages"][0]["content"] == "row 0":
            gate.wait(5)
        return "yes"

    endpoint.reply = reply
    order = []
    prompts = ((f"row {row}", Prompt(f"row {row}")) for row in range(40))
    for batch in backend(concurrency=3, timeout=10).answers(prompts, GREEDY):
        order += [key for key, _ in batch]
        if len(order) == 39:
            assert "row 0" not in order
            gate.set()
    assert order[-1] == "row 0"


def test_stopping_early_leaves_nothing_running(endpoint, backend):
    endpoint.hang = 1.0
    endpoint.reply = lambda request, times: ("fault", "hang") if times == 0 and "0" in str(request) else "yes"
    stream = backend(timeout=30, concurrency=8).answers(((str(row), Prompt(f"row {row}")) for row in range(80)), GREEDY)
    next(stream)
    began = time.perf_counter()
    stream.close()
    assert time.perf_counter() - began < 0.9
    assert not [thread for thread in threading.enumerate() if thread.name == "sentsmith-endpoint"]


def test_each_round_has_a_client_and_all_have_the_same_certificates(backend, monkeypatch):
    import httpx2

    from sentsmith.llm import endpoint

    endpoint._trusted.cache_clear()
    read, made = [], httpx2.create_ssl_context
    monkeypatch.setattr(httpx2, "create_ssl_context", lambda *given: read.append(made(*given)) or read[-1])
    model = backend()
    assert [answered(model, text)[text].text for text in "abc"] == ["yes"] * 3
    assert answered(backend(), "d")["d"].text == "yes"
    assert len(read) == 1
    assert made().verify_mode == read[0].verify_mode == ssl.CERT_REQUIRED
    assert read[0].check_hostname
    client = model.client()
    assert client._client._transport._pool._ssl_context is read[0]


def test_it_works_inside_a_running_event_loop(backend):
    async def notebook():
        return answered(backend(), "a")

    assert asyncio.run(notebook())["a"].text == "yes"


def test_an_error_of_the_caller_is_the_callers(endpoint, backend):
    def prompts():
        yield "a", Prompt("a")
        raise InputError("row 2 is broken")

    with pytest.raises(InputError, match="row 2 is broken"):
        list(backend(concurrency=1).answers(prompts(), GREEDY))
    assert not [thread for thread in threading.enumerate() if thread.name == "sentsmith-endpoint"]


def test_guidance_is_refused_with_what_still_works(endpoint, backend):
    with pytest.raises(SettingsError, match=r"no logits.*--omega 0.*curating and training work") as error:
        list(backend().answers([("a", Prompt("a", against="b"))], Decoding(second_weight=-0.3)))
    assert "\n" not in str(error.value)
    with pytest.raises(SettingsError, match="no plausibility floor"):
        list(backend().answers([("a", Prompt("a"))], Decoding(floor=0.1)))
    assert endpoint.seen == []
    assert RemoteBackend.guides is False


def test_the_name_holds_no_secret(endpoint, monkeypatch):
    backend = RemoteBackend("https://host/v1?api-version=2&key=hunter2#frag", "m")
    assert backend.name == "https://host/v1#m"
    backend = RemoteBackend(f"{endpoint.url}?key=hunter2", "m")
    assert answered(backend, "a")["a"].text == "yes"
    with pytest.raises(SettingsError, match="a user or password") as error:
        RemoteBackend("https://me:hunter2@host/v1", "m")
    assert "hunter2" not in str(error.value)
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ключ")
    with pytest.raises(SettingsError, match="OPENAI_API_KEY holds characters that no key has") as error:
        RemoteBackend("https://localhost/v1", "m")
    assert "sk-" not in str(error.value)


@pytest.mark.parametrize("options", [{"concurrency": 0}, {"attempts": 0}, {"timeout": 0.0}, {"timeout": float("nan")}])
def test_numbers_out_of_range_are_refused(options):
    with pytest.raises(SettingsError, match=next(iter(options))):
        RemoteBackend("http://host/v1", "m", **options)


def test_without_the_library_the_install_command_is_named(monkeypatch):
    monkeypatch.setitem(sys.modules, "openai", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'sentsmith\[llm\]'"):
        open_backend("http://host/v1#m")


def test_the_forms_of_a_specification(endpoint, tmp_path):
    assert open_backend(f"{endpoint.url}#org/m:7b", concurrency=3).concurrency == 3
    assert open_backend(f"{endpoint.url}#org/m:7b").name == f"{endpoint.url}#org/m:7b"
    assert open_backend("openai:gpt-x").name == "https://api.openai.com/v1#gpt-x"
    for spec in ("", " ", "openai:", endpoint.url, f"{endpoint.url}#", "ftp://host#m", "anthropic:m", "http://#m"):
        with pytest.raises(SettingsError, match=r"give a model's folder or hub name, http\(s\)://HOST/v1#MODEL"):
            open_backend(spec)
    with pytest.raises(SettingsError) as error:
        open_backend("ftp://me:hunter2@host?key=hunter2#m")
    assert "hunter2" not in str(error.value)
    # Anything else is a local model, and says what is wrong with it.
    with pytest.raises(InputError, match="nowhere"):
        open_backend(str(tmp_path / "nowhere"))


def readable(text):
    if not text.startswith("answer to "):
        raise Unreadable("no answer")
    return text.removeprefix("answer to ")


def rows(count):
    return [Question("say", (f"row {row}",), Prompt(f"row {row}"), readable) for row in range(count)]


FAULTS = {
    "hang": ("fault", "hang"),
    "429": (429, {"Retry-After": "0.01"}, {}),
    "500": (500, {}, {"error": {"message": "busy"}}),
    "half": ("fault", "half"),
    "wrong": None,
    "drop": ("fault", "drop"),
}


def faulty(request, times):
    """Fail on 30 % of all rows, once or, a fifth of them, for ever; 6 % are unreadable, half of these for ever."""
    text = request["messages"][0]["content"]
    dice = random.Random(text)
    fails, for_ever, unreadable = dice.random() < 0.3, dice.random() < 0.2, dice.random()
    # Each time-out takes two seconds, so they are fewer.
    (kind,) = dice.choices(list(FAULTS), [1, 5, 5, 5, 5, 5])
    if fails and (times == 0 or for_ever):
        return (200, {}, dice.choice(WRONG)) if kind == "wrong" else FAULTS[kind]
    if unreadable < 0.03 or (unreadable < 0.06 and request["temperature"] == 0):
        return "???"
    return f"answer to {text}"


@pytest.mark.parametrize("count", [300, pytest.param(2000, marks=pytest.mark.slow)])
def test_every_input_ends_in_one_of_output_and_quarantine_whatever_the_endpoint_does(
    endpoint, backend, tmp_path, count
):
    endpoint.reply = faulty
    settled = []
    with Ledger(tmp_path / "a.sqlite") as ledger:
        client = backend(timeout=2.0, attempts=2, concurrency=12)
        outcome = ask(rows(count), client, ledger, GREEDY, advance=settled.append)
        found = {row["prompt"]: row for row in ledger.rows()}
    assert set(found) == {f"row {row}" for row in range(count)}
    assert outcome.asked == count == outcome.parsed + outcome.quarantined == sum(settled)
    assert sum(endpoint.sent.values()) - endpoint.answered.total() > 0.3 * count
    for text, row in found.items():
        parsed = (row["state"], row["value"], row["reason"]) == ("parsed", f'"{text}"', None)
        quarantined = (row["state"], row["value"]) == ("quarantined", None) and row["reason"]
        assert parsed or quarantined, row
        # What the endpoint answered is in the ledger, and nothing was answered, and paid for, twice.
        assert endpoint.answered[text] == row["attempts"] <= 1 + (row["answer"] == "???" or "0.7" in row["parameters"])
    assert set(outcome.reasons) == {
        "no answer",
        "answered 429",
        "answered 500",
        "connection failed",
        "malformed answer",
        "timed out",
    }
    assert 0.05 * count < outcome.quarantined < 0.15 * count
    assert outcome.prompt_tokens == 7 * endpoint.answered.total()


def test_a_budget_stops_an_endpoint_within_it_and_another_run_goes_on(endpoint, backend, tmp_path):
    endpoint.reply = lambda request, times: f"answer to {request['messages'][0]['content']}"
    with Ledger(tmp_path / "a.sqlite") as ledger:
        outcome = ask(rows(60), backend(), ledger, GREEDY, budget=Budget(tokens=200), price=Price(1.0, 1.0))
        assert outcome.stopped
        assert 180 <= outcome.prompt_tokens + outcome.answer_tokens <= 200
        found = estimate(rows(60), backend(), ledger, GREEDY)
        assert (found.requests, found.known, found.answer_tokens) == (40, 20, 120)
        rest = ask(rows(60), backend(), ledger, GREEDY)
    assert (rest.asked, rest.skipped, rest.parsed) == (40, 20, 40)
    assert set(endpoint.answered.values()) == {1}


def test_an_endpoint_that_goes_down_stops_the_run_and_the_next_one_ends_it(endpoint, backend, tmp_path):
    down = threading.Event()

    def reply(request, times):
        if len(endpoint.seen) > 60:
            down.set()
        return (503, {}, {}) if down.is_set() else f"answer to {request['messages'][0]['content']}"

    endpoint.reply = reply
    with Ledger(tmp_path / "a.sqlite") as ledger:
        with pytest.raises(SentsmithError, match=r"requests in a row got no answer .*answered 503"):
            ask(rows(150), backend(), ledger, GREEDY)
        before = ledger.counts()
        assert 30 <= before["parsed"] <= 60
        assert set(before) == {"parsed"}
        endpoint.reply = lambda request, times: f"answer to {request['messages'][0]['content']}"
        assert ask(rows(150), backend(), ledger, GREEDY).skipped == before["parsed"]
        assert ledger.counts() == {"parsed": 150}


def test_the_key_is_written_nowhere(endpoint, backend, tmp_path, monkeypatch, caplog):
    monkeypatch.setenv("OPENAI_API_KEY", KEY)
    caplog.set_level(logging.DEBUG)
    for name in ("openai", "httpx2", "httpcore2"):
        monkeypatch.setattr(logging.getLogger(name), "level", logging.DEBUG)

    def reply(request, times):
        text = request["messages"][0]["content"]
        # An endpoint that repeats the key in all it says.
        if text == "row 1":
            return 500, {}, {"error": {"message": f"bad {KEY}"}}
        return (400, {}, {"error": {"message": KEY}}) if text == "row 2" else f"answer to {KEY}"

    endpoint.reply = reply
    with Ledger(tmp_path / "a.sqlite") as ledger:
        ask(rows(5), backend(), ledger, GREEDY)
        written = b"".join(file.read_bytes() for file in tmp_path.iterdir())
        assert b"answer to ***" in written
        assert b"bad ***" in written
        assert KEY.encode() not in written
    assert KEY.encode() not in b"".join(file.read_bytes() for file in tmp_path.iterdir())
    assert "sentsmith.llm.remote" in caplog.text
    assert KEY not in caplog.text


def test_one_line_of_log_for_any_number_of_requests(endpoint, backend, caplog):
    caplog.set_level(logging.INFO)
    client = backend()
    for _ in range(2):
        answered(client, *(f"row {row}" for row in range(10)))
    assert [record.getMessage() for record in caplog.records] == [f"asking {endpoint.url}#m, 16 requests at a time"]


# Forks at each line of input, so that many starts import the libraries once.
STARTER = """
import os, sys
import openai, openai._base_client
from sentsmith.llm import endpoint, ledger, remote
from sentsmith.llm.answering import ask
from sentsmith.llm.backend import Decoding, Prompt
from sentsmith.llm.questions import Question, Unreadable

openai._base_client.INITIAL_RETRY_DELAY = openai._base_client.MAX_RETRY_DELAY = 0.002
url, path, count = sys.argv[1:]

def readable(text):
    if not text.startswith("answer to "):
        raise Unreadable("no answer")
    return text.removeprefix("answer to ")

def main():
    questions = (Question("say", (f"row {row}",), Prompt(f"row {row}"), readable) for row in range(int(count)))
    backend = remote.RemoteBackend(url, "m", attempts=3, timeout=20.0, concurrency=8)
    with ledger.Ledger(path) as file:
        ask(questions, backend, file, Decoding(max_new_tokens=8))

for _ in sys.stdin:
    child = os.fork()
    if child == 0:
        try:
            main()
        except BaseException:
            import traceback
            traceback.print_exc()
            os._exit(1)
        os._exit(0)
    print(child, flush=True)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


def comparable(path):
    with Ledger(path) as ledger:
        return [
            {name: value for name, value in row.items() if name not in ("seconds", "created")} for row in ledger.rows()
        ]


@pytest.mark.parametrize(("kills", "count"), [(4, 100), pytest.param(20, 500, marks=pytest.mark.slow)])
def test_kills_at_random_moments_change_nothing(endpoint, backend, tmp_path, kills, count):
    def reply(request, times):
        text = request["messages"][0]["content"]
        number = int(text.removeprefix("row "))
        if number % 23 == 0:
            return 500, {}, {}
        if number % 11 == 0 and (number % 2 or request["temperature"] == 0):
            return "???"
        return f"answer to {text}"

    endpoint.reply = reply
    with Ledger(tmp_path / "whole.sqlite") as ledger:
        ask(rows(count), backend(concurrency=8), ledger, GREEDY)
    starter = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(STARTER), endpoint.url, str(tmp_path / "killed.sqlite"), str(count)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    dice = random.Random(7)
    killed = 0
    progress = set()
    with starter:
        for _ in range(kills):
            before = len(endpoint.seen)
            wanted = dice.choice([0, 1, 5, 15, 25, 40])
            starter.stdin.write("go\n")
            starter.stdin.flush()
            child = int(starter.stdout.readline())
            deadline = time.monotonic() + 30
            while len(endpoint.seen) < before + wanted and time.monotonic() < deadline:
                time.sleep(0.0005)
            time.sleep(dice.random() * 0.02)
            os.kill(child, signal.SIGKILL)
            killed += int(starter.stdout.readline()) == -signal.SIGKILL
            with Ledger(tmp_path / "killed.sqlite") as ledger:
                progress.add(sum(ledger.counts().values()))
        starter.stdin.write("go\n")
        starter.stdin.flush()
        starter.stdout.readline()
        assert starter.stdout.readline() == "0\n"
        starter.stdin.close()
    assert killed == kills
    # They died at different places, and none of them at the end.
    assert len(progress) > kills // 3
    assert max(progress) < count
    assert comparable(tmp_path / "killed.sqlite") == comparable(tmp_path / "whole.sqlite")


def test_keys_differ_between_endpoints(endpoint):
    question = rows(1)[0]
    names = [RemoteBackend(endpoint.url, model).name for model in ("a", "b")]
    assert len({key_of(question, name, GREEDY) for name in names}) == 2
