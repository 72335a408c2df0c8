"""Round-trip translation to a file: in order, counted, resumable, and never half-finished under its final name."""

from __future__ import annotations

import io
import json
import sys

import pytest

from sentsmith.corpus.reading import read_rows, read_translations
from sentsmith.errors import InputError, SentsmithError
from sentsmith.llm import echoes
from sentsmith.llm.echoes import Echoes, translate_path, write_echoes
from sentsmith.llm.translation import MarianTranslator

KEY = {"data": "d", "models": ["a", "b"]}


class Word:
    """Translates by putting a word in front; fails after so many calls."""

    def __init__(self, word, calls=10**9):
        self.word, self.left, self.seen = word, calls, []

    def translate(self, sentences):
        if self.left == 0:
            raise KeyboardInterrupt
        self.left -= 1
        self.seen += sentences
        return [f"{self.word} {sentence}" for sentence in sentences]


class Table:
    """Translates by a table, and what is not in it to itself."""

    def __init__(self, **table):
        self.table = table

    def translate(self, sentences):
        return [self.table.get(sentence, sentence) for sentence in sentences]


@pytest.fixture(autouse=True)
def small_blocks(monkeypatch):
    monkeypatch.setattr(echoes, "_BLOCK", 4)


def lines(count):
    return [f"sentence {i}" for i in range(count)]


def expected(count):
    return [{"sentence": f"sentence {i}", "echo": f"back there sentence {i}"} for i in range(count)]


def write(target, count, there=None, back=None, *, key=KEY, **options):
    return write_echoes(lines(count), target, there or Word("there"), back or Word("back"), key=key, **options)


def names(folder):
    return sorted(file.name for file in folder.iterdir())


@pytest.mark.parametrize("name", ["o.jsonl", "o.csv", "o.tsv", "o.parquet", "o.jsonl.gz", "o.csv.gz"])
@pytest.mark.parametrize("count", [1, 4, 11])
def test_each_sentence_beside_its_echo(tmp_path, name, count):
    steps = []
    assert write(tmp_path / name, count, advance=steps.append) == Echoes(count, count, 0, 0)
    assert sum(steps) == count
    assert list(read_rows(tmp_path / name)) == expected(count)
    assert [row.echo for row in read_translations(tmp_path / name)] == [row["echo"] for row in expected(count)]
    assert names(tmp_path) == [name]


def test_what_is_no_echo_is_left_out_and_counted(tmp_path):
    sentences = ["A dog.", "A cat.", "Birds!", "A fish.", "A cow.", "A hen."]
    back = Table(
        **{"A dog.": "a DOG", "A cat.": " A\nbig \tcat. ", "Birds!": "", "A fish.": " ...", "A cow.": "An ox."}
    )
    found = write_echoes(sentences, tmp_path / "o.jsonl", Table(), back, key=KEY)
    assert found == Echoes(sentences=6, echoes=2, unchanged=2, empty=2)
    kept = [{"sentence": "A cat.", "echo": "A big cat."}, {"sentence": "A cow.", "echo": "An ox."}]
    assert list(read_rows(tmp_path / "o.jsonl")) == kept


@pytest.mark.parametrize("name", ["o.jsonl", "o.parquet"])
def test_no_echo_at_all(tmp_path, name):
    with pytest.raises(SentsmithError, match=r"5 sentences gave no echo \(5 unchanged, 0 empty") as caught:
        write(tmp_path / name, 5, Table(), Table())
    assert caught.value.exit_code == 1
    assert names(tmp_path) == []


@pytest.mark.parametrize("left", [b"", b'{"sentence": "sentence 8", "ec', b'{"sentence": "sentence 8", "echo": "x"}\n'])
def test_a_stopped_run_goes_on_where_it_was(tmp_path, left):
    target, part = tmp_path / "o.jsonl", tmp_path / "o.jsonl.part"
    with pytest.raises(KeyboardInterrupt):
        write(target, 14, back=Word("back", calls=2))
    assert not target.exists()
    # What a kill in the middle of a write leaves.
    with part.open("ab") as file:
        file.write(left)
    steps, there, back = [], Word("there"), Word("back")
    assert write(target, 14, there, back, advance=steps.append) == Echoes(14, 14, 0, 0)
    assert there.seen == lines(14)[8:]
    assert steps == [8, 4, 2]
    assert list(read_rows(target)) == expected(14)
    assert names(tmp_path) == ["o.jsonl"]


def test_the_counts_are_those_of_all_runs(tmp_path):
    table = {"sentence 0": "", "sentence 1": "sentence 1", "sentence 5": "", "sentence 9": "SENTENCE 9"}

    class Stopping(Word):
        def translate(self, sentences):
            super().translate(sentences)
            return [table.get(sentence, f"an echo of {sentence}") for sentence in sentences]

    with pytest.raises(KeyboardInterrupt):
        write(tmp_path / "o.csv", 10, Table(), Stopping("", calls=2))
    assert write(tmp_path / "o.csv", 10, Table(), Stopping("")) == Echoes(10, 6, 2, 2)


@pytest.mark.parametrize("change", ["key", "torn header", "no header"])
def test_what_cannot_be_taken_up_is_begun_anew(tmp_path, change, caplog):
    target, part = tmp_path / "o.jsonl", tmp_path / "o.jsonl.part"
    with pytest.raises(KeyboardInterrupt):
        write(target, 10, back=Word("back", calls=2))
    whole = part.read_bytes()
    if change == "torn header":
        part.write_bytes(whole[:9])
    elif change == "no header":
        part.write_bytes(whole.partition(b"\n")[2])
    there = Word("other" if change == "key" else "there")
    write(target, 10, there, key={**KEY, "models": ["a", "c"]} if change == "key" else KEY)
    assert there.seen == lines(10)
    assert [row["echo"] for row in read_rows(target)] == [f"back {there.word} {line}" for line in lines(10)]
    assert ("other models, data or settings; starting again" in caplog.text) == (change != "torn header")


def test_the_rest_of_rejected_work_is_nobodys(tmp_path):
    """Work of another key that was stopped before its first block vouches for nothing of the work before it."""
    target = tmp_path / "o.jsonl"
    with pytest.raises(KeyboardInterrupt):
        write(target, 10, back=Word("back", calls=2))
    with pytest.raises(KeyboardInterrupt):
        write(target, 10, Word("other", calls=0), key={"data": "other"})
    there = Word("there")
    write(target, 10, there)
    assert there.seen == lines(10)


def test_a_damaged_line_and_what_follows_is_done_again(tmp_path):
    target, part = tmp_path / "o.jsonl", tmp_path / "o.jsonl.part"
    with pytest.raises(KeyboardInterrupt):
        write(target, 14, back=Word("back", calls=3))
    kept = part.read_bytes().splitlines(keepends=True)
    kept[7] = b"\0" * len(kept[7])
    part.write_bytes(b"".join(kept))
    there = Word("there")
    write(target, 14, there)
    assert there.seen == lines(14)[4:]
    assert list(read_rows(target)) == expected(14)


def test_sentences_are_read_as_they_are_needed(tmp_path):
    there, ahead = Word("there"), []

    def stream():
        for i, line in enumerate(lines(40)):
            ahead.append(i - len(there.seen))
            yield line

    write_echoes(stream(), tmp_path / "o.jsonl", there, Word("back"), key=KEY)
    assert len(ahead) == 40
    assert max(ahead) <= 4


def test_a_finished_output_is_kept_unless_told(tmp_path):
    target = tmp_path / "o.jsonl"
    write(target, 3)
    before = target.read_bytes()
    with pytest.raises(InputError, match="exists; give another name, or --overwrite"):
        write(target, 5)
    with pytest.raises(KeyboardInterrupt):
        write(target, 9, back=Word("back", calls=1), overwrite=True)
    assert target.read_bytes() == before
    assert write(target, 9, overwrite=True).echoes == 9
    assert list(read_rows(target)) == expected(9)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("o.txt", "a .txt file holds one column"),
        ("o.npy", "unknown kind"),
        ("-", "unknown kind"),
        ("d.csv", "is a folder"),
    ],
)
def test_outputs_that_cannot_be(tmp_path, name, message, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "d.csv").mkdir()
    with pytest.raises(InputError, match=message):
        write(name, 3)
    assert names(tmp_path) == ["d.csv"]


def test_nothing_to_translate_leaves_nothing(tmp_path):
    with pytest.raises(InputError, match="there is no sentence to translate"):
        write(tmp_path / "o.csv", 0)
    assert names(tmp_path) == []


# -- with models --------------------------------------------------------------------------------------------------


@pytest.fixture
def folder(tmp_path, sentences, monkeypatch):
    """Return a folder, the current one, with sentences in it."""
    here = tmp_path / "here"
    here.mkdir()
    (here / "s.txt").write_text("\n".join(sentences), encoding="utf-8")
    monkeypatch.chdir(here)
    return here


@pytest.fixture(scope="session")
def round_trip(there, back, sentences):
    """Return what the two models make of each sentence."""
    first, second = (MarianTranslator(model, device="cpu") for model in (there, back))
    return dict(zip(sentences, second.translate(first.translate(sentences)), strict=True))


@pytest.fixture
def translate(command, there, back):
    """Return a function that runs ``sentsmith write translations ARGUMENTS`` with the two models."""
    return lambda *arguments: command("write", "translations", *arguments, "--llm", f"{there},{back}")


@pytest.mark.slow
def test_the_command(folder, translate, sentences, round_trip):
    code, out, err = translate("s.txt", "o.jsonl", "--json", "--quiet")
    assert code == 0, err
    echoed = {sentence: " ".join(echo.split()) for sentence, echo in round_trip.items() if echo.strip(" .,?")}
    said = {"output": "o.jsonl", "sentences": 60, "echoes": len(echoed), "unchanged": 0, "empty": 60 - len(echoed)}
    assert json.loads(out) == said
    assert len(echoed) > 50
    rows = list(read_translations(folder / "o.jsonl"))
    assert [(row.sentence, row.echo) for row in rows] == list(echoed.items())
    assert names(folder) == ["o.jsonl", "s.txt"]
    code, out, err = translate("s.txt", "o.jsonl")
    assert (code, out) == (2, "")
    assert "o.jsonl: exists; give another name, or --overwrite" in err
    code, out, _ = translate("s.txt", "o.jsonl", "--overwrite", "--limit", "6", "--batch-tokens", "40")
    assert code == 0
    assert out == "o.jsonl: 6 echoes of 6 sentences; left out: 0 unchanged, 0 empty or without an end\n"
    assert list(read_translations(folder / "o.jsonl")) == rows[:6]


@pytest.mark.slow
def test_standard_input_a_column_and_beams(folder, translate, sentences, round_trip, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n\n".join(sentences[:4]).encode())))
    assert translate("-", "in.tsv")[0] == 0
    assert [row.echo for row in read_translations("in.tsv")] == [round_trip[sentence] for sentence in sentences[:4]]
    (folder / "t.csv").write_text(f"id,title,text\n1,{sentences[5].replace(',', '')},a dog .\n")
    assert translate("t.csv", "title.csv", "--column", "title")[0] == 0
    assert [row.sentence for row in read_translations("title.csv")] == [sentences[5].replace(",", "")]
    for name, beams in (("greedy.csv", "1"), ("beams.csv", "3")):
        assert translate("s.txt", name, "--limit", "9", "--beams", beams)[0] == 0
    assert (folder / "greedy.csv").read_text() != (folder / "beams.csv").read_text()
    assert names(folder) == ["beams.csv", "greedy.csv", "in.tsv", "s.txt", "t.csv", "title.csv"]


def test_the_key_holds_what_the_echoes_depend_on(folder, there, back, monkeypatch):
    (folder / "s.csv").write_text("a,b\nthe man .,the dog .\n")
    seen = []
    monkeypatch.setattr(echoes, "write_echoes", lambda *_, key, **__: seen.append(key))

    def key(spec=f"{there},{back}", **options):
        translate_path("s.csv", "o.csv", spec, **{"column": "a", "device": "cpu"} | options)
        return json.dumps(seen[-1])

    first = key()
    assert key(batch_tokens=7) == first
    changed = [key(column="b"), key(limit=3), key(num_beams=2), key(max_new_tokens=9), key(f"{back},{there}")]
    (folder / "s.csv").write_text("a,b\nthe man .,the cat .\n")
    assert len({first, *changed, key()}) == 7


@pytest.mark.parametrize(("source", "name"), [("s.txt", "./s.txt"), (".", "o.csv"), (".", "new/o.csv")])
def test_an_output_within_the_input(folder, there, back, source, name):
    with pytest.raises(InputError, match=r"which is read; write it somewhere else|a \.txt file holds one"):
        translate_path(source, name, f"{there},{back}", overwrite=True)
    assert names(folder) == ["s.txt"]


def test_an_output_over_its_input(folder, there, back):
    (folder / "s.csv").write_text("text\na dog .\n")
    with pytest.raises(InputError, match=r"s.csv: lies in s.csv, which is read"):
        translate_path("s.csv", folder / "s.csv", f"{there},{back}", overwrite=True)
    assert (folder / "s.csv").read_text() == "text\na dog .\n"


@pytest.mark.parametrize(
    ("content", "message"),
    [(None, "s.txt: does not exist"), (b"", "s.txt: is empty"), (b"fine\n\xff\n", "s.txt, row 2: byte 1")],
)
def test_bad_sentences(folder, translate, content, message):
    (folder / "s.txt").unlink()
    if content is not None:
        (folder / "s.txt").write_bytes(content)
    code, out, err = translate("s.txt", "o.csv")
    assert (code, out) == (2, "")
    assert message in err.splitlines()[-1]
    assert not (folder / "o.csv").exists()


@pytest.mark.slow
def test_kill_and_go_on(folder, there, back, translate, sentences, round_trip, sentsmith_process, monkeypatch):
    """A process that is killed in the middle leaves a part that the next one finishes to the file of a whole run."""
    (folder / "s.txt").write_text("\n".join(sentences * 6), encoding="utf-8")
    small = "import sentsmith.llm.echoes as e; e._BLOCK = 15"
    arguments = ("write", "translations", "s.txt", "--llm", f"{there},{back}")
    part = folder / "o.jsonl.part"
    running = sentsmith_process(*arguments, "o.jsonl", cwd=folder, before=small)
    running.wait_for(lambda: part.exists() and part.read_bytes().count(b"\n") > 40)
    running.kill()
    assert not (folder / "o.jsonl").exists()
    done = (part.read_bytes().count(b"\n") - 1) // 15 * 15
    assert 30 <= done < 360
    again = sentsmith_process(*arguments, "o.jsonl", cwd=folder, before=small).wait()
    assert again.returncode == 0, again.stderr
    assert f"going on after {done} sentences" in again.stderr
    assert again.stdout.startswith("o.jsonl: ")
    echoed = [(sentence, echo) for sentence, echo in round_trip.items() if echo.strip(" .,?")]
    assert [(row.sentence, row.echo) for row in read_translations("o.jsonl")] == echoed * 6
    monkeypatch.setattr(echoes, "_BLOCK", 15)
    assert translate("s.txt", "whole.jsonl")[0] == 0
    assert (folder / "whole.jsonl").read_bytes() == (folder / "o.jsonl").read_bytes()
    assert names(folder) == ["o.jsonl", "s.txt", "whole.jsonl"]
