from __future__ import annotations

import json
import subprocess
import sys

import pytest

TEST = "A man is playing the guitar."


@pytest.fixture
def run(tmp_path):
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "a.txt").write_text(TEST + "\n")
    (tmp_path / "train.csv").write_text(f'text,label\n"{TEST}",1\n"Another sentence, a clean one.",2\n')

    def call(*arguments, stdin=None):
        code = "from sentsmith.cli.main import main; main()"
        return subprocess.run(
            [sys.executable, "-c", code, "audit", *arguments],
            cwd=tmp_path,
            input=stdin,
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )

    return call


def test_table_record_and_output(run, tmp_path):
    done = run("train.csv", "--against", "tests", "--output", "clean.csv")
    assert done.returncode == 0, done.stderr
    assert "1 of 2 training rows overlap (1 exact, 0 normalised, 0 near)" in done.stdout
    assert "a.txt" in done.stdout
    assert (tmp_path / "clean.csv").read_text() == 'text,label\n"Another sentence, a clean one.",2\n'
    assert json.loads((tmp_path / "train.csv.audit.json").read_text())["clean"] is False
    assert json.loads((tmp_path / "clean.csv.audit.json").read_text())["clean"] is True


def test_json_quiet_and_standard_input(run, tmp_path):
    done = run("-", "--against", "tests", "--json", "--quiet", "--no-near", "--record", "r.json", stdin=f"{TEST}\n")
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    report = json.loads(done.stdout)
    assert report["overlapping"] == {"exact": 1, "normalised": 0, "near": 0}
    assert report["near"] is False
    assert json.loads((tmp_path / "r.json").read_text()) == report


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        (("no.csv", "--against", "tests"), "no.csv: does not exist"),
        (("train.csv", "--against", "none"), "none: does not exist; give the folder of the test sets"),
        (
            ("train.csv", "--against", "tests", "--column", "sentence"),
            "has no column 'sentence'; it has: text, label",
        ),
        (("train.csv", "--against", "tests", "--output", "tests"), "unknown kind"),
    ],
)
def test_wrong_input_is_one_line_and_code_2(run, arguments, reason):
    done = run(*arguments)
    assert done.returncode == 2
    assert reason in done.stderr
    assert "Traceback" not in done.stderr
    assert done.stderr.splitlines()[-1].startswith("sentsmith: error: ")
