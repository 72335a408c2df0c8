"""Each of BeLLM's settings changes the trained weights, or is refused; none is silently ignored.

Its optimizer and how it takes rows are the shared ones, whose settings are in ../test_every_setting_matters.py.
"""

from __future__ import annotations

import csv

import numpy as np
import pytest
from safetensors.numpy import load_file

from sentsmith import settings
from sentsmith.methods.bellm import recipe as bellm
from sentsmith.training.settings import Recipe as SharedRecipe

WHERE = ("in the park", "on the river")


@pytest.fixture(scope="module")
def files(tmp_path_factory, sentences, tiny_llama):
    """Return what the overrides below name in braces."""
    folder = tmp_path_factory.mktemp("files")

    def table(name, header, rows):
        with (folder / name).open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([header, *rows])
        return str(folder / name)

    thirds = list(zip(sentences[:20], sentences[20:40], sentences[40:], strict=True))
    names = ["anchor", "positive", "negative"]
    return {
        "triplets": table("triplets.csv", names, thirds),
        "more_triplets": table("more.csv", names, [row[::-1] for row in thirds]),
        "repeated_triplets": table("repeated.csv", names, thirds[:6] * 4),
        "questions": table("questions.csv", names, [[f"{text[:-1]}?" for text in row] for row in thirds]),
        "conditions": table(
            "conditions.csv",
            [*names, "sentence1", "sentence2", "condition", "label"],
            [
                (*row, *row[:2], place, 1.0 + (i + j) % 5)
                for i, row in enumerate(thirds)
                for j, place in enumerate(WHERE)
            ],
        ),
        "llama": str(tiny_llama),
    }


def weights(folder):
    files = sorted(folder.rglob("*.safetensors"))
    return {(str(file.relative_to(folder)), name): value for file in files for name, value in load_file(file).items()}


def differ(one, two):
    """Whether two results have other weights (or other modules)."""
    return one.keys() != two.keys() or any(not np.array_equal(one[name], two[name]) for name in one)


# The prompts of the paper are long in a tiny tokenizer.
_CONDITIONS = ("data.train={conditions}", "bellm.template=null", "training.max_length=60")
_ANGLE = ("bellm.angle_weight=1",)
# setting → (what both runs share, the change)
BELLM = {
    "data.train": ((), "data.train={more_triplets}"),
    "bellm.both_ways_from": ((), "bellm.both_ways_from=null"),
    "bellm.readout": ((), "bellm.readout=mean"),
    "bellm.template": ((), "bellm.template=the {{sentence}} ."),
    "bellm.full_stop": (("data.train={questions}",), "bellm.full_stop=true"),
    "bellm.pad_leak": ((), "bellm.pad_leak=true"),
    "bellm.layers": ((), "bellm.layers=1"),
    "bellm.added_layers": ((), "bellm.added_layers=1"),
    "bellm.rows": (_CONDITIONS, "bellm.rows=conditional"),
    "bellm.tuning": (("bellm.lora={{}}",), "bellm.tuning=full"),
    "bellm.lora.rank": ((), "bellm.lora.rank=2"),
    "bellm.lora.alpha": ((), "bellm.lora.alpha=9"),
    "bellm.lora.dropout": ((), "bellm.lora.dropout=0.5"),
    "bellm.save": ((), "bellm.save=adapter"),
    "bellm.temperature": ((), "bellm.temperature=0.5"),
    "bellm.mask_duplicates": (("data.train={repeated_triplets}",), "bellm.mask_duplicates=false"),
    "bellm.contrastive_weight": (_ANGLE, "bellm.contrastive_weight=0.3"),
    "bellm.cosine_weight": ((), "bellm.cosine_weight=1"),
    "bellm.angle_weight": ((), *_ANGLE),
    "bellm.hinge_weight": ((*_CONDITIONS, "bellm.rows=conditional"), "bellm.hinge_weight=0"),
}
# These have tests of their own below.
OTHERS = {"bellm.layer_recompute", "bellm.quantise"}


@pytest.fixture(scope="module")
def run(tmp_path_factory, tiny_settings, files):
    """Return a function from overrides to the weights that BeLLM trains; equal runs are done once."""
    chosen = {"both_ways_from": 0, "template": "a {sentence} ,", "lora": {"rank": 4, "alpha": 4.0}}
    data = {"train": files["triplets"], "held_out": 0.0}
    steps = {**tiny_settings["training"], "max_steps": 2}
    base = {"method": "bellm", "model": files["llama"], "data": data, "bellm": chosen, "training": steps}
    done = {}

    def trained(*overrides):
        if overrides not in done:
            folder = tmp_path_factory.mktemp("run") / "model"
            recipe = settings.resolve(bellm.Recipe, base, [text.format(**files) for text in overrides])
            bellm.run(recipe, folder)
            done[overrides] = weights(folder)
        return done[overrides]

    return trained


@pytest.mark.slow
@pytest.mark.parametrize("setting", BELLM)
def test_setting(run, setting):
    shared, change = BELLM[setting]
    assert differ(run(*shared), run(*shared, change))


@pytest.mark.slow
def test_in_four_bits(run):
    """Without the library the setting is refused."""
    pytest.importorskip("bitsandbytes")
    assert differ(run(), run("bellm.quantise=nf4"))


def test_layer_recompute(files):
    """It changes what is kept in memory, and nothing else (tests/encoders/test_both_ways.py: equal gradients)."""
    for recompute in (False, True):
        base = {"model": files["llama"], "data": {"train": "x"}, "bellm": {"layer_recompute": recompute}}
        model = bellm.build(settings.resolve(bellm.Recipe, base))
        assert model[0].model.is_gradient_checkpointing == recompute


def test_no_setting_is_without_a_case():
    of_bellm = set(settings.keys_of(bellm.Recipe)) - set(settings.keys_of(SharedRecipe)) - {"method"}
    assert of_bellm == {name for name in BELLM if name.startswith("bellm.")} | OTHERS
