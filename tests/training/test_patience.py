"""Training that ends when the score does not grow any more, and learning rates of some weights only."""

from __future__ import annotations

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

from sentsmith import settings
from sentsmith.errors import SettingsError
from sentsmith.methods.simcse import recipe as simcse
from sentsmith.training import run
from sentsmith.training.data import load_rows
from sentsmith.training.output import Output
from sentsmith.training.selection import BestKeeper


@pytest.mark.parametrize(
    ("scores", "patience", "stops"),
    [
        ([5, 4, 3, 2, 1], 2, 4),
        ([1, 2, 3, 2, 3, 9], 2, 8),  # As good as the best is not better.
        ([1, 3, 2, 4, 3, 5], 2, None),
        ([5, 4], 1, 2),
        ([5, 4, 3, 2, 1], None, None),
    ],
)
@pytest.mark.parametrize("killed_after", [None, 0, 4])
def test_it_counts_from_the_best(tmp_path, scores, patience, stops, killed_after):
    def keeper():
        return BestKeeper(tmp_path, torch.nn.Linear(1, 1), keep_weights=False, patience=patience)

    def ends(one, begin):
        for step, score in enumerate(scores):
            control = SimpleNamespace(should_training_stop=False)
            state = SimpleNamespace(global_step=2 * step, is_world_process_zero=True)
            if 2 * step >= begin:
                one.on_evaluate(None, state, control, metrics={"eval_dev": float(score)})
            if control.should_training_stop:
                return 2 * step
        return None

    whole = keeper()
    assert ends(whole, 0) == stops
    if killed_after is not None:
        # The history goes on past the checkpoint, perhaps to the step that ended the training.
        again = keeper()
        again.recall()
        if stops is not None and killed_after >= stops:
            # Nothing is left to train, and nobody asks again.
            assert again.is_spent(stops)
        else:
            assert ends(again, killed_after + 2) == stops
        assert again.history == whole.history


@pytest.fixture(scope="module")
def start_is_best(tmp_path_factory, sentences, tiny_bert):
    """Return a dev file whose scores are the start model's own."""
    file = tmp_path_factory.mktemp("dev") / "dev.csv"
    model = SentenceTransformer(str(tiny_bert), device="cpu", local_files_only=True)
    units = model.encode(sentences, normalize_embeddings=True).astype(np.float64)
    scores = 2.5 + 2.4 * (units[:30] * units[30:]).sum(1)
    rows = zip(sentences[:30], sentences[30:], scores, strict=True)
    file.write_text("".join(f'"{a}","{b}",{score:.9f}\n' for a, b, score in rows))
    return file


@pytest.mark.parametrize(("select", "checkpoints"), [("last", (3,)), pytest.param("best", (), marks=pytest.mark.slow)])
def test_it_stops_and_goes_on_after_a_kill_as_if_there_was_none(
    train_tiny, tmp_path, start_is_best, select, checkpoints, monkeypatch, caplog
):
    shared = (
        f"data.dev={start_is_best}",
        "training.schedule=constant",
        f"training.select={select}",
        "training.eval_steps=1",
    )
    patient = (*shared, "training.max_steps=20", "training.patience=3")
    short = train_tiny(tmp_path / "short", *shared, "training.max_steps=3")
    early = train_tiny(tmp_path / "early", *patient)
    assert (short["selection"].pop("stopped_early"), early["selection"].pop("stopped_early")) == (False, True)
    assert early["selection"] == short["selection"]
    assert early["speed"]["steps"] == 3
    assert early["selection"]["best_step"] == 0
    one, two = (load_file(tmp_path / name / "model.safetensors") for name in ("short", "early"))
    assert all(np.array_equal(value, two[name]) for name, value in one.items())

    # Killed when it had stopped, with a checkpoint of that very step: nothing is left to train.
    for saved in checkpoints:
        broken = tmp_path / f"broken-{saved}"
        monkeypatch.setattr(run, "finish", lambda *_, **__: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            train_tiny(broken, *patient, f"training.save_steps={saved}")
        monkeypatch.undo()
        caplog.set_level("INFO", logger="sentsmith")
        record = train_tiny(broken, *patient, f"training.save_steps={saved}", resume=True)
        assert f"going on after step {saved}" in caplog.text
        assert record["speed"]["steps"] == 3
        same = json.loads((tmp_path / "early" / "run.json").read_text())["selection"]
        assert record["selection"] == same
        two = load_file(broken / "model.safetensors")
        assert all(np.array_equal(value, two[name]) for name, value in one.items())


@pytest.mark.parametrize("held_out", [0.0, 0.03])
def test_patience_needs_something_to_count(train_tiny, tmp_path, held_out):
    # 3 % of 60 rows is one row, by which nothing can be judged.
    with pytest.raises(SettingsError, match=r"training\.patience counts scores, and nothing is scored"):
        train_tiny(tmp_path / "m", f"data.held_out={held_out}", "training.patience=1")
    assert not (tmp_path / "m").exists()


def test_some_weights_learn_at_a_rate_of_their_own(tiny_settings, tmp_path, monkeypatch):
    from sentsmith.encoders.loading import load

    recipe = settings.resolve(simcse.Recipe, tiny_settings, ["training.learning_rate=1e-30", "simcse.dropout=0"])
    plans = []
    monkeypatch.setattr(run, "train", lambda _, plan, *__, **___: plans.append(plan))
    simcse.train_rows(recipe, load_rows(recipe.data, held_out=0.0, seed=1), Output(tmp_path / "m"))
    plans[0].learning_rates = {r"^model\..*layer\.1\.output": 1e-3}
    monkeypatch.undo()
    run.train(recipe, plans[0], Output(tmp_path / "m"))
    before, after = load(recipe.model)[0].state_dict(), load(tmp_path / "m")[0].state_dict()
    moved = {name for name, value in before.items() if (value - after[name]).abs().max() > 1e-6}
    assert moved == {name for name in before if "layer.1.output" in name}
