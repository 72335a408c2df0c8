"""Post-training on ranked lists: a model that is good already learns the order of lists that drift.

What order is right is told by the list, by a frozen teacher, or by both (the method). Beside each list some triplets
may be trained on in the same step.
"""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import Field, model_validator

from sentsmith.encoders.pooling import Pooling
from sentsmith.settings import Settings
from sentsmith.training.settings import Recipe as SharedRecipe
from sentsmith.training.settings import TrainingSettings

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import Tensor

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.methods.ranking.lists import Lists
    from sentsmith.methods.ranking.loss import RankingLoss
    from sentsmith.training.data import TrainingRows
    from sentsmith.training.selection import Judge
    from sentsmith.training.teachers import Teacher
    from sentsmith.training.text_vectors import TextVectors


class RankingTraining(TrainingSettings):
    """How it is trained: the paper's settings where nothing else is said."""

    batch_size: int = Field(default=1, ge=1, description="Lists per step; the loss is their mean. The paper has 1")
    learning_rate: float = Field(default=3e-6, gt=0.0, description="Peak learning rate of AdamW")
    max_length: int = Field(default=32, ge=4, description="Tokens a sentence is cut to in training, not in use")
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        default="fp32", description="Half precision makes ties among the cosines of a list"
    )
    eval_steps: int = Field(default=25, ge=1, description="Score on dev every so many steps")


class RankingSettings(Settings):
    """What ranking adds to the shared settings."""

    target: Literal["refined", "list"] = Field(
        default="refined",
        description="refined: the teacher's similarities, moved towards the list's order; list: that order alone "
        "(rank only), for which no teacher is read",
    )
    omega: float = Field(
        default=0.5,
        ge=0.0,
        allow_inf_nan=False,
        description="ω, how far the similarities are moved; 0 leaves them to the teacher (meaning only)",
    )
    teacher: str | None = Field(
        default=None, min_length=1, description="The frozen model: folder, hub name, or minilm; null: the start model"
    )
    teacher_pooling: Pooling | None = Field(
        default=None, description="Replaces the teacher's pooling; null keeps its own (published: cls)"
    )
    cache: str | None = Field(
        default=None,
        min_length=1,
        description="Folder that keeps the teacher's vectors for later runs over the same data; null: the run's own, "
        "removed at its end",
    )
    temperature: float = Field(default=0.05, gt=0.0, description="τ; the student's cosines are divided by it")
    first_row_only: bool = Field(
        default=False,
        description="Train on the order around each list's first sentence alone; the paper takes that around every one",
    )
    share: float = Field(default=1.0, gt=0.0, le=1.0, description="Train on this share of the lists, drawn by the seed")
    shuffle: bool = Field(default=False, description="Shuffle each list first: what its order is worth (an ablation)")
    triplets: str | None = Field(
        default=None, min_length=1, description="Triplets (anchor, positive, negative) to train on in the same steps"
    )
    triplets_per_list: int = Field(
        default=4, ge=1, description="So many for each list of a step; their negatives are those of the whole step"
    )
    triplet_weight: float = Field(
        default=1.0, gt=0.0, allow_inf_nan=False, description="Of the triplets' loss; the lists' has 1"
    )
    phi_scale: float = Field(
        default=1.0,
        gt=0.0,
        allow_inf_nan=False,
        description="The teacher's cosines are multiplied by it before ω moves them; 20 may be what the authors ran",
    )
    absolute_column_sign: bool = Field(
        default=False, description="Which values rise and which fall as in the authors' code, not as in the paper"
    )
    log_epsilon: float = Field(
        default=0.0, ge=0.0, allow_inf_nan=False, description="Inside ListMLE's logarithm; the authors' code has 1e-7"
    )


class Recipe(SharedRecipe):
    """A ranking recipe; ``data.train`` holds ranked lists, as ``sentsmith write rankings`` leaves them."""

    method: Literal["ranking"] = "ranking"
    training: RankingTraining = RankingTraining()
    ranking: RankingSettings = RankingSettings()

    @model_validator(mode="after")
    def _settings_that_need_another(self) -> Self:
        settings = self.ranking
        if self.data.column is not None:
            raise ValueError("data.column is for sentences; ranked lists are found by their column's name")
        fields = type(settings).model_fields
        idle: list[tuple[str, str]] = []
        if settings.target == "list":
            idle += [
                (name, "ranking.target refined")
                for name in ("omega", "teacher", "teacher_pooling", "cache", "phi_scale", "absolute_column_sign")
            ]
        if settings.omega == 0.0:
            idle += [(name, "ranking.omega above 0") for name in ("phi_scale", "absolute_column_sign")]
        if settings.triplets is None:
            idle += [(name, "ranking.triplets") for name in ("triplets_per_list", "triplet_weight")]
        for name, needed in idle:
            if getattr(settings, name) != fields[name].default:
                raise ValueError(f"ranking.{name} does nothing without {needed}: drop it, or set {needed}")
        return self

    def reads(self) -> tuple[str, ...]:
        """Return what every recipe reads, the triplets, the teacher, and the folder of its vectors."""
        settings = self.ranking
        return (*super().reads(), *(name for name in (settings.triplets, settings.teacher, settings.cache) if name))


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
        SentsmithError: The training failed.
    """
    from transformers import set_seed

    from sentsmith.encoders.loading import load
    from sentsmith.methods.ranking.lists import load_lists
    from sentsmith.methods.ranking.loss import ListCollator
    from sentsmith.training.output import Output
    from sentsmith.training.run import Plan, check_enough, train
    from sentsmith.training.selection import ScoredPairsJudge

    place = Output(Path(output), resume, overwrite)
    place.check(recipe)
    lists = load_lists(recipe)
    rows, facts = lists.rows, dict(lists.facts)
    # The teacher may take hours: what can be wrong is looked at before it.
    check_enough(recipe, len(rows.train))
    judge = ScoredPairsJudge.of_files(recipe.data.dev) if recipe.data.dev else _judge(rows)
    set_seed(recipe.training.seed)
    model = load(recipe.model)
    teacher = None if recipe.ranking.target == "list" else _teacher(recipe)
    work = place.open(recipe, rows.sha256)
    begun = time.perf_counter()
    texts = None if teacher is None else _read(recipe, teacher, lists, work, progress=progress)
    seconds = {} if texts is None else {"teacher": round(time.perf_counter() - begun, 1)}
    facts |= {"teacher": None if teacher is None or texts is None else _described(recipe, teacher, texts)}
    del teacher  # frees its memory for the training
    plan = Plan(
        model=model,
        loss=lambda trained, chunking: _loss(trained, chunking, recipe.ranking, texts),
        rows=_labelled(rows, texts),
        judge=judge,
        collator=lambda trained: ListCollator(trained.preprocess),
        notes=_notes(recipe),
        facts=facts,
        seconds=seconds,
    )
    # The folder is this run's own by now.
    return train(recipe, plan, replace(place, resume=True, overwrite=False), progress=progress)


def _judge(rows: TrainingRows) -> Judge | None:
    """Return what chooses the checkpoint by the held-out lists, if there are any."""
    from sentsmith.training.selection import ListJudge

    return ListJudge(rows.held_out["sentences"]) if len(rows.held_out) else None


def _teacher(recipe: Recipe) -> Teacher:
    from sentsmith.encoders.pooling import with_pooling
    from sentsmith.training.teachers import load_teacher

    pooling = recipe.ranking.teacher_pooling
    return load_teacher(
        recipe.ranking.teacher or recipe.model,
        max_length=recipe.training.max_length,
        depends={"pooling": pooling},
        read_as=lambda model: model if pooling is None else with_pooling(model, pooling),
    )


def _read(recipe: Recipe, teacher: Teacher, lists: Lists, work: Path, *, progress: bool) -> TextVectors:
    """Return the teacher's vectors: of what is trained on, or, where they are kept, of all that other runs may need."""
    from sentsmith.training.teachers import same_teachers
    from sentsmith.training.text_vectors import text_vectors

    same_teachers([teacher], work)
    cache = recipe.ranking.cache
    texts = lists.trained_texts() if cache is None else lists.texts()
    return text_vectors(teacher, texts, work if cache is None else Path(cache), progress=progress)


def _described(recipe: Recipe, teacher: Teacher, texts: TextVectors) -> dict[str, Any]:
    return {
        "model": teacher.name,
        "sha256": teacher.key["model"],
        "pooling": recipe.ranking.teacher_pooling,
        "texts": len(texts.vectors),
        "seconds": texts.seconds,
        "found": texts.found,
    }


def _labelled(rows: TrainingRows, texts: TextVectors | None) -> TrainingRows:
    """Return the rows, each labelled with the places of its sentences among the teacher's vectors."""
    lists = rows.train["sentences"]
    labels = [[0 if texts is None else texts.places[text] for text in sentences] for sentences in lists]
    return replace(rows, train=rows.train.add_column("label", labels))


def _loss(
    model: SentenceTransformer, chunking: Chunking, settings: RankingSettings, texts: TextVectors | None
) -> RankingLoss:
    from sentsmith.methods.ranking.loss import RankingLoss, list_cosines
    from sentsmith.methods.ranking.objective import rank_targets, refine_similarities

    def targets(labels: Tensor, sizes: Tensor) -> Tensor:
        if texts is None:
            return rank_targets(labels.new_zeros(*labels.shape, labels.shape[1]).float())
        vectors = texts.look_up(labels[labels >= 0].cpu().numpy()).to(labels.device)
        return refine_similarities(
            list_cosines(vectors, sizes, width=labels.shape[1]),
            omega=settings.omega,
            sizes=sizes,
            phi_scale=settings.phi_scale,
            absolute_column_sign=settings.absolute_column_sign,
        )

    return RankingLoss(
        model,
        targets,
        temperature=settings.temperature,
        chunking=chunking,
        log_epsilon=settings.log_epsilon,
        first_row_only=settings.first_row_only,
        triplet_weight=settings.triplet_weight,
        pad_token_id=getattr(model.tokenizer, "pad_token_id", None) or 0,
    )


def _notes(recipe: Recipe) -> list[str]:
    settings = recipe.ranking
    if settings.target == "list":
        told = "their own order"
    else:
        teacher = settings.teacher or recipe.model
        told = f"the order by `{teacher}`, moved towards their own (ω {settings.omega:g})"
    notes = [f"Method: post-training on ranked lists by ListMLE (ranking sentences); what is right is {told}."]
    if settings.shuffle:
        notes.append("An ablation: each list was shuffled first.")
    if settings.triplets is not None:
        notes.append(f"Trained on the triplets of `{settings.triplets}` too, in the same steps.")
    return notes
