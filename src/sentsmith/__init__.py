"""Sentsmith turns raw sentences into a better sentence-embedding model, and proves that it is better."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"
__all__ = ["__version__", "load"]

if TYPE_CHECKING:
    from sentsmith.encoders.loading import load


def __getattr__(name: str) -> Any:
    # torch and transformers take seconds to import; `import sentsmith` and `sentsmith --help` do not pay for them.
    if name == "load":
        from sentsmith.encoders.loading import load

        return load
    raise AttributeError(f"module 'sentsmith' has no attribute {name!r}")
