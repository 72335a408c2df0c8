"""sentence-transformers' trainer with the few things that a measured, resumable run wants differently."""

from __future__ import annotations

import json
import logging
import math
import shutil
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments
from transformers import TrainerCallback
from transformers.trainer_callback import PrinterCallback, ProgressCallback

from sentsmith.errors import SentsmithError
from sentsmith.files import make_folder
from sentsmith.training import processes
from sentsmith.training.settings import TrainingSettings
from sentsmith.training.weights import load_weights, save_weights

if TYPE_CHECKING:
    from datasets import Dataset
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.base.evaluation import BaseEvaluator
    from sentence_transformers.sentence_transformer.data_collator import SentenceTransformerDataCollator
    from torch import nn

logger = logging.getLogger(__name__)

_WEIGHTS = "trained.safetensors"


class Trainer(SentenceTransformerTrainer):
    """The library's trainer, without its model card (we write our own) and without pickled arguments in checkpoints."""

    def add_model_card_callback(self, default_args_dict: dict[str, Any]) -> None:
        """Gather nothing for the library's card: its statistics tokenise the data again."""

    def evaluate(self, *args: Any, **kwargs: Any) -> dict[str, float]:
        """Evaluate without a trace: the library draws random numbers here, and the dropout to come would be another."""
        with torch.random.fork_rng():
            scores: dict[str, float] = super().evaluate(*args, **kwargs)
        return scores

    def _save_rng_state(self, output_dir: str) -> None:
        # The first process goes on to write the file that tells that the checkpoint is whole.
        super()._save_rng_state(output_dir)
        processes.wait()

    def _save(self, output_dir: str | None = None, state_dict: Any = None) -> None:
        # What the run changes, and no more: of a large model with an adapter that is the adapter.
        save_weights(self.model, make_folder(output_dir or str(self.args.output_dir)) / _WEIGHTS)

    def _load_from_checkpoint(self, resume_from_checkpoint: str, model: Any = None) -> None:
        weights = Path(resume_from_checkpoint) / _WEIGHTS
        if not weights.is_file():
            raise SentsmithError(
                f"{resume_from_checkpoint} has no {_WEIGHTS}: this checkpoint is an older version's; begin again with "
                "--overwrite"
            )
        load_weights(self.model, weights)


class OwnDropout(TrainerCallback):
    """Gives each process random numbers of its own; the trainer has seeded all alike, and dropout is SimCSE's noise."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Seed this process; the first one as if it were alone."""
        if args.process_index > 0:
            torch.manual_seed(args.seed + args.process_index)


class LossLog(TrainerCallback):
    """Logs the training loss, one line each time the trainer does."""

    def on_log(self, args: Any, state: Any, control: Any, logs: dict[str, float] | None = None, **kwargs: Any) -> None:
        """Log step, loss and learning rate; end a run whose loss is not a number any more.

        Raises:
            SentsmithError: The loss is not finite.
        """
        if not logs or "loss" not in logs:
            return
        check_finite(logs["loss"], f"the training loss of step {state.global_step}")
        if state.is_world_process_zero:
            rate = logs.get("learning_rate", 0.0)
            besides = ("loss", "grad_norm", "learning_rate", "epoch")
            parts = ", ".join(f"{name} {value:.4f}" for name, value in logs.items() if name not in besides)
            logger.info(
                "step %d/%d: loss %.4f%s, rate %.2e",
                state.global_step,
                state.max_steps,
                logs["loss"],
                f" ({parts})" if parts else "",
                rate,
            )


def check_finite(value: float, what: str) -> None:
    """End a run that has gone wrong, before the rest of its hours are spent.

    Raises:
        SentsmithError: ``value`` is NaN or infinite.
    """
    if not math.isfinite(value):
        raise SentsmithError(
            f"{what} became {value}; begin again (--overwrite) with a lower training.learning_rate, or with "
            "training.precision fp32"
        )


def make_trainer(
    model: SentenceTransformer,
    loss: nn.Module,
    rows: Dataset,
    settings: TrainingSettings,
    *,
    work: Path,
    precision: str,
    evaluator: BaseEvaluator | None,
    callbacks: Sequence[TrainerCallback],
    progress: bool,
    collator: SentenceTransformerDataCollator | None = None,
    learning_rates: Mapping[str, float] | None = None,
) -> Trainer:
    """Return a trainer over ``rows``, set up by ``settings``; its checkpoints go to ``work``.

    The weights of ``loss`` (the model's are among them, ``model.…``) whose names a pattern of ``learning_rates`` is
    found in have that peak rate, under the same schedule; the others have the settings' one.

    A run that goes on from a checkpoint has judged its start already: judging again would be a step that the run
    without a break does not have.
    """
    steps = settings.max_steps or -1
    # Between this trainer and DistributedDataParallel, which has a new name for what the trainer asks of it.
    warnings.filterwarnings("ignore", message="`broadcast_buffers` is deprecated", category=FutureWarning)
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=settings.batch_size,
        num_train_epochs=settings.epochs,
        max_steps=steps,
        learning_rate=settings.learning_rate,
        learning_rate_mapping=dict(learning_rates or {}),
        lr_scheduler_type=settings.schedule
        if settings.warmup == 0 or settings.schedule != "constant"
        else "constant_with_warmup",
        warmup_steps=settings.warmup,
        weight_decay=settings.weight_decay,
        max_grad_norm=settings.max_grad_norm,
        optim="adamw_torch_fused",
        # A model may hold weights that its vectors do not need, such as the pooler of BERT.
        ddp_find_unused_parameters=True,
        bf16=precision == "bf16",
        fp16=precision == "fp16",
        use_cpu=not torch.cuda.is_available(),
        seed=settings.seed,
        data_seed=settings.seed,
        # A batch of one row has no in-batch negative and a gradient of zero.
        dataloader_drop_last=True,
        eval_strategy="no" if evaluator is None else "steps",
        eval_steps=settings.eval_steps,
        eval_on_start=evaluator is not None and last_checkpoint(work) is None,
        save_strategy="steps",
        save_steps=settings.save_steps,
        save_total_limit=1,
        logging_steps=min(10, max(1, settings.eval_steps // 5)),
        # By default the trainer shows the mean of earlier losses in place of a NaN.
        logging_nan_inf_filter=False,
        disable_tqdm=not progress,
        report_to="none",
    )
    trainer = Trainer(
        model=model,
        args=arguments,
        train_dataset=rows,
        loss=loss,
        evaluator=evaluator,
        data_collator=collator,
        callbacks=[OwnDropout(), *callbacks],
    )
    # The library prints raw dictionaries to standard output between the lines of the bar.
    trainer.remove_callback(PrinterCallback)
    trainer.remove_callback(ProgressCallback)
    if progress:
        trainer.add_callback(_Bar())
    return trainer


class _Bar(ProgressCallback):
    """The library's progress bar, without the dictionaries that it prints between its lines."""

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        """Leave the bar alone: :class:`LossLog` says the same in a line of the log."""


def last_checkpoint(work: Path) -> Path | None:
    """Return the newest whole checkpoint of a work folder, and remove half-written ones.

    The library writes ``trainer_state.json`` last: a checkpoint without it was being written when the run was killed.
    """
    return processes.on_first(lambda: _last_checkpoint(work))


def _last_checkpoint(work: Path) -> Path | None:
    whole: list[Path] = []
    for folder in work.glob("checkpoint-*"):
        try:
            json.loads((folder / "trainer_state.json").read_text(encoding="utf-8"))
            whole.append(folder)
        except (OSError, ValueError):
            logger.warning("%s was being written when the run ended; removed", folder)
            shutil.rmtree(folder)
    return max(whole, key=lambda folder: int(folder.name.rpartition("-")[2]), default=None)
