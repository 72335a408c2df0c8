"""Many softmax regressions on selections of the same rows, trained as one."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

if TYPE_CHECKING:
    import torch

Features = NDArray[np.float32]
Labels = NDArray[np.int64]
Masks = NDArray[np.bool_]

_BETAS = (0.9, 0.999)
_EPSILON = 1e-8
_BLOCK = 4096


@dataclass(frozen=True)
class ProbeSettings:
    """How the classifiers are trained; the defaults are SentEval's.

    Attributes:
        folds: Of the cross-validations, outer and inner.
        l2: The L2 strengths to choose from, ascending.
        batch_size: Training rows a step, for each classifier on average.
        epoch_size: Epochs between two looks at the held-out accuracy.
        tenacity: How often that accuracy may fail to rise (it stops the time after).
        max_epochs: No look begins after this many epochs.
        learning_rate: Of Adam.
        seed: Of folds, initialisation and order.
    """

    folds: int = 10
    l2: tuple[float, ...] = (1e-5, 1e-4, 1e-3, 1e-2)
    batch_size: int = 64
    epoch_size: int = 4
    tenacity: int = 5
    max_epochs: int = 200
    learning_rate: float = 1e-3
    seed: int = 1111

    def describe(self) -> str:
        """Return one line that says which classifier this is."""
        grid = ", ".join(f"{value:g}" for value in self.l2)
        return (
            f"softmax regression (torch), Adam {self.learning_rate:g}, batches of {self.batch_size} rows "
            f"on average, L2 from {{{grid}}}, looks every {self.epoch_size} epochs, tenacity "
            f"{self.tenacity}, {self.folds} folds, seed {self.seed}"
        )


@dataclass(frozen=True, eq=False)
class Fitted:
    """``m`` trained classifiers.

    Attributes:
        weights: float32 ``[d + 1, classes, m]``; the last row is the bias.
        accuracy: float64 ``[m]``, the best accuracy on each one's held-out rows.
    """

    weights: torch.Tensor
    accuracy: NDArray[np.float64]

    def predict(self, features: Features, index: int) -> Labels:
        """Return the classes ``[n]`` that classifier ``index`` gives to features ``[n, d]``."""
        import torch

        logits = _with_bias(torch.from_numpy(features)) @ self.weights[:, :, index]
        return np.asarray(logits.argmax(dim=1).numpy(), dtype=np.int64)


def fit_many(
    features: Features,
    labels: Labels,
    *,
    train: Masks,
    dev: Masks,
    l2: Sequence[float],
    classes: int,
    settings: ProbeSettings,
) -> Fitted:
    """Train ``m`` softmax regressions on selections of the same rows.

    Args:
        features: ``[n, d]``.
        labels: ``[n]``.
        train: ``[n, m]``, the rows each one learns from.
        dev: ``[n, m]``, the rows that tell each one when to stop; at least one for each.
        l2: ``[m]`` strengths.
        classes: How many classes there are.
        settings: How to train.
    """
    import torch

    generator = torch.Generator().manual_seed(settings.seed)
    bound = 1 / math.sqrt(features.shape[1])
    start = torch.empty(features.shape[1] + 1, classes, 1).uniform_(-bound, bound, generator=generator)
    used = np.flatnonzero(train.any(axis=1))
    looked_at = np.flatnonzero(dev.any(axis=1))
    everything = _with_bias(torch.from_numpy(features))
    targets = torch.from_numpy(labels)
    run = _Run(
        rows=everything[used],
        labels=targets[used],
        mask=torch.from_numpy(train[used]).float(),
        dev_rows=everything[looked_at],
        dev_labels=targets[looked_at],
        dev_mask=torch.from_numpy(dev[looked_at]).float(),
        l2=torch.tensor(l2, dtype=torch.float32),
        weights=start.expand(-1, -1, len(l2)).contiguous(),
        settings=settings,
        generator=generator,
    )
    return run.run()


@dataclass(eq=False)
class _Run:
    """The training of many classifiers; those that stopped leave the matrices: later epochs cost less."""

    rows: torch.Tensor  # [n, d+1]
    labels: torch.Tensor  # [n]
    mask: torch.Tensor  # [n, active], 1.0 where a row trains a classifier
    dev_rows: torch.Tensor  # [n_dev, d+1]
    dev_labels: torch.Tensor  # [n_dev]
    dev_mask: torch.Tensor  # [n_dev, active]
    l2: torch.Tensor  # [active]
    weights: torch.Tensor  # [d+1, classes, active]
    settings: ProbeSettings
    generator: torch.Generator
    steps: int = 0
    moments: list[torch.Tensor] = field(default_factory=list)  # Adam's two, shaped like the weights

    def run(self) -> Fitted:
        import torch

        count = len(self.l2)
        self.moments = [torch.zeros_like(self.weights), torch.zeros_like(self.weights)]
        best = torch.full((count,), -1.0, dtype=torch.float64)
        best_weights = self.weights.clone()
        failures = torch.zeros(count, dtype=torch.long)
        active = torch.arange(count)
        epochs = 0
        while len(active) and epochs <= self.settings.max_epochs:
            for _ in range(self.settings.epoch_size):
                self._epoch()
            epochs += self.settings.epoch_size
            accuracy = self._dev_accuracy()
            better = accuracy > best[active]
            best[active[better]] = accuracy[better]
            best_weights[:, :, active[better]] = self.weights[:, :, better]
            stopped = ~better & (failures[active] >= self.settings.tenacity)
            failures[active[~better]] += 1
            if stopped.any():
                active = active[~stopped]
                self._keep(~stopped)
        return Fitted(best_weights, best.numpy())

    def _epoch(self) -> None:
        import torch

        share = float(self.mask.mean())
        size = max(1, round(self.settings.batch_size / share))
        order = torch.randperm(len(self.rows), generator=self.generator)
        for batch in torch.split(order, size):
            self._step(batch)

    def _step(self, batch: torch.Tensor) -> None:
        """One step of Adam; the gradient of cross-entropy at a row's logits is softmax minus one-hot."""
        import torch

        rows, mask = self.rows[batch], self.mask[batch]
        inputs, classes, active = self.weights.shape
        delta = (rows @ self.weights.view(inputs, -1)).view(len(batch), classes, active).softmax(dim=1)
        delta[torch.arange(len(batch)), self.labels[batch]] -= 1
        delta *= (mask / mask.sum(dim=0).clamp(min=1)).unsqueeze(1)
        gradient = (rows.T @ delta.view(len(batch), -1)).view_as(self.weights)
        gradient.addcmul_(self.weights, self.l2)
        self.steps += 1
        first, second = self.moments
        first.lerp_(gradient, 1 - _BETAS[0])
        second.mul_(_BETAS[1]).addcmul_(gradient, gradient, value=1 - _BETAS[1])
        # Adam divides by √v/scale + ε; with both sides times scale one pass over the matrix is saved.
        scale = math.sqrt(1 - _BETAS[1] ** self.steps)
        rate = self.settings.learning_rate * scale / (1 - _BETAS[0] ** self.steps)
        self.weights.addcdiv_(first, second.sqrt().add_(_EPSILON * scale), value=-rate)

    def _dev_accuracy(self) -> torch.Tensor:
        """Return float64 ``[active]``."""
        import torch

        inputs = self.weights.shape[0]
        hits = torch.zeros(len(self.l2), dtype=torch.float64)
        for start in range(0, len(self.dev_rows), _BLOCK):
            part = slice(start, start + _BLOCK)
            logits = self.dev_rows[part] @ self.weights.view(inputs, -1)
            predicted = logits.view(-1, *self.weights.shape[1:]).argmax(dim=1)
            right = (predicted == self.dev_labels[part].unsqueeze(1)) * self.dev_mask[part]
            hits += right.sum(dim=0)
        return hits / self.dev_mask.sum(dim=0)

    def _keep(self, stay: torch.Tensor) -> None:
        self.mask, self.dev_mask, self.l2 = self.mask[:, stay], self.dev_mask[:, stay], self.l2[stay]
        self.weights = self.weights[:, :, stay].contiguous()
        self.moments = [moment[:, :, stay].contiguous() for moment in self.moments]


def _with_bias(features: torch.Tensor) -> torch.Tensor:
    import torch

    return torch.cat([features, torch.ones(len(features), 1)], dim=1)
