"""One training run, whatever the method: prepare, train, choose, save, record. Resumable, and never half-finished.

The output folder holds ``work/`` while the run goes on (checkpoints, the best weights so far). When it is done the
model is saved there under its final names, ``run.json`` last: a folder with ``run.json`` is a finished run.
"""

from __future__ import annotations

import logging
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import TrainerState, set_seed

from sentsmith import settings as settings_io
from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.embedding import max_length
from sentsmith.errors import InputError, SettingsError
from sentsmith.files import write_json
from sentsmith.training import card, processes, record
from sentsmith.training.blend import Blend
from sentsmith.training.chunks import measured
from sentsmith.training.data import TrainingRows
from sentsmith.training.output import Output
from sentsmith.training.precision import resolve_precision
from sentsmith.training.selection import BestKeeper, HeldOutJudge, Judge, JudgeEvaluator, ScoredPairsJudge
from sentsmith.training.settings import NO_JUDGE, BaseRecipe, Recipe
from sentsmith.training.trainer import LossLog, Trainer, check_finite, last_checkpoint, make_trainer
from sentsmith.versions import versions

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
    from torch import nn

logger = logging.getLogger(__name__)


@dataclass
class Plan:
    """What a method brings to a run.

    Attributes:
        model: The model to train, with everything that training needs (a head for training only, say).
        loss: Makes the loss, given the model and the chunking.
        rows: The training rows.
        readout: Turns the model in training into the model to judge and save.
        saved_as: Turns that one, its weights chosen, into what is saved (an adapter is merged, say).
        collator: Turns rows into batches, given the model, where the rows are not columns of single texts.
        judge: Chooses the checkpoint in place of the shared judges, when the method has one of its own.
        temperature: τ of the held-out judge, when there is no dev file.
        learning_rates: Peak learning rates of some weights, by a pattern in their names as the loss has them
            (``model.…``); the others have ``training.learning_rate``.
        notes: Lines for the model card.
        facts: What the run record keeps of the method, under its name.
        learned: What it keeps there of the trained model.
        seconds: What the stages before the training took, by name.
    """

    model: SentenceTransformer
    loss: Callable[[SentenceTransformer, Chunking], nn.Module]
    rows: TrainingRows
    readout: Callable[[SentenceTransformer], SentenceTransformer] = field(default=lambda model: model)
    saved_as: Callable[[SentenceTransformer], SentenceTransformer] = field(default=lambda model: model)
    collator: Callable[[SentenceTransformer], SentenceTransformerDataCollator] | None = None
    judge: Judge | None = None
    temperature: float = 0.05
    learning_rates: Mapping[str, float] = field(default_factory=dict)
    notes: Sequence[str] = ()
    facts: Mapping[str, Any] = field(default_factory=dict)
    learned: Callable[[SentenceTransformer], Mapping[str, Any]] = field(default=lambda _: {})
    seconds: Mapping[str, float] = field(default_factory=dict)


def train(recipe: Recipe, plan: Plan, output: Output, *, progress: bool = False) -> dict[str, Any]:
    """Train, choose the checkpoint, save the model and its record.

    Args:
        recipe: The resolved settings.
        plan: What the method brings.
        output: Where to.
        progress: Draw a progress bar.

    Returns:
        The run record, as written to ``run.json``.

    Raises:
        SentsmithError: The loss, a score or a weight is not finite.
        SettingsError: There is patience, and too few rows are held out to score anything.
        InputError: Too few rows for one batch, a dev file that is wrong, or see :meth:`Output.open`.
    """
    begun = time.perf_counter()
    training, warnings = recipe.training, list(plan.rows.warnings)
    set_seed(training.seed)
    judge = _judge(recipe, plan)
    if judge is None and training.patience is not None:
        raise SettingsError(NO_JUDGE)
    rows = plan.rows.train
    check_enough(recipe, len(rows))
    precision = resolve_precision(training.precision, plan.model.device.type)
    work = output.open(recipe, plan.rows.sha256)
    blend = Blend(plan.model, training.blend)
    with ExitStack() as stack:
        # The judge reads whole sentences, as the model will in use.
        longest = plan.model.max_seq_length
        cut = training.max_length if longest is None else min(training.max_length, longest)
        stack.enter_context(max_length(plan.model, cut))
        chunking = _chunking(recipe, plan, work, precision)
        keeper = BestKeeper(work, plan.model, keep_weights=training.select == "best", patience=training.patience)
        trainer = make_trainer(
            plan.model,
            plan.loss(plan.model, chunking),
            rows,
            training,
            work=work,
            precision=precision,
            evaluator=None if judge is None else JudgeEvaluator(judge, plan.readout, blend, longest),
            callbacks=[keeper, LossLog()],
            collator=None if plan.collator is None else plan.collator(plan.model),
            learning_rates=plan.learning_rates,
            progress=progress,
        )
        _fit(trainer, keeper, work)
    seconds = time.perf_counter() - begun
    # The first process may still be writing the weights that all are about to read.
    processes.wait()
    if training.select == "best":
        keeper.restore()
    blend.apply(plan.model)
    final = plan.saved_as(plan.readout(plan.model))
    result = processes.on_first(
        lambda: _record(recipe, plan, trainer, keeper, judge, precision, chunking, seconds, warnings)
    )
    finish(final, recipe, result, work, notes=plan.notes)
    return result


def check_enough(recipe: Recipe, rows: int) -> None:
    """Say that there is not one batch of training rows; a method that prepares for long asks before it does.

    Raises:
        InputError: There is not.
    """
    several = f" in each of {processes.count()} processes" if processes.count() > 1 else ""
    if rows < recipe.training.batch_size * processes.count():
        raise InputError(
            f"holds {rows} rows to train on, fewer than one batch of {recipe.training.batch_size}{several}; "
            "lower training.batch_size or bring more",
            path=recipe.data.train,
        )


def finish(
    model: SentenceTransformer,
    recipe: BaseRecipe,
    result: dict[str, Any],
    work: Path,
    *,
    notes: Sequence[str] = (),
) -> None:
    """Save model, card, settings and record in the parent of ``work``, the record last, and remove ``work``."""
    processes.on_first(lambda: _finish(model, recipe, result, work, notes))


def _finish(
    model: SentenceTransformer, recipe: BaseRecipe, result: dict[str, Any], work: Path, notes: Sequence[str]
) -> None:
    folder = work.parent
    staged = work / "model"
    shutil.rmtree(staged, ignore_errors=True)
    model.save_pretrained(str(staged), create_model_card=False)
    settings_io.save(recipe, staged / record.SETTINGS)
    plain = not any(type(module).__module__.startswith("sentsmith.") for module in model)
    (staged / "README.md").write_text(card.render(result, notes, plain=plain), encoding="utf-8")
    for item in staged.iterdir():
        target = folder / item.name
        if target.is_dir():
            shutil.rmtree(target)
        item.replace(target)
    write_json(folder / record.RECORD, result)
    shutil.rmtree(work)
    logger.info("saved %s", folder)


def base_record(recipe: BaseRecipe, rows: TrainingRows, seconds: float, warnings: Sequence[str]) -> dict[str, Any]:
    """Return the part of the run record that every method has."""
    return {
        "kind": "training",
        "method": recipe.method,
        "status": "finished",
        "created": record.now(),
        "commit": record.commit(),
        "starts": list(recipe.starts()),
        "settings": recipe.model_dump(mode="json"),
        "settings_sha256": record.settings_hash(recipe),
        "versions": versions(),
        "hardware": record.hardware(),
        "data": rows.describe(),
        "seconds": {"train": round(seconds, 1)},
        "warnings": list(warnings),
    }


def _judge(recipe: Recipe, plan: Plan) -> Judge | None:
    if plan.judge is not None:
        return plan.judge
    if recipe.data.dev:
        return ScoredPairsJudge.of_files(recipe.data.dev)
    if len(plan.rows.held_out) < 2:
        return None
    columns = plan.rows.held_out.column_names
    texts = [[row[name] for name in columns] for row in plan.rows.held_out]
    logger.info("no data.dev: the checkpoint is chosen by the loss on %d held-out rows", len(texts))
    return HeldOutJudge(texts, temperature=plan.temperature, seed=recipe.training.seed)


def _fit(trainer: Trainer, keeper: BestKeeper, work: Path) -> None:
    checkpoint = last_checkpoint(work)
    if checkpoint is not None:
        logger.info("going on after step %s", checkpoint.name.rpartition("-")[2])
        keeper.recall()
        state = TrainerState.load_from_json(str(checkpoint / "trainer_state.json"))
    if checkpoint is not None and (state.global_step >= state.max_steps or keeper.is_spent(state.global_step)):
        # Trained and judged, but not saved yet. The library would take one more step before it looks at the count.
        trainer._load_from_checkpoint(str(checkpoint))  # noqa: SLF001 - the library has no public way
        trainer.state = state
    else:
        trainer.train(resume_from_checkpoint=None if checkpoint is None else str(checkpoint))
    # The last update is followed by no loss that would show it.
    for name, weights in trainer.model.named_parameters():
        check_finite(float(weights.detach().abs().max()), f"the weights {name}")


def _chunking(recipe: Recipe, plan: Plan, work: Path, precision: str) -> Chunking:
    wanted = recipe.training.chunk_tokens
    # Under bf16 on some processors a chunk of 16 rows was seen to train 6 times slower than one of 32.
    min_rows = 32 if precision == "bf16" else 8
    if wanted is None:
        # A processor's caches like small chunks (benchmarks/chunks.py); a GPU wants work enough for all its units.
        wanted = 512 if plan.model.device.type == "cpu" else 16384
    if wanted == "measure":
        batch = [plan.rows.train[i] for i in range(min(recipe.training.batch_size, len(plan.rows.train)))]
        kept = work / "chunks.json"
        best: int = processes.on_first(
            lambda: measured(
                plan.model,
                batch,
                kept,
                precision=precision,
                min_rows=min_rows,
                collate=None if plan.collator is None else plan.collator(plan.model),
            )
        )
        wanted = best
    return Chunking(tokens=wanted, min_rows=min_rows, recompute=recipe.training.recompute)


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
    result["seconds"] |= plan.seconds
    if facts := {**plan.facts, **plan.learned(plan.model)}:
        result[recipe.method] = facts
    result["processes"] = processes.count()
    result["precision"] = precision
    result["chunking"] = {
        "tokens": chunking.tokens,
        "min_rows": chunking.min_rows,
        "recompute": chunking.recompute,
    }
    history = trainer.state.log_history
    # The loss, and its parts by name where it has some.
    besides = ("grad_norm", "learning_rate", "epoch")
    result["loss"] = [
        {key: value for key, value in entry.items() if key not in besides} for entry in history if "loss" in entry
    ]
    result["selection"] = None if judge is None else _selection(recipe, keeper, judge, trainer)
    return result


def _selection(recipe: Recipe, keeper: BestKeeper, judge: Judge, trainer: Trainer) -> dict[str, Any]:
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
        "stopped_early": trainer.state.global_step < trainer.state.max_steps,
        "history": [{"step": entry.step, "score": entry.score} for entry in keeper.history],
    }
