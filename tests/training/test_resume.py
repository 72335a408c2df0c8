"""A run that was killed ends with the weights, the scores and the record of one that was not."""

from __future__ import annotations

import json
import shutil

import numpy as np
import pytest
from safetensors.numpy import load_file

from sentsmith.errors import InputError, SentsmithError
from sentsmith.training.selection import BestKeeper
from sentsmith.training.trainer import last_checkpoint

# 60 rows are 7 batches an epoch: the run crosses into its second epoch, and the checkpoint of step 9 lies in it.
SETTINGS = ("training.max_steps=12", "training.save_steps=3", "training.eval_steps=2", "training.blend=0.5")


def weights(folder):
    return load_file(folder / "model.safetensors")


def assert_same(first, second):
    one, two = weights(first), weights(second)
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)
    records = [json.loads((folder / "run.json").read_text()) for folder in (first, second)]
    for key in ("selection", "settings_sha256", "data"):
        assert records[0][key] == records[1][key]


@pytest.fixture(scope="module")
def dev(tmp_path_factory, sentences):
    """Return a dev file with arbitrary scores."""
    file = tmp_path_factory.mktemp("dev") / "dev.csv"
    pairs = zip(sentences[:30], sentences[30:], strict=True)
    file.write_text("".join(f'"{a}","{b}",{i * 7 % 11 / 2.2:.3f}\n' for i, (a, b) in enumerate(pairs)))
    return file


@pytest.fixture(scope="module")
def overrides(dev):
    return (*SETTINGS, f"data.dev={dev}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, train_tiny, overrides):
    """Return the folder of the run without a break."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    train_tiny(folder, *overrides)
    return folder


@pytest.fixture(scope="module")
def killed(tmp_path_factory, tiny_settings, overrides, killed_training, blocked_at):
    """Return the folder of a run that was killed with SIGKILL after step 10, one after the checkpoint of step 9."""
    # After the evaluation of step 10.
    folder = killed_training(tmp_path_factory.mktemp("killed") / "here", tiny_settings, overrides, blocked_at(11))
    assert [path.name for path in (folder / "work").glob("checkpoint-*")] == ["checkpoint-9"]
    return folder


@pytest.fixture
def unfinished(killed, tmp_path):
    """Return a copy of it to go on with."""
    shutil.copytree(killed, tmp_path / "model")
    return tmp_path / "model"


def test_a_killed_run_ends_like_one_that_was_not(unfinished, train_tiny, overrides, whole, caplog):
    caplog.set_level("INFO", logger="sentsmith")
    train_tiny(unfinished, *overrides, resume=True)
    assert "going on after step 9" in caplog.text
    assert "step 9/12" not in caplog.text
    assert_same(unfinished, whole)
    assert not (unfinished / "work").exists()


@pytest.mark.parametrize("damage", ["no state", "cut state"])
def test_a_half_written_checkpoint_is_passed_over(unfinished, train_tiny, overrides, whole, damage):
    newer = unfinished / "work" / "checkpoint-12"
    shutil.copytree(unfinished / "work" / "checkpoint-9", newer)
    state = newer / "trainer_state.json"
    if damage == "no state":
        state.unlink()
    else:
        state.write_bytes(state.read_bytes()[:100])
    train_tiny(unfinished, *overrides, resume=True)
    assert_same(unfinished, whole)


def test_killed_before_the_first_checkpoint(unfinished, train_tiny, overrides, whole):
    shutil.rmtree(unfinished / "work" / "checkpoint-9")
    train_tiny(unfinished, *overrides, resume=True)
    assert_same(unfinished, whole)


def test_killed_after_the_last_step(tmp_path, train_tiny, dev, monkeypatch, caplog):
    def stop(*_, **__):
        raise KeyboardInterrupt

    # Step 3 lies within an epoch, its rate is not yet zero, and it is no multiple of eval_steps.
    shared = ("training.max_steps=3", "training.schedule=constant", "training.select=last", f"data.dev={dev}")
    whole = train_tiny(tmp_path / "whole", *shared)
    assert [entry["step"] for entry in whole["selection"]["history"]] == [0, 2, 3]
    monkeypatch.setattr("sentsmith.training.run.finish", stop)
    with pytest.raises(KeyboardInterrupt):
        train_tiny(tmp_path / "m", *shared)
    monkeypatch.undo()
    assert (tmp_path / "m" / "work" / "checkpoint-3").is_dir()
    caplog.set_level("INFO", logger="sentsmith")
    resumed = train_tiny(tmp_path / "m", *shared, resume=True)
    assert "going on after step 3" in caplog.text
    assert_same(tmp_path / "m", tmp_path / "whole")
    assert resumed["speed"]["steps"] == 3
    assert resumed["loss"] == whole["loss"]


def test_a_checkpoint_of_another_version_is_refused(unfinished, train_tiny, overrides):
    (unfinished / "work" / "checkpoint-9" / "trained.safetensors").unlink()
    with pytest.raises(SentsmithError, match="an older version's; begin again with --overwrite"):
        train_tiny(unfinished, *overrides, resume=True)


def test_an_unfinished_run_is_not_begun_again_by_accident(unfinished, train_tiny, overrides):
    with pytest.raises(InputError, match="go on with --resume, or start again with --overwrite"):
        train_tiny(unfinished, *overrides)
    with pytest.raises(InputError, match="was begun with other settings; give those, or --overwrite"):
        train_tiny(unfinished, *overrides, "training.seed=7", resume=True)
    assert (unfinished / "work" / "checkpoint-9").exists()


def test_data_that_changed_since_is_refused(unfinished, train_tiny, overrides, sentence_file):
    before = sentence_file.read_text()
    try:
        sentence_file.write_text(before + "one more .\n")
        with pytest.raises(InputError, match="has changed since the run was begun"):
            train_tiny(unfinished, *overrides, resume=True)
    finally:
        sentence_file.write_text(before)


def test_overwrite_begins_anew(unfinished, train_tiny, overrides, whole):
    train_tiny(unfinished, *overrides, overwrite=True)
    assert_same(unfinished, whole)


def test_measured_chunks_are_those_of_the_first_part(tmp_path, train_tiny, monkeypatch):
    def stop(*_, **__):
        raise KeyboardInterrupt

    shared = ("training.chunk_tokens=measure", "training.max_steps=1")
    monkeypatch.setattr("sentsmith.training.run._fit", stop)
    with pytest.raises(KeyboardInterrupt):
        train_tiny(tmp_path / "m", *shared)
    kept = tmp_path / "m" / "work" / "chunks.json"
    kept.write_text('{"tokens": 77}')
    monkeypatch.undo()
    assert train_tiny(tmp_path / "m", *shared, resume=True)["chunking"]["tokens"] == 77


def test_the_newest_whole_checkpoint(tmp_path):
    assert last_checkpoint(tmp_path) is None
    for step, state in ((3, "{}"), (9, "{}"), (12, '{"half'), (100, None)):
        (tmp_path / f"checkpoint-{step}").mkdir()
        if state is not None:
            (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text(state)
    assert last_checkpoint(tmp_path).name == "checkpoint-9"
    assert sorted(path.name for path in tmp_path.iterdir()) == ["checkpoint-3", "checkpoint-9"]


class State:
    is_world_process_zero = True

    def __init__(self, step):
        self.global_step = step


@pytest.fixture
def keeper(tmp_path):
    """Return a function that makes a keeper over one weight, as a new process would."""
    import torch

    def make():
        return BestKeeper(tmp_path, torch.nn.Linear(1, 1, bias=False), keep_weights=True)

    return make


def note(keeper, step, score, weight):
    keeper.model.weight.data.fill_(weight)
    keeper.on_evaluate(None, State(step), None, metrics={"eval_dev": score})


def restored(keeper):
    keeper.restore()
    return keeper.model.weight.item()


def test_the_earliest_of_equal_steps_is_kept(keeper, tmp_path):
    one = keeper()
    for step, score in ((0, 1.0), (2, 3.0), (4, 3.0), (6, 2.0)):
        note(one, step, score, float(step))
    assert one.best.step == 2
    assert restored(one) == 2
    assert [file.name for file in tmp_path.glob("*.safetensors")] == ["best-2.safetensors"]


def test_score_and_weights_stay_together_through_a_kill(keeper):
    one = keeper()
    note(one, 2, 1.0, 2.0)
    note(one, 4, 5.0, 4.0)
    # Killed; the checkpoint was that of step 3. On this machine step 4 comes out a little worse the second time.
    two = keeper()
    two.recall()
    note(two, 4, 4.5, 4.4)
    note(two, 6, 2.0, 6.0)
    assert [entry.step for entry in two.history] == [2, 4, 6]
    assert (two.best.score, restored(two)) == (5.0, 4.0)


def test_a_kill_between_weights_and_history(keeper, monkeypatch):
    one = keeper()
    note(one, 2, 1.0, 2.0)
    monkeypatch.setattr("sentsmith.training.selection.write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        note(one, 4, 5.0, 4.0)
    monkeypatch.undo()
    two = keeper()
    two.recall()
    assert (two.best.step, restored(two)) == (2, 2.0)
    note(two, 4, 0.5, 4.4)
    assert restored(two) == 2.0
