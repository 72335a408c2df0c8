"""Each of FREEZE's settings changes what comes out, or is refused; none is silently ignored.

Its optimizer and how it takes rows are the shared ones, whose settings are in ../test_every_setting_matters.py.
"""

from __future__ import annotations

import numpy as np
import pytest
from safetensors.numpy import load_file

import sentsmith
from sentsmith import settings
from sentsmith.encoders.embedding import as_encoder
from sentsmith.methods.freeze import recipe as freeze
from sentsmith.training.settings import Recipe as SharedRecipe

_SCRATCH, _COSINES = ("freeze.start=scratch",), ("freeze.start=cosines",)
_RAW = ("freeze.autoencoder.sentences={raw}",)
# setting → (what both runs share, the change)
FREEZE = {
    "freeze.readout": ((), "freeze.readout=last"),
    "freeze.punctuation": ((), "freeze.punctuation=none"),
    "freeze.leave_out": ((), "freeze.leave_out=[1]"),
    "freeze.start": ((), *_SCRATCH),
    "freeze.bottleneck": ((), "freeze.bottleneck=[8, 4]"),
    "freeze.late_bottleneck": ((), "freeze.late_bottleneck=4"),
    "freeze.depth": ((), "freeze.depth=2"),
    "freeze.normalise_input": (_COSINES, "freeze.normalise_input=true"),
    "freeze.train_encoders": ((), "freeze.train_encoders=false"),
    "freeze.encoder_learning_rate": ((), "freeze.encoder_learning_rate=1e-3"),
    "freeze.combine": ((), "freeze.combine=summed"),
    "freeze.head": ((), "freeze.head=linear"),
    "freeze.hidden": (("freeze.head=mlp",), "freeze.hidden=5"),
    "freeze.loss": ((), "freeze.loss=mse"),
    "freeze.noise": (_SCRATCH, "freeze.noise=0.3"),
    "freeze.scale": ((), "freeze.scale=10"),
    "freeze.store_dtype": ((), "freeze.store_dtype=float16"),
    "freeze.autoencoder.sentences": ((), *_RAW),
    "freeze.autoencoder.column": (
        ("freeze.autoencoder.sentences={train}", "freeze.autoencoder.column=sentence1"),
        "freeze.autoencoder.column=sentence2",
    ),
    "freeze.autoencoder.limit": (_RAW, "freeze.autoencoder.limit=30"),
    "freeze.autoencoder.epochs": ((), "freeze.autoencoder.epochs=1"),
    "freeze.autoencoder.patience": (
        ("freeze.autoencoder.epochs=12", "freeze.autoencoder.learning_rate=0.5"),
        "freeze.autoencoder.patience=1",
    ),
    "freeze.autoencoder.batch_size": ((), "freeze.autoencoder.batch_size=8"),
    "freeze.autoencoder.learning_rate": ((), "freeze.autoencoder.learning_rate=1e-2"),
    "freeze.autoencoder.held_out": ((), "freeze.autoencoder.held_out=0.4"),
}
# Where the vectors lie, and whether they do: tests in test_freeze_recipe.py.
OTHERS = {"freeze.store", "freeze.look_up"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, freeze_settings, pair_files, sentences):
    """Return a function from overrides to weights, and vectors of two sentences; equal runs are done once."""
    done = {}
    store = tmp_path_factory.mktemp("store")
    steps = {**freeze_settings["training"], "max_steps": 2, "select": "last"}
    base = {**freeze_settings, "training": steps}

    def trained(*overrides):
        if overrides not in done:
            folder = tmp_path_factory.mktemp("run") / "model"
            sets = [f"freeze.store={store}", *(text.format(**pair_files) for text in overrides)]
            freeze.run(settings.resolve(freeze.Recipe, base, sets), folder)
            found = load_file(next(folder.glob("1_*")) / "model.safetensors")
            done[overrides] = {**found, "vectors": as_encoder(sentsmith.load(folder)).encode(["a dog", sentences[0]])}
        return done[overrides]

    return trained


@pytest.mark.slow
@pytest.mark.parametrize("setting", FREEZE)
def test_setting(run, setting):
    shared, change = FREEZE[setting]
    one, two = run(*shared), run(*shared, change)
    assert one.keys() != two.keys() or any(not np.array_equal(one[name], two[name]) for name in one)


def test_no_setting_is_without_a_case():
    of_freeze = set(settings.keys_of(freeze.Recipe)) - set(settings.keys_of(SharedRecipe)) - {"method"}
    assert of_freeze == FREEZE.keys() | OTHERS
