"""SimCSE as a training run: its settings, and what it brings to the shared run.

Unsupervised when the rows are sentences, supervised when they are triplets. The published training adds a head
(``tanh(W·h + b)``): for training only in the unsupervised form, kept at evaluation in the supervised one.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import Field, model_validator

from sentsmith.methods.simcse.model import ModelSettings, prepare, readout
from sentsmith.training.settings import Recipe as SharedRecipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.methods.simcse.objective import SimCSELoss
    from sentsmith.training.data import TrainingRows
    from sentsmith.training.output import Output


class SimcseSettings(ModelSettings):
    """What SimCSE adds to the shared settings."""

    rows: Literal["sentences", "triplets"] = Field(
        default="sentences",
        description="sentences: unsupervised; triplets (anchor, positive, negative): supervised",
    )
    temperature: float = Field(default=0.05, gt=0.0, description="τ; cosines are divided by it")
    hard_negative_log_weight: float = Field(
        default=0.0, description="Added to the logit of an anchor's own hard negative (triplets only)"
    )
    mask_duplicates: bool = Field(
        default=True,
        description="Do not count a text that equals the anchor or its positive as a negative; the paper counts it",
    )


class Recipe(SharedRecipe):
    """A SimCSE recipe."""

    several_processes: ClassVar[bool] = True
    method: Literal["simcse"] = "simcse"
    simcse: SimcseSettings = SimcseSettings()

    @model_validator(mode="after")
    def _settings_of_the_other_form(self) -> Self:
        if self.simcse.rows == "triplets" and self.data.column is not None:
            raise ValueError("data.column is for simcse.rows sentences; triplets are found by their columns' names")
        if self.simcse.rows == "sentences" and self.simcse.hard_negative_log_weight != 0.0:
            raise ValueError("simcse.hard_negative_log_weight needs simcse.rows triplets; sentences have no negative")
        return self


def run(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Train by ``recipe`` into the folder ``output``; returns the run record.

    Raises:
        InputError: The data, the model or the output folder are wrong.
        SentsmithError: The training failed.
    """
    from sentsmith.training.data import load_rows, triplet_rows
    from sentsmith.training.output import Output

    place = Output(Path(output), resume, overwrite)
    place.check(recipe)
    read = triplet_rows if recipe.simcse.rows == "triplets" else None
    rows = load_rows(recipe.data, read, held_out=recipe.data.kept_apart, seed=recipe.training.seed)
    return train_rows(recipe, rows, place, progress=progress)


def train_rows(recipe: Recipe, rows: TrainingRows, place: Output, *, progress: bool = False) -> dict[str, Any]:
    """Train by ``recipe`` on rows that were read already; see :func:`run`."""
    from transformers import set_seed

    from sentsmith.encoders.loading import load
    from sentsmith.training.run import Plan, train

    # A new head draws its weights: the seed has to stand before the model is built.
    set_seed(recipe.training.seed)
    model = prepare(load(recipe.model), recipe.simcse)
    plan = Plan(
        model=model,
        loss=lambda trained, chunking: _loss(trained, chunking, recipe.simcse),
        rows=rows,
        readout=lambda trained: readout(trained, recipe.simcse),
        temperature=recipe.simcse.temperature,
        notes=[f"Method: {'un' if recipe.simcse.rows == 'sentences' else ''}supervised SimCSE (Gao et al. 2021)."],
    )
    return train(recipe, plan, place, progress=progress)


def _loss(model: SentenceTransformer, chunking: Chunking, settings: SimcseSettings) -> SimCSELoss:
    from sentsmith.methods.simcse.objective import SimCSELoss

    return SimCSELoss(
        model,
        temperature=settings.temperature,
        chunking=chunking,
        hard_negative_log_weight=settings.hard_negative_log_weight,
        mask_duplicates=settings.mask_duplicates,
        pad_token_id=getattr(model.tokenizer, "pad_token_id", None) or 0,
    )
