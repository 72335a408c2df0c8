"""Load a language model and its tokenizer by folder or hub name: from safetensors only, whole, and no foreign code."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

from sentsmith.encoders.loading import loading_errors, refuse_pickled_weights, resolve
from sentsmith.errors import InputError, SentsmithError, require


def model_folder(name: str | Path, *, advice: str) -> Path:
    """Return the folder of a language model, downloaded if need be, once it is known to hold safetensors.

    Args:
        name: A folder or hub name.
        advice: What to give instead where the hub cannot be reached.

    Raises:
        InputError: No such model, or its weights are pickled or absent.
        SentsmithError: The name needs a hub that cannot be reached.
    """
    try:
        folder = resolve(name)
    except InputError:
        raise
    except SentsmithError as error:
        raise SentsmithError(
            f"{str(name)!r} is no folder here and would come from the model hub, which cannot be reached; {advice}"
        ) from error
    if not Path(name).is_dir() and not any(folder.rglob("*.safetensors")):
        # Pickled weights are not downloaded; many translation models of the hub have no others.
        raise InputError(
            f"{str(name)!r} has no weights in safetensors on the hub, and pickled ones can run code when read; if you "
            "trust it, convert it once (transformers: load the model and the tokenizer by this name, save_pretrained "
            "both to one folder) and give that folder"
        )
    refuse_pickled_weights(folder)
    return folder


def load_config(folder: Path) -> Any:
    """Return the model's configuration.

    Raises:
        InputError: It cannot be read, or is of a kind that transformers does not know.
    """
    from transformers import AutoConfig

    with loading_errors(folder):
        return AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_tokenizer(folder: Path) -> Any:
    """Return the model's tokenizer.

    Raises:
        InputError: It cannot be read.
        MissingExtraError: It needs sentencepiece.
    """
    from transformers import AutoTokenizer

    if (folder / "source.spm").is_file():
        require("sentencepiece", extra="llm")
    with loading_errors(folder), warnings.catch_warnings():
        # It recommends a normaliser that it then does not call.
        warnings.filterwarnings("ignore", message="Recommended: pip install sacremoses")
        return AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)


def load_weights(folder: Path, auto_class: Any, *, device: str, dtype: Any, kind: str, trained_to: str) -> Any:
    """Return the model in evaluation mode, on its device.

    Args:
        folder: Holds it.
        auto_class: ``AutoModelForCausalLM`` or ``AutoModelForSeq2SeqLM``.
        device: Where it runs.
        dtype: Of the weights; ``"auto"`` is the checkpoint's.
        kind: What it should be, for the message ("a translation model").
        trained_to: What for ("translate").

    Raises:
        InputError: It cannot be loaded, or lacks weights, which would be random.
    """
    with loading_errors(folder):
        model, told = auto_class.from_pretrained(
            folder,
            use_safetensors=True,
            dtype=dtype,
            output_loading_info=True,
            local_files_only=True,
            trust_remote_code=False,
        )
    lacking = sorted({*told["missing_keys"], *(key for key, *_ in told["mismatched_keys"])})
    if lacking:
        raise InputError(
            f"lacks {len(lacking)} weight(s) of {kind} ({lacking[0]}, …), which would be random; "
            f"give a model that was trained to {trained_to}",
            path=folder,
        )
    return model.to(device).eval()


def fastest() -> str:
    """Return the fastest device present: ``"cuda"``, ``"mps"`` or ``"cpu"``."""
    import torch

    if torch.cuda.is_available():
        return "cuda"
    return "mps" if torch.backends.mps.is_available() else "cpu"
