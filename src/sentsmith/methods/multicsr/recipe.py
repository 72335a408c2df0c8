"""MultiCSR's training (its third stage): triplets that a language model wrote, and a mask for the false negatives.

Without the mask it is supervised SimCSE on written triplets: SynCSE, and the paper's ablation without stage 3.
"""

from __future__ import annotations

import hashlib
import itertools
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self, cast

from pydantic import Field, model_validator

from sentsmith.corpus.datasets import data_hash
from sentsmith.encoders.pooling import Pooling
from sentsmith.methods.simcse.model import ModelSettings, prepare, readout
from sentsmith.training.settings import Recipe as SharedRecipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.methods.multicsr.masking import CachedMasker
    from sentsmith.methods.multicsr.objective import Masker, MultiCSRLoss
    from sentsmith.training.data import TrainingRows
    from sentsmith.training.teachers import Teacher


class MulticsrSettings(ModelSettings):
    """What MultiCSR adds to the shared settings."""

    mask: bool = Field(
        default=True,
        description="Mask the false negatives of a batch (stage 3); threshold, masker and cache are read with it only",
    )
    threshold: float = Field(
        default=0.9, allow_inf_nan=False, description="σ; a candidate whose cosine with the anchor reaches it is masked"
    )
    masker: str = Field(
        default="minilm", min_length=1, description="The frozen model that tells: folder, hub name, or minilm"
    )
    masker_pooling: Pooling | None = Field(
        default=None, description="Replaces the masker's pooling; null keeps its own (published: cls)"
    )
    cache: str | None = Field(
        default=None,
        min_length=1,
        description="Folder that keeps the masker's vectors for later runs over the same data; null: the run's own, "
        "removed at its end",
    )
    eta_dropout: bool = Field(
        default=False,
        description="Run the masker on each batch with its dropout on, as the authors' code does; needs the tokenizer "
        "of the model in training",
    )
    bce_logit_zero: bool = Field(
        default=False,
        description="The loss of the authors' code: masked logits become 0, and binary cross-entropy over all entries",
    )
    mask_duplicates: bool = Field(
        default=True,
        description="Do not count another row's text that equals the anchor or its positive as a negative, whatever "
        "the masker says; the paper counts it",
    )
    gold: str | None = Field(
        default=None,
        min_length=1,
        description="Triplets by people (NLI) to train on besides those of data.train; data.limit does not cut them",
    )
    temperature: float = Field(default=0.05, gt=0.0, description="τ; cosines are divided by it")
    hard_negative_log_weight: float = Field(
        default=0.0, description="Added to the logit of an anchor's own hard negative"
    )


class Recipe(SharedRecipe):
    """A MultiCSR recipe; ``data.train`` holds triplets, as ``sentsmith write triplets`` or ``curate`` leave them."""

    several_processes: ClassVar[bool] = True
    method: Literal["multicsr"] = "multicsr"
    multicsr: MulticsrSettings = MulticsrSettings()

    @model_validator(mode="after")
    def _settings_that_do_not_go_together(self) -> Self:
        settings = self.multicsr
        if self.data.column is not None:
            raise ValueError("data.column is for sentences; triplets are found by their columns' names")
        if settings.eta_dropout and not settings.mask:
            raise ValueError("multicsr.eta_dropout is about the mask, which multicsr.mask false leaves out")
        if settings.eta_dropout and settings.cache is not None:
            raise ValueError("multicsr.cache keeps vectors, but multicsr.eta_dropout makes new ones for each batch")
        if settings.bce_logit_zero and settings.hard_negative_log_weight != 0.0:
            raise ValueError("multicsr.hard_negative_log_weight is not in the loss of multicsr.bce_logit_zero")
        return self

    def reads(self) -> tuple[str, ...]:
        """Return what every recipe reads, the gold triplets, the masker, and the folder of its vectors."""
        settings = self.multicsr
        masker = (settings.masker, settings.cache) if settings.mask else ()
        return (*super().reads(), *(name for name in (settings.gold, *masker) if name))


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
        SettingsError: ``eta_dropout`` with a masker of another tokenizer.
        SentsmithError: The training failed.
    """
    from transformers import set_seed

    from sentsmith.encoders.loading import load
    from sentsmith.training.output import Output
    from sentsmith.training.run import Plan, check_enough, train
    from sentsmith.training.selection import ScoredPairsJudge

    settings = recipe.multicsr
    place = Output(Path(output), resume, overwrite)
    place.check(recipe)
    rows, sources = _rows(recipe)
    # The masker may take hours: what can be wrong is looked at before it.
    check_enough(recipe, len(rows.train))
    judge = ScoredPairsJudge.of_files(recipe.data.dev) if recipe.data.dev else None
    # A new head draws its weights: the seed has to stand before the model is built.
    set_seed(recipe.training.seed)
    model = prepare(load(recipe.model), settings)
    teacher = _teacher(recipe, model, rows) if settings.mask else None
    work = place.open(recipe, rows.sha256)
    mask = _mask(recipe, teacher, rows, work, progress=progress) if settings.mask else Mask()
    del teacher  # frees its memory for the training, unless it takes part in it
    plan = Plan(
        model=model,
        loss=lambda trained, chunking: _loss(trained, chunking, settings, mask.masker(chunking)),
        rows=rows if mask.cached is None else _numbered(rows),
        readout=lambda trained: readout(trained, settings),
        judge=judge,
        temperature=settings.temperature,
        notes=_notes(recipe),
        facts={"rows": sources, **mask.facts},
        seconds=mask.seconds,
    )
    # The folder is this run's own by now.
    return train(recipe, plan, replace(place, resume=True, overwrite=False), progress=progress)


@dataclass(frozen=True, eq=False)
class Mask:
    """What a run knows of its mask; nothing of it where there is none.

    Attributes:
        cached: The frozen model's vectors, made before the training.
        frozen: The frozen model, where it runs on each batch instead.
        facts: What the run record keeps of it.
        seconds: What it took.
    """

    cached: CachedMasker | None = None
    frozen: SentenceTransformer | None = None
    facts: Mapping[str, Any] = field(default_factory=lambda: {"masker": None, "masked_share": None})
    seconds: Mapping[str, float] = field(default_factory=dict)

    def masker(self, chunking: Chunking) -> Masker | None:
        """Return what the loss asks."""
        from sentsmith.methods.multicsr.masking import DropoutMasker

        return self.cached if self.frozen is None else DropoutMasker(self.frozen, chunking)


def _rows(recipe: Recipe) -> tuple[TrainingRows, dict[str, Any]]:
    """Return the triplets of all sources, and what the run record says of each."""
    from sentsmith.training.data import find_audit, load_rows, triplet_rows

    counts = {"written": 0, "gold": 0}

    def counted(source: str, triplets: Iterable[dict[str, str]]) -> Iterator[dict[str, str]]:
        for row in triplets:
            counts[source] += 1
            yield row

    def read(path: str) -> Iterator[dict[str, str]]:
        yield from counted("written", itertools.islice(triplet_rows(path), recipe.data.limit))
        if gold is not None:
            yield from counted("gold", triplet_rows(gold))

    gold = recipe.multicsr.gold
    whole = recipe.data.model_copy(update={"limit": None})
    rows = load_rows(whole, read, held_out=recipe.data.kept_apart, seed=recipe.training.seed)
    if gold is None:
        return rows, counts
    audit, warnings = find_audit(gold)
    gold_sha256 = data_hash(gold)
    both = hashlib.sha256(f"{rows.sha256} {gold_sha256}".encode()).hexdigest()
    # Two files count as audited if both are; the second one's record is kept with its name.
    first = rows.audit if audit is not None else None
    return replace(rows, sha256=both, audit=first, warnings=[*rows.warnings, *warnings]), {
        **counts,
        "gold_path": gold,
        "gold_sha256": gold_sha256,
        "gold_audit": audit,
    }


def _numbered(rows: TrainingRows) -> TrainingRows:
    """Return the rows, the training ones labelled with their number, by which the mask looks them up."""
    return replace(rows, train=rows.train.add_column("label", list(range(len(rows.train)))))


def _teacher(recipe: Recipe, model: SentenceTransformer, rows: TrainingRows) -> Teacher | None:
    """Return the masker; None in a process that does not run it: the first alone makes the vectors to look up."""
    from sentsmith.encoders.pooling import with_pooling
    from sentsmith.methods.multicsr.masking import check_one_tokenizer
    from sentsmith.training import processes
    from sentsmith.training.teachers import load_teacher

    pooling = recipe.multicsr.masker_pooling
    loaded: list[Teacher] = []

    def load(key: Mapping[str, Any] | None = None) -> Mapping[str, Any]:
        teacher = load_teacher(
            recipe.multicsr.masker,
            max_length=recipe.training.max_length,
            depends={"pooling": pooling},
            read_as=lambda found: found if pooling is None else with_pooling(found, pooling),
            key=key,
        )
        loaded.append(teacher)
        return teacher.key

    key = processes.on_first(load)
    if recipe.multicsr.eta_dropout:
        if not loaded:
            load(key)
        check_one_tokenizer(model, loaded[0], rows.train["anchor"][:64])
    return loaded[0] if loaded else None


def _same_masker(recipe: Recipe, teacher: Teacher, work: Path) -> dict[str, Any]:
    """Return what the run record says of the masker, when it is the one that the run was begun with."""
    from sentsmith.training.teachers import same_teachers

    same_teachers([teacher], work)
    return {"model": teacher.name, "sha256": teacher.key["model"], "pooling": recipe.multicsr.masker_pooling}


def _mask(recipe: Recipe, teacher: Teacher | None, rows: TrainingRows, work: Path, *, progress: bool) -> Mask:
    from sentsmith.methods.multicsr.masking import cached_masker, masked_share
    from sentsmith.training import processes

    settings = recipe.multicsr
    # The first process has it.
    described = processes.on_first(partial(_same_masker, recipe, cast("Teacher", teacher), work))
    if settings.eta_dropout:
        # The mask is another one each time: there is no share to tell before the training.
        return Mask(frozen=cast("Teacher", teacher).model, facts={"masker": described, "masked_share": None})
    begun = time.perf_counter()
    folder = work if settings.cache is None else Path(settings.cache)
    cached = cached_masker(teacher, rows, folder, progress=progress)
    texts = cached.texts
    seconds = {"masker": round(time.perf_counter() - begun, 1)}
    share = masked_share(
        cached,
        threshold=settings.threshold,
        batch_size=recipe.training.batch_size * processes.count(),
        seed=recipe.training.seed,
        released=settings.bce_logit_zero,
    )
    facts = {
        "masker": described | {"texts": len(texts.vectors), "seconds": texts.seconds, "found": texts.found},
        "masked_share": round(share, 6),
    }
    return Mask(cached=cached, facts=facts, seconds=seconds)


def _loss(
    model: SentenceTransformer, chunking: Chunking, settings: MulticsrSettings, masker: Masker | None
) -> MultiCSRLoss:
    from sentsmith.methods.multicsr.objective import MultiCSRLoss

    return MultiCSRLoss(
        model,
        masker,
        threshold=settings.threshold,
        bce_logit_zero=settings.bce_logit_zero,
        temperature=settings.temperature,
        chunking=chunking,
        hard_negative_log_weight=settings.hard_negative_log_weight,
        mask_duplicates=settings.mask_duplicates,
        pad_token_id=getattr(model.tokenizer, "pad_token_id", None) or 0,
    )


def _notes(recipe: Recipe) -> list[str]:
    settings = recipe.multicsr
    if settings.mask:
        masked = f"candidates whose cosine by `{settings.masker}` reaches {settings.threshold:g} are no negatives"
        notes = [f"Method: MultiCSR's masked training: {masked}."]
    else:
        notes = [
            "Method: supervised SimCSE on triplets that a language model wrote (MultiCSR without its mask, SynCSE)."
        ]
    if settings.gold is not None:
        notes.append(f"Trained on the triplets of `{settings.gold}` too, which people wrote.")
    compat = [name for name in ("bce_logit_zero", "eta_dropout") if getattr(settings, name)]
    if compat:
        notes.append(f"As in the authors' code, not in the paper: {', '.join(compat)}.")
    return notes
