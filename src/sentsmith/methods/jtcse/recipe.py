"""JTCSE as a training run: each tower alone by SimCSE, then both together.

The towers' own training is a run of SimCSE in the work folder of this one, with checkpoints and a record of its own: a
run that was killed goes on inside whichever stage it had reached.
"""

from __future__ import annotations

import logging
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith.errors import SettingsError
from sentsmith.methods.jtcse.settings import JtcseSettings, Recipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.methods.jtcse.cross import CrossPlan
    from sentsmith.methods.jtcse.objective import JTCSELoss
    from sentsmith.training.data import TrainingRows
    from sentsmith.training.output import Output

logger = logging.getLogger(__name__)


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
        SettingsError: The towers do not go together, have no pooler, or cannot cross as they are told to.
        SentsmithError: The training failed.
    """
    from transformers import set_seed

    from sentsmith.methods.jtcse.stages import own_rows, train_towers
    from sentsmith.training.data import load_rows
    from sentsmith.training.output import Output
    from sentsmith.training.run import Plan, train

    begun = time.perf_counter()
    place = Output(Path(output), resume, overwrite)
    place.check(recipe)
    rows = load_rows(recipe.data, held_out=recipe.data.kept_apart, seed=recipe.training.seed)
    own = own_rows(recipe, rows)
    rows = replace(rows, sha256=_fingerprint(rows, own))
    starts = list(recipe.starts())
    _check(recipe, rows, starts)
    place.open(recipe, rows.sha256)
    place = replace(place, resume=True, overwrite=False)
    towers, facts = train_towers(recipe, own, place.work, progress=progress)
    # New poolers draw their weights: the seed has to stand before the model is built.
    set_seed(recipe.training.seed)
    model, plan = prepare(recipe, towers or starts, starts)
    notes = _notes(recipe, plan)
    alone = {
        f"tower_{index}": tower["seconds"]["train"] for index, tower in enumerate(facts.get("towers", ()), start=1)
    }
    if not recipe.jtcse.joint:
        return _save_sum(recipe, model, rows, place, time.perf_counter() - begun, notes, facts)
    return train(
        recipe,
        Plan(
            model=model,
            loss=lambda trained, chunking: _loss(trained, chunking, recipe.jtcse, plan),
            rows=rows,
            temperature=recipe.jtcse.temperature,
            notes=notes,
            facts=facts,
            seconds=alone,
        ),
        place,
        progress=progress,
    )


def _check(recipe: Recipe, rows: TrainingRows, starts: list[str]) -> None:
    """Look at all that the joint training needs before the towers learn: what is wrong is told now, not in an hour."""
    from sentsmith.training.precision import resolve_precision
    from sentsmith.training.run import check_enough
    from sentsmith.training.selection import ScoredPairsJudge

    if recipe.jtcse.joint:
        check_enough(recipe, len(rows.train))
    if recipe.data.dev:
        ScoredPairsJudge.of_files(recipe.data.dev)
    model, _ = prepare(recipe, starts, starts)
    resolve_precision(recipe.training.precision, model.device.type)


def prepare(recipe: Recipe, towers: list[str], starts: list[str]) -> tuple[SentenceTransformer, CrossPlan | None]:
    """Return the model of both towers as the settings ask for it, and where its attention crosses.

    Args:
        recipe: The settings.
        towers: The models to join.
        starts: What they were before their own training: tells whether their poolers were ever trained.

    Raises:
        SettingsError: See :func:`run`.
        InputError: A model cannot be loaded.
    """
    from sentsmith.encoders.dropout import set_dropout
    from sentsmith.encoders.loading import load
    from sentsmith.encoders.pooling import with_pooling
    from sentsmith.methods.jtcse.cross import CrossPlan, crossed_layers, layers_of
    from sentsmith.methods.jtcse.stages import readout_of
    from sentsmith.methods.jtcse.towers import renew_poolers, require_poolers, tower_pair, twin

    settings = recipe.jtcse
    loaded = [load(name) for name in towers]
    for index, start in enumerate(starts):
        if (pooling := readout_of(start, settings)) is not None:
            loaded[index] = with_pooling(loaded[index], pooling)
    model = twin(*loaded)
    pair = tower_pair(model)
    dropout = settings.simcse.dropout if settings.dropout is None else settings.dropout
    if dropout is not None:
        for tower in pair.pair:
            set_dropout(tower, dropout)
    if settings.ictm and settings.pooler == "fresh":
        renew_poolers(pair)
    elif settings.ictm:
        for name in starts:
            _require_trained_pooler(name)
    if settings.ictm:
        require_poolers(pair)
    if not settings.icnce or settings.cross_layers == 0:
        return model, None
    depth = min(len(layers_of(encoder)) for encoder in pair.encoders)
    return model, CrossPlan(crossed_layers(depth, settings.cross_layers), settings.cross)


def _require_trained_pooler(name: str) -> None:
    """Refuse a model whose file has no pooler: the library would put random numbers in its place and say nothing."""
    from safetensors import safe_open

    from sentsmith.encoders.loading import resolve

    for file in resolve(name).rglob("*.safetensors"):
        with safe_open(file, framework="pt") as weights:
            if any(key.endswith("pooler.dense.weight") for key in weights.keys()):  # noqa: SIM118 - no mapping
                return
    raise SettingsError(
        f"{name!r} has no pooler, which the modulus constraint reads; train a new one with jtcse.pooler fresh, or "
        "switch jtcse.ictm off"
    )


def _loss(model: SentenceTransformer, chunking: Chunking, settings: JtcseSettings, plan: CrossPlan | None) -> JTCSELoss:
    from sentsmith.methods.jtcse.objective import JTCSELoss, Parts

    parts = Parts(
        nce=settings.nce,
        icnce=settings.icnce,
        ictm=settings.ictm,
        cross=plan is not None,
        views=settings.views,
        half_tmc=settings.half_tmc,
    )
    return JTCSELoss(
        model,
        temperature=settings.temperature,
        parts=parts,
        cross=plan,
        chunking=chunking,
        pad_token_id=getattr(model.tokenizer, "pad_token_id", None) or 0,
    )


def _fingerprint(rows: TrainingRows, own: list[TrainingRows]) -> str:
    """Return the hash of all that is read: the sentences, and the towers' translations."""
    import hashlib

    parts = list(dict.fromkeys([rows.sha256, *(part.sha256 for part in own)]))
    return parts[0] if len(parts) == 1 else hashlib.sha256(" ".join(parts).encode()).hexdigest()


def _save_sum(
    recipe: Recipe,
    model: SentenceTransformer,
    rows: TrainingRows,
    place: Output,
    seconds: float,
    notes: list[str],
    facts: dict[str, Any],
) -> dict[str, Any]:
    from sentsmith.training.run import base_record, finish

    logger.info("jtcse.nce, icnce and ictm are off: the towers are summed as they are")
    result = base_record(recipe, rows, seconds, rows.warnings) | {"jtcse": facts}
    finish(model, recipe, result, place.work, notes=notes)
    return result


def _notes(recipe: Recipe, plan: CrossPlan | None) -> list[str]:
    settings = recipe.jtcse
    if not settings.joint:
        how = "two towers, each trained alone by SimCSE, summed"
    elif plan is None:
        how = "two towers trained jointly without cross-attention (TNCSE's form of JTCSE)"
    else:
        layers = ", ".join(str(layer + 1) for layer in plan.layers)
        how = f"JTCSE: two towers trained jointly, attention crosses at layers {layers} ({plan.mode}), in training only"
    return [
        f"Method: {how}.",
        "The vector is the sum of both towers' vectors; `tower_1` and `tower_2` can be used alone.",
    ]
