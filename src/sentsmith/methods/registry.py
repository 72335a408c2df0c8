"""Find a recipe (a file, or the name of one that ships) and the method that runs it."""

from __future__ import annotations

import difflib
import importlib
import pkgutil
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from types import ModuleType
from typing import Any

from sentsmith import methods, settings
from sentsmith.errors import InputError, SettingsError


def method_names() -> list[str]:
    """Return the names of the methods, which are the folders beside this file."""
    return sorted(module.name for module in pkgutil.iter_modules(methods.__path__) if module.ispkg)


def recipe_names() -> list[str]:
    """Return the names of the recipes that ship."""
    return sorted(path.name.removesuffix(".yaml") for path in _shipped().iterdir() if path.name.endswith(".yaml"))


def load_recipe(recipe: str | Path, overrides: Sequence[str] = ()) -> tuple[Any, ModuleType]:
    """Return the resolved settings of a recipe and the module (``Recipe``, ``run``) of its method.

    Args:
        recipe: A YAML file, or the name of a recipe that ships.
        overrides: ``key=value`` laid over it.

    Raises:
        InputError: No such recipe, or it is no YAML mapping.
        SettingsError: An unknown method or setting, or a wrong value.
    """
    path = _find(recipe)
    values = settings.apply_overrides(settings.read_yaml(path), overrides)
    module = load_method(str(values.get("method", "")), path)
    return settings.resolve(module.Recipe, values, path=path), module


def load_method(name: str, path: str | Path | None = None) -> ModuleType:
    """Return the module ``sentsmith.methods.<name>.recipe``; only this method's code is imported.

    Raises:
        SettingsError: No such method.
    """
    known = method_names()
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        hint = f"did you mean {near[0]!r}?" if near else f"methods: {', '.join(known)}"
        raise SettingsError(f"method {name!r} is unknown; {hint}", path=path)
    return importlib.import_module(f"sentsmith.methods.{name}.recipe")


def _find(recipe: str | Path) -> Path:
    if Path(recipe).is_file():
        return Path(recipe)
    known = recipe_names()
    name = str(recipe)
    if name in known:
        return Path(str(_shipped() / f"{name}.yaml"))
    near = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"recipes that ship: {', '.join(known)}"
    raise InputError(f"is no file and no recipe that ships; {hint}", path=name)


def _shipped() -> Any:
    return resources.files("sentsmith") / "recipes"
