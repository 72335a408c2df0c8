"""The settings of a JTCSE recipe."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, model_validator

from sentsmith.settings import Settings
from sentsmith.training.settings import Recipe as SharedRecipe

Views = Literal["interleaved", "literal"]
Mode = Literal["last", "carry"]


class TowerSettings(Settings):
    """What one tower starts from, and learns alone."""

    model: str | None = Field(default=None, description="Start of this tower; null is the recipe's model")
    seed: int | None = Field(
        default=None, ge=0, description="Of its own training; null is training.seed, for the second tower plus 1"
    )
    learning_rate: float | None = Field(
        default=None, gt=0.0, description="Of its own training; null is jtcse.simcse.learning_rate"
    )
    translations: str | None = Field(
        default=None, description="File of sentsmith write translations; its echoes join this tower's own sentences"
    )


class SimcseStage(Settings):
    """What each tower learns alone, by unsupervised SimCSE, before both are joined."""

    enabled: bool = Field(default=True, description="False joins the towers as they start")
    batch_size: int = Field(default=64, ge=2, description="Rows per step")
    learning_rate: float = Field(default=1.5e-5, gt=0.0, description="Peak learning rate of AdamW")
    epochs: float = Field(default=1.0, gt=0.0, description="Passes over the tower's sentences")
    max_steps: int | None = Field(default=None, ge=1, description="Stop after so many steps, whatever the epochs")
    max_length: int | None = Field(
        default=None, ge=4, description="Tokens a sentence is cut to; null is training.max_length"
    )
    weight_decay: float = Field(default=0.0, ge=0.0, description="AdamW's decoupled weight decay")
    schedule: Literal["linear", "cosine", "constant"] = Field(default="linear", description="Of the learning rate")
    max_grad_norm: float = Field(default=1.0, ge=0.0, description="Gradient clipping; 0 switches it off")
    head: Literal["none", "training"] = Field(default="none", description="SimCSE's MLP head, in this stage only")
    dropout: float | None = Field(
        default=None, ge=0.0, lt=1.0, description="Of both stages, unless jtcse.dropout says another for the joint one"
    )
    halves: bool = Field(default=False, description="Each tower sees its own half of the sentences in this stage")


class JtcseSettings(Settings):
    """What JTCSE adds to the shared settings, which are those of the joint training."""

    first: TowerSettings = TowerSettings()
    second: TowerSettings = TowerSettings()
    simcse: SimcseStage = SimcseStage()
    temperature: float = Field(default=0.05, gt=0.0, description="τ of both stages; cosines are divided by it")
    nce: bool = Field(default=True, description="Contrast within each tower")
    icnce: bool = Field(default=True, description="Contrast across the towers")
    ictm: bool = Field(default=True, description="The constraint on the length of the pooled vectors")
    views: Views = Field(
        default="interleaved", description="Form of the contrastive losses: of the released code, or as printed"
    )
    half_tmc: bool = Field(default=False, description="Halve the modulus constraint, as the released code does")
    cross_layers: int | None = Field(
        default=None,
        ge=0,
        description="Crossed layers, evenly spaced; must divide the depth. null is every second layer, 0 is TNCSE",
    )
    cross: Mode = Field(
        default="last",
        description="last: a side branch of the last layer alone; carry: a stream that crosses at each crossed layer",
    )
    pooling: Literal["cls", "mean", "first_last"] | None = Field(
        default=None,
        description="Readout of the towers, the poolers' input and the cross streams; null: the start model's own, cls "
        "where it names none",
    )
    pooler: Literal["own", "fresh"] = Field(
        default="own", description="The start model's pooler, or a new one that is trained from nothing"
    )
    dropout: float | None = Field(
        default=None,
        ge=0.0,
        lt=1.0,
        description="Of the joint training; null: jtcse.simcse.dropout, or the model's own",
    )

    @property
    def joint(self) -> bool:
        """Whether there is a joint training at all."""
        return self.nce or self.icnce or self.ictm


class Recipe(SharedRecipe):
    """A JTCSE recipe; with nce, icnce and ictm all off, the towers are summed as they are."""

    method: Literal["jtcse"] = "jtcse"
    jtcse: JtcseSettings = JtcseSettings()

    @model_validator(mode="after")
    def _settings_that_need_another(self) -> Self:
        settings = self.jtcse
        if not settings.simcse.enabled:
            for name, tower in (("first", settings.first), ("second", settings.second)):
                if tower.translations or tower.learning_rate or tower.seed is not None:
                    raise ValueError(
                        f"jtcse.{name} has settings of the towers' own training, which jtcse.simcse.enabled false "
                        "leaves out"
                    )
        if settings.half_tmc and not settings.ictm:
            raise ValueError("jtcse.half_tmc halves the modulus constraint, which jtcse.ictm false leaves out")
        if settings.cross_layers and not settings.icnce:
            raise ValueError("jtcse.cross_layers is read by jtcse.icnce alone, which is off; set it to null")
        if settings.cross == "carry" and (settings.cross_layers == 0 or not settings.icnce):
            raise ValueError("jtcse.cross carry needs layers that cross: jtcse.icnce true, jtcse.cross_layers above 0")
        if settings.pooler == "fresh" and not settings.ictm:
            raise ValueError(
                "jtcse.pooler fresh is for the modulus constraint, which jtcse.ictm false leaves out; set it to own"
            )
        return self

    def tower(self, index: int) -> TowerSettings:
        """Return a tower's settings, with nothing left open."""
        mine = (self.jtcse.first, self.jtcse.second)[index]
        return TowerSettings(
            model=mine.model or self.model,
            seed=self.training.seed + index if mine.seed is None else mine.seed,
            learning_rate=mine.learning_rate or self.jtcse.simcse.learning_rate,
            translations=mine.translations,
        )

    def starts(self) -> tuple[str, ...]:
        """Return the names of the models that the towers start from."""
        return tuple(self.tower(index).model or self.model for index in (0, 1))

    def reads(self) -> tuple[str, ...]:
        """Return what every recipe reads, and what the towers read besides."""
        translations = (self.jtcse.first.translations, self.jtcse.second.translations)
        return (*super().reads(), *self.starts(), *(name for name in translations if name))
