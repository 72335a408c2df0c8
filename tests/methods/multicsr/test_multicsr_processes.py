"""A MultiCSR run on two processes: one reads the masker, both train, and the outcome is that of one process."""

from __future__ import annotations

import numpy as np
import pytest

from sentsmith import settings
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.methods.multicsr import masking, recipe


def train(values, output, *overrides):
    return recipe.run(settings.resolve(recipe.Recipe, values, overrides), output)


def train_together(rank, values, output, overrides):
    """Train; returns the record, and how often this process read the masker."""
    read, calls = masking.read_once, []
    masking.read_once = lambda *args, **kwargs: calls.append(1) or read(*args, **kwargs)
    return train(values, output, *overrides), len(calls)


@pytest.mark.slow
def test_two_processes_train_like_one(in_two_processes, multicsr_settings, tmp_path, sentences):
    more = ("multicsr.dropout=0", "training.max_steps=3", "training.learning_rate=1e-3")
    alone = train(multicsr_settings, tmp_path / "one", "training.batch_size=8", *more)
    train(multicsr_settings, tmp_path / "unmasked", "training.batch_size=8", "multicsr.mask=false", *more)
    changes = ("training.batch_size=4", *more)
    outcome = in_two_processes(train_together, multicsr_settings, tmp_path / "two", changes)
    assert [calls for _, calls in outcome] == [1, 0]
    assert outcome[0][0] == outcome[1][0]
    record = outcome[0][0]
    assert record["processes"] == 2
    assert record["multicsr"]["masked_share"] == alone["multicsr"]["masked_share"] > 0
    one, two, unmasked = (
        as_encoder(load(tmp_path / name, device="cpu")).encode(sentences) for name in ("one", "two", "unmasked")
    )
    np.testing.assert_allclose(two, one, atol=1e-4)
    assert np.abs(one - unmasked).max() > 1e-3
