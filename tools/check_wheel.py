"""Build the wheel, install it alone in a bare environment, and import every module and data file of it.

What an editable install hides, a forgotten subpackage or template, fails here.
"""

from __future__ import annotations

import shutil
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]

CHECK = """
import ast, importlib.resources, pathlib, sys
import sentsmith
root = pathlib.Path(sentsmith.__file__).parent
assert root.is_relative_to(sys.prefix), root
expected = {line for line in sys.stdin.read().splitlines() if line}
found = {path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file() and path.suffix != ".pyc"}
missing = expected - found
assert not missing, f"not in the wheel: {sorted(missing)}"
from sentsmith import errors
print(f"sentsmith {sentsmith.__version__}: {len(expected)} files are in the wheel")
"""


def main() -> None:
    """Exit with an error when the wheel lacks a file of ``src/sentsmith``."""
    tracked = subprocess.run(
        ["git", "ls-files", "src/sentsmith"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.splitlines()
    files = "\n".join(name.removeprefix("src/sentsmith/") for name in tracked)
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder)
        # What an earlier build left would find its way into the wheel.
        shutil.rmtree(ROOT / "build", ignore_errors=True)
        run(sys.executable, "-m", "build", "--wheel", "--no-isolation", "--outdir", str(out), str(ROOT))
        wheel = next(out.glob("*.whl"))
        # Bare of our checkout, but with the installed libraries in sight: they are not what is tested here.
        venv.create(out / "bare", with_pip=False, system_site_packages=False)
        python = str(out / "bare" / "bin" / "python")
        run(sys.executable, "-m", "pip", "--python", python, "install", "--quiet", "--no-deps", str(wheel))
        run(python, "-c", CHECK, text=files)
        # The imports need the libraries: this environment's are lent to the bare one, our editable install is not.
        libraries = next(path for path in sys.path if path.endswith("site-packages"))
        run(python, "-c", IMPORT.format(libraries=libraries))


IMPORT = """
import importlib, pkgutil, sys
import sentsmith
# Appended without site processing: editable installs work through .pth files, which are not read this way.
sys.path.append({libraries!r})
names = [module.name for module in pkgutil.walk_packages(sentsmith.__path__, "sentsmith.")]
for name in names:
    importlib.import_module(name)
assert sentsmith.__file__.startswith(sys.prefix), sentsmith.__file__
from sentsmith.methods.registry import load_recipe, recipe_names
for name in recipe_names():
    load_recipe(name)
print(f"{{len(names)}} modules import, {{len(recipe_names())}} recipes resolve")
"""


def run(*command: str, text: str | None = None) -> None:
    """Run a command, outside the checkout, or stop with what it said."""
    done = subprocess.run(command, cwd=tempfile.gettempdir(), input=text, capture_output=True, text=True, check=False)
    sys.stdout.write(done.stdout if "build" not in command else "")
    if done.returncode != 0:
        sys.exit(f"{' '.join(command[:4])} … failed:\n{done.stdout[-2000:]}{done.stderr[-3000:]}")


if __name__ == "__main__":
    main()
