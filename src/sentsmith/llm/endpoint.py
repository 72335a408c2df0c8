"""How an endpoint's answers are received: in time, and as what they should be. Needs the extra ``llm``."""

from __future__ import annotations

import asyncio
import functools
import ssl
from dataclasses import dataclass
from typing import Any

import httpx2
from openai import DefaultAsyncHttpxClient


class MalformedResponseError(httpx2.RemoteProtocolError):
    """The status says yes and the body is no completion; to the client, a connection that failed."""


@dataclass(frozen=True, slots=True)
class Completion:
    """What a response says.

    Attributes:
        text: Of the first choice; "" where it has none (a refusal, or all tokens spent on thinking).
        finished: Whether it came to its end within the limit of tokens.
        prompt_tokens: As the endpoint counts them; None where it does not.
        answer_tokens: Likewise.
    """

    text: str
    finished: bool
    prompt_tokens: int | None
    answer_tokens: int | None


def read_completion(body: Any) -> Completion:
    """Read the JSON of a chat completion.

    Raises:
        ValueError: It lacks what a completion has, or holds it in another type.
    """
    choices = _as(dict, body, "the body").get("choices")
    if not _as(list, choices, "choices"):
        raise ValueError("choices is empty")
    choice = _as(dict, choices[0], "a choice")
    content = _as(dict, choice.get("message"), "message").get("content")
    if isinstance(content, list):
        content = "".join(_part(part) for part in content)
    usage = body.get("usage")
    usage = usage if isinstance(usage, dict) else {}
    return Completion(
        text=_as(str, "" if content is None else content, "content"),
        finished=choice.get("finish_reason") != "length",
        prompt_tokens=_count(usage.get("prompt_tokens")),
        answer_tokens=_count(usage.get("completion_tokens")),
    )


def _part(value: Any) -> str:
    part = _as(dict, value, "a part of content")
    # Other parts (pictures, thoughts) are no answer.
    return str(_as(str, part.get("text"), "text")) if part.get("type") == "text" else ""


def _as(kind: type, value: Any, name: str) -> Any:
    if not isinstance(value, kind):
        raise ValueError(f"{name} is of type {type(value).__name__}, not {kind.__name__}")  # noqa: TRY004
    return value


def _count(value: Any) -> int | None:
    return value if isinstance(value, int) and not isinstance(value, bool) and value >= 0 else None


@functools.cache
def _trusted() -> ssl.SSLContext:
    """Return the certificates that a server's is checked against; reading them takes longer than all else of a client.

    Lists that are written step by step have a client for each of their rounds.
    """
    return httpx2.create_ssl_context()


class HttpClient(DefaultAsyncHttpxClient):
    """An HTTP client that bounds the whole of an attempt, and takes no for an answer that is no completion.

    The library's own time-outs start again with every byte, so that a server that drips keeps a request for ever. What
    is raised here is what the library raises itself, so that the ``openai`` client tries again.

    Args:
        seconds: The bound.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(timeout=httpx2.Timeout(seconds), verify=_trusted())
        self._seconds = seconds

    async def send(self, request: httpx2.Request, **options: Any) -> httpx2.Response:
        """Send a request and receive the whole of its response.

        Raises:
            httpx2.RequestError: No response, none in time, or a malformed one.
        """
        try:
            async with asyncio.timeout(self._seconds):
                response = await super().send(request, **options)
        except TimeoutError as error:
            raise httpx2.ReadTimeout(f"no whole response within {self._seconds:g} s", request=request) from error
        if response.is_success:
            try:
                read_completion(response.json())
            except ValueError as error:
                reason = str(error) if type(error) is ValueError else "the body is not JSON"
                raise MalformedResponseError(reason, request=request) from error
        return response
