"""The studies behind the docs' tables: their rows resolve, and their runner does each once."""

from __future__ import annotations

import json
import sys

import pytest

from sentsmith.methods.registry import load_recipe


@pytest.fixture(scope="module")
def study(study_of):
    """Return the module of JTCSE's study, which finds its runner beside it."""
    return study_of("jtcse")


def rows(study):
    return [*study.FINAL, *study.LOSSES, *study.CROSS, *study.SICK, *study.READOUTS]


def test_every_row_resolves_and_has_a_name_of_its_own(study):
    names = [row.name for row in rows(study)]
    assert len(names) == len(set(names))
    for row in rows(study):
        if row.recipe is not None:
            filled = [text.format(seed=7, data="d", sentences="s.txt", runs="r") for text in row.overrides]
            recipe, _ = load_recipe(row.recipe, filled)
            assert recipe.training.seed == 7


def test_the_eight_rows_of_losses_are_all_different(study):
    on = set()
    for row in study.LOSSES:
        recipe, _ = load_recipe(
            row.recipe, [text.format(seed=1, data="", sentences="s", runs="") for text in row.overrides]
        )
        on.add((recipe.jtcse.nce, recipe.jtcse.icnce, recipe.jtcse.ictm))
    assert len(on) == 8


def test_the_tables_print_what_is_there(study, capsys):
    tasks = ["STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR"]

    cost = {"gmacs": 0.5, "score_per_gmac": 100.0}

    def result(number):
        return {
            "scores": {**dict.fromkeys(tasks, number), "STSB-dev": number + 1},
            "averages": {"sts": number},
            "diagnostics": {"alignment": 0.25, "uniformity": -3.5, "e_cls": number / 100} | cost,
        }

    found = {row.name: [] for row in rows(study)}
    found |= {"start": [result(70.0)], "sum": [result(71.0), result(73.0)], "readout-cls": [result(10.0)]}
    study.show(found)
    printed = capsys.readouterr().out
    assert "| sum | 2 | 72.00 ± 1.41 |" in printed
    assert "| jtcse | 0 | – |" in printed
    assert "| readout-cls | 11.00 | 0.250 | -3.500 | 0.100 |" in printed
    assert "over 3 models: Spearman 1.00" in printed


def test_what_is_finished_is_not_done_again(study, monkeypatch, tmp_path, capsys, sentence_file, tiny_bert):
    """The start row alone: measured once, printed twice."""
    folder = tmp_path / "data" / "sts" / "STSBenchmark"
    folder.mkdir(parents=True)
    sentences = sentence_file.read_text(encoding="utf-8").splitlines()
    lines = [f"{sentences[i]!r},{sentences[i + 20]!r},{i % 6}".replace("'", '"') for i in range(18)]
    (folder / "dev.csv").write_text("sentence1,sentence2,score\n" + "\n".join(lines) + "\n", encoding="utf-8")
    (tmp_path / "data" / "sts" / "SICK").mkdir()
    row = study.Row("start", None, model=str(tiny_bert), suites=("diagnostics",))
    shown = []
    command = [
        "study", "--data-dir", str(tmp_path / "data"), "--sentences", str(sentence_file), "--seeds", "1",
        "--output", str(tmp_path / "runs"),
    ]  # fmt: skip
    monkeypatch.setattr(sys, "argv", command)
    study.run([row], shown.append, study.with_sick)
    result = tmp_path / "runs" / "results" / "start-1" / "results.json"
    written = result.stat().st_mtime_ns
    study.run([row], shown.append, study.with_sick)
    assert result.stat().st_mtime_ns == written
    assert shown[0] == shown[1] == {"start": [json.loads(result.read_text(encoding="utf-8"))]}
    assert "STSB-dev" in shown[0]["start"][0]["scores"]
