"""Settings: frozen pydantic models, read from YAML and ``--set key=value``, saved beside every output."""

from __future__ import annotations

import difflib
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
            place[last] = _number(yaml.safe_load(text))
        except yaml.YAMLError as error:
            raise SettingsError(f"--set {override!r}: the value is not valid YAML") from error
    return result


def _number(value: Any) -> Any:
    # YAML 1.1 reads 3e-5 as text, which is how everybody writes a learning rate.
    if isinstance(value, str):
        try:
            return float(value) if "e" in value.lower() else value
        except ValueError:
            return value
    return value


def _copy(values: Mapping[str, Any]) -> dict[str, Any]:
    return {key: _copy(value) if isinstance(value, Mapping) else _number(value) for key, value in values.items()}


def resolve(
    kind: type[S], values: Mapping[str, Any], overrides: Sequence[str] = (), *, path: str | Path | None = None
) -> S:
    """Validate ``values`` with ``overrides`` as settings of ``kind``.

    Raises:
        SettingsError: One line for the first wrong key: what was given, what is allowed, the nearest right key.
    """
    try:
        return kind.model_validate(apply_overrides(values, overrides))
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            known = sorted(keys_of(kind))
            near = difflib.get_close_matches(key, known, n=1, cutoff=0.5) or difflib.get_close_matches(
                key.rpartition(".")[2], [name.rpartition(".")[2] for name in known], n=1, cutoff=0.5
            )
            hint = f"did you mean {_whole(near[0], known)!r}?" if near else f"known keys: {', '.join(known)}"
            raise SettingsError(f"unknown setting {key!r}; {hint}", path=path) from error
        message = first["msg"].removeprefix("Value error, ")
        given = "" if first["type"] == "missing" else f" (given: {first['input']!r})"
        raise SettingsError(f"setting {key!r}: {message}{given}", path=path) from error


def _whole(name: str, known: Sequence[str]) -> str:
    return name if name in known else next(key for key in known if key.rpartition(".")[2] == name)


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
