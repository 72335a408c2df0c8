"""LoRA adapters (Hu et al. 2022) on a model's transformer: put on, counted, merged; peft does the work."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from sentsmith.errors import SettingsError, require

if TYPE_CHECKING:
    from transformers import PreTrainedModel


def add_lora(model: PreTrainedModel, *, rank: int, alpha: float, dropout: float, base: str | None = None) -> None:
    """Put a LoRA adapter on every linear layer, in place; what was there before is frozen.

    Each weight W becomes ``W + (alpha / rank) · B·A``, A drawn by torch's random numbers and B zero: at first nothing
    changes. Of LLaMA-2-7B, rank 32 has 79.95M parameters.

    Args:
        model: A model of transformers, without an adapter.
        rank: Of the update, 1 or more.
        alpha: The update is multiplied by ``alpha / rank``.
        dropout: Of what the adapter reads, in [0, 1).
        base: Where the adapter, saved alone, will find the model: a folder, or a hub name, which means the same on
            another machine; None is where the model was loaded from, on this one.

    Raises:
        MissingExtraError: peft is not installed.
        SettingsError: It has an adapter already.
    """
    peft = require("peft", extra="llm")
    if has_adapter(model):
        raise SettingsError("the model has an adapter already; merge it first: sentsmith encoder MODEL OUTPUT")
    # "all-linear" is every linear layer but an output layer, which a model without its head has not.
    config = peft.LoraConfig(r=rank, lora_alpha=alpha, lora_dropout=dropout, target_modules="all-linear")
    model.add_adapter(config)
    if base is not None:
        config.base_model_name_or_path = base


def has_adapter(model: PreTrainedModel) -> bool:
    """Whether the model carries an adapter."""
    return bool(getattr(model, "_hf_peft_config_loaded", False))


def merge_adapter(model: PreTrainedModel) -> None:
    """Add the adapter to the weights it stands on, in place, and take it off; without one nothing happens.

    Raises:
        SettingsError: The weights are quantised: the sum would be rounded to 4 bits.
    """
    if not has_adapter(model):
        return
    if getattr(model, "is_quantized", False):
        raise SettingsError("an adapter cannot be merged into quantised weights; load its base in full precision first")
    from peft.tuners.tuners_utils import BaseTunerLayer

    layers = [(name, module) for name, module in model.named_modules() if isinstance(module, BaseTunerLayer)]
    for name, layer in layers:
        layer.merge()
        parent, _, last = name.rpartition(".")
        setattr(model.get_submodule(parent), last, layer.get_base_layer())
    # What tells transformers to save an adapter and not the model.
    model._hf_peft_config_loaded = False  # noqa: SLF001
    del model.peft_config
    # A loaded adapter leaves its own names of weights here, by which the model would be saved.
    model.__dict__.pop("_weight_conversions", None)
    for parameter in model.parameters():
        parameter.requires_grad_(True)


def quantisation(kind: str) -> dict[str, Any]:
    """Return what transformers' ``from_pretrained`` is told for weights in 4 bits.

    Args:
        kind: ``"nf4"``: 4-bit NormalFloat, double quantisation, computed in float32 (BeLLM's base); ``"none"``.

    Raises:
        MissingExtraError: bitsandbytes is not installed.
    """
    if kind == "none":
        return {}
    require("bitsandbytes", extra="quantised")
    import torch
    from transformers import BitsAndBytesConfig

    config = BitsAndBytesConfig(  # type: ignore[no-untyped-call]
        load_in_4bit=True,
        bnb_4bit_quant_type=kind,
        bnb_4bit_use_double_quant=True,
        bnb_4bit_compute_dtype=torch.float32,
    )
    return {"quantization_config": config}
