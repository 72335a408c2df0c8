"""From what the user writes after ``--llm`` to a backend."""

from __future__ import annotations

import re
from pathlib import Path

from sentsmith.errors import SettingsError
from sentsmith.llm.backend import Backend

_OPENAI = "https://api.openai.com/v1"
_ALLOWED = (
    "give a model's folder or hub name, http(s)://HOST/v1#MODEL for an OpenAI-compatible endpoint, or openai:MODEL, "
    "short for https://api.openai.com/v1#MODEL"
)


def open_backend(
    spec: str,
    *,
    device: str | None = None,
    batch: int | None = None,
    concurrency: int = 16,
    timeout: float = 60.0,
    attempts: int = 6,
    key_env: str | None = None,
) -> Backend:
    """Open the language model of this name.

    Args:
        spec: A model's folder or hub name; ``http(s)://HOST/v1#MODEL``; or ``openai:MODEL``.
        device: Where a local model runs.
        batch: Rows that a local model decodes at a time; None leaves it to the backend.
        concurrency: Requests under way at an endpoint.
        timeout: Seconds until an attempt at an endpoint is given up.
        attempts: How often an endpoint is asked until a request is given up.
        key_env: The environment variable that holds the endpoint's key; see
            :class:`~sentsmith.llm.remote.RemoteBackend`.

    Raises:
        SettingsError: ``spec`` is none of these forms, or a number is out of range.
        InputError: The local model cannot be read.
        MissingExtraError: The libraries for an endpoint are not installed.
        SentsmithError: The hub cannot be reached.
    """
    url, model = _endpoint(spec)
    if url is not None:
        from sentsmith.llm.remote import RemoteBackend

        return RemoteBackend(url, model, key_env=key_env, concurrency=concurrency, timeout=timeout, attempts=attempts)
    from sentsmith.llm.local import LocalBackend

    return LocalBackend(spec, device=device) if batch is None else LocalBackend(spec, device=device, batch=batch)


def _endpoint(spec: str) -> tuple[str | None, str]:
    """Return the URL and the model of an endpoint; no URL for a local model."""
    if not spec.strip():
        raise SettingsError(f"--llm is empty; {_ALLOWED}")
    if spec.startswith("openai:") and not spec.startswith("openai://"):
        model = spec.removeprefix("openai:").strip()
        if not model:
            raise SettingsError(f"--llm {spec!r} names no model; {_ALLOWED}")
        return _OPENAI, model
    if not re.match(r"[a-zA-Z][a-zA-Z0-9+.-]*:", spec) or Path(spec).exists():
        return None, ""
    url, _, model = spec.partition("#")
    # What stands before an @ may be a password: it is not shown.
    shown = re.sub(r"//[^/]*@", "//…@", url.partition("?")[0])
    if not re.match(r"https?://[^/]", url, re.IGNORECASE):
        raise SettingsError(f"--llm {shown!r} is no form that is known; {_ALLOWED}")
    if not model.strip():
        raise SettingsError(f"--llm {shown!r} names no model (write it after #); {_ALLOWED}")
    return url, model.strip()
