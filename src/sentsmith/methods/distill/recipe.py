"""Distillation as a training run: frozen teachers are read once, then one tower learns their fused vectors.

The teachers may be any models that load: a twin tower, several models whose vectors are summed, or the 0.3/0.7 fusion
of a twin with a third model. Nothing of them is in the training loop.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, field_validator, model_validator

from sentsmith.encoders.pooling import Pooling
from sentsmith.errors import SettingsError
from sentsmith.settings import Settings
from sentsmith.training.settings import Recipe as SharedRecipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

    from sentsmith.methods.distill.teacher import Target
    from sentsmith.training.data import TrainingRows
    from sentsmith.training.selection import Judge
    from sentsmith.training.teachers import Teacher


class TeacherSettings(Settings):
    """A model to learn from."""

    model: str = Field(min_length=1, description="Folder, hub name, or minilm")
    weight: float = Field(default=1.0, gt=0.0, allow_inf_nan=False, description="Of its vectors in the sum")
    pooling: Pooling | None = Field(default=None, description="Replaces the model's pooling; null keeps its own")


class DistillSettings(Settings):
    """What distillation adds to the shared settings."""

    teachers: tuple[TeacherSettings, ...] = Field(
        default=(), description="Models, each a name or a mapping {model, weight, pooling}; one name will do"
    )
    normalized: bool = Field(
        default=False,
        description="Keep the closing normalisation of the teachers and of the student; the paper has raw vectors",
    )
    projection: Literal["none", "learned", "pca"] = Field(
        default="none",
        description="Where the widths differ. learned: a linear map from student to teachers, in training only; "
        "pca: the teachers' vectors are projected to the student's width",
    )
    pooling: Pooling | None = Field(
        default=None, description="Replaces the student's pooling; null keeps its own (published: cls)"
    )
    dropout: float | None = Field(
        default=None, ge=0.0, lt=1.0, description="Of the student's layers; null keeps the model's own"
    )

    @field_validator("teachers", mode="before")
    @classmethod
    def _names(cls, value: Any) -> Any:
        if isinstance(value, str | dict):
            value = [value]
        if not isinstance(value, list | tuple):
            return value
        return [{"model": item} if isinstance(item, str) else item for item in value]


class Recipe(SharedRecipe):
    """A distillation recipe; ``model`` is the student."""

    method: Literal["distill"] = "distill"
    distill: DistillSettings = DistillSettings()

    @model_validator(mode="after")
    def _someone_to_learn_from(self) -> Self:
        if not self.distill.teachers:
            raise ValueError("distill.teachers is empty; name at least one model to learn from")
        return self

    def reads(self) -> tuple[str, ...]:
        """Return what every recipe reads, and the teachers."""
        return (*super().reads(), *(teacher.model for teacher in self.distill.teachers))


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
        InputError: The data, a model or the output folder are wrong.
        SettingsError: The widths of the models do not fit.
        SentsmithError: The training failed.
    """
    from transformers import set_seed

    from sentsmith.encoders.loading import load
    from sentsmith.methods.distill.objective import DistillLoss
    from sentsmith.methods.distill.teacher import read_teachers
    from sentsmith.training.output import Output
    from sentsmith.training.run import Plan, check_enough, train
    from sentsmith.training.selection import ScoredPairsJudge

    place = Output(Path(output), resume, overwrite)
    place.check(recipe)
    rows = _rows(recipe)
    # A part that the checkpoint lacks (RoBERTa's pooler, a projection) draws its weights.
    set_seed(recipe.training.seed)
    # The teachers may take hours: what can be wrong is looked at before them.
    check_enough(recipe, len(rows.train))
    judge: Judge | None = ScoredPairsJudge.of_files(recipe.data.dev) if recipe.data.dev else None
    student = prepare(load(recipe.model), recipe.distill)
    teachers = [_teacher(settings, recipe, rows) for settings in recipe.distill.teachers]
    narrow, wide = _widths(recipe, student, teachers)
    work = place.open(recipe, rows.sha256)
    begun = time.perf_counter()
    target = read_teachers(
        teachers,
        [*rows.train["sentence"], *rows.held_out["sentence"]],
        work,
        pca=narrow if recipe.distill.projection == "pca" else None,
        fit_rows=len(rows.train),
        progress=progress,
    )
    reading = time.perf_counter() - begun
    facts = _facts(recipe, teachers, target)
    teachers.clear()  # frees their memory for the training
    model, projection = student, None
    if recipe.distill.projection == "learned":
        # It draws its weights.
        set_seed(recipe.training.seed)
        model, projection = _with_projection(student, narrow, wide)
    plan = Plan(
        model=model,
        loss=lambda trained, chunking: DistillLoss(trained, target.path, chunking=chunking),
        rows=rows,
        readout=_readout if projection is not None else (lambda trained: trained),
        judge=judge or _judge(rows, target, projection),
        notes=_notes(recipe, facts),
        facts=facts,
        seconds={"teachers": round(reading, 1)},
    )
    # The folder is this run's own by now.
    return train(recipe, plan, replace(place, resume=True, overwrite=False), progress=progress)


def prepare(model: SentenceTransformer, settings: DistillSettings) -> SentenceTransformer:
    """Return the student: with the pooling and dropout that the settings ask for, and raw vectors unless told."""
    from sentsmith.encoders.dropout import set_dropout

    model = _read_as(model, settings.pooling, normalized=settings.normalized)
    if settings.dropout is not None:
        set_dropout(model, settings.dropout)
    return model


def _read_as(model: SentenceTransformer, pooling: Pooling | None, *, normalized: bool) -> SentenceTransformer:
    from sentsmith.encoders.pooling import with_pooling, without_normalize

    if pooling is not None:
        model = with_pooling(model, pooling)
    return model if normalized else without_normalize(model)


def _rows(recipe: Recipe) -> TrainingRows:
    """Return the sentences, the training ones labelled with their row in the file of the teachers' vectors."""
    from sentsmith.training.data import load_rows

    rows = load_rows(recipe.data, held_out=recipe.data.kept_apart, seed=recipe.training.seed)
    return replace(rows, train=rows.train.add_column("label", list(range(len(rows.train)))))


def _teacher(settings: TeacherSettings, recipe: Recipe, rows: TrainingRows) -> Teacher:
    from sentsmith.training.teachers import load_teacher

    normalized = recipe.distill.normalized
    return load_teacher(
        settings.model,
        max_length=recipe.training.max_length,
        depends={"pooling": settings.pooling, "normalized": normalized, "data": rows.sha256},
        read_as=lambda model: _read_as(model, settings.pooling, normalized=normalized),
        weight=settings.weight,
    )


def _widths(recipe: Recipe, student: SentenceTransformer, teachers: Sequence[Teacher]) -> tuple[int, int]:
    """Return the widths of the student and of the teachers.

    Raises:
        SettingsError: The teachers have several, or the student's does not fit, or the projection does not.
    """
    from sentsmith.methods.distill.teacher import width

    narrow, wide = width(student), [width(teacher.model) for teacher in teachers]
    if len(set(wide)) > 1:
        each = ", ".join(f"{teacher.name} {size}" for teacher, size in zip(teachers, wide, strict=True))
        raise SettingsError(f"the vectors of teachers are summed and need one width, not: {each}")
    both = f"the student {recipe.model} is {narrow} wide, the teacher {teachers[0].name} {wide[0]}"
    if recipe.distill.projection == "none" and narrow != wide[0]:
        options = "learned" if narrow > wide[0] else "learned or pca"
        raise SettingsError(f"{both}; set distill.projection to {options}, or take models of one width")
    if recipe.distill.projection == "pca" and narrow >= wide[0]:
        instead = "none" if narrow == wide[0] else "learned"
        raise SettingsError(f"{both}; distill.projection pca only makes vectors shorter, use {instead}")
    return narrow, wide[0]


def _with_projection(student: SentenceTransformer, narrow: int, wide: int) -> tuple[SentenceTransformer, nn.Module]:
    import torch
    from sentence_transformers.base.modules import Dense

    from sentsmith.encoders.pooling import rebuilt

    projection = Dense(narrow, wide, activation_function=torch.nn.Identity())
    model = rebuilt(student, [*student, projection])
    return model, model[-1]


def _readout(model: SentenceTransformer) -> SentenceTransformer:
    """Return the model without the projection, which was for training only; weights are shared."""
    from sentsmith.encoders.pooling import rebuilt

    return rebuilt(model, list(model)[:-1])


def _judge(rows: TrainingRows, target: Target, projection: nn.Module | None) -> Judge | None:
    import numpy as np

    from sentsmith.methods.distill.teacher import DistanceJudge

    if len(rows.held_out) == 0:
        return None
    targets = np.load(target.path, mmap_mode="r", allow_pickle=False)[len(rows.train) :]
    return DistanceJudge(list(rows.held_out["sentence"]), np.array(targets), projection)


def _facts(recipe: Recipe, teachers: Sequence[Teacher], target: Target) -> dict[str, Any]:
    from sentsmith.encoders.loading import resolve
    from sentsmith.training import record

    described = []
    for teacher in teachers:
        run_record = record.read(resolve(teacher.name)) or {}
        described.append(
            {
                "model": teacher.name,
                "weight": teacher.weight,
                "sha256": teacher.key["model"],
                "settings_sha256": run_record.get("settings_sha256"),
            }
        )
    return {
        "teachers": described,
        "projection": recipe.distill.projection,
        "explained_variance": target.explained_variance,
    }


def _notes(recipe: Recipe, facts: dict[str, Any]) -> list[str]:
    named = ", ".join(f"{t['weight']:g} × `{t['model']}` (sha256 `{t['sha256'][:16]}…`)" for t in facts["teachers"])
    kind = "as the models give them" if recipe.distill.normalized else "raw, without closing normalisation"
    notes = [
        "Method: distillation to one tower by mean squared error (as in JTCSE).",
        f"Learned from the sum of vectors, {kind}: {named}.",
    ]
    if recipe.distill.projection == "learned":
        notes.append("Projection: a linear map to the teacher's width was trained along and is not part of the model.")
    if recipe.distill.projection == "pca":
        share = f"{100 * facts['explained_variance']:.1f} %"
        notes.append(f"Projection: the teacher's vectors by PCA to the student's width; it explains {share} of them.")
    return notes
