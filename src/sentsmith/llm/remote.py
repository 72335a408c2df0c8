"""A language model behind an OpenAI-compatible endpoint: vLLM, llama.cpp, Ollama, a hosted one.

The ``openai`` client does the asking: it tries again after 408, 409, 429, 5xx, time-outs and dropped connections, waits
longer each time with some jitter, and as long as ``Retry-After`` says, up to two minutes; told to wait longer, it gives
the request up at once, as one that was lost. :mod:`sentsmith.llm.endpoint` adds a bound on the whole of an attempt, and
that a response which is no completion (half a JSON, wrong types) is a failed attempt.
"""

from __future__ import annotations

import asyncio
import ipaddress
import json
import logging
import math
import os
import queue
import re
import textwrap
import threading
import time
from collections.abc import Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self
from urllib.parse import parse_qsl, urlsplit, urlunsplit

from sentsmith.errors import SentsmithError, SettingsError, require
from sentsmith.llm.backend import NO_LOGITS, Answer, Decoding, Prompt

if TYPE_CHECKING:
    import openai

logger = logging.getLogger(__name__)

# Shorter ones are what local servers take for a key ("none", "EMPTY"): words that occur in ordinary text.
_SECRET_LENGTH = 8
# An English token has about four letters; other scripts have more tokens, down to one a letter of three bytes.
_BYTES_PER_TOKEN = {True: 4, False: 3}
_OPENAI_HOST, _OPENAI_KEY = "api.openai.com", "OPENAI_API_KEY"
# A prompt that no endpoint can take offence at: tells one refused prompt from an endpoint that refuses all.
_HARMLESS = Prompt("Answer with the word yes.")


class RemoteBackend:
    """A model behind an endpoint.

    Its name is the URL, without what may be secret in it, and the model. The key is read from the environment and is
    in no message, log or answer. Where there is none to send, the word ``none`` is sent, which local servers ignore.

    Args:
        url: Up to and with the version: ``http://localhost:8000/v1``.
        model: As the endpoint calls it.
        key_env: The environment variable that holds the key. None is ``OPENAI_API_KEY`` for api.openai.com and this
            machine, and no key for any other host: it is not theirs to see.
        concurrency: Requests under way, at most.
        timeout: Seconds until an attempt is given up.
        attempts: How often a request is tried.

    Raises:
        SettingsError: The URL holds a user or password, a number is out of range, or the key has impossible characters.
        MissingExtraError: ``openai`` is not installed.
    """

    guides = False
    local = False

    def __init__(
        self,
        url: str,
        model: str,
        *,
        key_env: str | None = None,
        concurrency: int = 16,
        timeout: float = 60.0,
        attempts: int = 6,
    ) -> None:
        require("openai", extra="llm")
        parts = urlsplit(url)
        if "@" in parts.netloc:
            raise SettingsError(
                "the URL holds a user or password; leave it out, put the key into an environment variable, and name "
                "that with --key-env"
            )
        if concurrency < 1 or attempts < 1:
            raise SettingsError(f"concurrency {concurrency}, attempts {attempts}: both must be at least 1")
        if not (timeout > 0 and math.isfinite(timeout)):
            raise SettingsError(f"timeout {timeout:g}: must be more than 0 seconds")
        self.concurrency = concurrency
        self.model = model
        self._url = urlunsplit((parts.scheme, parts.netloc, parts.path, "", ""))
        # Some hosts want a version there; it may hold a key as well, so it is in no name.
        self._query = dict(parse_qsl(parts.query))
        self.name = f"{self._url}#{model}"
        here = _is_here(parts.hostname or "")
        if key_env is None and (here or parts.hostname == _OPENAI_HOST):
            key_env = _OPENAI_KEY
        self._key_env, self._key = key_env, "none" if key_env is None else _key(key_env)
        self._bare = parts.scheme.lower() == "http" and not here and self._key != "none"
        self._timeout, self._attempts = timeout, attempts
        self._limit, self._seeds = "max_tokens", True
        self._answered = self._said = False

    def answers(self, prompts: Iterable[tuple[str, Prompt]], decoding: Decoding) -> Iterator[list[tuple[str, Answer]]]:
        """Answer prompts, each as one turn of the user; see :class:`~sentsmith.llm.backend.Backend`.

        A next prompt is read as soon as any request is finished, and what is finished is handed over at once.

        Raises:
            SettingsError: A prompt has an ``against``, or there is a plausibility floor: endpoints give no logits.
            SentsmithError: The endpoint refuses the key, the model or every request, or nobody listens there.
        """
        if decoding.floor > 0:
            raise SettingsError(f"{self.name}: endpoints give no logits, so no plausibility floor; set it to 0")
        if not self._said:
            logger.info("asking %s, %d requests at a time", self.name, self.concurrency)
            if self._bare:
                logger.warning("%s is plain http: whoever is on the way can read the key; use https", self._url)
            self._said = True
        _hush()
        stream = iter(prompts)
        finished: queue.SimpleQueue[tuple[str, Future[Answer | SentsmithError]]] = queue.SimpleQueue()
        under_way, more = 0, True
        with _Session(self, decoding) as session:
            while more or under_way:
                while more and under_way < self.concurrency:
                    item = next(stream, None)
                    more = item is not None
                    if item is not None:
                        key, prompt = item
                        self._check(prompt)
                        session.submit(prompt, key, finished)
                        under_way += 1
                if under_way:
                    batch, refusals = _collected(finished)
                    under_way -= len(batch) + len(refusals)
                    if batch:
                        yield batch
                    if refusals:
                        raise refusals[0]

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return an estimate: a token for every four bytes of ASCII, or every three of any other text."""
        return [math.ceil(len(text.encode("utf-8", "replace")) / _BYTES_PER_TOKEN[text.isascii()]) for text in texts]

    def client(self) -> openai.AsyncOpenAI:
        """Return a client of this endpoint, for one event loop."""
        import openai

        from sentsmith.llm.endpoint import HttpClient

        return openai.AsyncOpenAI(
            api_key=self._key,
            base_url=self._url,
            default_query=self._query,
            timeout=self._timeout,
            max_retries=self._attempts - 1,
            http_client=HttpClient(self._timeout),
        )

    async def answer(self, client: openai.AsyncOpenAI, prompt: Prompt, decoding: Decoding) -> Answer | SentsmithError:
        """Return the answer to one prompt, or the error that every prompt would meet."""
        import openai

        began = time.perf_counter()
        while True:
            options = self._options(decoding)
            try:
                body = await self._completion(client, prompt, options)
            except openai.APIStatusError as error:
                if error.status_code in (400, 422) and self._gives_way(error, options, decoding):
                    continue
                result = self._refused(error)
                if isinstance(result, SentsmithError) or result.lost or self._answered:
                    return result
                # It may be this prompt that cannot be answered, or all of them.
                return result if await self._answers_anything(client, options) else self._refuses_all(result)
            except openai.APIConnectionError as error:
                return self._unreached(error)
            self._answered = True
            return self._read(body, prompt, time.perf_counter() - began)

    async def _completion(self, client: openai.AsyncOpenAI, prompt: Prompt, options: dict[str, Any]) -> Any:
        import httpx2

        # The method made for it takes nearly a millisecond more, for types that are checked here anyway.
        body = {"model": self.model, "messages": [{"role": "user", "content": _sendable(prompt.text)}], **options}
        return (await client.post("/chat/completions", body=body, cast_to=httpx2.Response)).json()

    async def _answers_anything(self, client: openai.AsyncOpenAI, options: dict[str, Any]) -> bool:
        import openai

        try:
            await self._completion(client, _HARMLESS, options)
        except openai.APIError:
            return False
        self._answered = True
        return True

    def _options(self, decoding: Decoding) -> dict[str, Any]:
        options: dict[str, Any] = {"temperature": decoding.temperature, self._limit: decoding.max_new_tokens}
        if decoding.temperature > 0:
            options["top_p"] = decoding.top_p
            if self._seeds:
                options["seed"] = decoding.seed
        return options

    def _gives_way(self, error: openai.APIStatusError, sent: dict[str, Any], decoding: Decoding) -> bool:
        """Change how this endpoint is asked, if that is what it complains about; whether there is a change."""
        text = f"{error.message} {json.dumps(error.body, default=str)}"
        if "max_tokens" in sent and "max_completion_tokens" in text:
            self._limit = "max_completion_tokens"
        if "seed" in sent and re.search(r"""["'`]seed["'`]""", text):
            if self._seeds:
                logger.warning("%s takes no seed: what it draws cannot be repeated", self.name)
            self._seeds = False
        return self._options(decoding) != sent

    def _read(self, body: Any, prompt: Prompt, seconds: float) -> Answer:
        from sentsmith.llm.endpoint import read_completion

        completion = read_completion(body)
        read, written = self.count_tokens([prompt.text, completion.text])
        return Answer(
            text=self._without_key(_sendable(completion.text)),
            finished=completion.finished,
            prompt_tokens=read if completion.prompt_tokens is None else completion.prompt_tokens,
            answer_tokens=written if completion.answer_tokens is None else completion.answer_tokens,
            seconds=seconds,
        )

    def _refused(self, error: openai.APIStatusError) -> Answer | SentsmithError:
        """Return what an answer of an error status means: for this prompt an Answer, for all of them an error."""
        status = error.status_code
        start = f"{self.name} answered {status}"
        if status in (401, 403):
            # What it says may repeat a part of the key.
            return SentsmithError(f"{start}: {self._about_key()} with --key-env")
        said = self._one_line(error.message)
        if status == 404:
            return SentsmithError(
                f"{start} ({said}): no such model, or no such path; check the model's name, and the URL, which ends in "
                "/v1 as a rule"
            )
        if status == 402 or error.code == "insufficient_quota":
            return SentsmithError(f"{start} ({said}): the account may not spend more; nothing more was asked")
        again = status in (408, 409, 429) or status >= 500
        return _failed(f"answered {status}: {said}", lost=again)

    def _about_key(self) -> str:
        if self._key_env is None:
            return f"no key was sent, for {_OPENAI_KEY} is OpenAI's; name the variable that holds the key of this host"
        key = "holds no key that it accepts" if os.environ.get(self._key_env) else "is not set"
        return f"{self._key_env} {key}; set it, or name another variable"

    def _refuses_all(self, answer: Answer) -> SentsmithError:
        return SentsmithError(
            f"{self.name} {answer.failure} — and so to a harmless prompt: it does not take these settings"
        )

    def _unreached(self, error: openai.APIConnectionError) -> Answer | SentsmithError:
        import httpx2
        import openai

        from sentsmith.llm.endpoint import MalformedResponseError

        cause = error.__cause__
        if isinstance(cause, httpx2.ConnectError | httpx2.ConnectTimeout) and not self._answered:
            return SentsmithError(
                f"{self.name}: nobody answers there ({self._one_line(str(cause) or type(cause).__name__)}), after "
                f"{self._attempts} attempts; check the URL, and that the server runs"
            )
        if isinstance(cause, MalformedResponseError):
            return _failed(f"malformed answer: {cause}", lost=True)
        if isinstance(error, openai.APITimeoutError):
            return _failed(f"timed out: no answer within {self._timeout:g} s", lost=True)
        return _failed(f"connection failed: {type(cause).__name__}", lost=True)

    def _check(self, prompt: Prompt) -> None:
        if prompt.against is not None:
            raise SettingsError(f"{self.name} {NO_LOGITS}")

    def _one_line(self, text: str) -> str:
        return textwrap.shorten(self._without_key(text), 200, placeholder=" …")

    def _without_key(self, text: str) -> str:
        return text.replace(self._key, "***") if len(self._key) >= _SECRET_LENGTH else text


class _Session:
    """An event loop in a thread of its own, since the caller (a notebook, say) may be inside one, and its client."""

    def __init__(self, backend: RemoteBackend, decoding: Decoding) -> None:
        self._backend, self._decoding = backend, decoding
        self._ready: Future[tuple[asyncio.AbstractEventLoop, asyncio.Event, Any]] = Future()
        self._thread = threading.Thread(target=self._run, name="sentsmith-endpoint", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._loop, self._end, self._client = self._ready.result()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._loop.call_soon_threadsafe(self._end.set)
        self._thread.join()

    def submit(
        self, prompt: Prompt, key: str, finished: queue.SimpleQueue[tuple[str, Future[Answer | SentsmithError]]]
    ) -> None:
        """Ask; the result goes into ``finished``."""
        work: Coroutine[Any, Any, Answer | SentsmithError] = self._backend.answer(self._client, prompt, self._decoding)
        future = asyncio.run_coroutine_threadsafe(work, self._loop)
        future.add_done_callback(lambda done: finished.put((key, done)))

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except BaseException as error:
            if self._ready.done():
                raise
            self._ready.set_exception(error)

    async def _serve(self) -> None:
        end = asyncio.Event()
        async with self._backend.client() as client:
            self._ready.set_result((asyncio.get_running_loop(), end, client))
            await end.wait()
            # What is still under way has nobody to wait for it.
            tasks = asyncio.all_tasks() - {asyncio.current_task()}
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)


def _collected(
    finished: queue.SimpleQueue[tuple[str, Future[Answer | SentsmithError]]],
) -> tuple[list[tuple[str, Answer]], list[SentsmithError]]:
    """Wait for one result, and take what else is there: answers beside a refusal are paid for like any others."""
    batch: list[tuple[str, Answer]] = []
    refusals: list[SentsmithError] = []
    item: tuple[str, Future[Answer | SentsmithError]] | None = finished.get()
    while item is not None:
        key, future = item
        result = future.result()
        if isinstance(result, SentsmithError):
            refusals.append(result)
        else:
            batch.append((key, result))
        try:
            item = finished.get_nowait()
        except queue.Empty:
            item = None
    return batch, refusals


def _failed(reason: str, *, lost: bool) -> Answer:
    return Answer(text="", finished=False, prompt_tokens=0, answer_tokens=0, seconds=0.0, failure=reason, lost=lost)


def _is_here(host: str) -> bool:
    if host == "localhost" or host.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def _key(variable: str) -> str:
    key = os.environ.get(variable, "").strip() or "none"
    if not (key.isascii() and key.isprintable()):
        raise SettingsError(f"{variable} holds characters that no key has; set it again")
    return key


def _sendable(text: str) -> str:
    """Return a text in which halves of surrogate pairs, which JSON can hold and UTF-8 cannot, are whole or replaced."""
    return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")


def _hush() -> None:
    """Keep the client's libraries from logging each request, unless somebody has set their level."""
    for name in ("httpx2", "httpcore2", "openai"):
        log = logging.getLogger(name)
        if log.level == logging.NOTSET:
            log.setLevel(logging.WARNING)
