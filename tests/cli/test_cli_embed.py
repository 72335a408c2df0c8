"""``sentsmith embed`` at the edges."""

from __future__ import annotations

import io
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from sentsmith.encoders.loading import load


@pytest.fixture
def embed(tmp_path, monkeypatch, command, tiny_bert):
    """Return a function that embeds in an empty folder and returns (exit code, stdout, stderr)."""
    monkeypatch.chdir(tmp_path)

    def call(*arguments, model=tiny_bert):
        return command("embed", "--model", model, *arguments)

    return call


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def refused(result, *messages):
    code, out, err = result
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    assert err.splitlines()[-1].startswith("sentsmith: error: ")
    assert err.count("sentsmith: error: ") == 1
    for message in messages:
        assert message in err.splitlines()[-1]


def test_a_file(embed, tmp_path, sentences, tiny_bert):
    (tmp_path / "s.txt").write_text("\n".join(sentences), encoding="utf-8")
    code, out, err = embed("s.txt", "v.npy", "--quiet")
    assert (code, out) == (0, "v.npy: 60 vectors\n")
    assert "Traceback" not in err
    vectors = np.load(tmp_path / "v.npy")
    assert abs(vectors - load(tiny_bert, device="cpu").encode(sentences)).max() < 1e-5
    refused(embed("s.txt", "v.npy"), "v.npy: exists; give another name, or --overwrite")
    (tmp_path / "s.txt").write_text(sentences[0], encoding="utf-8")
    assert embed("s.txt", "v.npy", "--overwrite")[:2] == (0, "v.npy: 1 vectors\n")
    assert np.load(tmp_path / "v.npy").shape == (1, 32)
    assert names(tmp_path) == ["s.txt", "v.npy"]


def test_standard_input_and_a_column(embed, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"a dog .\n\na cat .\n")))
    assert embed("-", "v.parquet")[:2] == (0, "v.parquet: 2 vectors\n")
    assert pq.read_table(tmp_path / "v.parquet")["sentence"].to_pylist() == ["a dog .", "a cat ."]
    (tmp_path / "t.csv").write_text("id,title,body\n1,a dog .,a cat sleeps .\n")
    assert embed("t.csv", "w.parquet", "--column", "title")[0] == 0
    assert pq.read_table(tmp_path / "w.parquet")["sentence"].to_pylist() == ["a dog ."]
    refused(embed("t.csv", "x.parquet", "--column", "text"), "t.csv: has no column 'text'; it has: id, title, body")
    assert names(tmp_path) == ["t.csv", "v.parquet", "w.parquet"]


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("none.txt", None, "none.txt: does not exist"),
        ("empty.txt", b"", "empty.txt: is empty"),
        ("nul.txt", b"a\0b\n", "nul.txt, row 1: holds a NUL byte"),
        ("latin.txt", b"a dog .\n\xe4\n", "latin.txt, row 2: byte 1 of the row is 0xe4, which is not UTF-8"),
        ("t.csv", b"id,title\n1,2\n", "t.csv: has no column"),
        ("t.jsonl", b'{"text": 3}\n', "t.jsonl, row 1: column 'text' holds int; text is needed"),
    ],
)
def test_bad_sentences_leave_nothing(embed, tmp_path, name, content, message):
    if content is not None:
        (tmp_path / name).write_bytes(content)
    before = names(tmp_path)
    refused(embed(name, "v.npy"), message)
    assert names(tmp_path) == before


def test_bad_bytes_late_in_the_file_leave_no_finished_output(embed, tmp_path, monkeypatch):
    monkeypatch.setattr("sentsmith.encoders.vectorfile._BLOCK", 10)
    (tmp_path / "s.txt").write_bytes(b"a dog .\n" * 200 + b"\xff\n")
    refused(embed("s.txt", "v.npy"), "s.txt, row 201: ")
    assert not (tmp_path / "v.npy").exists()


def test_bad_outputs_and_options(embed, tmp_path, tiny_bert):
    (tmp_path / "s.txt").write_text("a dog .\n")
    (tmp_path / "file").write_text("x")
    (tmp_path / "d.npy").mkdir()
    refused(embed("s.txt", "v.txt"), "v.txt: cannot write .txt; use .npy or .parquet")
    refused(embed("s.txt", "d.npy"), "d.npy: is a folder")
    refused(embed("s.txt", "file/v.npy"), "is a file")
    refused(embed("s.txt", "v.npy", "--precision", "int3"), "precision 'int3' is unknown; use one of fp32, bf16")
    refused(embed("s.txt", "v.npy", model="./none"), "none: no such folder")
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "config.json").write_bytes((tiny_bert / "config.json").read_bytes())
    refused(embed("s.txt", "v.npy", model="m"), "m: is a model folder without weights")
    code, _, err = embed("s.txt", "v.npy", model="nobody/nothing-like-this")
    assert code == 1
    assert "cannot be reached" in err
    assert names(tmp_path) == ["d.npy", "file", "m", "s.txt"]


@pytest.mark.parametrize("name", ["v.npy", "v.parquet"])
def test_a_disk_that_is_full(tmp_path, sentences, sentsmith_process, tiny_bert, name):
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "s.txt").write_text("\n".join(sentences * 10), encoding="utf-8")
    limit = """
            import resource, signal
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (30_000, 30_000))
    """
    command = sentsmith_process("embed", "s.txt", name, "--model", tiny_bert, cwd=folder, before=limit).wait()
    assert command.returncode == 1, command.stderr
    assert "Traceback" not in command.stderr
    assert command.stderr.splitlines()[-1].startswith("sentsmith: error: the disk is full")
    assert not (folder / name).exists()
    # With room again it finishes.
    assert sentsmith_process("embed", "s.txt", name, "--model", tiny_bert, cwd=folder).wait().returncode == 0
    assert names(folder) == sorted(["s.txt", name])
