"""A MultiCSR run that was killed, at its masker or in training, ends with the weights of one that was not."""

from __future__ import annotations

import json
import shutil

import pytest

from sentsmith.encoders.embedding import ModelEncoder
from sentsmith.errors import InputError
from sentsmith.training import text_vectors
from sentsmith.training.trainer import LossLog

pytestmark = pytest.mark.usefixtures("small_blocks")

SETTINGS = ("training.max_steps=6", "training.save_steps=2", "data.held_out=0.1", "multicsr.head=training")
# Blocks of 16 texts; stops the world before the second one, until the kill comes.
AT_THE_MASKER = """
            import pathlib, signal
            from sentsmith.encoders.embedding import ModelEncoder
            encode, calls = ModelEncoder.encode, []
            def blocking(self, sentences):
                calls.append(len(sentences))
                if len(calls) == 2:
                    pathlib.Path("blocked").touch()
                    signal.pause()
                return encode(self, sentences)
            ModelEncoder.encode = blocking
"""


def overrides_of(mask, tiny_bert):
    return SETTINGS if mask == "cached" else (*SETTINGS, "multicsr.eta_dropout=true", f"multicsr.masker={tiny_bert}")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_blocks, multicsr_tiny, tiny_bert):
    """Return a function from the kind of mask to the folder of a run without a break; each is done once."""
    folders = {}

    def run(mask):
        if mask not in folders:
            folder = tmp_path_factory.mktemp("whole") / "model"
            multicsr_tiny(folder, *overrides_of(mask, tiny_bert))
            folders[mask] = folder
        return folders[mask]

    return run


@pytest.fixture
def assert_same(assert_same_run):
    def check(first, second):
        records = [record["multicsr"] for record in assert_same_run(first, second)]
        for key in ("rows", "masked_share"):
            assert records[0][key] == records[1][key]

    return check


@pytest.mark.slow
def test_killed_at_the_masker(
    tmp_path, multicsr_settings, multicsr_tiny, whole, killed_training, small_blocks, assert_same, caplog
):
    folder = killed_training(tmp_path / "here", multicsr_settings, SETTINGS, small_blocks + AT_THE_MASKER)
    (state,) = (folder / "work").glob("*.npy.part.json")
    assert json.loads(state.read_text(encoding="utf-8"))["rows"] == 16
    # The lock of the process that was killed is held by nobody.
    assert list((folder / "work").glob("*.lock"))
    caplog.set_level("INFO", logger="sentsmith")
    multicsr_tiny(folder, *SETTINGS, resume=True)
    assert "going on after 16 rows" in caplog.text
    assert_same(folder, whole("cached"))


@pytest.mark.slow
@pytest.mark.parametrize("mask", ["cached", "dropout"])
def test_killed_in_training(
    tmp_path,
    multicsr_settings,
    multicsr_tiny,
    tiny_bert,
    whole,
    killed_training,
    small_blocks,
    blocked_at,
    assert_same,
    caplog,
    mask,
):
    overrides = overrides_of(mask, tiny_bert)
    folder = killed_training(tmp_path / "here", multicsr_settings, overrides, small_blocks + blocked_at(3))
    assert len(list((folder / "work").glob("*.npy"))) == (mask == "cached")
    caplog.set_level("INFO", logger="sentsmith")
    multicsr_tiny(folder, *overrides, resume=True)
    assert "going on after step 2" in caplog.text
    assert "reading the teacher" not in caplog.text
    assert_same(folder, whole(mask))
    assert not (folder / "work").exists()


@pytest.fixture
def stopped(multicsr_tiny, monkeypatch):
    """Return a function that trains, gone on with if begun, until ``place.name`` is called as ``when`` says."""

    def run(folder, overrides, place, name, when=lambda *_: True):
        call = getattr(place, name)

        def stopping(*args, **kwargs):
            if when(*args):
                raise KeyboardInterrupt
            return call(*args, **kwargs)

        with monkeypatch.context() as patch:
            patch.setattr(place, name, stopping)
            with pytest.raises(KeyboardInterrupt):
                multicsr_tiny(folder, *overrides, resume=True)

    return run


def at_step_3(_, __, state, *___):
    return state.global_step == 3


def test_stopped_at_every_stage(tmp_path, multicsr_tiny, whole, stopped, assert_same, caplog):
    """In the middle of the masker's texts, between its vectors and their note, and in training."""
    folder, blocks = tmp_path / "m", []
    caplog.set_level("INFO", logger="sentsmith")
    stopped(folder, SETTINGS, ModelEncoder, "encode", lambda *_: blocks.append(1) or len(blocks) == 2)
    (state,) = (folder / "work").glob("*.npy.part.json")
    assert json.loads(state.read_text(encoding="utf-8"))["rows"] == 16
    stopped(folder, SETTINGS, text_vectors, "write_json")
    assert "going on after 16 rows" in caplog.text
    caplog.clear()
    stopped(folder, SETTINGS, LossLog, "on_log", at_step_3)
    multicsr_tiny(folder, *SETTINGS, resume=True)
    assert "going on after step 2" in caplog.text
    assert "reading the teacher" not in caplog.text
    assert_same(folder, whole("cached"))


def test_stopped_in_training_with_a_masker_that_draws(
    tmp_path, multicsr_tiny, tiny_bert, whole, stopped, assert_same, caplog
):
    overrides = overrides_of("dropout", tiny_bert)
    stopped(tmp_path / "m", overrides, LossLog, "on_log", at_step_3)
    caplog.set_level("INFO", logger="sentsmith")
    multicsr_tiny(tmp_path / "m", *overrides, resume=True)
    assert "going on after step 2" in caplog.text
    assert_same(tmp_path / "m", whole("dropout"))


def test_a_masker_that_changed_since_is_refused(tmp_path, multicsr_tiny, tiny_llama, monkeypatch):
    mine = tmp_path / "masker"
    shutil.copytree(tiny_llama, mine)
    shared = (f"multicsr.masker={mine}", "training.max_steps=1")
    with monkeypatch.context() as patch:
        patch.setattr("sentsmith.training.run._fit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            multicsr_tiny(tmp_path / "m", *shared)
    config = mine / "config.json"
    config.write_text(config.read_text(encoding="utf-8") + "\n", encoding="utf-8")
    with pytest.raises(InputError, match="masker: has changed since the run was begun"):
        multicsr_tiny(tmp_path / "m", *shared, resume=True)
