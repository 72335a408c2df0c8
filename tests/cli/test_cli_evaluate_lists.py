"""``sentsmith evaluate --suite lists`` from the outside."""

import json
from importlib import resources

import numpy as np
import pytest


class Letters:
    """Counts letters."""

    def encode(self, sentences):
        rows = [[text.lower().count(letter) for letter in "abcdefghij"] for text in sentences]
        return np.array(rows, dtype=np.float32)


@pytest.fixture
def some(tmp_path, monkeypatch):
    """A few lists of the sample that ships, and models that count letters instead of loading anything."""
    monkeypatch.setattr("sentsmith.encoders.loading.load", lambda name: name)
    monkeypatch.setattr("sentsmith.encoders.embedding.as_encoder", lambda model: Letters())
    lines = (resources.files("sentsmith") / "sample" / "rankings-held_out.jsonl").read_text("utf-8").splitlines()
    file = tmp_path / "some lists.jsonl"
    short = [{"sentences": json.loads(line)["sentences"][:4]} for line in lines[:4]]
    file.write_text("".join(json.dumps(row) + "\n" for row in short), encoding="utf-8")
    return file


def test_lists_are_measured_drawn_and_reported(command, some, tmp_path):
    out = tmp_path / "out"
    code, stdout, _ = command("evaluate", "m", "--suite", "lists", "--lists", some, "--output", out)
    assert code == 0
    assert "some-lists, random" in stdout
    assert "Spearman" not in stdout
    found = json.loads((out / "results.json").read_text())
    assert list(found["scores"]) == ["some-lists"]
    assert f"{found['scores']['some-lists']:.2f}" in stdout
    assert sorted(file.name for file in out.iterdir()) == [
        "first-row.svg", "results.json", "some-lists.positions.svg", "some-lists.random.positions.svg",
    ]  # fmt: skip
    assert command("report", out, "--output", tmp_path / "page.html", "--quiet") == (0, "", "")
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "<h2>Ranked lists</h2>" in page
    assert page.count('class="picture"') == 3


def test_json_is_what_was_written(command, some, tmp_path):
    arguments = ("evaluate", "m", "--suite", "lists", "--lists", some, "--output", tmp_path, "--json", "--quiet")
    code, stdout, _ = command(*arguments)
    assert code == 0
    assert json.loads(stdout) == json.loads((tmp_path / "results.json").read_text())


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("m", "--suite", "lists"), "suite 'lists' has nothing to measure: give --lists FILE"),
        (("m", "--suite", "sts", "--lists", "FILE"), "add it to the suites"),
        (
            ("--llm", "x", "--suite", "sts-dev", "--lists", "FILE"),
            "--lists is for the suite lists, which --llm has not",
        ),
    ],
)
def test_lists_and_suite_go_together(command, some, tmp_path, arguments, message):
    given = [str(some) if argument == "FILE" else argument for argument in arguments]
    code, _, stderr = command("evaluate", *given, "--output", tmp_path / "out")
    assert code == 2
    assert message in stderr


def test_a_short_list_is_an_error_before_a_model_is_loaded(command, tmp_path):
    short = tmp_path / "short.jsonl"
    short.write_text('{"sentences": ["a", "b"]}\n')
    code, _, stderr = command(
        "evaluate", "no-model", "--suite", "lists", "--lists", short, "--output", tmp_path / "out"
    )
    assert code == 2
    assert "short.jsonl: ranked list 1 has 2 sentences; three or more are needed" in stderr
