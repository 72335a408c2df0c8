"""``sentsmith train`` at the edges: bad input, full disk, Ctrl-C."""

from __future__ import annotations

import json

import pytest
import yaml
from sentence_transformers import SentenceTransformer


@pytest.fixture
def here(tmp_path, monkeypatch, tiny_settings):
    """Return a folder with a recipe, to work in."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "r.yaml").write_text(yaml.safe_dump(tiny_settings))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def train(here, command):
    """Return a function that trains here and returns (exit code, stdout, stderr)."""

    def call(*arguments, recipe="r.yaml", output="out"):
        return command("train", recipe, "--output", output, *arguments)

    return call


def refused(result, *messages):
    code, out, err = result
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    errors = [line for line in err.splitlines() if line.startswith("sentsmith: error: ")]
    assert len(errors) == 1
    assert err.endswith(errors[0] + "\n")
    for message in messages:
        assert message in errors[0]


def test_a_line_of_result_and_the_log_apart(train, here):
    code, out, err = train("--set", "training.max_steps=1", "--set", "data.held_out=0.1")
    assert code == 0
    assert out.startswith("out: simcse on 54 rows, ")
    assert ", checkpoint of step " in out
    assert out.count("\n") == 1
    assert "step 1/1: loss" in err
    assert SentenceTransformer(str(here / "out"), device="cpu", local_files_only=True).encode("a dog .").shape == (32,)


def test_json_is_the_record_and_nothing_else(train, here):
    code, out, err = train("--json", "--set", "training.max_steps=1")
    assert code == 0
    assert json.loads(out) == json.loads((here / "out" / "run.json").read_text())
    assert "step 1/1" in err


def test_quiet_leaves_the_warnings(train):
    code, out, err = train("--quiet", "--set", "training.max_steps=1", "--set", "training.select=last")
    assert code == 0
    assert out.count("\n") == 1
    lines = [line for line in err.splitlines() if "Loading weights" not in line and "Writing model" not in line]
    assert [line for line in lines if line] == [line for line in lines if "was not audited" in line]


BAD = {
    "empty.txt": b"",
    "blank.txt": b"\n\n  \n",
    "binary.txt": b"\x7fELF\x02\x01\x00\x00\x00",
    "latin.txt": "a dog .\nein größerer Hund .\n".encode("latin-1"),
    "nul.txt": b"a dog .\na \0 cat .\n",
    "picture.png": b"\x89PNG",
    "cut.txt.gz": b"\x1f\x8b\x08\x00\x00",
    "numbers.csv": b"a,b\n1,2\n3,4\n",
}


@pytest.mark.parametrize(
    ("name", "messages"),
    [
        ("none.txt", ["none.txt: does not exist"]),
        ("empty.txt", ["empty.txt: is empty"]),
        ("blank.txt", ["blank.txt: is empty"]),
        ("binary.txt", ["binary.txt, row 1: holds a NUL byte: a binary file"]),
        ("latin.txt", ["latin.txt, row 2: ", "not UTF-8"]),
        ("nul.txt", ["nul.txt, row 2: holds a NUL byte"]),
        ("picture.png", ["is of an unknown kind"]),
        ("cut.txt.gz", ["gzip"]),
        ("numbers.csv", ["numbers.csv: has no column", "name the one to read: a, b"]),
        ("folder", ["folder: the folder holds no .txt"]),
        ("long.txt", ["long.txt, row 1: the line is longer than 1,048,576 bytes"]),
    ],
)
def test_bad_data(train, here, name, messages):
    for file, content in BAD.items():
        (here / file).write_bytes(content)
    (here / "folder").mkdir()
    (here / "folder" / "readme").write_text("x")
    with (here / "long.txt").open("wb") as stream:
        # One line of 50 MB that takes no room: a hole is read as NUL bytes, so the first megabytes are letters.
        stream.write(b"a" * (2 << 20))
        stream.truncate(50 << 20)
    refused(train("--set", f"data.train={name}"), *messages)
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (b"anchor,positive\na,b\n", ["needs the columns anchor, positive, negative or sent0, sent1, hard_neg"]),
        (b"anchor,positive,negative\na dog .,,a cat .\n", ["t.csv, row 2: "]),
        (b'anchor,positive,negative\na,b,"c\n', ["t.csv, row 2: is not CSV"]),
    ],
)
def test_bad_triplets(train, here, text, messages):
    (here / "t.csv").write_bytes(text)
    refused(train("--set", "simcse.rows=triplets", "--set", "data.train=t.csv"), *messages)
    assert not (here / "out").exists()


@pytest.mark.parametrize(
    ("text", "messages"),
    [
        (b"sentence1,sentence2,score\na,b,2\nc,d,5.5\n", ["dev.csv, row 3: gold score '5.5' is no number from 0 to 5"]),
        (b"sentence1,sentence2,score\na,b,much\n", ["dev.csv, row 2: gold score 'much'"]),
        (b"", ["dev.csv: is empty"]),
        (b"one\ntwo\n", ["dev.csv, row 1: is no file of scored pairs"]),
        (b"\x00\x01\x02", ["dev.csv"]),
        (None, ["dev.csv"]),
    ],
)
def test_bad_dev_files(train, here, text, messages):
    if text is not None:
        (here / "dev.csv").write_bytes(text)
    refused(train("--set", "data.dev=dev.csv"), *messages)
    assert not (here / "out").exists()


def test_bad_settings(train, here):
    refused(train("--set", "training.learing_rate=1"), "did you mean 'training.learning_rate'?")
    refused(train("--set", "training.learning_rate"), "write it as key=value")
    refused(train("--set", "training.learning_rate=-1"), "greater than 0", "(given: -1)")
    refused(train(recipe="simcse-smal"), "did you mean 'simcse-small'?")
    (here / "bad.yaml").write_text("method: [simcse\n")
    refused(train(recipe="bad.yaml"), "bad.yaml, row 2: ")
    assert not (here / "out").exists()


def test_bad_models(train, here, tiny_bert):
    refused(train("--set", "model=./none"), "none: no such folder")
    refused(train("--set", "model=r.yaml"), "r.yaml: is a file; a model is a folder, a hub name, or 'minilm'")
    (here / "m").mkdir()
    refused(train("--set", "model=m"), "m: holds no model")
    (here / "m" / "config.json").write_bytes((tiny_bert / "config.json").read_bytes())
    refused(train("--set", "model=m"), "m: is a model folder without weights")
    code, _, err = train("--set", "model=nobody/nothing-like-this")
    assert code == 1
    assert "would come from the model hub, which cannot be reached" in err
    assert not (here / "out").exists()


def test_bad_outputs(train, here):
    (here / "file").write_text("x")
    refused(train(output="file"), "file: is a file; give a folder for the model")
    refused(train(output="file/below"), "is a file")
    refused(train(output="."), "is not empty; give another folder")
    refused(train("--resume", output="."), "is not empty; give another folder")
    assert (here / "file").read_text() == "x"


def test_a_disk_that_is_full(here, sentsmith_process):
    """No file may grow past 20 kB: neither checkpoint nor model can be written whole."""
    limit = """
            import resource, signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, 20_000))
    """
    for save_steps in (1, 500):
        name = f"out-{save_steps}"
        sets = ("--set", f"training.save_steps={save_steps}", "--set", "data.held_out=0.1")
        command = sentsmith_process("train", "r.yaml", "-o", name, *sets, cwd=here, before=limit).wait()
        assert command.returncode == 1, command.stderr
        assert "Traceback" not in command.stderr
        assert command.stderr.splitlines()[-1].startswith("sentsmith: error: the disk is full")
        assert not (here / name / "run.json").exists()
        assert not (here / name / "model.safetensors").exists()


def test_ctrl_c_and_going_on(here, sentsmith_process, train, tiny_bert):
    # A number at which the run waits, so that the signal finds it in the middle of training.
    before = """
            import pathlib, time
            from sentsmith.training.trainer import LossLog
            def on_log(self, args, state, control, **kwargs):
                if state.global_step == 3:
                    pathlib.Path("reached").touch()
                    time.sleep(100)
            LossLog.on_log = on_log
    """
    sets = ("--set", "training.save_steps=2")
    command = sentsmith_process("train", "r.yaml", "--output", "out", *sets, cwd=here, before=before)
    command.wait_for((here / "reached").exists)
    command.interrupt()
    assert command.returncode == 1
    assert "Traceback" not in command.stderr
    assert command.stderr.splitlines()[-1].startswith("sentsmith: error: interrupted; ")
    assert [path.name for path in (here / "out").iterdir()] == ["work"]
    refused(train(*sets), "go on with --resume")
    code, out, err = train(*sets, "--resume")
    assert code == 0, err
    assert "going on after step 2" in err
    assert out.startswith("out: simcse on 60 rows")
    assert json.loads((here / "out" / "run.json").read_text())["speed"]["steps"] == 4
