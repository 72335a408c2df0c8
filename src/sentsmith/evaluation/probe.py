"""The classifier of the transfer tasks: SentEval's softmax regression, many of them trained at once.

SentEval trains one linear softmax for every fold and every L2 strength, one after the other: 10 × 10 × 4 + 10
for a nested cross-validation. All of them see the same rows in different selections, so here they are columns
of one matrix: one product gives the logits of all, and a mask keeps each from the rows it must not learn
from.

Kept from SentEval (``usepytorch``, ``nhid: 0``): the initialisation (uniform in ±1/√d, the same for every
classifier), Adam with its defaults (lr 0.001) and L2 added to the gradient of weights and bias, cross-entropy
averaged over the batch, accuracy on the held-out rows after every ``epoch_size`` epochs, stop when it failed
to rise ``tenacity`` + 1 times in all, keep the best, at most 200 epochs; the folds (scikit-learn's
StratifiedKFold, shuffled with seed 1111); the choice of L2 by the mean held-out accuracy, rounded to 0.01
points, the smallest on a tie.

Different: the classifiers share one order of the rows, and a shared batch is so large that each has 64 rows
of its own in it *on average* instead of always (the held-out rows of a fold are left out of that fold's
loss).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from sentsmith.errors import InputError
from sentsmith.evaluation.softmax import Features, Fitted, Labels, ProbeSettings, fit_many

_FINAL_DEV_SHARE = 0.05  # of the training rows, held out for early stopping once L2 is chosen


@dataclass(frozen=True, eq=False)
class ProbeResult:
    """What a protocol measured.

    Attributes:
        accuracy: On rows that neither trained the classifier nor chose its settings, in [0, 1].
        dev_accuracy: Of the chosen L2 on the rows that chose it.
        l2: The chosen strengths, one for each outer fold (one where there is no outer fold).
        predictions: int64 ``[test rows]``; for nested cross-validation each row by the fold that held it out.
    """

    accuracy: float
    dev_accuracy: float
    l2: tuple[float, ...]
    predictions: Labels


def nested_cross_validation(
    features: Features, labels: Labels, *, classes: int, settings: ProbeSettings
) -> ProbeResult:
    """Cross-validate; inside each outer fold an inner cross-validation chooses L2 (MR, CR, SUBJ, MPQA).

    The accuracy is the mean over the outer folds.

    Args:
        features: ``[n, d]``.
        labels: ``[n]`` in [0, classes).
        classes: How many classes there are.
        settings: How to train.

    Raises:
        InputError: A class has too few rows for the folds.
    """
    _check_classes(labels, classes, settings.folds, nested=True)
    outer = _folds(labels, settings)
    inner_train, inner_dev = [], []
    for train, _ in outer:
        for part_train, part_dev in _folds(labels[train], settings):
            inner_train.append(_mask(len(labels), train[part_train]))
            inner_dev.append(_mask(len(labels), train[part_dev]))
    scores = _grid_accuracy(features, labels, inner_train, inner_dev, classes=classes, settings=settings)
    means = scores.reshape(len(outer), settings.folds, len(settings.l2)).mean(axis=1)
    chosen = [_best(row) for row in means]
    final = _fit_final(features, labels, [train for train, _ in outer], chosen, classes=classes, settings=settings)
    predictions = np.empty(len(labels), dtype=np.int64)
    for fold, (_, test) in enumerate(outer):
        predictions[test] = final.predict(features[test], fold)
    hits = predictions == labels
    return ProbeResult(
        accuracy=float(np.mean([hits[test].mean() for _, test in outer])),
        dev_accuracy=float(np.mean(means.max(axis=1))),
        l2=tuple(settings.l2[index] for index in chosen),
        predictions=predictions,
    )


def cross_validation(
    train: tuple[Features, Labels], test: tuple[Features, Labels], *, classes: int, settings: ProbeSettings
) -> ProbeResult:
    """Choose L2 by cross-validation on the training part, train on all of it, measure the test (TREC, MRPC).

    Raises:
        InputError: A class has too few rows for the folds.
    """
    features, labels = train
    _check_classes(labels, classes, settings.folds, nested=False)
    folds = _folds(labels, settings)
    masks = [[_mask(len(labels), rows[side]) for rows in folds] for side in (0, 1)]
    scores = _grid_accuracy(features, labels, masks[0], masks[1], classes=classes, settings=settings)
    means = scores.reshape(len(folds), len(settings.l2)).mean(axis=0)
    chosen = _best(means)
    final = _fit_final(features, labels, [np.arange(len(labels))], [chosen], classes=classes, settings=settings)
    predictions = final.predict(test[0], 0)
    accuracy = float((predictions == test[1]).mean())
    return ProbeResult(accuracy, float(means.max()), (settings.l2[chosen],), predictions)


def given_split(
    train: tuple[Features, Labels],
    dev: tuple[Features, Labels],
    test: tuple[Features, Labels],
    *,
    classes: int,
    settings: ProbeSettings,
) -> ProbeResult:
    """Choose L2 and when to stop on the development part, measure the test part (SST2).

    SentEval trains the chosen classifier a second time with the same seed on the same rows, which gives the
    same classifier; here it is kept.

    Raises:
        InputError: A class has no row in the training part.
    """
    _check_classes(train[1], classes, folds=1, nested=False)
    features, labels = (np.concatenate([a, b]) for a, b in zip(train, dev, strict=True))
    is_train = np.arange(len(labels)) < len(train[1])
    grid = len(settings.l2)
    fitted = fit_many(
        features,
        labels,
        train=np.repeat(is_train[:, None], grid, axis=1),
        dev=np.repeat(~is_train[:, None], grid, axis=1),
        l2=settings.l2,
        classes=classes,
        settings=settings,
    )
    chosen = _best(fitted.accuracy)
    predictions = fitted.predict(test[0], chosen)
    accuracy = float((predictions == test[1]).mean())
    return ProbeResult(accuracy, float(fitted.accuracy[chosen]), (settings.l2[chosen],), predictions)


def _grid_accuracy(
    features: Features,
    labels: Labels,
    train: Sequence[NDArray[np.bool_]],
    dev: Sequence[NDArray[np.bool_]],
    *,
    classes: int,
    settings: ProbeSettings,
) -> NDArray[np.float64]:
    """Train every (selection, L2) pair; return the held-out accuracies, L2 changing fastest."""
    grid = len(settings.l2)
    return fit_many(
        features,
        labels,
        train=np.repeat(np.stack(train, axis=1), grid, axis=1),
        dev=np.repeat(np.stack(dev, axis=1), grid, axis=1),
        l2=settings.l2 * len(train),
        classes=classes,
        settings=settings,
    ).accuracy


def _fit_final(
    features: Features,
    labels: Labels,
    selections: Sequence[NDArray[np.int64]],
    chosen: Sequence[int],
    *,
    classes: int,
    settings: ProbeSettings,
) -> Fitted:
    """Train one classifier on each selection with its chosen L2; 5% of its rows tell when to stop."""
    train, dev = [], []
    for rows in selections:
        # SentEval's own generator, for the same 5% of the rows.
        order = rows[np.random.RandomState(settings.seed).permutation(len(rows))]
        cut = max(1, int(_FINAL_DEV_SHARE * len(rows)))
        train.append(_mask(len(labels), order[cut:]))
        dev.append(_mask(len(labels), order[:cut]))
    return fit_many(
        features,
        labels,
        train=np.stack(train, axis=1),
        dev=np.stack(dev, axis=1),
        l2=[settings.l2[index] for index in chosen],
        classes=classes,
        settings=settings,
    )


def _folds(labels: Labels, settings: ProbeSettings) -> list[tuple[NDArray[np.int64], NDArray[np.int64]]]:
    from sklearn.model_selection import StratifiedKFold

    splitter = StratifiedKFold(n_splits=settings.folds, shuffle=True, random_state=settings.seed)
    return list(splitter.split(np.zeros((len(labels), 1)), labels))


def _best(accuracies: NDArray[np.float64]) -> int:
    return int(np.argmax(np.round(100 * accuracies, 2)))


def _mask(count: int, rows: NDArray[np.int64]) -> NDArray[np.bool_]:
    mask = np.zeros(count, dtype=np.bool_)
    mask[rows] = True
    return mask


def _check_classes(labels: Labels, classes: int, folds: int, *, nested: bool) -> None:
    counts = np.bincount(labels, minlength=classes)
    fewest = int(counts.min())
    left = fewest - math.ceil(fewest / folds) if nested else fewest
    if left < folds:
        raise InputError(
            f"class {int(counts.argmin())} has {fewest} rows, too few for {'nested ' if nested else ''}"
            f"{folds}-fold cross-validation; give more rows or fewer folds"
        )
