"""The settings of BeLLM."""

from __future__ import annotations

import re
from typing import Literal

from pydantic import Field, field_validator

from sentsmith.encoders.readout import ReadoutName
from sentsmith.errors import SettingsError
from sentsmith.settings import Settings

_FROM_THE_END = re.compile(r"n([-/])([1-9]\d*)")
_NO_LAYER = ("none", "null")


class LoraSettings(Settings):
    """The adapter; read with ``tuning: lora`` only."""

    rank: int = Field(default=32, ge=1, description="Rank of the update of each weight")
    alpha: float = Field(default=32.0, gt=0.0, description="The update is multiplied by alpha / rank")
    dropout: float = Field(default=0.1, ge=0.0, lt=1.0, description="Of what the adapter reads")


class BellmSettings(Settings):
    """What BeLLM adds to the shared settings."""

    both_ways_from: int | str | None = Field(
        default="n-1",
        description="The first layer that looks both ways, of n: a number from 0, or n-1 (the last alone, the paper), "
        "n-2, n/2, …; none (or null): no layer. With readout last, n-1 changes nothing",
    )
    readout: ReadoutName = Field(
        default="last", description="last: the prompt's last token; mean: the sentence's own tokens; all: all tokens"
    )
    template: str | None = Field(
        default=None,
        description="The prompt, with {sentence}, and {condition} for conditional rows; null: the model's own, of a "
        "plain decoder the paper's for the rows",
    )
    full_stop: bool | None = Field(
        default=None,
        description="End sentences as the authors' evaluation does; null: as the model does, a plain decoder does not",
    )
    pad_leak: bool | None = Field(
        default=None,
        description="Let the layers that look both ways see padding, as the authors' code does; null: as the model "
        "does, a plain decoder does not",
    )
    layers: int | None = Field(default=None, ge=1, description="Keep the first layers only; null: all")
    added_layers: int = Field(
        default=0,
        ge=0,
        description="Append so many copies of the last layer of a plain decoder, and let them look both ways (the "
        "paper's Addition: 1, both_ways_from null, tuning full; with lora the copies learn by the adapter only)",
    )
    rows: Literal["triplets", "conditional"] = Field(
        default="triplets",
        description="triplets (anchor, positive, negative), or conditional similarity (C-STS's csv)",
    )
    tuning: Literal["lora", "full"] = Field(
        default="lora", description="An adapter on all linear layers, or all weights"
    )
    lora: LoraSettings = LoraSettings()
    quantise: Literal["none", "nf4"] = Field(
        default="none", description="nf4: a plain decoder's frozen weights in 4 bits (bitsandbytes); with tuning lora"
    )
    save: Literal["merged", "adapter"] = Field(
        default="merged",
        description="A whole model; or the adapter alone, of a plain decoder, which is needed to load it",
    )
    layer_recompute: bool = Field(
        default=False, description="Gradient checkpointing: each layer's activations are computed again"
    )
    temperature: float = Field(default=0.05, gt=0.0, description="τ; cosines are divided by it")
    mask_duplicates: bool = Field(
        default=True, description="Do not count a text that equals the anchor or its positive as a negative"
    )
    contrastive_weight: float = Field(default=1.0, ge=0.0, description="Of the contrastive loss (AnglE's w_ibn)")
    cosine_weight: float = Field(default=0.0, ge=0.0, description="Of AnglE's CoSENT term (w_cos)")
    angle_weight: float = Field(default=0.0, ge=0.0, description="Of AnglE's angle term (w_ang)")
    hinge_weight: float = Field(
        default=1.0, ge=0.0, description="Of the quadruplets' hinge beside the squared error (conditional rows)"
    )

    @field_validator("both_ways_from")
    @classmethod
    def _known(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, str):
            first = first_layer(value, 2**30)
            return first if first is None or value.strip().isdecimal() else value
        if value is not None and value < 0:
            raise ValueError("must be 0 or more, n-1, n-2, n/2, …, or none for no layer")
        return value


def first_layer(given: int | str | None, layers: int) -> int | None:
    """Return the index of the first layer that looks both ways.

    Args:
        given: An index or its digits, ``n-K``, ``n/K`` (rounded down), or for no layer None, ``none`` or ``null``.
        layers: n.

    Raises:
        SettingsError: Another text, or no such layer.
    """
    if given is None or isinstance(given, int):
        return given
    if given.strip() in _NO_LAYER:
        return None
    if given.strip().isdecimal():
        return int(given)
    match = _FROM_THE_END.fullmatch(given.replace(" ", ""))
    if match is None:
        raise SettingsError(f"{given!r}: give the first layer as a number, n-1, n-2, n/2, …, or none")
    number = int(match[2])
    first = layers - number if match[1] == "-" else layers // number
    if first < 0:
        raise SettingsError(f"{given!r}: the model has {layers} layers; give 0 for all of them")
    return first
