"""What comes before the joint training: each tower learns alone, on sentences of its own."""

from __future__ import annotations

import logging
import random
from dataclasses import replace
from pathlib import Path
from typing import Any

from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.reading import read_translations
from sentsmith.encoders.loading import resolve
from sentsmith.encoders.pooling import Pooling
from sentsmith.errors import InputError
from sentsmith.methods.jtcse.settings import JtcseSettings, Recipe
from sentsmith.methods.simcse import recipe as simcse
from sentsmith.training import record
from sentsmith.training.data import TrainingRows, find_audit
from sentsmith.training.output import Output
from sentsmith.training.settings import TrainingSettings

logger = logging.getLogger(__name__)


def own_rows(recipe: Recipe, rows: TrainingRows) -> list[TrainingRows]:
    """Return the sentences that each tower learns alone: all or its half, with the echoes of its translations.

    Raises:
        InputError: A file of translations cannot be read, or a tower has fewer rows than one batch.
    """
    from datasets import Dataset, concatenate_datasets

    if not recipe.jtcse.simcse.enabled:
        return []
    found, batch_size = [], recipe.jtcse.simcse.batch_size
    for index, part in enumerate(_parts(recipe, rows)):
        path = recipe.tower(index).translations
        own = replace(rows, train=part, warnings=[])
        if path is not None:
            # The union of both: whether the echoes replace the corpus or join it is left open by the paper. Only the
            # echoes of the tower's own sentences: not of its neighbour's half, nor of those that the judge looks at.
            mine = set(part["sentence"])
            echoes = [row.echo for row in read_translations(path) if row.sentence in mine]
            train = concatenate_datasets([part, Dataset.from_dict({"sentence": echoes})])
            audit, warnings = find_audit(path)
            rows.warnings.extend(warning for warning in warnings if warning not in rows.warnings)
            own = replace(own, train=train, sha256=f"{rows.sha256}+{data_hash(path)}", audit=rows.audit and audit)
        if len(own.train) < batch_size:
            raise InputError(
                f"leaves tower {index + 1} {len(own.train)} rows to learn alone, fewer than one batch of {batch_size}; "
                "lower jtcse.simcse.batch_size or bring more",
                path=recipe.data.train,
            )
        found.append(own)
    return found


def train_towers(
    recipe: Recipe, own: list[TrainingRows], work: Path, *, progress: bool
) -> tuple[list[str], dict[str, Any]]:
    """Train each tower alone by SimCSE in a folder of ``work``, or take what an earlier run has finished there.

    Args:
        recipe: The settings.
        own: The sentences of each tower, from :func:`own_rows`; none without this stage.
        work: The run's work folder.
        progress: Draw a progress bar.

    Returns:
        The folders of the trained towers, and what the run record keeps of them.
    """
    folders, facts = [], []
    for index, rows in enumerate(own):
        folder = work / f"tower-{index + 1}"
        folders.append(str(folder))
        result = record.read(folder)
        if result is None:
            logger.info("tower %d learns alone, from %s", index + 1, recipe.tower(index).model)
            result = simcse.train_rows(_alone(recipe, index), rows, Output(folder, resume=True), progress=progress)
        facts.append({key: result.get(key) for key in ("settings", "data", "seconds", "speed", "loss", "selection")})
    return folders, {"towers": facts}


def readout_of(start: str, settings: JtcseSettings) -> Pooling | None:
    """Return the pooling that a tower is given; None keeps its own.

    A plain encoder names no pooling: sentence-transformers gives it the mean, the papers read its first token.
    """
    if settings.pooling is not None:
        return settings.pooling
    return None if (resolve(start) / "modules.json").is_file() else "cls"


def _parts(recipe: Recipe, rows: TrainingRows) -> list[Any]:
    if not recipe.jtcse.simcse.halves:
        return [rows.train, rows.train]
    order = list(range(len(rows.train)))
    random.Random(recipe.training.seed).shuffle(order)
    middle = len(order) // 2
    return [rows.train.select(sorted(part)) for part in (order[:middle], order[middle:])]


def _alone(recipe: Recipe, index: int) -> simcse.Recipe:
    stage, tower = recipe.jtcse.simcse, recipe.tower(index)
    alone = {
        "batch_size": stage.batch_size,
        "learning_rate": tower.learning_rate,
        "epochs": stage.epochs,
        "max_steps": stage.max_steps,
        "seed": tower.seed,
        "blend": 1.0,
        "max_length": stage.max_length or recipe.training.max_length,
        "weight_decay": stage.weight_decay,
        "schedule": stage.schedule,
        "max_grad_norm": stage.max_grad_norm,
        "warmup": 0.0,
    }
    return simcse.Recipe(
        model=tower.model or recipe.model,
        data=recipe.data,
        training=TrainingSettings.model_validate(recipe.training.model_dump() | alone),
        simcse=simcse.SimcseSettings(
            temperature=recipe.jtcse.temperature,
            head=stage.head,
            pooling=readout_of(tower.model or recipe.model, recipe.jtcse),
            dropout=stage.dropout,
            mask_duplicates=False,
        ),
    )
