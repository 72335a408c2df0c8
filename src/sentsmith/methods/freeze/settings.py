"""The settings of FREEZE."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import Field, field_validator

from sentsmith.encoders.layered import LayerReadout, Punctuation
from sentsmith.errors import SettingsError
from sentsmith.methods.freeze.objective import LossName
from sentsmith.settings import Settings

Start = Literal["cosines", "scratch", "pca", "autoencoder"]
"""What a layer's vectors go through before their cosine: nothing (the ladder's first step); an encoder with random
weights; a linear map that begins as the layer's leading directions; one that an autoencoder has trained."""
Head = Literal["linear", "mlp", "nonnegative"]
"""What turns the cosines of all layers into one similarity. ``nonnegative`` makes it the cosine of one vector."""
Combine = Literal["cosines", "summed"]
"""One cosine per layer, and a head over them; or one vector, the sum over layers, and its cosine."""


class AutoencoderSettings(Settings):
    """The autoencoders; read with ``start: autoencoder``, and their sentences alone for pca and normalise_input."""

    sentences: str | None = Field(
        default=None, description="File or folder of raw sentences to reconstruct; null: those of data.train"
    )
    column: str | None = Field(default=None, description="Text column, where that file has several")
    limit: int | None = Field(default=20_000, ge=2, description="Use so many sentences, the first ones; null: all")
    epochs: int = Field(default=50, ge=1, description="Passes over them, at most")
    patience: int = Field(default=5, ge=1, description="A layer is finished that has not improved for so many epochs")
    batch_size: int = Field(default=256, ge=1, description="Sentences per step")
    learning_rate: float = Field(default=1e-3, gt=0.0, description="Of AdamW")
    held_out: float = Field(default=0.05, gt=0.0, lt=0.5, description="Share of sentences that decides when to stop")


class FreezeSettings(Settings):
    """What FREEZE adds to the shared settings; ``training.learning_rate`` is that of the head."""

    readout: LayerReadout = Field(
        default="last",
        description="What is read of a layer: last, the last token (the paper); mean; sum; attention, a trained mean, "
        "for which the frozen model runs in every step",
    )
    punctuation: Punctuation = Field(
        default="full_stop",
        description="How sentences end: full_stop, with one where there is no end; none; as_is, as they are given",
    )
    leave_out: tuple[int, ...] = Field(default=(), description="Layers that are not read, the first one being 1")
    start: Start = Field(
        default="autoencoder",
        description="What a layer's vectors go through: cosines, nothing; scratch, an encoder of random weights; "
        "pca, a linear map on the layer's leading directions; autoencoder, an encoder that has learned to reconstruct",
    )
    bottleneck: int | tuple[int, ...] = Field(
        default=256, description="Width of a layer's code, where there is an encoder; a list gives that of each layer"
    )
    late_bottleneck: int | None = Field(
        default=None, ge=1, description="Width of the codes of the second half of the layers; null: as of the first"
    )
    depth: int = Field(
        default=1, ge=1, description="Hidden layers of an encoder (and of its decoder); the paper's is 1"
    )
    normalise_input: bool = Field(
        default=False,
        description="Give each number of a layer mean 0 and deviation 1 over the raw sentences, before all else",
    )
    autoencoder: AutoencoderSettings = AutoencoderSettings()
    train_encoders: bool = Field(default=True, description="Whether encoders go on learning, or the head learns alone")
    encoder_learning_rate: float = Field(default=1e-4, gt=0.0, description="Of the encoders")
    combine: Combine = Field(
        default="cosines",
        description="cosines: one per layer, through the head; summed: one, of the sum of all codes",
    )
    head: Head = Field(
        default="linear",
        description="linear, weights of any sign (the paper's first); mlp; nonnegative, by which the model is one "
        "vector per sentence",
    )
    hidden: int = Field(default=64, ge=1, description="Hidden units of the mlp head")
    loss: LossName = Field(default="log_variance", description="log_variance, or mse as in the ladder's earlier steps")
    noise: float = Field(
        default=0.0,
        ge=0.0,
        description="Standard deviation of the noise on what encoders (and autoencoders) read in training, in units of "
        "the layer's own",
    )
    scale: float = Field(default=5.0, gt=0.0, description="The highest score of data.train, by which all are divided")
    store: str | None = Field(
        default=None,
        description="Folder that keeps the frozen model's vectors, and the autoencoders, for later runs; null: the "
        "run's own, deleted with it",
    )
    store_dtype: Literal["float32", "float16"] = Field(
        default="float32", description="Of the stored vectors; float16 halves the file"
    )
    look_up: bool = Field(
        default=True, description="Train on stored vectors; false runs the frozen model in every step, for comparison"
    )

    @field_validator("bottleneck", mode="before")
    @classmethod
    def _positive(cls, value: Any) -> Any:
        for width in value if isinstance(value, list | tuple) else (value,):
            if isinstance(width, int) and width < 1:
                raise ValueError("must be at least 1")
        return value


def bottlenecks(settings: FreezeSettings, layers: int) -> tuple[int, ...]:
    """Return the width of the code of each of ``layers`` layers, as if none were left out.

    Raises:
        SettingsError: A list of another length.
    """
    if isinstance(settings.bottleneck, tuple):
        if len(settings.bottleneck) != layers:
            raise SettingsError(
                f"freeze.bottleneck lists {len(settings.bottleneck)} widths; the model has {layers} layers"
            )
        return settings.bottleneck
    late = settings.late_bottleneck or settings.bottleneck
    # METHODS §4: layers 1–12 of 24, and 13–24; of an odd number the middle one is early.
    early = (layers + 1) // 2
    return (settings.bottleneck,) * early + (late,) * (layers - early)


def kept_layers(settings: FreezeSettings, layers: int) -> tuple[int, ...]:
    """Return the indices, from 0, of the layers that are read.

    Raises:
        SettingsError: A layer that the model has not, or none is left.
    """
    unknown = [layer for layer in settings.leave_out if not 1 <= layer <= layers]
    if unknown:
        raise SettingsError(f"freeze.leave_out names layer {unknown[0]}; the model has layers 1 to {layers}")
    kept = tuple(index for index in range(layers) if index + 1 not in settings.leave_out)
    if not kept:
        raise SettingsError("freeze.leave_out names every layer; leave at least one")
    return kept
