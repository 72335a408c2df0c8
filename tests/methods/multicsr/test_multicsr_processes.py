"""A MultiCSR run on two processes: one reads the masker, both train, and the outcome is that of one process."""

from __future__ import annotations

import numpy as np
import pytest

from sentsmith import settings
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.methods.multicsr import recipe
from sentsmith.training import processes, teachers, text_vectors


def train(values, output, *overrides):
    return recipe.run(settings.resolve(recipe.Recipe, values, overrides), output)


def train_together(rank, values, output, overrides):
    """Train; returns the record, and how often this process loaded the masker, hashed a folder and read texts."""
    calls = []
    for module, name in ((teachers, "load_teacher"), (teachers, "sha256"), (text_vectors, "read_once")):
        setattr(module, name, counted(getattr(module, name), name, calls))
    return train(values, output, *overrides), calls


def counted(function, name, calls):
    return lambda *args, **kwargs: calls.append(name) or function(*args, **kwargs)


@pytest.mark.parametrize("dropout", [False, True])
def test_what_a_process_that_is_not_the_first_loads(multicsr_settings, tiny_bert, monkeypatch, dropout):
    changes = [f"multicsr.eta_dropout={dropout}", f"multicsr.masker={tiny_bert}"]
    resolved = settings.resolve(recipe.Recipe, multicsr_settings, changes)
    rows, _ = recipe._rows(resolved)
    monkeypatch.setattr(processes, "on_first", lambda _: {"model": "of the first"})
    monkeypatch.setattr(teachers, "sha256", lambda _: 1 / 0)
    found = recipe._teacher(resolved, load(tiny_bert), rows)
    # The masker with dropout runs on each process's own batches; the cached vectors are made by the first alone.
    assert (found and found.key) == ({"model": "of the first"} if dropout else None)


@pytest.mark.slow
def test_two_processes_train_like_one(in_two_processes, multicsr_settings, tmp_path, sentences):
    more = ("multicsr.dropout=0", "training.max_steps=3", "training.learning_rate=1e-3")
    alone = train(multicsr_settings, tmp_path / "one", "training.batch_size=8", *more)
    train(multicsr_settings, tmp_path / "unmasked", "training.batch_size=8", "multicsr.mask=false", *more)
    changes = ("training.batch_size=4", *more)
    outcome = in_two_processes(train_together, multicsr_settings, tmp_path / "two", changes)
    assert [calls for _, calls in outcome] == [["load_teacher", "sha256", "read_once"], []]
    assert outcome[0][0] == outcome[1][0]
    record = outcome[0][0]
    assert record["processes"] == 2
    assert record["multicsr"]["masked_share"] == alone["multicsr"]["masked_share"] > 0
    one, two, unmasked = (
        as_encoder(load(tmp_path / name, device="cpu")).encode(sentences) for name in ("one", "two", "unmasked")
    )
    np.testing.assert_allclose(two, one, atol=1e-4)
    assert np.abs(one - unmasked).max() > 1e-3
