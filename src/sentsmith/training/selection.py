"""What chooses the checkpoint: a judge scores the model on data that is neither trained on nor tested on."""

from __future__ import annotations

import json
import logging
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, Self

import numpy as np
import torch
from sentence_transformers.base.evaluation import BaseEvaluator
from transformers import TrainerCallback

from sentsmith.corpus.rows import Conditional
from sentsmith.encoders.embedding import ModelEncoder, max_length
from sentsmith.encoders.protocol import Encoder
from sentsmith.evaluation.conditional import read_labelled, score_conditional
from sentsmith.evaluation.ordering import ranking_correlation
from sentsmith.evaluation.pairs import ScoredPairs, read_scored_pairs
from sentsmith.evaluation.sts import score_pairs
from sentsmith.files import write_json
from sentsmith.training.blend import Blend
from sentsmith.training.trainer import check_finite
from sentsmith.training.weights import load_weights, save_weights

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

METRIC = "dev"


class Judge(Protocol):
    """Scores an encoder; higher is better."""

    metric: str
    source: str

    def score(self, encoder: Encoder) -> float:
        """Return the score, in the metric's own unit."""
        ...


class ScoredPairsJudge:
    """The mean over files of scored pairs of Spearman × 100 between the model's similarity and gold.

    Args:
        pairs: Of each file.
        source: Where they are from.
    """

    metric = "spearman"

    def __init__(self, pairs: Sequence[ScoredPairs], source: str) -> None:
        self.pairs = pairs
        self.source = source

    @classmethod
    def of_files(cls, paths: Sequence[str | Path]) -> Self:
        """Return a judge over dev files, for example STS-B's dev part.

        Raises:
            InputError: A file is missing, empty, or its scores are out of range.
        """
        return cls([read_scored_pairs(path) for path in paths], ", ".join(map(str, paths)))

    def score(self, encoder: Encoder) -> float:
        """Return the mean Spearman × 100."""
        return 100 * float(np.mean([score_pairs(encoder, pairs) for pairs in self.pairs]))


class HeldOutJudge:
    """The contrastive loss, negated, on rows kept apart from the training data.

    Raw sentences have no positive: there, it is the sentence with a fifth of its words left out.

    Args:
        rows: Texts per row: one, two (anchor, positive) or three (and a negative).
        temperature: τ of the loss.
        seed: Chooses the words that are left out.
    """

    metric = "negated contrastive loss"

    def __init__(self, rows: Sequence[Sequence[str]], *, temperature: float, seed: int) -> None:
        self.source = f"{len(rows)} held-out training rows"
        self.temperature = temperature
        dice = random.Random(seed)
        self.columns = list(
            zip(*([row[0], _thinned(row[0], dice)] if len(row) == 1 else row for row in rows), strict=True)
        )

    def score(self, encoder: Encoder) -> float:
        """Return minus the mean loss."""
        vectors = [torch.from_numpy(encoder.encode(list(column))) for column in self.columns]
        units = [torch.nn.functional.normalize(part, dim=1) for part in vectors]
        logits = units[0] @ torch.cat(units[1:]).T / self.temperature
        return -float(torch.nn.functional.cross_entropy(logits, torch.arange(len(logits))))


class ListJudge:
    """The mean rank correlation (Spearman), times 100, of ranked lists kept apart from the training data.

    Args:
        lists: Each three sentences or more.
    """

    metric = "rank correlation (Spearman) of lists"

    def __init__(self, lists: Sequence[Sequence[str]]) -> None:
        self.source = f"{len(lists)} held-out training rows"
        self.lists = lists

    def score(self, encoder: Encoder) -> float:
        """Return the mean Spearman × 100 of cosine to the first sentence and the order of the list."""
        return 100 * float(np.mean(ranking_correlation(encoder, self.lists)))


class ConditionalJudge:
    """The mean over files of Spearman × 100 between similarity and label of pairs under a condition (C-STS).

    Args:
        files: The rows of each file, with their labels.
        source: Where they are from.
    """

    metric = "spearman under conditions"

    def __init__(self, files: Sequence[Sequence[Conditional]], source: str) -> None:
        self.files = files
        self.source = source

    @classmethod
    def of_files(cls, paths: Sequence[str | Path]) -> Self:
        """Return a judge over dev files.

        Raises:
            InputError: A file cannot be read, or its labels are hidden.
        """
        return cls([read_labelled(path) for path in paths], ", ".join(map(str, paths)))

    @classmethod
    def of_rows(cls, rows: Iterable[Mapping[str, Any]]) -> Self:
        """Return a judge over held-out rows of :func:`sentsmith.training.data.conditional_rows`."""
        held_out = list(rows)
        flat = [
            Conditional(row["sentence1"], row["sentence2"], condition, label)
            for row in held_out
            for condition, label in zip(row["conditions"], row["labels"], strict=True)
        ]
        return cls([flat], f"{len(held_out)} held-out training rows")

    def score(self, encoder: Encoder) -> float:
        """Return the mean Spearman × 100."""
        return 100 * float(np.mean([score_conditional(encoder, rows) for rows in self.files]))


def _thinned(sentence: str, dice: random.Random) -> str:
    words = sentence.split()
    kept = [word for word in words if dice.random() >= 0.2]
    return " ".join(kept) if kept else sentence


@dataclass
class Score:
    """The judge's score after a step."""

    step: int
    score: float


class JudgeEvaluator(BaseEvaluator):
    """A judge as an evaluator of sentence-transformers' trainer.

    Args:
        judge: What scores.
        readout: Turns the model in training into the one that will be used (a head may be for training only).
        blend: How its weights will be averaged with the start model's.
        longest: Tokens a sentence is cut to while the judge scores: the model's own limit, not that of the training.
    """

    def __init__(
        self,
        judge: Judge,
        readout: Callable[[SentenceTransformer], SentenceTransformer],
        blend: Blend,
        longest: int | None,
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.judge = judge
        self.readout = readout
        self.blend = blend
        self.longest = longest

    def __call__(
        self,
        model: SentenceTransformer,  # type: ignore[override]
        output_path: str | None = None,
        epoch: float = -1,
        steps: int = -1,
    ) -> dict[str, float]:
        """Return the score under the name that the trainer and the trackers show."""
        with self.blend.applied(model), max_length(model, self.longest):
            score = self.judge.score(ModelEncoder(self.readout(model)))
        check_finite(score, f"the {self.judge.metric} on {self.judge.source}, at step {steps},")
        return {METRIC: score}


class BestKeeper(TrainerCallback):
    """Keeps the weights of the best step so far, and the history of scores, in the work folder.

    Weights and scores are written so that a kill at any moment leaves a history whose best step has its weights. A run
    that is resumed takes up the whole history, also of the steps after its checkpoint, and does not note those again:
    their weights may be the ones that were kept.

    Args:
        folder: The run's work folder.
        model: The model in training.
        keep_weights: False keeps the history only (``training.select: last``).
        patience: Ends the training after so many scores in a row that are no better than the best; None: never.
    """

    def __init__(
        self, folder: Path, model: SentenceTransformer, *, keep_weights: bool, patience: int | None = None
    ) -> None:
        self.folder = folder
        self.log = folder / "selection.json"
        self.model = model
        self.keep_weights = keep_weights
        self.patience = patience
        self.history: list[Score] = []

    def recall(self) -> None:
        """Take up the history of the run that is resumed."""
        if self.log.is_file():
            self.history = [Score(**entry) for entry in json.loads(self.log.read_text(encoding="utf-8"))]

    @property
    def best(self) -> Score | None:
        """The best score so far; the earliest of equals."""
        return max(self.history, key=lambda entry: (entry.score, -entry.step), default=None)

    def is_spent(self, step: int) -> bool:
        """Whether patience has run out at ``step``: what is known of later steps, before a kill, does not count."""
        scores = [entry.score for entry in self.history if entry.step <= step]
        return (
            self.patience is not None and bool(scores) and len(scores) - 1 - scores.index(max(scores)) >= self.patience
        )

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Have the last step judged too, whatever ``eval_steps``: not every version of the library sees to it."""
        if state.global_step >= state.max_steps and args.eval_strategy != "no":
            control.should_evaluate = True

    def on_evaluate(
        self, args: Any, state: Any, control: Any, metrics: dict[str, float] | None = None, **kwargs: Any
    ) -> None:
        """Note the score of this step; keep the weights if it is the best; end the training if patience has run out."""
        known = any(entry.step == state.global_step for entry in self.history)
        if metrics is not None and not known:
            self._note(state, metrics)
        if self.is_spent(state.global_step):
            control.should_training_stop = True
            if state.is_world_process_zero:
                logger.info("step %d: %d scores without a better one; stopping", state.global_step, self.patience)

    def _note(self, state: Any, metrics: dict[str, float]) -> None:
        score = float(metrics[f"eval_{METRIC}"])
        before = self.best
        self.history.append(Score(state.global_step, score))
        # Every process knows the history; one writes.
        if state.is_world_process_zero:
            self._write(before)
            logger.info("step %d: dev %.4f", state.global_step, score)

    def _write(self, before: Score | None) -> None:
        newest = self.history[-1]
        if self.keep_weights and (before is None or newest.score > before.score):
            save_weights(self.model, self._weights(newest.step))
        write_json(self.log, [asdict(entry) for entry in self.history])
        self._forget_others()

    def restore(self) -> None:
        """Put the best step's weights into the model."""
        if self.best is not None:
            load_weights(self.model, self._weights(self.best.step))

    def _weights(self, step: int) -> Path:
        return self.folder / f"best-{step}.safetensors"

    def _forget_others(self) -> None:
        for file in self.folder.glob("best-*.safetensors"):
            if self.best is None or file != self._weights(self.best.step):
                file.unlink()
