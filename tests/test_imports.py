"""Imports go one way, and what is heavy is imported late."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from pathlib import Path

import pytest

import sentsmith

SOURCE = Path(sentsmith.__file__).parent

# Each package may import itself, those named here, and the modules at the top of the package.
MAY_IMPORT = {
    "corpus": set(),
    "encoders": {"corpus"},
    "evaluation": {"encoders", "corpus"},
    "search": {"encoders", "corpus"},
    "report": {"evaluation", "encoders", "corpus"},
    "llm": {"evaluation", "encoders", "corpus"},
    "training": {"evaluation", "encoders", "corpus"},
    "methods": {"training", "llm", "evaluation", "encoders", "corpus"},
    "quickstart": {"methods", "training", "llm", "evaluation", "encoders", "corpus", "report", "search"},
    "cli": {"quickstart", "methods", "training", "llm", "evaluation", "encoders", "corpus", "report", "search"},
}
TOP = {"errors", "files", "settings", "versions", "__version__"}


def imported(file: Path, package: tuple[str, ...]) -> set[str]:
    """Return what a file imports of sentsmith, wherever in it: the first name below ``sentsmith``."""
    names = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            base = ".".join(package[: len(package) - node.level + 1]) if node.level else ""
            module = ".".join(part for part in (base, node.module) if part)
            names |= {f"{module}.{alias.name}" for alias in node.names}
    return {name.split(".")[1] for name in names if name.startswith("sentsmith.")}


def files():
    return sorted(SOURCE.rglob("*.py"))


def test_every_package_has_its_place():
    packages = {path.parent.name for path in SOURCE.glob("*/__init__.py")}
    assert packages - set(MAY_IMPORT) == set()


@pytest.mark.parametrize("file", files(), ids=lambda file: str(file.relative_to(SOURCE)))
def test_imports_go_one_way(file):
    place = file.relative_to(SOURCE)
    found = imported(file, ("sentsmith", *place.parts[:-1]))
    if len(place.parts) == 1:
        # The door of the package names what it exports; the other top modules stand below everything.
        allowed = TOP | ({"encoders"} if place.name == "__init__.py" else set())
    else:
        allowed = TOP | MAY_IMPORT[place.parts[0]] | {place.parts[0]}
    assert found <= allowed, f"{place} imports {sorted(found - allowed)}"


def test_the_check_sees_imports_inside_functions_and_relative_ones(tmp_path):
    file = tmp_path / "a.py"
    file.write_text(
        "def f():\n    from sentsmith.cli import x\nfrom .. import search\nfrom ..report import page\n"
        "import sentsmith.training.run\nfrom sentsmith import methods\n"
    )
    assert imported(file, ("sentsmith", "corpus")) == {"cli", "search", "report", "training", "methods"}


def test_a_method_does_not_import_another_methods_recipe():
    for file in (SOURCE / "methods").rglob("recipe.py"):
        text = file.read_text(encoding="utf-8")
        others = {path.name for path in (SOURCE / "methods").iterdir() if path.is_dir()} - {file.parent.name}
        assert not any(f"sentsmith.methods.{other}.recipe" in text for other in others)


HEAVY = {"torch", "transformers", "sentence_transformers", "datasets", "sklearn", "scipy", "pyarrow", "matplotlib"}


@pytest.mark.parametrize("arguments", [None, ["--help"], ["train", "--help"]])
def test_start_up_imports_nothing_heavy(arguments):
    code = "import json, sys, sentsmith\n"
    if arguments is not None:
        code += f"sys.argv = ['sentsmith', *{arguments}]\nfrom sentsmith.cli.main import main\n"
        code += "try:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
    code += "sys.stderr.write(json.dumps(sorted(sys.modules)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert not HEAVY & set(json.loads(done.stderr))


def test_exported_names():
    assert sentsmith.__all__ == ["__version__", "load"]
    from sentsmith.encoders.loading import load

    assert sentsmith.load is load
    with pytest.raises(AttributeError, match="no attribute 'lode'"):
        sentsmith.lode  # noqa: B018
