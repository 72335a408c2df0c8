"""The versions that a record of a run or a measurement names."""

from __future__ import annotations

import importlib.metadata
import platform

_PACKAGES = (
    "sentsmith", "torch", "transformers", "sentence-transformers", "accelerate", "datasets", "numpy", "scipy",
    "scikit-learn", "tokenizers", "safetensors",
)  # fmt: skip


def versions() -> dict[str, str]:
    """Return the versions of Python and of the packages that shape a result; one not installed is left out."""
    found = {"python": platform.python_version()}
    for package in _PACKAGES:
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            continue
    return found
