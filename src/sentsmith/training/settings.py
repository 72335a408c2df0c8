"""The settings that all recipes share; a method adds its own under its name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, Self

from pydantic import (
    Discriminator,
    Field,
    SerializerFunctionWrapHandler,
    Tag,
    field_validator,
    model_serializer,
    model_validator,
)

from sentsmith.settings import Settings

NO_JUDGE = (
    "training.patience counts scores, and nothing is scored: name files in data.dev, or hold out more of the training "
    "rows (data.held_out)"
)


class SourceSettings(Settings):
    """What is trained on."""

    train: str = Field(description="File or folder of training rows")
    column: str | None = Field(default=None, description="Text column, where a file has several (sentences only)")
    limit: int | None = Field(default=None, ge=2, description="Use the first rows only")


class DataSettings(SourceSettings):
    """What is trained on, and what chooses the checkpoint."""

    dev: tuple[str, ...] = Field(
        default=(),
        description="Files of scored pairs; the mean of their Spearman correlations chooses the checkpoint. "
        "Without any, a held-out part of the training rows does",
    )
    held_out: float = Field(
        default=0.02,
        ge=0.0,
        lt=0.5,
        description="Share of rows kept apart to choose the checkpoint when dev is empty",
    )

    @property
    def kept_apart(self) -> float:
        """Share of the rows to hold out: none where dev files choose."""
        return 0.0 if self.dev else self.held_out

    @field_validator("dev", mode="before")
    @classmethod
    def _one_or_many(cls, value: Any) -> Any:
        if value is None:
            return ()
        return (value,) if isinstance(value, str) else value


class TrainingSettings(Settings):
    """How it is trained."""

    batch_size: int = Field(default=64, ge=2, description="Rows per step and process; the in-batch negatives")
    learning_rate: float = Field(default=3e-5, gt=0.0, description="Peak learning rate of AdamW")
    epochs: float = Field(default=1.0, gt=0.0, description="Passes over the data")
    max_steps: int | None = Field(default=None, ge=1, description="Stop after so many steps, whatever the epochs")
    seed: int = Field(default=42, ge=0, description="Fixes data order, dropout and new weights")
    max_length: int = Field(default=64, ge=4, description="Tokens a sentence is cut to in training, not in use")
    weight_decay: float = Field(default=0.0, ge=0.0, description="AdamW's decoupled weight decay")
    warmup: float = Field(default=0.0, ge=0.0, lt=1.0, description="Share of the steps that warm the learning rate up")
    schedule: Literal["linear", "cosine", "constant"] = Field(default="linear", description="Of the learning rate")
    max_grad_norm: float = Field(default=1.0, ge=0.0, description="Gradient clipping; 0 switches it off")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="auto", description="auto: bf16 where the processor or GPU computes it natively, else fp32"
    )
    select: Literal["best", "last"] = Field(
        default="best",
        description="Keep the best checkpoint by the dev score (step 0 is a candidate), or the last",
    )
    eval_steps: int = Field(default=125, ge=1, description="Score on dev every so many steps")
    patience: int | None = Field(
        default=None, ge=1, description="Stop after so many judgements on dev without a better score; null: never"
    )
    save_steps: int = Field(default=500, ge=1, description="Write a checkpoint to resume from every so many steps")
    blend: float = Field(
        default=1.0,
        gt=0.0,
        le=1.0,
        description="Weight of the trained parameters in the average with the start model's (1: no averaging)",
    )
    chunk_tokens: int | Literal["measure"] | None = Field(
        default=None,
        description="Tokens per chunk of the forward pass; null: 512 on a processor, 16384 on a GPU; 'measure' times "
        "a few on the first batch (the dropout masks, and so the last digits of the result, follow the choice, which "
        "the run record keeps)",
    )
    recompute: bool = Field(default=False, description="Gradient caching: memory of one chunk, about 1.3× the time")

    @field_validator("chunk_tokens")
    @classmethod
    def _positive(cls, value: int | str | None) -> int | str | None:
        if isinstance(value, int) and value < 1:
            raise ValueError("must be at least 1, 'measure' or null")
        return value


class BaseRecipe(Settings):
    """What every recipe has."""

    several_processes: ClassVar[bool] = False
    """Whether the method's run may be started by ``torchrun``: its loss gathers, and its preparation writes once."""

    method: str = Field(description="Name of the folder under methods/")
    model: str = Field(default="minilm", description="Folder, hub name, or minilm")
    data: SourceSettings

    def starts(self) -> tuple[str, ...]:
        """Return the names of the models that the run starts from."""
        return (self.model,)

    def reads(self) -> tuple[str, ...]:
        """Return the files, folders and model names that the run reads: no output folder that holds one is deleted."""
        return (self.model, self.data.train)

    def keeps(self) -> tuple[str, ...]:
        """Return those folders of :meth:`reads` that the run also writes, for later runs to find what it has computed.

        They are what the method's own section calls ``cache`` or ``store``.
        """
        section = getattr(self, self.method, None)
        return tuple(name for key in ("cache", "store") if (name := getattr(section, key, None)) is not None)


class Range(Settings):
    """The values between two bounds, both among them; whole numbers where both bounds are."""

    low: int | float = Field(allow_inf_nan=False, description="Lower bound")
    high: int | float = Field(allow_inf_nan=False, description="Upper bound")
    log: bool = Field(default=False, description="Search the logarithms: as many values from 1 to 10 as from 10 to 100")
    step: int | float | None = Field(default=None, gt=0, description="Distance of the values, counted from low")

    @property
    def whole(self) -> bool:
        """Whether the values are whole numbers."""
        return isinstance(self.low, int) and isinstance(self.high, int)

    @model_validator(mode="after")
    def _bounds(self) -> Self:
        refused = {
            f"low {self.low} is not below high {self.high}": self.low >= self.high,
            f"log needs a low above 0, and it is {self.low}": self.log and self.low <= 0,
            "log and step exclude each other; give one": self.log and self.step is not None,
            f"step {self.step} is no whole number, and both bounds are; write a bound as 1.0": (
                self.whole and not isinstance(self.step, int | None)
            ),
        }
        for message, wrong in refused.items():
            if wrong:
                raise ValueError(message)
        return self


def _kind_of_values(value: Any) -> str | None:
    if isinstance(value, list | tuple):
        return "choices"
    return "range" if isinstance(value, Mapping | Range) else None


Choices = Annotated[tuple[Any, ...], Field(min_length=1)]
Values = Annotated[
    Annotated[Choices, Tag("choices")] | Annotated[Range, Tag("range")],
    Discriminator(
        _kind_of_values,
        custom_error_type="values",
        custom_error_message="what to try is a list of values, or a mapping {low, high, log, step}",
    ),
]


class Recipe(BaseRecipe):
    """What every recipe has whose model is trained step by step."""

    data: DataSettings
    training: TrainingSettings = TrainingSettings()
    tune: Mapping[str, Values] = Field(
        default={},
        description="What train --tune searches: setting → list of values, or {low, high, log, step}. Nothing else "
        "reads it",
    )

    @field_validator("tune", mode="before")
    @classmethod
    def _dotted(cls, value: Any) -> Any:
        return _flat(value) if isinstance(value, Mapping) else value

    @model_serializer(mode="wrap")
    def _no_empty_tune(self, serialize: SerializerFunctionWrapHandler) -> dict[str, Any]:
        # A recipe that searches nothing has the hash that it had before there was a search.
        result: dict[str, Any] = serialize(self)
        if not self.tune:
            result.pop("tune", None)
        return result

    @model_validator(mode="after")
    def _patience_with_a_judge(self) -> Self:
        if self.training.patience is not None and not self.data.dev and not self.data.held_out:
            raise ValueError(NO_JUDGE)
        return self

    def reads(self) -> tuple[str, ...]:
        """Return what every recipe reads, and the dev files."""
        return (*super().reads(), *self.data.dev)


def _flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return ``{training: {seed: …}}`` as ``{training.seed: …}``; a mapping with a bound is a range."""
    result: dict[str, Any] = {}
    for key, value in values.items():
        if isinstance(value, Mapping) and not {"low", "high"} & set(value):
            result |= _flat(value, f"{prefix}{key}.")
        else:
            result[f"{prefix}{key}"] = value
    return result
