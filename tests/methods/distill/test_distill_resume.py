"""A distillation that was killed, among its teachers or in training, ends with the weights of one that was not."""

from __future__ import annotations

import json
import shutil

import pytest

from sentsmith.errors import InputError
from sentsmith.files import atomic_path, write_json
from sentsmith.methods.distill import teacher as targets
from sentsmith.training import teachers

pytestmark = pytest.mark.usefixtures("small_blocks")

SETTINGS = (
    "training.max_steps=6",
    "training.save_steps=2",
    "data.held_out=0.2",
    "distill.projection=learned",
)
# Blocks of 16 sentences; stops the world before the second block of the second teacher, until the kill comes.
AT_THE_TEACHERS = """
            import pathlib, signal
            from sentsmith.encoders.embedding import ModelEncoder
            encode, calls = ModelEncoder.encode, []
            def blocking(self, sentences):
                calls.append(len(sentences))
                if calls[-3:] == [12, 16, 16]:
                    pathlib.Path("blocked").touch()
                    signal.pause()
                return encode(self, sentences)
            ModelEncoder.encode = blocking
"""


@pytest.fixture(scope="module")
def overrides(narrow_bert, tiny_bert, noisy_bert):
    return (*SETTINGS, f"model={narrow_bert}", f"distill.teachers=[{tiny_bert}, {noisy_bert}]")


@pytest.fixture(scope="module")
def whole(tmp_path_factory, small_blocks, distill_tiny, overrides):
    """Return the folder of the run without a break."""
    folder = tmp_path_factory.mktemp("whole") / "model"
    distill_tiny(folder, *overrides)
    return folder


@pytest.fixture
def assert_same(assert_same_run):
    return lambda first, second: assert_same_run(first, second, "distill")


@pytest.mark.slow
def test_killed_among_the_teachers(
    tmp_path, distill_settings, distill_tiny, overrides, whole, killed_training, small_blocks, assert_same, caplog
):
    folder = killed_training(tmp_path / "here", distill_settings, overrides, small_blocks + AT_THE_TEACHERS)
    assert (folder / "work" / "teacher-1.npy").exists()
    assert json.loads((folder / "work" / "teacher-2.npy.part.json").read_text())["rows"] == 16
    caplog.set_level("INFO", logger="sentsmith")
    distill_tiny(folder, *overrides, resume=True)
    assert "teacher-2.npy.part: going on after 16 rows" in caplog.text
    assert caplog.text.count("reading the teacher") == 1
    assert_same(folder, whole)


@pytest.mark.slow
def test_killed_in_training(
    tmp_path,
    distill_settings,
    distill_tiny,
    overrides,
    whole,
    killed_training,
    small_blocks,
    blocked_at,
    assert_same,
    caplog,
):
    folder = killed_training(tmp_path / "here", distill_settings, overrides, small_blocks + blocked_at(3))
    assert sorted(path.name for path in (folder / "work").glob("*.npy")) == ["teacher.npy"]
    caplog.set_level("INFO", logger="sentsmith")
    distill_tiny(folder, *overrides, resume=True)
    assert "going on after step 2" in caplog.text
    assert "reading the teacher" not in caplog.text
    assert_same(folder, whole)


@pytest.mark.parametrize("moment", ["teachers.json", "teacher.npy", "target.json"])
def test_stopped_before_a_file_of_the_teachers(
    tmp_path, distill_tiny, overrides, whole, assert_same, monkeypatch, moment
):
    def stop(path):
        if path.name == moment:
            raise KeyboardInterrupt

    def json_or_stop(path, value):
        stop(path)
        write_json(path, value)

    def path_or_stop(path):
        stop(path)
        return atomic_path(path)

    with monkeypatch.context() as patch:
        patch.setattr(teachers, "write_json", json_or_stop)
        patch.setattr(targets, "write_json", json_or_stop)
        patch.setattr(targets, "atomic_path", path_or_stop)
        with pytest.raises(KeyboardInterrupt):
            distill_tiny(tmp_path / "m", *overrides)
    distill_tiny(tmp_path / "m", *overrides, resume=True)
    assert_same(tmp_path / "m", whole)


def test_a_teacher_that_changed_since_is_refused(tmp_path, distill_tiny, tiny_bert, monkeypatch):
    mine = tmp_path / "teacher"
    shutil.copytree(tiny_bert, mine)
    shared = (f"distill.teachers={mine}", "training.max_steps=1")
    with monkeypatch.context() as patch:
        patch.setattr("sentsmith.training.run._fit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            distill_tiny(tmp_path / "m", *shared)
    config = mine / "config.json"
    config.write_text(config.read_text() + "\n")
    with pytest.raises(InputError, match="teacher: has changed since the run was begun"):
        distill_tiny(tmp_path / "m", *shared, resume=True)
    distill_tiny(tmp_path / "m", *shared, overwrite=True)
