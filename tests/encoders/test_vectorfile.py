"""Files of vectors: ordered, lazy, resumable, and never half-finished under their final name."""

from __future__ import annotations

import io
import json
import sys

import numpy as np
import pyarrow.parquet as pq
import pytest

from sentsmith.encoders import vectorfile
from sentsmith.encoders.loading import load
from sentsmith.encoders.vectorfile import embed_file, embed_path
from sentsmith.errors import InputError, SettingsError
from sentsmith.files import write_json

KEY = {"model": "m", "data": "d"}


class Counter:
    """Encodes a sentence as its number and its length; fails after so many calls."""

    def __init__(self, calls=10**9):
        self.left, self.seen = calls, []

    def encode(self, sentences):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.seen += sentences
        return np.array([[float(text.split()[-1]), len(text)] for text in sentences], dtype=np.float32)


def lines(count):
    return [f"sentence {i}" for i in range(count)]


def expected(count):
    return np.array([[i, len(f"sentence {i}")] for i in range(count)], dtype=np.float32)


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(vectorfile, "_BLOCK", 4)


def read(path):
    if path.suffix == ".npy":
        return np.load(path, allow_pickle=False)
    return np.stack(pq.read_table(path)["vector"].to_numpy(zero_copy_only=False))


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
@pytest.mark.parametrize("count", [1, 4, 11])
def test_rows_in_order(tmp_path, name, count):
    steps = []
    found = embed_file(lambda: lines(count), tmp_path / name, Counter(), key=KEY, advance=steps.append)
    assert found == count == sum(steps)
    vectors = read(tmp_path / name)
    assert vectors.dtype == np.float32
    assert (vectors == expected(count)).all()
    if name.endswith("parquet"):
        table = pq.read_table(tmp_path / name)
        assert table["sentence"].to_pylist() == lines(count)
        assert table.schema.field("vector").type.list_size == 2
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, name):
    target = tmp_path / name
    with pytest.raises(KeyboardInterrupt):
        embed_file(lambda: lines(18), target, Counter(calls=3), key=KEY)
    assert not target.exists()
    assert json.loads((tmp_path / f"{name}.part.json").read_text())["rows"] == 12
    # What a kill in the middle of a write leaves: bytes that no state vouches for.
    with (tmp_path / f"{name}.part").open("ab") as part:
        part.write(b"half a row")
    steps, second = [], Counter()
    assert embed_file(lambda: lines(18), target, second, key=KEY, advance=steps.append) == 18
    assert second.seen == lines(18)[12:]
    assert steps == [12, 4, 2]
    assert (read(target) == expected(18)).all()
    assert [file.name for file in tmp_path.iterdir()] == [name]


@pytest.mark.parametrize("change", ["key", "cut part", "no state", "torn state"])
def test_what_cannot_be_taken_up_is_begun_anew(tmp_path, change):
    target = tmp_path / "out.npy"
    with pytest.raises(KeyboardInterrupt):
        embed_file(lambda: lines(10), target, Counter(calls=1), key=KEY)
    part, state = tmp_path / "out.npy.part", tmp_path / "out.npy.part.json"
    if change == "cut part":
        part.write_bytes(part.read_bytes()[:-1])
    elif change == "no state":
        state.unlink()
    elif change == "torn state":
        state.write_text('{"key": ')
    second = Counter()
    embed_file(lambda: lines(10), target, second, key={**KEY, "model": "other"} if change == "key" else KEY)
    assert second.seen == lines(10)
    assert (read(target) == expected(10)).all()


def test_the_state_of_rejected_work_vouches_for_no_other_vectors(tmp_path, monkeypatch):
    class Other(Counter):
        def encode(self, sentences):
            return -super().encode(sentences)

    target = tmp_path / "out.npy"
    with pytest.raises(KeyboardInterrupt):
        embed_file(lambda: lines(10), target, Counter(calls=1), key=KEY)
    # Killed between its first vectors and its first state.
    monkeypatch.setattr(vectorfile, "write_json", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        embed_file(lambda: lines(10), target, Other(), key={**KEY, "model": "other"})
    monkeypatch.setattr(vectorfile, "write_json", write_json)
    third = Counter()
    embed_file(lambda: lines(10), target, third, key=KEY)
    assert third.seen == lines(10)
    assert (read(target) == expected(10)).all()


def test_sentences_are_read_as_they_are_needed(tmp_path):
    encoder, ahead = Counter(), []

    def stream():
        for i, line in enumerate(lines(40)):
            ahead.append(i - len(encoder.seen))
            yield line

    embed_file(stream, tmp_path / "out.npy", encoder, key=KEY)
    assert len(ahead) == 40
    assert max(ahead) <= 4


@pytest.mark.parametrize("name", ["out.npy", "out.parquet"])
def test_a_finished_output_is_kept_unless_told(tmp_path, name):
    target = tmp_path / name
    embed_file(lambda: lines(3), target, Counter(), key=KEY)
    before = target.read_bytes()
    with pytest.raises(InputError, match="exists; give another name, or --overwrite"):
        embed_file(lambda: lines(5), target, Counter(), key=KEY)
    assert target.read_bytes() == before
    with pytest.raises(KeyboardInterrupt):
        embed_file(lambda: lines(5), target, Counter(calls=1), key=KEY, overwrite=True)
    assert target.read_bytes() == before
    embed_file(lambda: lines(5), target, Counter(), key=KEY, overwrite=True)
    assert len(read(target)) == 5


@pytest.mark.parametrize(
    ("name", "message"), [("out.csv", "cannot write .csv"), ("out", "a name without suffix"), (".", "without suffix")]
)
def test_outputs_that_cannot_be(tmp_path, name, message):
    with pytest.raises(InputError, match=message):
        embed_file(lambda: lines(3), tmp_path / name, Counter(), key=KEY)
    (tmp_path / "folder.npy").mkdir()
    with pytest.raises(InputError, match="is a folder"):
        embed_file(lambda: lines(3), tmp_path / "folder.npy", Counter(), key=KEY)


def test_nothing_to_embed_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="there is no sentence to embed"):
        embed_file(list, tmp_path / "out.npy", Counter(), key=KEY)
    assert list(tmp_path.iterdir()) == []


def test_a_file_and_standard_input_give_the_models_vectors(tiny_bert, tmp_path, sentences, monkeypatch):
    (tmp_path / "s.txt").write_text("\n".join(sentences), encoding="utf-8")
    assert embed_path(tmp_path / "s.txt", tmp_path / "file.npy", tiny_bert) == 60
    vectors = read(tmp_path / "file.npy")
    assert abs(vectors - load(tiny_bert, device="cpu").encode(sentences)).max() < 1e-5
    stdin = io.TextIOWrapper(io.BytesIO("\n".join(sentences).encode()))
    monkeypatch.setattr(sys, "stdin", stdin)
    assert embed_path("-", tmp_path / "stdin.parquet", tiny_bert) == 60
    assert (read(tmp_path / "stdin.parquet") == vectors).all()
    assert pq.read_table(tmp_path / "stdin.parquet")["sentence"].to_pylist() == sentences
    assert sorted(file.name for file in tmp_path.iterdir()) == ["file.npy", "s.txt", "stdin.parquet"]


def test_the_key_holds_what_the_vectors_depend_on(tiny_bert, tmp_path, monkeypatch):
    (tmp_path / "s.csv").write_text("a,b\nthe man .,the dog .\n")
    seen = []
    monkeypatch.setattr(vectorfile, "embed_file", lambda *_, key, **__: seen.append(key) or 1)
    for column, precision in (("a", "fp32"), ("b", "fp32"), ("a", "bf16")):
        embed_path(tmp_path / "s.csv", tmp_path / "o.npy", tiny_bert, column=column, precision=precision)
    (tmp_path / "s.csv").write_text("a,b\nthe man .,the cat .\n")
    embed_path(tmp_path / "s.csv", tmp_path / "o.npy", tiny_bert, column="a")
    assert len({json.dumps(key, sort_keys=True) for key in seen}) == 4
    assert {key["model"] for key in seen} == {seen[0]["model"]}


def test_an_unknown_precision(tiny_bert, tmp_path):
    (tmp_path / "s.txt").write_text("a dog .")
    with pytest.raises(SettingsError, match="precision 'fp8' is unknown; use one of fp32, bf16"):
        embed_path(tmp_path / "s.txt", tmp_path / "o.npy", tiny_bert, precision="fp8")


@pytest.mark.slow
def test_kill_and_go_on(tiny_bert, tmp_path, sentences, sentsmith_process):
    """A process that is killed in the middle leaves a part that the next one finishes to the same file."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "s.txt").write_text("\n".join(sentences * 40), encoding="utf-8")
    small = "import sentsmith.encoders.vectorfile as v; v._BLOCK = 60"
    arguments = ("embed", "s.txt", "out.npy", "--model", tiny_bert)
    command = sentsmith_process(*arguments, cwd=folder, before=small)
    state = folder / "out.npy.part.json"
    command.wait_for(lambda: state.exists() and json.loads(state.read_text())["rows"] > 120)
    command.kill()
    assert not (folder / "out.npy").exists()
    done = json.loads(state.read_text())["rows"]
    assert 120 < done < 2_400
    again = sentsmith_process(*arguments, cwd=folder, before=small).wait()
    assert again.returncode == 0, again.stderr
    assert f"going on after {done} rows" in again.stderr
    assert again.stdout == "out.npy: 2400 vectors\n"
    whole = np.load(folder / "out.npy")
    once = load(tiny_bert, device="cpu").encode(sentences)
    assert abs(whole.reshape(40, 60, 32) - once).max() < 1e-5
    assert sorted(file.name for file in folder.iterdir()) == ["out.npy", "s.txt"]
