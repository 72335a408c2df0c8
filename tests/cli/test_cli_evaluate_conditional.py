"""``sentsmith evaluate --suite conditional`` from the outside."""

import json

import pytest

HEADER = "sentence1,sentence2,condition,label\n"
ROWS = ["a dog runs,a cat runs,the animal", "a dog runs,a cat runs,the song", "a red car,a blue car,the old red"]


@pytest.fixture
def files(tmp_path):
    paths = {"dev": tmp_path / "dev.csv", "test": tmp_path / "test.csv"}
    for path, labels in zip(paths.values(), ((1, 5, 2.5), (-1, -1, -1)), strict=True):
        path.write_text(HEADER + "".join(f"{row},{label}\n" for row, label in zip(ROWS, labels, strict=True)))
    return paths


def test_scores_submission_and_report(command, tiny_bert, files, tmp_path):
    out = tmp_path / "out"
    given = [part for file in files.values() for part in ("--conditional", file)]
    code, stdout, _ = command("evaluate", tiny_bert, "--suite", "conditional", *given, "--output", out)
    assert code == 0
    found = json.loads((out / "results.json").read_text())
    assert list(found["scores"]) == ["dev"]
    assert f"{found['scores']['dev']:.2f}" in stdout
    assert "the labels of test are hidden; its 3 predictions are in test.submission.json" in stdout
    assert list(json.loads((out / "test.submission.json").read_text())) == ["0", "1", "2"]
    assert command("report", out, "--output", tmp_path / "page.html", "--quiet") == (0, "", "")
    assert f"{found['scores']['dev']:.2f}" in (tmp_path / "page.html").read_text(encoding="utf-8")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("no-model", "--suite", "conditional"), "suite 'conditional' has nothing to measure: give --conditional FILE"),
        (("no-model", "--suite", "conditional", "--conditional", "BAD"), "bad.csv, row 3: label 7 is out of range"),
        (
            ("no-model", "--suite", "sts", "--conditional", "BAD"),
            "are for the suite 'conditional'; add it to the suites",
        ),
        (("--llm", "x", "--conditional", "BAD"), "--conditional is for the suite conditional, which --llm has not"),
    ],
)
def test_what_is_wrong_is_said_before_a_model_is_loaded(command, tmp_path, arguments, message):
    bad = tmp_path / "bad.csv"
    bad.write_text(HEADER + f"{ROWS[0]},1\n{ROWS[1]},7\n")
    given = [bad if argument == "BAD" else argument for argument in arguments]
    code, _, stderr = command("evaluate", *given, "--output", tmp_path / "out")
    assert code == 2
    assert message in stderr
