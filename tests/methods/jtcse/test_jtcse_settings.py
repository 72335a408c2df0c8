"""Each setting of JTCSE changes the trained weights or what the run record says; none is silently ignored."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from sentsmith import settings
from sentsmith.methods.jtcse.recipe import Recipe


def weights(folder):
    files = sorted(Path(folder).rglob("*.safetensors"))
    return {(str(file.relative_to(folder)), name): value for file in files for name, value in load_file(file).items()}


def differ(first, second):
    """Whether two results have other weights (or other files of them)."""
    one, two = weights(first[1]), weights(second[1])
    return one.keys() != two.keys() or any(not np.array_equal(one[name], two[name]) for name in one)


def tower_differs(number):
    """Whether this tower has other weights, and the other one the same."""

    def look(first, second):
        one, two = weights(first[1]), weights(second[1])
        changed = {key[0] for key in one if not np.array_equal(one[key], two[key])}
        return changed == {f"tower_{number}/model.safetensors"}

    return look


def steps_differ(first, second):
    one, two = ([tower["speed"]["steps"] for tower in record["jtcse"]["towers"]] for record, _ in (first, second))
    return one != two


# The towers' own training shows in their sum; the joint training needs none before it.
SUM = ("jtcse.nce=false", "jtcse.icnce=false", "jtcse.ictm=false", "jtcse.simcse.max_steps=1")
JOINT = ("jtcse.simcse.enabled=false", "training.max_steps=2")
CROSSED = (*JOINT, "jtcse.cross=carry", "jtcse.cross_layers=1")

# setting → (what both runs share, the change, what has to differ)
CASES = {
    "jtcse.first.model": (SUM, "jtcse.first.model={other}", tower_differs(1)),
    "jtcse.first.seed": (SUM, "jtcse.first.seed=7", tower_differs(1)),
    "jtcse.first.learning_rate": (SUM, "jtcse.first.learning_rate=1e-3", tower_differs(1)),
    "jtcse.first.translations": (SUM, "jtcse.first.translations={echoes}", tower_differs(1)),
    "jtcse.second.model": (SUM, "jtcse.second.model={other}", tower_differs(2)),
    "jtcse.second.seed": (SUM, "jtcse.second.seed=7", tower_differs(2)),
    "jtcse.second.learning_rate": (SUM, "jtcse.second.learning_rate=1e-3", tower_differs(2)),
    "jtcse.second.translations": (SUM, "jtcse.second.translations={echoes}", tower_differs(2)),
    "jtcse.simcse.enabled": (SUM, "jtcse.simcse.enabled=false", differ),
    "jtcse.simcse.batch_size": (SUM, "jtcse.simcse.batch_size=6", differ),
    "jtcse.simcse.learning_rate": (SUM, "jtcse.simcse.learning_rate=1e-3", differ),
    "jtcse.simcse.epochs": ((*SUM, "jtcse.simcse.max_steps=null"), "jtcse.simcse.epochs=0.5", steps_differ),
    "jtcse.simcse.max_steps": (SUM, "jtcse.simcse.max_steps=2", steps_differ),
    "jtcse.simcse.max_length": (SUM, "jtcse.simcse.max_length=5", differ),
    "jtcse.simcse.weight_decay": (SUM, "jtcse.simcse.weight_decay=0.5", differ),
    "jtcse.simcse.schedule": ((*SUM, "jtcse.simcse.max_steps=2"), "jtcse.simcse.schedule=constant", differ),
    "jtcse.simcse.max_grad_norm": (SUM, "jtcse.simcse.max_grad_norm=1e-9", differ),
    "jtcse.simcse.head": (SUM, "jtcse.simcse.head=training", differ),
    "jtcse.simcse.dropout": (SUM, "jtcse.simcse.dropout=0.0", differ),
    "jtcse.simcse.halves": (SUM, "jtcse.simcse.halves=true", differ),
    "jtcse.temperature": (JOINT, "jtcse.temperature=0.5", differ),
    "jtcse.nce": (JOINT, "jtcse.nce=false", differ),
    "jtcse.icnce": (JOINT, "jtcse.icnce=false", differ),
    "jtcse.ictm": (JOINT, "jtcse.ictm=false", differ),
    "jtcse.views": (JOINT, "jtcse.views=literal", differ),
    "jtcse.half_tmc": (JOINT, "jtcse.half_tmc=true", differ),
    "jtcse.cross_layers": (JOINT, "jtcse.cross_layers=0", differ),
    "jtcse.cross": ((*JOINT, "jtcse.cross_layers=2"), "jtcse.cross=carry", differ),
    "jtcse.pooling": (JOINT, "jtcse.pooling=mean", differ),
    "jtcse.pooler": (JOINT, "jtcse.pooler=fresh", differ),
    "jtcse.dropout": (JOINT, "jtcse.dropout=0.0", differ),
}


@pytest.fixture(scope="module")
def files(tmp_path_factory, other_bert, sentences):
    echoes = tmp_path_factory.mktemp("files") / "echoes.csv"
    with echoes.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("sentence", "echo"), *zip(sentences, sentences[::-1], strict=True)])
    return {"other": str(other_bert), "echoes": str(echoes)}


@pytest.fixture(scope="module")
def run(tmp_path_factory, jtcse_tiny, files):
    """Return a function from overrides to (record, folder); equal runs are done once."""
    done = {}

    def run(*overrides):
        if overrides not in done:
            folder = tmp_path_factory.mktemp("run") / "model"
            done[overrides] = jtcse_tiny(folder, *(text.format(**files) for text in overrides)), folder
        return done[overrides]

    return run


def _quick(setting):
    """Most of the towers' own settings go one way: two of them stand for all where time is short."""
    return not setting.startswith("jtcse.simcse.") or setting in ("jtcse.simcse.enabled", "jtcse.simcse.learning_rate")


@pytest.mark.parametrize(
    "setting", [name if _quick(name) else pytest.param(name, marks=pytest.mark.slow) for name in CASES]
)
def test_a_setting_matters(run, setting):
    shared, change, differs = CASES[setting]
    assert differs(run(*shared), run(*shared, change))


def test_the_joint_stage_alone_moves_both_towers(run):
    untouched, joint = run(*SUM, "jtcse.simcse.enabled=false"), run(*JOINT)
    for number in (1, 2):
        one, two = (load_file(folder / f"tower_{number}" / "model.safetensors") for _, folder in (untouched, joint))
        assert not np.array_equal(
            one["encoder.layer.0.output.dense.weight"], two["encoder.layer.0.output.dense.weight"]
        )


def test_the_number_of_crossed_layers(run):
    """`carry` is another stream with each; `last` reads the last layer, whatever their number."""
    assert differ(run(*CROSSED), run(*CROSSED, "jtcse.cross_layers=2"))
    assert not differ(run(*JOINT), run(*JOINT, "jtcse.cross_layers=2"))
    assert not differ(run(*JOINT), run(*CROSSED))
    assert differ(run(*JOINT), run(*JOINT, "jtcse.cross_layers=0"))


def test_no_setting_is_without_a_case():
    own = {key for key in settings.keys_of(Recipe) if key.startswith("jtcse.")}
    assert own == set(CASES)


def test_a_towers_own_settings_win(jtcse_settings):
    recipe = settings.resolve(Recipe, jtcse_settings, ["jtcse.second.seed=0", "jtcse.second.learning_rate=1e-4"])
    first, second = (recipe.tower(index) for index in (0, 1))
    assert (first.seed, first.learning_rate, first.model) == (42, 5e-3, recipe.model)
    assert (second.seed, second.learning_rate) == (0, 1e-4)
    assert settings.resolve(Recipe, jtcse_settings, ["training.seed=5"]).tower(1).seed == 6


def test_what_a_run_reads_is_never_deleted(jtcse_settings):
    recipe = settings.resolve(
        Recipe, jtcse_settings, ["jtcse.first.model=a", "jtcse.second.translations=b", "data.dev=c"]
    )
    assert {"a", "b", "c", recipe.model, recipe.data.train} == set(recipe.reads())
