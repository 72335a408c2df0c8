"""Training on two processes gives what one process with the same rows per step gives, and leaves it once."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import yaml
from safetensors.numpy import load_file

from sentsmith import settings
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, SentsmithError
from sentsmith.methods.simcse import recipe
from sentsmith.methods.whitening import recipe as whitening
from sentsmith.training import processes
from sentsmith.training.output import Output
from sentsmith.training.trainer import LossLog

RESUMABLE = ("training.batch_size=4", "training.max_steps=8", "training.save_steps=3", "data.held_out=0.1")


def train(values, output, *overrides, resume=False):
    return recipe.run(settings.resolve(recipe.Recipe, values, overrides), output, resume=resume)


# What the two processes do ------------------------------------------------------------------------------------------


def train_together(rank, values, output, overrides):
    """Train; returns the record, and what the process knows of itself."""
    record = train(values, output, *overrides)
    return record, processes.count(), processes.is_first(), torch.initial_seed()


def break_off(rank, values, folder):
    """Train without a break, then once more with one in the middle."""

    class Break(Exception):  # noqa: N818
        pass

    plain = LossLog.on_log

    def on_log(self, args, state, control, **kwargs):
        if state.global_step == 5:
            raise Break

    train(values, folder / "whole", *RESUMABLE)
    LossLog.on_log = on_log
    with pytest.raises(Break):
        train(values, folder / "broken", *RESUMABLE)
    LossLog.on_log = plain
    left = sorted(path.name for path in (folder / "broken" / "work").glob("checkpoint-*/rng_state*"))
    processes.wait()
    train(values, folder / "broken", *RESUMABLE, resume=True)
    return left


def refuse(rank, values, folder):
    """Return what each process is told of input that is wrong."""
    told = {}

    def note(name, function):
        try:
            function()
        except SentsmithError as error:
            told[name] = (type(error).__name__, str(error))

    note("rows", lambda: train(values, folder / "new", "training.batch_size=31"))
    note("finished", lambda: train(values, folder / "done"))
    data = {"train": values["data"]["train"]}
    alone = settings.resolve(whitening.Recipe, {"method": "whitening", "model": values["model"], "data": data})
    note("method", lambda: whitening.run(alone, folder / "new"))
    note("begun", lambda: train(values, folder / "begun", resume=True))
    told["value"] = processes.on_first(lambda: f"of {rank}")
    return told


# What comes of it ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def values(tiny_settings):
    """Return settings without dropout, by which SimCSE compares a sentence with itself, and learns all the same."""
    changed = {"data": {**tiny_settings["data"], "held_out": 0.1}, "simcse": {"dropout": 0.0}}
    return {**tiny_settings, **changed, "training": {**tiny_settings["training"], "select": "last"}}


OTHERWISE = ("training.recompute=true", "training.chunk_tokens=measure", "simcse.head=kept")


@pytest.mark.parametrize("more", [(), pytest.param(OTHERWISE, marks=pytest.mark.slow)])
def test_two_processes_train_like_one(in_two_processes, values, sentences, tmp_path, more):
    alone = train(values, tmp_path / "one", "training.batch_size=8", *more)
    train(values, tmp_path / "half", "training.batch_size=4", *more)
    outcome = in_two_processes(train_together, values, tmp_path / "two", ("training.batch_size=4", *more))
    assert [(count, first) for _, count, first, _ in outcome] == [(2, True), (2, False)]
    # Dropout, where there is some, is not the same in both.
    assert [seed for *_, seed in outcome] == [42, 43]
    written = json.loads((tmp_path / "two" / "run.json").read_text(encoding="utf-8"))
    assert outcome[0][0] == outcome[1][0] == written
    assert (alone["processes"], written["processes"]) == (1, 2)
    assert not (tmp_path / "two" / "work").exists()

    # Not the weights: the gradient of a key's bias is zero but for rounding, of which AdamW makes a whole step.
    start, one, two, half = (
        as_encoder(load(folder, device="cpu")).encode(sentences)
        for folder in (values["model"], tmp_path / "one", tmp_path / "two", tmp_path / "half")
    )
    assert np.abs(one - start).max() > 0.05
    assert np.abs(one - half).max() > 0.05
    np.testing.assert_allclose(two, one, atol=1e-4)
    scores = [[entry["score"] for entry in record["selection"]["history"]] for record in (alone, written)]
    assert len(scores[0]) == 3
    assert scores[0] == pytest.approx(scores[1], abs=1e-4)
    assert alone["selection"]["best_step"] == written["selection"]["best_step"]


@pytest.mark.slow
def test_a_run_that_was_broken_off_ends_like_one_that_was_not(in_two_processes, tiny_settings, tmp_path):
    for left in in_two_processes(break_off, tiny_settings, tmp_path):
        assert left == ["rng_state_0.pth", "rng_state_1.pth"]
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("whole", "broken"))
    assert one.keys() == two.keys()
    for name, value in one.items():
        np.testing.assert_array_equal(value, two[name], err_msg=name)


def test_both_are_told_what_is_wrong(in_two_processes, values, tmp_path):
    train(values, tmp_path / "done")
    resolved = settings.resolve(recipe.Recipe, values)
    data = recipe_rows_hash(tmp_path / "done")
    Output(tmp_path / "begun").open(resolved, data)
    first, second = in_two_processes(refuse, values, tmp_path)
    assert first == second
    assert first["value"] == "of 0"
    kinds = {name: kind for name, (kind, _) in ((k, v) for k, v in first.items() if k != "value")}
    assert kinds == dict.fromkeys(("rows", "finished", "method", "begun"), InputError.__name__)
    assert "54 rows to train on, fewer than one batch of 31 in each of 2 processes" in first["rows"][1]
    assert "holds a finished run" in first["finished"][1]
    assert "whitening trains in one process, not in 2; start it by itself" in first["method"][1]
    assert "was begun with 1 processes, not 2; start as many, or give --overwrite" in first["begun"][1]
    assert not (tmp_path / "new").exists()


def recipe_rows_hash(folder):
    return json.loads((folder / "run.json").read_text(encoding="utf-8"))["data"]["sha256"]


def test_other_verbs_and_processes_that_nobody_started_together(command, monkeypatch, tmp_path):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert processes.count() == 1
    monkeypatch.setenv("LOCAL_RANK", "1")
    monkeypatch.setenv("RANK", "1")
    assert (processes.count(), processes.is_first()) == (2, False)
    code, out, err = command("embed", tmp_path / "a.txt", tmp_path / "b.npy")
    assert (code, out) == (2, "")
    assert err == "sentsmith: error: embed runs in one process, not in 2; start it by itself\n"


@pytest.mark.slow
def test_torchrun_starts_the_command(values, tmp_path):
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(values))
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2", "--no-python"]
    done = subprocess.run(
        [*launcher, Path(sys.executable).with_name("sentsmith"), "train", "r.yaml", "--output", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("out: simcse on 54 rows, ")
    assert done.stdout.count("\n") == 1
    # One of the two speaks.
    assert done.stderr.count("step 4: dev ") == 1
    assert json.loads((tmp_path / "out" / "run.json").read_text(encoding="utf-8"))["processes"] == 2
