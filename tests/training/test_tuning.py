"""A search for settings: what it tries, what it keeps, what it refuses; and a kill changes nothing of it."""

from __future__ import annotations

import json
import math
import shutil
import sys
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from sentsmith import settings
from sentsmith.errors import InputError, MissingExtraError, SentsmithError, SettingsError
from sentsmith.methods.distill import recipe as distill
from sentsmith.methods.registry import load_method, method_names
from sentsmith.methods.simcse import recipe as simcse
from sentsmith.methods.whitening import recipe as whitening
from sentsmith.training import processes, record, space, tuning

RATES = {"low": 1e-4, "high": 3e-2, "log": True}


@pytest.fixture(scope="module")
def values(tiny_settings, sentences, tmp_path_factory):
    """Return a recipe with something to search, on a dev file with arbitrary scores."""
    file = tmp_path_factory.mktemp("dev") / "dev.csv"
    pairs = zip(sentences[:30], sentences[30:], strict=True)
    file.write_text("".join(f'"{a}","{b}",{i * 7 % 11 / 2.2:.3f}\n' for i, (a, b) in enumerate(pairs)))
    data = {**tiny_settings["data"], "dev": str(file)}
    steps = {**tiny_settings["training"], "max_steps": 1, "eval_steps": 1, "select": "last"}
    tune = {"training.learning_rate": RATES, "training.batch_size": [8, "12"]}
    return {**tiny_settings, "data": data, "training": steps, "tune": tune}


def search(values, folder, trials, *overrides, run=simcse.run, **options):
    return tuning.tune(settings.resolve(simcse.Recipe, values, overrides), run, folder, trials=trials, **options)


@pytest.fixture(scope="module")
def found(values, tmp_path_factory):
    """Return (record, folder) of a search of four trials."""
    folder = tmp_path_factory.mktemp("search") / "model"
    return search(values, folder, 4), folder


def outcomes(found):
    return [{key: value for key, value in trial.items() if key != "seconds"} for trial in found["trials"]]


def test_the_best_trial_becomes_the_model(found, values, tmp_path, sentences):
    result, folder = found
    assert json.loads((folder / "tuning.json").read_text()) == result
    trials = result["trials"]
    assert [trial["number"] for trial in trials] == [0, 1, 2, 3]
    assert trials[0]["values"] == {"training.learning_rate": 5e-3, "training.batch_size": 8}
    assert len({trial["values"]["training.learning_rate"] for trial in trials}) == 4
    assert all(1e-4 <= trial["values"]["training.learning_rate"] <= 3e-2 for trial in trials)
    assert {trial["values"]["training.batch_size"] for trial in trials} == {8, 12}
    assert {trial["state"] for trial in trials} == {"finished"}
    best = max(trials, key=lambda trial: trial["score"])
    assert result["best"] == best["number"] != 0

    # It is what a run with these values gives; what was beaten left its record only.
    own = {f"{key}={value}" for key, value in best["values"].items()}
    alone = simcse.run(settings.resolve(simcse.Recipe, values, [*own, "tune={}"]), tmp_path / "alone")
    kept = json.loads((folder / "run.json").read_text())
    for key in ("settings", "settings_sha256", "selection", "loss", "data"):
        assert kept[key] == alone[key]
    one, two = (load_file(place / "model.safetensors") for place in (tmp_path / "alone", folder))
    assert all(np.array_equal(value, two[name]) for name, value in one.items())
    assert SentenceTransformer(str(folder), device="cpu").encode(sentences[:2]).shape == (2, 32)
    for number in range(4):
        left = sorted(path.name for path in (folder / "trials" / f"{number:04d}").iterdir())
        assert left == ["run.json", "settings.yaml"]
        trial = record.read(folder / "trials" / f"{number:04d}")
        assert (
            space.own_values(settings.resolve(simcse.Recipe, trial["settings"]), values["tune"])
            == (trials[number]["values"])
        )
        assert trials[number]["score"] == trial["selection"]["history"][-1]["score"]
    assert not (folder / "work").exists()
    assert kept["tuning"]["score_of_the_recipe"] == trials[0]["score"]
    card = (folder / "README.md").read_text()
    assert f"The best of 4 trials: number {best['number']}, spearman" in card
    assert card.startswith("---\nlibrary_name")


# What stops the world: before the first step of the third trial, or when the best trial's model is being moved.
IN_A_TRIAL = """
            import pathlib, signal
            from sentsmith.training.trainer import LossLog
            plain = LossLog.on_log
            def on_log(self, args, state, control, **kwargs):
                if pathlib.Path("model/trials/0002").exists():
                    pathlib.Path("blocked").touch()
                    signal.pause()
                plain(self, args, state, control, **kwargs)
            LossLog.on_log = on_log
"""


@pytest.mark.slow
def test_a_killed_search_ends_like_one_that_was_not(found, values, sentsmith_process, tmp_path, command, monkeypatch):
    here = tmp_path / "here"
    here.mkdir()
    (here / "r.yaml").write_text(yaml.safe_dump(values))
    killed = sentsmith_process("train", "r.yaml", "--output", "model", "--tune", "3", cwd=here, before=IN_A_TRIAL)
    killed.wait_for((here / "blocked").exists)
    killed.kill()
    assert (here / "model" / "trials" / "0002" / "work").is_dir()
    before = json.loads((here / "model" / "tuning.json").read_text())["trials"]
    assert [trial["state"] for trial in before] == ["finished", "finished", "running"]
    monkeypatch.chdir(here)
    code, out, err = command("train", "r.yaml", "--output", "model", "--tune", "4", "--resume", "--json")
    assert code == 0, err
    assert outcomes(json.loads(out)) == outcomes(found[0])
    one, two = (load_file(folder / "model.safetensors") for folder in (found[1], here / "model"))
    assert all(np.array_equal(value, two[name]) for name, value in one.items())


def scripted(scores, calls, *, fails=()):
    """Return what runs no training, but leaves the folder of one whose score is the next of ``scores``."""

    def run(recipe, folder, *, resume, progress):
        number = int(folder.name)
        calls.append((number, resume, recipe))
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "work").mkdir(exist_ok=True)
        if number in fails:
            raise SentsmithError("the training loss became nan")
        score = scores[number]
        if isinstance(score, BaseException):
            raise score
        (folder / "work").rmdir()
        (folder / "1_Pooling").mkdir()
        (folder / "1_Pooling" / "config.json").write_text(str(number))
        (folder / "model.safetensors").write_text(str(number))
        (folder / "README.md").write_text("card\n")
        settings.save(recipe, folder / "settings.yaml")
        history = [{"step": 0, "score": 99.0}, {"step": 1, "score": score}]
        kept = {"select": recipe.training.select, "best_step": 0, "best_score": 99.0, "history": history}
        result = {"method": "simcse", "selection": {**kept, "metric": "m", "source": "s"}, "seconds": {"train": 1.0}}
        (folder / "run.json").write_text(json.dumps(result))
        return result

    return run


def test_failures_repetitions_and_beaten_weights(values, tmp_path, caplog):
    calls, seen = [], []
    run = scripted([3.0, 4.0, None, 1.0, 4.0, 5.0], calls, fails={2})

    def watched(recipe, folder, **options):
        seen.append(sorted(int(path.parent.name) for path in tmp_path.glob("m/trials/*/model.safetensors")))
        return run(recipe, folder, **options)

    caplog.set_level("INFO", logger="sentsmith")
    overrides = ("tune={training.warmup: [0.0, 0.1, 0.2], training.batch_size: [6, 8]}",)
    found = search(values, tmp_path / "m", 8, *overrides, run=watched)
    trials = found["trials"]
    # Six settings in all: each is run once.
    assert [number for number, *_ in calls] == list(range(6))
    assert len({json.dumps(trial["values"]) for trial in trials[:6]}) == 6
    assert len(trials) == 8
    for trial in trials[6:]:
        first = trials[trial["same_as"]]
        assert first["number"] < 6
        assert all(trial[key] == first[key] for key in ("values", "score", "error"))
    assert [trial["state"] for trial in trials[:3]] == ["finished", "finished", "failed"]
    assert trials[2]["error"] == "the training loss became nan"
    assert not (tmp_path / "m" / "trials" / "0002").exists()
    # Only the best so far has its weights.
    assert seen == [[], [0], [1], [1], [1], [1]]
    assert found["best"] == 5
    assert (tmp_path / "m" / "model.safetensors").read_text() == "5"
    assert (tmp_path / "m" / "1_Pooling" / "config.json").read_text() == "5"
    assert "trial 2, 3 of 8 (training.batch_size" in caplog.text
    assert "failed: the training loss became nan; best: trial 1, 4.0000" in caplog.text


def test_the_score_is_that_of_the_checkpoint_that_is_kept(values, tmp_path):
    for select, score in (("last", 3.0), ("best", 99.0)):
        found = search(values, tmp_path / select, 1, f"training.select={select}", run=scripted([3.0], []))
        assert found["trials"][0]["score"] == score


def test_values_that_do_not_go_together_are_a_failed_trial(values, tmp_path):
    class Recipe(simcse.Recipe):
        @settings_validator
        def _not_both(self):
            if self.training.warmup and self.training.weight_decay:
                raise ValueError("not both")
            return self

    overrides = ["tune={training.warmup: [0.0, 0.1], training.weight_decay: [0.0, 0.1]}"]
    recipe = settings.resolve(Recipe, values, overrides)
    found = tuning.tune(recipe, scripted([1.0] * 7, []), tmp_path / "m", trials=7)
    both = [trial for trial in found["trials"] if all(trial["values"].values())]
    assert both
    assert {(trial["state"], trial["error"]) for trial in both} == {("failed", "not both")}
    assert {trial["state"] for trial in found["trials"] if trial not in both} == {"finished", "repeated"}


def settings_validator(function):
    from pydantic import model_validator

    return model_validator(mode="after")(function)


def test_broken_off_anywhere_it_goes_on(values, tmp_path, monkeypatch):
    folder, calls, scores = tmp_path / "m", [], [3.0, 5.0, 4.0, 2.0]
    whole = search(values, tmp_path / "whole", 4, run=scripted(scores, []))
    run = scripted([3.0, KeyboardInterrupt()], calls)
    # In a trial.
    with pytest.raises(KeyboardInterrupt):
        search(values, folder, 2, run=run)
    # When a trial was finished, and not yet noted.
    run = scripted(scores, calls)
    with monkeypatch.context() as patch:
        patch.setattr(tuning._Search, "_score", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            search(values, folder, 4, run=run, resume=True)
    # Between the items of the best model that are moved: a larger number of trials comes too late.
    with monkeypatch.context() as patch:
        patch.setattr(tuning, "write_text", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            search(values, folder, 4, run=run, resume=True)
    (folder / "model.safetensors").replace(folder / "trials" / "0001" / "model.safetensors")
    with pytest.raises(InputError, match=r"was begun with --tune: it is a search; go on with it as such"):
        simcse.run(settings.resolve(simcse.Recipe, values), folder, resume=True)
    found = search(values, folder, 9, run=run, resume=True)
    assert outcomes(found) == outcomes(whole)
    assert [(number, resume) for number, resume, _ in calls] == [
        (0, False), (1, False), (1, True), (2, False), (3, False),
    ]  # fmt: skip
    assert calls[1][2] == calls[2][2]
    assert (folder / "model.safetensors").read_text() == "1"
    assert (folder / "run.json").exists()
    assert not (folder / "work").exists()


def test_the_command(values, tmp_path, command, monkeypatch):
    monkeypatch.setattr(simcse, "run", scripted([3.0, 5.0], []))
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(values))
    code, out, err = command("train", tmp_path / "r.yaml", "--output", tmp_path / "m", "--tune", 2)
    assert code == 0, err
    assert out.startswith(f"{tmp_path / 'm'}: best of 2 trials: number 1, m 5.0000 (the recipe as it is: 3.0000) with ")
    assert err.count("trial ") == 2 + err.count("best: trial ")
    code, out, err = command("train", tmp_path / "r.yaml", "--output", tmp_path / "n", "--tune", 0)
    assert (code, out) == (2, "")
    assert "--tune" in err


def test_its_folder_follows_the_rules_of_a_run(values, tmp_path, monkeypatch):
    folder, run = tmp_path / "m", scripted([1.0] * 9, [])
    search(values, folder, 2, run=run)
    with pytest.raises(InputError, match="holds a finished run; give another folder, or --overwrite"):
        search(values, folder, 2, run=run, resume=True)
    search(values, folder, 1, run=run, overwrite=True)
    assert [path.name for path in (folder / "trials").iterdir()] == ["0000"]
    broken = scripted([KeyboardInterrupt()], [])
    with pytest.raises(KeyboardInterrupt):
        search(values, tmp_path / "b", 2, run=broken)
    with pytest.raises(InputError, match="holds an unfinished run; go on with --resume"):
        search(values, tmp_path / "b", 2, run=run)
    with pytest.raises(InputError, match="was begun with other settings"):
        search(values, tmp_path / "b", 2, "tune={training.batch_size: [8]}", run=run, resume=True)
    # A single run is no search.
    monkeypatch.setattr("sentsmith.training.run._fit", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        simcse.run(settings.resolve(simcse.Recipe, values), tmp_path / "single")
    with pytest.raises(InputError, match="was begun without --tune: it is a single run"):
        search(values, tmp_path / "single", 2, run=run, resume=True)


def test_what_changed_between_trials_is_refused(values, tmp_path, tiny_bert):
    dev, model, other = tmp_path / "dev.csv", tmp_path / "bert", tmp_path / "other"
    dev.write_text(Path(values["data"]["dev"]).read_text(encoding="utf-8"))
    for copy in (model, other):
        shutil.copytree(tiny_bert, copy)
    sets = {"data": {**values["data"], "dev": str(dev)}, "model": str(model), "method": "distill"}
    sets |= {"distill": {"teachers": str(tiny_bert)}, "tune": {"distill.teachers": [str(tiny_bert), str(other)]}}
    plain = {key: value for key, value in values.items() if key != "simcse"}

    def again(*scores, **options):
        recipe = settings.resolve(distill.Recipe, {**plain, **sets})
        return tuning.tune(recipe, scripted(scores, []), tmp_path / "m", trials=2, **options)

    with pytest.raises(KeyboardInterrupt):
        again(KeyboardInterrupt())
    # The rows that judge, the model, and a teacher that only the second trial would read.
    for changed in (dev, model / "config.json", other / "model.safetensors"):
        kept = changed.read_bytes()
        changed.write_bytes(kept + b"\n")
        with pytest.raises(InputError, match=f"{changed.relative_to(tmp_path).parts[0]}: has changed since the search"):
            again(1.0, 2.0, resume=True)
        changed.write_bytes(kept)
    other.rename(tmp_path / "away")
    with pytest.raises(InputError, match="other: has changed since the search"):
        again(1.0, 2.0, resume=True)
    (tmp_path / "away").rename(other)
    assert again(1.0, 2.0, resume=True)["best"] == 1


def test_folders_that_trials_fill_are_no_input(tmp_path):
    """All of a method's settings that name one are told by ``keeps``, and a search does not hash them."""
    (tmp_path / "data.txt").write_text("a\n")
    (tmp_path / "kept").mkdir()
    found = []
    for method in method_names():
        recipe, data = load_method(method).Recipe, str(tmp_path / "data.txt")
        section = recipe.model_fields[method].annotation.model_fields
        for name in [name for name, field in section.items() if (field.description or "").startswith("Folder that")]:
            override = f"{method}.{name}={tmp_path / 'kept'}"
            resolved = settings.resolve(recipe, {"method": method, "data": {"train": data}}, [override])
            assert str(tmp_path / "kept") in resolved.reads()
            assert set(tuning._hashed(resolved, {})) == {data}
            found.append(f"{method}.{name}")
    assert found == ["freeze.store", "multicsr.cache", "ranking.cache"]


@pytest.mark.parametrize(
    ("overrides", "kind", "message"),
    [
        (["tune={}"], SettingsError, "tune is empty, so there is nothing to search"),
        (["data.dev=[]", "data.held_out=0"], SettingsError, "nothing scores the trials: name files in data.dev"),
        (
            ["tune={training.batch: [8]}"],
            SettingsError,
            "'training.batch' is unknown; did you mean 'training.batch_size'",
        ),
        (["tune.data.limit=[20, 40]"], SettingsError, "'data.limit' has to be the same in all trials"),
        (["tune.training.seed=[1, 2]"], SettingsError, "'training.seed' has to be the same"),
        (["tune.training.batch_size=[8, 1]"], SettingsError, "batch_size = 1: .*greater than or equal to 2"),
        (["tune={training.batch_size: {low: 2.0, high: 9.0}}"], SettingsError, "should be a valid integer"),
        (
            ["data.dev=[]", "data.held_out=0.1", "tune={simcse.temperature: [0.1]}"],
            SettingsError,
            "the temperature of the score on held-out rows too",
        ),
        (["data.train=none.txt"], InputError, "none.txt: does not exist"),
        (["model=./none"], InputError, "none: no such folder"),
        (["data.dev=none.csv"], InputError, "none.csv: does not exist"),
    ],
)
def test_refused_before_anything_is_touched(values, tmp_path, overrides, kind, message):
    with pytest.raises(kind, match=message):
        search(values, tmp_path / "m", 2, *overrides, run=None)
    assert not (tmp_path / "m").exists()


@pytest.mark.parametrize(
    ("tune", "message"),
    [
        ({"training.batch_size": 5}, "what to try is a list of values, or a mapping"),
        ({"training.batch_size": []}, "at least 1 item"),
        ({"training.warmup": {"low": 0.2, "high": 0.1}}, r"low 0\.2 is not below high 0\.1"),
        ({"training.warmup": {"low": 0.0, "high": 0.1, "log": True}}, r"log needs a low above 0"),
        ({"training.warmup": {"low": 0.1, "high": 0.3, "log": True, "step": 0.1}}, "log and step exclude each other"),
        ({"training.batch_size": {"low": 2, "high": 9, "step": 0.5}}, r"step 0\.5 is no whole number"),
    ],
)
def test_a_section_that_is_no_space_is_refused(values, tune, message):
    with pytest.raises(SettingsError, match=message):
        settings.resolve(simcse.Recipe, {**values, "tune": tune})


def test_who_cannot_search(values, tmp_path, monkeypatch):
    alone = settings.resolve(whitening.Recipe, {"method": "whitening", "data": {"train": values["data"]["train"]}})
    with pytest.raises(SettingsError, match="whitening is not trained step by step"):
        tuning.tune(alone, whitening.run, tmp_path / "m", trials=2)
    with pytest.raises(InputError, match="give the number of trials"):
        search(values, tmp_path / "m", 0)
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "optuna", None)
        with pytest.raises(MissingExtraError, match=r"sentsmith\[tune\]"):
            search(values, tmp_path / "m", 2)
    monkeypatch.setattr(processes, "count", lambda: 2)
    with pytest.raises(InputError, match="--tune searches in one process, not in 2"):
        search(values, tmp_path / "m", 2)
    assert not (tmp_path / "m").exists()


def test_input_that_is_wrong_ends_the_search_and_all_failing_too(values, tmp_path):
    with pytest.raises(InputError, match="fewer than one batch"):
        search(values, tmp_path / "a", 3, run=scripted([InputError("fewer than one batch")], []))
    with pytest.raises(SentsmithError, match="all 2 trials failed, the last one so: the training loss became nan"):
        search(values, tmp_path / "b", 2, run=scripted([], [], fails={0, 1}))
    # With more trials it goes on.
    found = search(values, tmp_path / "b", 3, run=scripted([None, None, 2.0], []), resume=True)
    assert [trial["state"] for trial in found["trials"]] == ["failed", "failed", "finished"]


def test_values_that_the_method_refuses_are_a_failed_trial(values, tmp_path):
    """A batch larger than the data, which only the run can know; the recipe's own ends the search."""
    override = "tune={training.batch_size: [8, 128]}"
    found = search(values, tmp_path / "m", 3, override)
    first, *later = found["trials"]
    assert (first["state"], found["best"]) == ("finished", 0)
    refused = [trial for trial in later if trial["values"] == {"training.batch_size": 128}]
    assert len(refused) > 0
    assert {trial["state"] for trial in refused} == {"failed"}
    assert all("60 rows" in trial["error"] and "128" in trial["error"] for trial in refused)
    with pytest.raises(InputError, match="60 rows"):
        search(values, tmp_path / "n", 4, override, "training.batch_size=128")


def test_the_section_changes_nothing_else(values):
    """Without it a recipe has the hash it always had; written in either way it is the same."""
    plain = {key: value for key, value in values.items() if key != "tune"}
    recipe = settings.resolve(simcse.Recipe, plain)
    assert "tune" not in recipe.model_dump(mode="json")
    with_section = settings.resolve(simcse.Recipe, values)
    assert space.with_values(with_section, {}) == recipe
    assert record.settings_hash(space.with_values(with_section, {})) == record.settings_hash(recipe)
    again = settings.resolve(simcse.Recipe, with_section.model_dump(mode="json"))
    assert again == with_section
    nested = {"training": {"learning_rate": RATES, "batch_size": [8, "12"]}}
    assert settings.resolve(simcse.Recipe, {**plain, "tune": nested}) == with_section


def test_the_search_finds_what_is_good(values):
    tune = {
        "training.learning_rate": RATES,
        "training.batch_size": {"low": 8, "high": 64, "step": 8},
        "simcse.pooling": ["cls", "mean", None],
    }
    recipe = settings.resolve(simcse.Recipe, {**values, "tune": tune})
    spanned = space.checked(recipe)

    def score(point):
        size, rate, pooling = (
            point[key] for key in ("training.batch_size", "training.learning_rate", "simcse.pooling")
        )
        return -abs(math.log10(rate / 1e-3)) - abs(size - 32) / 32 - (pooling != "mean")

    scored = [(space.own_values(recipe, spanned), -4.0)]
    while len(scored) < 25:
        point = space.suggest(spanned, scored, seed=1)
        assert 1e-4 <= point["training.learning_rate"] <= 3e-2
        assert point["training.batch_size"] in range(8, 65, 8)
        scored.append((point, None if len(scored) == 5 else score(point)))
    early, late = ([value for _, value in part if value is not None] for part in (scored[1:11], scored[18:]))
    assert np.mean(late) > np.mean(early) + 0.3
    assert space.suggest(spanned, scored[:-1], seed=1) == point
    assert space.suggest(spanned, scored[:-1], seed=2) != point
