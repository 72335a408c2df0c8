"""One training run, whatever the method: prepare, train, choose, save, record. Resumable, and never half-finished.

The output folder holds ``work/`` while the run goes on (checkpoints, the best weights so far). When it is done the
model is saved there under its final names, ``run.json`` last: a folder with ``run.json`` is a finished run.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from transformers import set_seed

from sentsmith import settings as settings_io
from sentsmith.encoders.chunked import Chunking
from sentsmith.errors import InputError, SentsmithError
from sentsmith.files import make_folder, write_json
from sentsmith.training import card, record
from sentsmith.training.chunks import measured
from sentsmith.training.data import TrainingRows
from sentsmith.training.precision import resolve_precision
from sentsmith.training.selection import BestKeeper, HeldOutJudge, Judge, JudgeEvaluator, ScoredPairsJudge
from sentsmith.training.settings import Recipe
from sentsmith.training.trainer import LossLog, Trainer, last_checkpoint, make_trainer

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

logger = logging.getLogger(__name__)
WORK = "work"


@dataclass
class Plan:
    """What a method brings to a run.

    Attributes:
        model: The model to train, with everything that training needs (a head for training only, say).
        loss: Makes the loss, given the model and the chunking.
        rows: The training rows.
        readout: Turns the model in training into the model to judge and save.
        temperature: τ of the held-out judge, when there is no dev file.
        notes: Lines for the model card.
    """

    model: SentenceTransformer
    loss: Callable[[SentenceTransformer, Chunking], nn.Module]
    rows: TrainingRows
    readout: Callable[[SentenceTransformer], SentenceTransformer] = field(default=lambda model: model)
    temperature: float = 0.05
    notes: Sequence[str] = ()


def open_output(output: str | Path, recipe: Recipe, *, resume: bool, overwrite: bool) -> Path:
    """Return the run's work folder, made or found.

    Raises:
        InputError: The output is a file, holds a finished run (and ``overwrite`` is off), holds an unfinished one (and
            neither ``resume`` nor ``overwrite`` is on), holds something else, or was begun with other settings.
    """
    folder = Path(output)
    if folder.is_file():
        raise InputError("is a file; give a folder for the model", path=folder)
    work = folder / WORK
    if overwrite and folder.exists():
        if any(folder.iterdir()) and not (work.exists() or (folder / record.RECORD).exists()):
            raise InputError("holds something that is no run of sentsmith; --overwrite will not delete it", path=folder)
        shutil.rmtree(folder)
    if (folder / record.RECORD).exists():
        raise InputError("holds a finished run; give another folder, or --overwrite", path=folder)
    if work.exists() and not resume:
        raise InputError("holds an unfinished run; go on with --resume, or start again with --overwrite", path=folder)
    if resume and not work.exists():
        raise InputError("holds no unfinished run; leave --resume away to start one", path=folder)
    if not work.exists() and folder.exists() and any(folder.iterdir()):
        raise InputError("is not empty; give another folder", path=folder)
    begun = work / record.SETTINGS
    if begun.exists():
        earlier = settings_io.resolve(type(recipe), settings_io.read_yaml(begun), path=begun)
        if earlier != recipe:
            raise InputError("was begun with other settings; give those, or --overwrite", path=begun)
    make_folder(work)
    settings_io.save(recipe, begun)
    return work


def train(recipe: Recipe, plan: Plan, work: Path, *, progress: bool = False) -> dict[str, Any]:
    """Train, choose the checkpoint, save the model and its record.

    Args:
        recipe: The resolved settings.
        plan: What the method brings.
        work: From :func:`open_output`; the model goes to its parent.
        progress: Draw a progress bar.

    Returns:
        The run record, as written to ``run.json``.

    Raises:
        SentsmithError: The loss is not finite.
        InputError: Too few rows for one batch.
    """
    begun = time.perf_counter()
    training, warnings = recipe.training, list(plan.rows.warnings)
    set_seed(training.seed)
    judge = _judge(recipe, plan)
    rows = plan.rows.train
    if len(rows) < training.batch_size:
        raise InputError(
            f"holds {len(rows)} rows to train on, fewer than one batch of {training.batch_size}; "
            "lower training.batch_size or bring more",
            path=recipe.data.train,
        )
    precision = resolve_precision(training.precision, plan.model.device.type)
    start = {k: v.detach().clone() for k, v in plan.model.state_dict().items()} if training.blend < 1 else None
    with ExitStack() as stack:
        stack.enter_context(_max_length(plan.model, training.max_length))
        chunking = _chunking(recipe, plan, work, precision)
        keeper = BestKeeper(work, plan.model, keep_weights=training.select == "best")
        trainer = make_trainer(
            plan.model,
            plan.loss(plan.model, chunking),
            rows,
            training,
            work=work,
            precision=precision,
            evaluator=None if judge is None else JudgeEvaluator(judge, plan.readout),
            callbacks=[keeper, LossLog()],
            progress=progress,
        )
        _fit(trainer, keeper, work)
    seconds = time.perf_counter() - begun
    if training.select == "best" and keeper.best is not None:
        keeper.restore()
    if start is not None:
        _blend(plan.model, start, training.blend)
    final = plan.readout(plan.model)
    result = _record(recipe, plan, trainer, keeper, judge, precision, chunking, seconds, warnings)
    finish(final, recipe, result, work, notes=plan.notes)
    return result


def finish(
    model: SentenceTransformer,
    recipe: Recipe,
    result: dict[str, Any],
    work: Path,
    *,
    notes: Sequence[str] = (),
) -> None:
    """Save model, card, settings and record in the parent of ``work``, the record last, and remove ``work``."""
    folder = work.parent
    staged = work / "model"
    shutil.rmtree(staged, ignore_errors=True)
    model.save_pretrained(str(staged), create_model_card=False)
    settings_io.save(recipe, staged / record.SETTINGS)
    (staged / "README.md").write_text(card.render(result, notes), encoding="utf-8")
    for item in staged.iterdir():
        target = folder / item.name
        if target.is_dir():
            shutil.rmtree(target)
        item.replace(target)
    write_json(folder / record.RECORD, result)
    shutil.rmtree(work)
    logger.info("saved %s", folder)


def base_record(recipe: Recipe, rows: TrainingRows, seconds: float, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the part of the run record that every method has."""
    return {
        "kind": "training",
        "method": recipe.method,
        "status": "finished",
        "created": record.now(),
        "commit": record.commit(),
        "settings": recipe.model_dump(mode="json"),
        "settings_sha256": record.settings_hash(recipe),
        "versions": record.versions(),
        "hardware": record.hardware(),
        "data": rows.describe(),
        "seconds": {"train": round(seconds, 1)},
        "warnings": list(warnings),
    }


def _judge(recipe: Recipe, plan: Plan) -> Judge | None:
    if recipe.data.dev:
        return ScoredPairsJudge(recipe.data.dev)
    if len(plan.rows.held_out) < 2:
        return None
    columns = plan.rows.held_out.column_names
    texts = [[row[name] for name in columns] for row in plan.rows.held_out]
    logger.info("no data.dev: the checkpoint is chosen by the loss on %d held-out rows", len(texts))
    return HeldOutJudge(texts, temperature=plan.temperature, seed=recipe.training.seed)


def _fit(trainer: Trainer, keeper: BestKeeper, work: Path) -> None:
    checkpoint = last_checkpoint(work)
    if checkpoint is not None:
        step = int(checkpoint.name.rpartition("-")[2])
        logger.info("going on after step %d", step)
        keeper.recall(step)
    outcome = trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    loss = outcome.training_loss
    if loss != loss or loss in (float("inf"), float("-inf")):
        raise SentsmithError(
            f"the training loss became {loss}; lower training.learning_rate, or train in fp32 (training.precision)"
        )


class _max_length:  # noqa: N801 - reads as a statement
    """Cuts sentences to ``tokens`` inside the block; the model keeps its own limit for use."""

    def __init__(self, model: SentenceTransformer, tokens: int) -> None:
        self.model, self.tokens, self.before = model, tokens, model.max_seq_length

    def __enter__(self) -> None:
        self.model.max_seq_length = self.tokens if self.before is None else min(self.tokens, self.before)

    def __exit__(self, *exception: object) -> None:
        self.model.max_seq_length = self.before


def _chunking(recipe: Recipe, plan: Plan, work: Path, precision: str) -> Chunking:
    wanted = recipe.training.chunk_tokens
    min_rows = 32 if precision == "bf16" else 8
    if wanted == "measure":
        batch = [plan.rows.train[i] for i in range(min(recipe.training.batch_size, len(plan.rows.train)))]
        wanted = measured(plan.model, batch, work / "chunks.json", precision=precision, min_rows=min_rows)
    return Chunking(tokens=wanted, min_rows=min_rows, recompute=recipe.training.recompute)


@torch.no_grad()
def _blend(model: nn.Module, start: dict[str, torch.Tensor], weight: float) -> None:
    for name, value in model.state_dict().items():
        if value.is_floating_point():
            value.lerp_(start[name].to(value.device), 1.0 - weight)


def _record(
    recipe: Recipe,
    plan: Plan,
    trainer: Trainer,
    keeper: BestKeeper,
    judge: Judge | None,
    precision: str,
    chunking: Chunking,
    seconds: float,
    warnings: list[str],
) -> dict[str, Any]:
    result = base_record(recipe, plan.rows, seconds, warnings)
    steps = trainer.state.global_step
    seen = steps * recipe.training.batch_size * trainer.args.world_size
    result["speed"] = {"steps": steps, "rows_per_second": round(seen / seconds, 2)}
    result["precision"] = precision
    result["chunking"] = {
        "tokens": chunking.tokens,
        "min_rows": chunking.min_rows,
        "recompute": chunking.recompute,
    }
    history = trainer.state.log_history
    result["loss"] = [{"step": entry["step"], "loss": entry["loss"]} for entry in history if "loss" in entry]
    result["selection"] = None if judge is None else _selection(recipe, keeper, judge)
    return result


def _selection(recipe: Recipe, keeper: BestKeeper, judge: Judge) -> dict[str, Any]:
    best = keeper.best
    # A run that only kept its start has to be seen as such: the best later step is said too.
    later = max((entry for entry in keeper.history if entry.step > 0), key=lambda entry: entry.score, default=None)
    return {
        "select": recipe.training.select,
        "metric": judge.metric,
        "source": judge.source,
        "best_step": None if best is None else best.step,
        "best_score": None if best is None else best.score,
        "best_later_step": None if later is None else later.step,
        "best_later_score": None if later is None else later.score,
        "history": [{"step": entry.step, "score": entry.score} for entry in keeper.history],
    }
