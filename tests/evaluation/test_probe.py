"""Many classifiers trained as one are the same as each trained alone, and the protocols keep rows apart."""

import numpy as np
import pytest
import torch

from sentsmith.errors import InputError
from sentsmith.evaluation.probe import cross_validation, given_split, nested_cross_validation
from sentsmith.evaluation.softmax import ProbeSettings, fit_many

QUICK = ProbeSettings(folds=3, max_epochs=12, learning_rate=0.02)


def blobs(count, classes=2, seed=0, noise=0.5):
    """Rows around one corner for each class."""
    generator = np.random.default_rng(seed)
    labels = np.arange(count) % classes
    centres = np.eye(classes, 5)
    rows = centres[labels] + generator.normal(scale=noise, size=(count, 5))
    return rows.astype(np.float32), labels.astype(np.int64)


def alone(features, labels, train, l2, epochs, settings):
    """One classifier with torch's own layer, loss and optimiser, over the shared order of rows."""
    generator = torch.Generator().manual_seed(settings.seed)
    bound = 1 / np.sqrt(features.shape[1])
    start = torch.empty(features.shape[1] + 1, 3, 1).uniform_(-bound, bound, generator=generator)[..., 0]
    layer = torch.nn.Linear(features.shape[1], 3)
    with torch.no_grad():
        layer.weight.copy_(start[:-1].T)
        layer.bias.copy_(start[-1])
    optimiser = torch.optim.Adam(layer.parameters(), lr=settings.learning_rate, weight_decay=l2)
    inputs, targets = torch.from_numpy(features), torch.from_numpy(labels)
    keep = torch.from_numpy(train)
    size = round(settings.batch_size / 0.75)  # each classifier below trains on three quarters of the rows
    for _ in range(epochs):
        for batch in torch.randperm(len(inputs), generator=generator).split(size):
            own = batch[keep[batch]]
            optimiser.zero_grad()
            torch.nn.functional.cross_entropy(layer(inputs[own]), targets[own]).backward()
            optimiser.step()
    return torch.cat([layer.weight.T, layer.bias[None]]).detach()


def test_trained_together_equals_trained_alone():
    features, labels = blobs(240, classes=3)
    part = np.arange(240) // 3 % 4
    train = np.stack([part != left_out for left_out in range(4)], axis=1)
    l2 = [0.0, 1e-3, 1e-2, 1.0]
    settings = ProbeSettings(batch_size=48, epoch_size=2, max_epochs=0, learning_rate=0.05)
    fitted = fit_many(features, labels, train=train, dev=~train, l2=l2, classes=3, settings=settings)
    for column, strength in enumerate(l2):
        expected = alone(features, labels, train[:, column], strength, 2, settings)
        torch.testing.assert_close(fitted.weights[:, :, column], expected, rtol=1e-4, atol=1e-5)
        predicted = fitted.predict(features, column)
        held_out = ~train[:, column]
        assert fitted.accuracy[column] == pytest.approx((predicted == labels)[held_out].mean())
    assert fitted.weights[:, :, 3].norm() < fitted.weights[:, :, 0].norm()


def test_stopping_keeps_the_best_and_leaves_the_others_alone():
    """A classifier's result is the same whether or not one beside it stops early."""
    features, labels = blobs(120)
    noise = np.random.default_rng(5).integers(0, 2, 120)
    train = np.zeros((120, 2), dtype=bool)
    train[:60] = True
    settings = ProbeSettings(tenacity=0, epoch_size=1, max_epochs=60, batch_size=16, learning_rate=0.01)
    kept = {"l2": [0.0, 30.0], "classes": 2, "settings": settings}
    both = fit_many(features, np.where(np.arange(120) < 60, labels, noise), train=train, dev=~train, **kept)
    for column in range(2):
        one = fit_many(
            features,
            np.where(np.arange(120) < 60, labels, noise),
            train=train[:, :1],
            dev=~train[:, :1],
            **{**kept, "l2": [kept["l2"][column]]},
        )
        torch.testing.assert_close(both.weights[:, :, column], one.weights[:, :, 0], rtol=1e-4, atol=1e-6)
        assert both.accuracy[column] == one.accuracy[0]


def test_nested_cross_validation_finds_classes_and_is_repeatable():
    features, labels = blobs(180)
    result = nested_cross_validation(features, labels, classes=2, settings=QUICK)
    again = nested_cross_validation(features, labels, classes=2, settings=QUICK)
    assert 0.75 < result.accuracy < 1
    assert result.accuracy == again.accuracy
    assert (result.predictions == again.predictions).all()
    assert len(result.l2) == QUICK.folds
    assert set(result.l2) <= set(QUICK.l2)


def test_nested_cross_validation_does_not_learn_the_rows_it_measures():
    """Random labels: a classifier that saw its test rows (200 dimensions for 90) would know them all."""
    generator = np.random.default_rng(3)
    features = generator.normal(size=(90, 200)).astype(np.float32)
    labels = generator.permutation(np.arange(90) % 2).astype(np.int64)
    result = nested_cross_validation(features, labels, classes=2, settings=QUICK)
    assert 0.25 < result.accuracy < 0.75


def test_cross_validation_measures_the_test_part():
    train, (features, labels) = blobs(180, classes=3), blobs(90, classes=3, seed=1)
    right = cross_validation(train, (features, labels), classes=3, settings=QUICK)
    wrong = cross_validation(train, (features, (labels + 1) % 3), classes=3, settings=QUICK)
    assert right.accuracy > 0.7
    assert wrong.accuracy < 0.2
    assert right.dev_accuracy == wrong.dev_accuracy
    assert right.accuracy == pytest.approx((right.predictions == labels).mean())


def test_given_split_chooses_by_the_development_part():
    """Where the development labels are the wrong way round, learning nothing is best: the greatest L2."""
    train, dev, test = blobs(120), blobs(60, seed=1), blobs(60, seed=2)
    honest = given_split(train, dev, test, classes=2, settings=QUICK)
    settings = ProbeSettings(l2=(1e-5, 100.0), max_epochs=40, learning_rate=0.02)
    flipped = (dev[0], 1 - dev[1])
    assert honest.accuracy > 0.75
    assert given_split(train, dev, test, classes=2, settings=settings).l2 == (1e-5,)
    assert given_split(train, flipped, test, classes=2, settings=settings).l2 == (100.0,)


def test_classes_with_too_few_rows_are_an_error():
    features, labels = blobs(20)
    labels[:] = 0
    with pytest.raises(InputError, match="class 1 has 0 rows"):
        nested_cross_validation(features, labels, classes=2, settings=QUICK)
    labels[:3] = 1
    with pytest.raises(InputError, match="class 1 has 3 rows, too few for nested 3-fold"):
        nested_cross_validation(features, labels, classes=2, settings=QUICK)
    labels[:] = 1
    with pytest.raises(InputError, match="class 0 has 0 rows"):
        given_split((features, labels), (features, labels), (features, labels), classes=2, settings=QUICK)


def test_the_result_says_which_classifier_it_was():
    assert "Adam 0.001, batches of 64 rows" in ProbeSettings().describe()
    assert "L2 from {1e-05, 0.0001, 0.001, 0.01}" in ProbeSettings().describe()
