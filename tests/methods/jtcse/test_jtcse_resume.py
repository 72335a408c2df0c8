"""A JTCSE run that was killed, inside either stage, ends with the weights and the record of one that was not."""

from __future__ import annotations

import pytest

SETTINGS = (
    "training.max_steps=4",
    "training.save_steps=2",
    "data.held_out=0.2",
    "jtcse.simcse.max_steps=4",
    "jtcse.cross=carry",
    "jtcse.cross_layers=2",
    "jtcse.pooler=fresh",
)
# Stops the world after step 3 of a stage, one step after the checkpoint of step 2, until the kill comes.
BLOCK = """
            import pathlib, signal
            from sentsmith.training.trainer import LossLog
            def on_log(self, args, state, control, **kwargs):
                inside = pathlib.Path(args.output_dir).parent.name
                if (inside, state.global_step) == ("{stage}", 3):
                    pathlib.Path("blocked").touch()
                    signal.pause()
            LossLog.on_log = on_log
"""


@pytest.fixture
def assert_same(assert_same_run):
    def check(first, second):
        assert len(list(first.rglob("*.safetensors"))) == 2
        records = assert_same_run(first, second)
        for towers in zip(*(record["jtcse"]["towers"] for record in records), strict=True):
            for key in ("settings", "data", "selection", "loss"):
                assert towers[0][key] == towers[1][key]

    return check


@pytest.fixture(scope="module")
def whole(tmp_path_factory, jtcse_tiny):
    """Return the folder of the run without a break."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    jtcse_tiny(folder, *SETTINGS)
    return folder


@pytest.mark.parametrize(
    ("stage", "going_on", "left"),
    [
        # Tower 1 is done, tower 2 in its training.
        pytest.param("tower-2", "going on after step 2", {"tower-1": False, "tower-2": True}, marks=pytest.mark.slow),
        ("model", "going on after step 2", {"tower-1": False, "tower-2": False}),
    ],
)
def test_killed_inside_a_stage(
    tmp_path, jtcse_settings, jtcse_tiny, whole, killed_training, assert_same, caplog, stage, going_on, left
):
    model = killed_training(tmp_path / "here", jtcse_settings, SETTINGS, BLOCK.format(stage=stage))
    work = model / "work"
    for tower, unfinished in left.items():
        assert (work / tower / "work").is_dir() is unfinished
        assert (work / tower / "run.json").exists() is not unfinished
    caplog.set_level("INFO", logger="sentsmith")
    jtcse_tiny(model, *SETTINGS, resume=True)
    assert caplog.text.count("learns alone") == sum(left.values())
    assert caplog.text.count(going_on) == 1
    assert_same(model, whole)
    assert not work.exists()


def test_killed_between_the_stages(tmp_path, jtcse_tiny, whole, assert_same, monkeypatch, caplog):
    with monkeypatch.context() as patch:
        patch.setattr(
            "sentsmith.training.run.last_checkpoint", lambda work: 1 / 0 if "tower" not in str(work) else None
        )
        with pytest.raises(ZeroDivisionError):
            jtcse_tiny(tmp_path / "m", *SETTINGS)
    caplog.set_level("INFO", logger="sentsmith")
    jtcse_tiny(tmp_path / "m", *SETTINGS, resume=True)
    assert "learns alone" not in caplog.text
    assert_same(tmp_path / "m", whole)


def test_what_changed_since_is_refused(tmp_path, jtcse_tiny, sentences, monkeypatch):
    from sentsmith.errors import InputError

    echoes = tmp_path / "echoes.csv"
    echoes.write_text("sentence,echo\n" + "".join(f"x{i},y{i}\n" for i in range(4)), encoding="utf-8")
    overrides = (*SETTINGS, f"jtcse.first.translations={echoes}")
    with monkeypatch.context() as patch:
        patch.setattr("sentsmith.training.run._fit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            jtcse_tiny(tmp_path / "m", *overrides)
    with pytest.raises(InputError, match="was begun with other settings"):
        jtcse_tiny(tmp_path / "m", *overrides, "jtcse.simcse.learning_rate=1e-5", resume=True)
    echoes.write_text(echoes.read_text(encoding="utf-8") + "x,y\n", encoding="utf-8")
    with pytest.raises(InputError, match="has changed since the run was begun"):
        jtcse_tiny(tmp_path / "m", *overrides, resume=True)
