"""The studies lie beside the package; each is a script that finds the others in its folder."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

STUDIES = Path(__file__).parents[2] / "studies"


@pytest.fixture(scope="session")
def study_of():
    """Return a function from a study's name to its module."""

    def load(name):
        with pytest.MonkeyPatch.context() as patch:
            patch.syspath_prepend(str(STUDIES))
            return importlib.import_module(name)

    return load
