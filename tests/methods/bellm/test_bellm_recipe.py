"""BeLLM as a run: an adapter or all weights, what is kept and saved, conditional rows, resuming, what is refused."""

from __future__ import annotations

import csv

import numpy as np
import pytest
from safetensors.numpy import load_file

from sentsmith import settings
from sentsmith.encoders.decoder import make_encoder
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import SettingsError
from sentsmith.methods.bellm import recipe
from sentsmith.methods.bellm.settings import BellmSettings, first_layer
from sentsmith.methods.registry import load_recipe

LORA = {"rank": 4, "alpha": 8.0}
ANGLE = ("bellm.angle_weight=1", "bellm.contrastive_weight=0")
CONDITIONAL = ("bellm.rows=conditional", "bellm.template=null", "training.max_length=60")


@pytest.fixture(scope="module")
def data(tmp_path_factory, sentences):
    """Return the files of the rows."""
    folder = tmp_path_factory.mktemp("rows")

    def table(name, header, rows):
        with (folder / name).open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([header, *rows])
        return str(folder / name)

    thirds = list(zip(sentences[:20], sentences[20:40], sentences[40:], strict=True))
    conditions = [
        (2 * i + j, *row[:2], condition, float(1 + (3 * i + 2 * j) % 5))
        for i, row in enumerate(thirds)
        for j, condition in enumerate(("the animal", "the song"))
    ]
    return {
        "triplets": table("triplets.csv", ["anchor", "positive", "negative"], thirds),
        "conditional": table("csts.csv", ["", "sentence1", "sentence2", "condition", "label"], conditions),
    }


@pytest.fixture(scope="module")
def bellm_settings(tiny_llama, data):
    """Return the settings of a run that takes part of a second."""
    return {
        "method": "bellm",
        "model": str(tiny_llama),
        "data": {"train": data["triplets"], "held_out": 0.0},
        "training": {"batch_size": 8, "learning_rate": 1e-2, "max_steps": 2, "precision": "fp32", "max_length": 32},
        "bellm": {"both_ways_from": 0, "template": "a {sentence} ,", "lora": LORA},
    }


@pytest.fixture(scope="module")
def bellm_tiny(trains, bellm_settings):
    """Return a function that trains by these settings, with overrides, into a folder; returns the run record."""
    return trains("bellm", bellm_settings)


@pytest.fixture
def saved_weights(monkeypatch):
    """Return the names of the weights in each file that a run keeps for itself, from here on."""
    from sentsmith.training import selection, trainer, weights

    found = []

    def noted(model, path):
        weights.save_weights(model, path)
        found.append((path.name, set(load_file(path))))

    monkeypatch.setattr(trainer, "save_weights", noted)
    monkeypatch.setattr(selection, "save_weights", noted)
    return found


def vectors(model, texts):
    return as_encoder(model).encode(texts)


def test_an_adapter_is_trained_kept_and_merged(bellm_tiny, bellm_settings, tmp_path, sentences, saved_weights):
    record = bellm_tiny(tmp_path / "m", "training.save_steps=1", "data.held_out=0.2", "training.eval_steps=1")
    facts = record["bellm"]
    assert (facts["layers"], facts["both_ways_from"], facts["template"]) == (2, 0, "a {sentence} ,")
    # Rank 4 of q [32, 32], k and v [32, 16], o [32, 32], gate, up [32, 64], down [64, 32], in two layers.
    trained = 4 * (64 + 48 + 48 + 64 + 96 + 96 + 96) * 2
    assert facts["trained_parameters"] == trained
    assert facts["parameters"] == trained + sum(
        value.size for value in load_file(next((tmp_path / "m").rglob("model.safetensors"))).values()
    )
    # Of a large model that is the point: neither checkpoints nor the best step's weights hold the base.
    assert {name.partition("-")[0] for name, _ in saved_weights} == {"trained.safetensors", "best"}
    assert all("lora_" in name for _, names in saved_weights for name in names)
    model = load(tmp_path / "m", device="cpu")
    assert model[0].both_ways_from == 0
    files = [file.name for file in (tmp_path / "m").rglob("*.safetensors")]
    assert files == ["model.safetensors"]
    start = make_encoder(bellm_settings["model"], template="a {sentence} ,", both_ways_from=0, device="cpu")
    assert not np.allclose(vectors(model, sentences[:4]), vectors(start, sentences[:4]), atol=1e-2)
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert "layers that look both ways: 0 to 1 (of 0 to 1); readout: last; prompt: `a {sentence} ,`" in " ".join(
        card.split()
    )


@pytest.mark.slow
def test_the_adapter_alone_is_the_merged_model(bellm_tiny, tmp_path, sentences):
    bellm_tiny(tmp_path / "merged")
    bellm_tiny(tmp_path / "alone", "bellm.save=adapter")
    assert [file.name for file in (tmp_path / "alone").rglob("*.safetensors")] == ["adapter_model.safetensors"]
    first, second = (vectors(load(tmp_path / name, device="cpu"), sentences[:8]) for name in ("merged", "alone"))
    np.testing.assert_allclose(first, second, atol=2e-5)
    assert "loading it needs its base" in (tmp_path / "alone" / "README.md").read_text(encoding="utf-8")


@pytest.mark.slow
def test_a_trained_model_is_gone_on_with(bellm_tiny, bellm_settings, tmp_path, sentences):
    bellm_tiny(tmp_path / "first", "bellm.save=adapter")
    again = [f"model={tmp_path / 'first'}", "bellm.both_ways_from=1", "bellm.readout=mean"]
    model = recipe.build(settings.resolve(recipe.Recipe, bellm_settings, again))
    # The first adapter is in the weights, which the second one stands on.
    wanted = load(tmp_path / "first", device="cpu")
    wanted[0].look_both_ways(1)
    wanted[1].readout = "mean"
    np.testing.assert_allclose(vectors(model, sentences[:4]), vectors(wanted, sentences[:4]), atol=2e-5)
    record = bellm_tiny(tmp_path / "second", *again)
    assert record["bellm"]["both_ways_from"] == 1
    assert not np.allclose(vectors(load(tmp_path / "second"), sentences[:4]), vectors(wanted, sentences[:4]), atol=1e-3)
    for refused in ("added_layers=1", "save=adapter", "quantise=nf4"):
        with pytest.raises(SettingsError, match=f"bellm.{refused.partition('=')[0]} is for a decoder as it came"):
            recipe.build(settings.resolve(recipe.Recipe, bellm_settings, [*again, f"bellm.{refused}"]))


@pytest.mark.slow
def test_all_weights(bellm_tiny, tmp_path, saved_weights, tiny_llama):
    record = bellm_tiny(
        tmp_path / "m", "bellm.tuning=full", "bellm.lora={}", "training.blend=0.5", "bellm.added_layers=1"
    )
    assert record["bellm"]["trained_parameters"] == record["bellm"]["parameters"]
    assert record["bellm"]["layers"] == 3
    assert all("0.model.embed_tokens.weight" in names for _, names in saved_weights)
    before, after = (load_file(next(place.rglob("model.safetensors"))) for place in (tiny_llama, tmp_path / "m"))
    assert not np.array_equal(before["embed_tokens.weight"], after["embed_tokens.weight"])
    assert load(tmp_path / "m", device="cpu")[0].model.config.num_hidden_layers == 3


@pytest.mark.slow
def test_added_layers_look_both_ways_and_with_them_those_that_are_asked_for(bellm_settings):
    for given, wanted in (("null", 2), ("n-1", 1), (0, 0)):
        overrides = ["bellm.added_layers=2", f"bellm.both_ways_from={given}"]
        model = recipe.build(settings.resolve(recipe.Recipe, bellm_settings, overrides))
        assert model[0].both_ways_from == wanted


def test_what_a_recipe_leaves_open_stays_the_model_s_own(bellm_tiny, bellm_settings, tiny_llama, data, tmp_path):
    own = make_encoder(tiny_llama, template="the {sentence} reads", pad_leak=True, full_stop=True, device="cpu")
    own.save_pretrained(str(tmp_path / "own"))
    overrides = [f"model={tmp_path / 'own'}", "bellm.template=null", "training.max_steps=1"]
    found = bellm_tiny(tmp_path / "m", *overrides)["bellm"]
    kept = {name: found[name] for name in ("template", "full_stop", "pad_leak", "both_ways_from", "readout")}
    assert kept == {
        "template": "the {sentence} reads",
        "full_stop": True,
        "pad_leak": True,
        "both_ways_from": 0,
        "readout": "last",
    }
    card = (tmp_path / "m" / "README.md").read_text(encoding="utf-8")
    assert "prompt: `the {sentence} reads`" in card
    assert "Vectors depend on the sentences of a batch" in " ".join(card.split())
    changes = ["bellm.full_stop=false", "bellm.pad_leak=false", "bellm.template=a {sentence} ,"]
    decoder = recipe.build(settings.resolve(recipe.Recipe, bellm_settings, [*overrides, *changes]))[0]
    assert (decoder.full_stop, decoder.pad_leak, decoder.template) == (False, False, "a {sentence} ,")
    conditional = [*overrides, "bellm.rows=conditional"]
    with pytest.raises(SettingsError, match=r"the model's own prompt.* 'the \{sentence\} reads': \{condition\} is for"):
        recipe.build(settings.resolve(recipe.Recipe, bellm_settings, conditional))


def test_conditional_rows(bellm_tiny, data, tmp_path):
    record = bellm_tiny(
        tmp_path / "m", *CONDITIONAL, f"data.train={data['conditional']}", "data.held_out=0.3", "training.eval_steps=1"
    )
    assert {"mse", "hinge"} <= set(record["loss"][0])
    assert [entry["step"] for entry in record["selection"]["history"]] == [0, 1, 2]
    model = load(tmp_path / "m", device="cpu")
    assert model[0].template == 'Given the context {condition}, summarize the sentence {sentence} in one word:"'
    one, two = vectors(model, [("a dog", "the song"), ("a dog", "the animal")])
    assert not np.allclose(one, two)


@pytest.mark.slow
@pytest.mark.parametrize("tuning", ["lora", "full"])
def test_a_killed_run_goes_on(
    bellm_tiny, bellm_settings, tmp_path, killed_training, blocked_at, assert_same_run, tuning
):
    overrides = (
        "training.max_steps=5", "training.save_steps=2", "training.eval_steps=1", "data.held_out=0.2",
        f"bellm.tuning={tuning}", "bellm.lora={}", "bellm.layer_recompute=true",
    )  # fmt: skip
    bellm_tiny(tmp_path / "whole", *overrides)
    folder = killed_training(tmp_path / "here", bellm_settings, overrides, blocked_at(4))
    checkpoint = folder / "work" / "checkpoint-2"
    assert checkpoint.is_dir()
    # The run goes on from what it keeps, and the base is not in it.
    kept = load_file(checkpoint / "trained.safetensors")
    assert all(("lora_" in name) == (tuning == "lora") for name in kept)
    assert not (checkpoint / "model.safetensors").exists()
    bellm_tiny(folder, *overrides, resume=True)
    assert_same_run(tmp_path / "whole", folder, "bellm")
    assert not (folder / "work").exists()


def test_four_bits(bellm_tiny, tmp_path, sentences):
    pytest.importorskip("bitsandbytes")
    bellm_tiny(tmp_path / "merged", "bellm.quantise=nf4")
    bellm_tiny(tmp_path / "alone", "bellm.quantise=nf4", "bellm.save=adapter")
    first, second = (load(tmp_path / name, device="cpu") for name in ("merged", "alone"))
    assert {str(parameter.dtype) for parameter in first.parameters()} == {"torch.float32"}
    np.testing.assert_allclose(vectors(first, sentences[:8]), vectors(second, sentences[:8]), atol=2e-5)


def test_the_card_tells_that_the_scores_are_those_in_four_bits(bellm_settings):
    for quantise, told in (("nf4", True), ("none", False)):
        resolved = settings.resolve(recipe.Recipe, bellm_settings, [f"bellm.quantise={quantise}"])
        notes = recipe._notes(resolved, recipe.build(resolved, quantised=False))
        assert any("scores on held-out data during the training are those in 4 bits" in note for note in notes) == told


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.column=a",), "data.column is for sentences"),
        (("bellm.tuning=full", "bellm.quantise=nf4"), "bellm.quantise freezes the base, so it needs bellm.tuning lora"),
        (("bellm.tuning=full", "bellm.save=adapter"), "bellm.save adapter needs bellm.tuning lora"),
        (("bellm.save=adapter", "bellm.layers=1"), "bellm.save adapter holds no bellm.layers or added_layers"),
        (("bellm.save=adapter", "bellm.added_layers=1"), "bellm.save adapter holds no bellm.layers or added_layers"),
        (("training.blend=0.5",), "an average of adapters is none of models; use bellm.tuning full"),
        (("bellm.added_layers=1", "bellm.quantise=nf4"), "bellm.added_layers copies weights"),
        (("bellm.tuning=full",), "bellm.lora is the adapter's, which bellm.tuning full has not"),
        (("bellm.both_ways_from=null", "bellm.pad_leak=true"), "bellm.pad_leak is for layers that look both ways"),
        (("bellm.both_ways_from=none", "bellm.pad_leak=true"), "bellm.pad_leak is for layers that look both ways"),
        ((*ANGLE, "bellm.temperature=0.1"), "bellm.temperature is the contrastive loss's, whose weight is 0"),
        ((*ANGLE, "bellm.mask_duplicates=false"), "bellm.mask_duplicates is the contrastive loss's, whose weight is 0"),
        (("bellm.rows=conditional",), "{condition} is for bellm.rows conditional, and needed"),
        (("bellm.template=by {condition} {sentence}",), "{condition} is for bellm.rows conditional, and needed"),
        (("bellm.template=none",), "it needs {sentence} once"),
        ((*CONDITIONAL, "bellm.cosine_weight=1"), "bellm.cosine_weight is for bellm.rows triplets"),
        ((*CONDITIONAL, "bellm.temperature=0.1"), "bellm.temperature is for bellm.rows triplets"),
        ((*CONDITIONAL, "bellm.mask_duplicates=false"), "bellm.mask_duplicates is for bellm.rows triplets"),
        (("bellm.hinge_weight=2",), "bellm.hinge_weight is for bellm.rows conditional"),
        (("bellm.contrastive_weight=0",), "the weights of all terms of the loss are 0"),
        (("bellm.both_ways_from=-1",), "must be 0 or more, n-1, n-2, n/2"),
        (("bellm.both_ways_from=last",), "'last': give the first layer as a number, n-1, n-2, n/2"),
        (("bellm.readout=max",), "'last', 'mean' or 'all'"),
        (("bellm.lora.rank=0",), "greater than or equal to 1"),
        (("bellm.lora.droput=0",), "unknown setting 'bellm.lora.droput'; did you mean"),
    ],
)
def test_settings_that_are_refused(bellm_settings, overrides, message):
    with pytest.raises(SettingsError) as caught:
        settings.resolve(recipe.Recipe, bellm_settings, overrides)
    assert message in str(caught.value)


def test_layers_counted_from_the_end():
    given = (None, "none", "null", 3, "3", "n-1", "n - 2", "n/2", "n/5", "n/1", "n-32")
    assert [first_layer(each, 32) for each in given] == [None, None, None, 3, 3, 31, 30, 16, 6, 32, 0]
    for each, kept in {"none": None, "null": None, "3": 3, "n/2": "n/2"}.items():
        assert BellmSettings(both_ways_from=each).both_ways_from == kept
    with pytest.raises(SettingsError, match="'n-33': the model has 32 layers; give 0 for all of them"):
        first_layer("n-33", 32)
    for wrong in ("n", "n-0", "n/0", "2n", "n+1"):
        with pytest.raises(SettingsError, match="give the first layer as a number"):
            first_layer(wrong, 32)


def test_a_layer_that_is_not_there(bellm_tiny, tmp_path):
    with pytest.raises(SettingsError, match="layer 5 cannot be the first that looks both ways: the model has 2 layers"):
        bellm_tiny(tmp_path / "m", "bellm.both_ways_from=5")
    assert not (tmp_path / "m").exists()


def test_the_recipe_that_ships(data):
    resolved, _ = load_recipe("bellm-small", [f"data.train={data['triplets']}"])
    assert (resolved.bellm.both_ways_from, resolved.bellm.readout, resolved.bellm.tuning) == ("n/2", "mean", "full")
    assert resolved.bellm.template is None
