"""The folder of a saved decoder: its configs have names of their own, so that nothing loads it as it is not.

What looks both ways looks backwards only in any program that does not know of it, and no error tells. So the files by
which transformers, peft and sentence-transformers know a model are called otherwise here; whoever is pointed at the
folder finds no model in it.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from sentsmith.encoders.loading import refuse_pickled_weights, resolve
from sentsmith.errors import InputError, SentsmithError

_CONFIG, _ADAPTER = "config.json", "adapter_config.json"
_OURS = {_CONFIG: "decoder_config.json", _ADAPTER: "decoder_adapter_config.json"}
_BASE = "base_model_name_or_path"


def hide(folder: Path) -> None:
    """Give the configs that the libraries have just written into ``folder`` our names."""
    for theirs, ours in _OURS.items():
        if (folder / theirs).is_file():
            (folder / theirs).replace(folder / ours)
        else:
            (folder / ours).unlink(missing_ok=True)  # of a model that was here before


@contextlib.contextmanager
def shown(folder: Path) -> Iterator[Path]:
    """Yield a folder, there for a moment, in which the libraries find the decoder of ``folder`` under their names.

    An adapter's base is in its config as a local folder, whatever name it was given there.

    Raises:
        InputError: The base of an adapter is not there, or has pickled weights only.
    """
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        theirs = {ours: plain for plain, ours in _OURS.items()}
        for file in folder.resolve().iterdir():
            (place / theirs.get(file.name, file.name)).symlink_to(file)
        adapter = place / _ADAPTER
        if adapter.is_file():
            config = _adapter_config(folder)
            config[_BASE] = str(_base(folder, config[_BASE]).resolve())
            adapter.unlink()
            adapter.write_text(json.dumps(config), encoding="utf-8")
        yield place


def adapter_base(folder: Path) -> str | None:
    """Return the base that an adapter saved alone names; None of a model that is whole.

    Raises:
        InputError: The adapter's config is damaged.
    """
    return _adapter_config(folder)[_BASE] if _adapter_file(folder).is_file() else None


def _adapter_file(folder: Path) -> Path:
    return folder / _OURS[_ADAPTER]


def _adapter_config(folder: Path) -> dict[str, Any]:
    file = _adapter_file(folder)
    try:
        config: dict[str, Any] = json.loads(file.read_text(encoding="utf-8"))
        named = isinstance(config[_BASE], str)
    except (OSError, ValueError, TypeError, LookupError):
        named = False
    if not named:
        raise InputError(f"is no adapter's config with a {_BASE}; save the model again", path=file)
    return config


def _base(folder: Path, name: str) -> Path:
    try:
        base = resolve(name)
    except SentsmithError as error:
        raise InputError(
            f"is an adapter whose base {name!r} is not there ({error}); put it back, or change {_BASE} in "
            f"{_adapter_file(folder)}",
            path=folder,
        ) from error
    refuse_pickled_weights(base)
    return base
