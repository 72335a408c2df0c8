"""Settings: frozen pydantic models, read from YAML and ``--set key=value``, saved beside every output."""

from __future__ import annotations

import difflib
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, ValidationError

from sentsmith.errors import InputError, SettingsError
from sentsmith.files import write_text


class Settings(BaseModel):
    """Base of all settings: frozen, and an unknown key is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", validate_default=True, protected_namespaces=())


S = TypeVar("S", bound=Settings)


def read_yaml(path: str | Path) -> dict[str, Any]:
    """Read a YAML mapping.

    Raises:
        InputError: The file is missing, is not YAML, or does not hold a mapping.
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = "is not UTF-8 text" if isinstance(error, UnicodeDecodeError) else (error.strerror or str(error))
        raise InputError(f"cannot be read as YAML settings: {reason}", path=path) from error
    try:
        value = yaml.safe_load(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        problem = getattr(error, "problem", None) or "not valid YAML"
        raise InputError(problem, path=path, row=None if mark is None else mark.line + 1) from error
    if not isinstance(value, dict):
        raise InputError(f"holds {type(value).__name__}; settings are a mapping of keys to values", path=path)
    return value


def apply_overrides(values: Mapping[str, Any], overrides: Sequence[str]) -> dict[str, Any]:
    """Return ``values`` with each ``key.sub=value`` of ``overrides`` laid over it; values are YAML.

    Raises:
        SettingsError: An override has no ``=``, or goes below a key that holds no mapping.
    """
    result = _copy(values)
    for override in overrides:
        key, equals, text = override.partition("=")
        if not equals or not key.strip():
            raise SettingsError(f"--set {override!r}: write it as key=value, for example training.seed=1")
        *parents, last = key.strip().split(".")
        place = result
        for parent in parents:
            place = place.setdefault(parent, {})
            if not isinstance(place, dict):
                raise SettingsError(f"--set {override!r}: {parent!r} holds a value and has no keys below it")
        try:
            place[last] = yaml.safe_load(text)
        except yaml.YAMLError as error:
            raise SettingsError(f"--set {override!r}: the value is not valid YAML") from error
    return result


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else value for key, value in values.items()}


def resolve(
    kind: type[S], values: Mapping[str, Any], overrides: Sequence[str] = (), *, path: str | Path | None = None
) -> S:
    """Validate ``values`` with ``overrides`` as settings of ``kind``.

    YAML 1.1 reads 3e-5 as text, which is how everybody writes a learning rate; validation makes it the number.

    Raises:
        SettingsError: One line for the first wrong key: what was given, what is allowed, the nearest right key.
    """
    try:
        return kind.model_validate(apply_overrides(values, overrides))
    except ValidationError as error:
        raise SettingsError(_explain(error, sorted(keys_of(kind))), path=path) from error


def _explain(error: ValidationError, known: Sequence[str]) -> str:
    first, *others = error.errors()
    given = ".".join(str(part) for part in first["loc"])
    if first["type"] == "extra_forbidden":
        return f"unknown setting {given!r}; {_nearest(given, known)}"
    # Where a field takes several types, the place goes on below the key, and each type has its own complaint.
    key = max((name for name in known if f"{given}.".startswith(f"{name}.")), key=len, default=given)
    same = [entry for entry in others if ".".join(map(str, entry["loc"])).startswith(f"{key}.")]
    messages = [entry["msg"].removeprefix("Value error, ") for entry in (first, *same)]
    message = " or ".join(dict.fromkeys(messages))
    if not key:
        return message
    value = "" if first["type"] == "missing" else f" (given: {textwrap.shorten(repr(first['input']), 80)})"
    return f"setting {key!r}: {message}{value}"


def _nearest(given: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(given, known, n=1, cutoff=0.5)
    if not near:
        leaves = {name.rpartition(".")[2]: name for name in known}
        leaf = difflib.get_close_matches(given.rpartition(".")[2], list(leaves), n=1, cutoff=0.5)
        near = [leaves[name] for name in leaf]
    return f"did you mean {near[0]!r}?" if near else f"known keys: {', '.join(known)}"


def keys_of(kind: type[BaseModel], prefix: str = "") -> Iterator[str]:
    """Yield the dotted keys of ``kind``, leaves only."""
    for name, field in kind.model_fields.items():
        if isinstance(field.annotation, type) and issubclass(field.annotation, BaseModel):
            yield from keys_of(field.annotation, f"{prefix}{name}.")
        else:
            yield prefix + name


def save(settings: Settings, path: str | Path) -> None:
    """Write the resolved settings as YAML; :func:`resolve` of that file gives the same settings."""
    write_text(path, yaml.safe_dump(settings.model_dump(mode="json"), sort_keys=False, allow_unicode=True))
