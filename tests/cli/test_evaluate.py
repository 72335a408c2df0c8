"""``sentsmith evaluate`` from the outside."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from sentsmith.cli.main import app
from sentsmith.errors import InputError, SettingsError


class Letters:
    """Counts letters."""

    def encode(self, sentences):
        rows = [[text.lower().count(letter) for letter in "abcdefghij"] for text in sentences]
        return np.array(rows, dtype=np.float32)


@pytest.fixture
def data(tmp_path, monkeypatch):
    """A data folder with the development parts, and models that count letters instead of loading anything."""
    sts = tmp_path / "data" / "sts"
    (sts / "STSBenchmark").mkdir(parents=True)
    (sts / "STSBenchmark" / "dev.csv").write_text("abc,abd,4\naaa,jjj,0\nab,ac,2\n")
    (sts / "SICK").mkdir()
    (sts / "SICK" / "SICK_trial.txt").write_text(
        "pair_ID\tsentence_A\tsentence_B\trelatedness_score\n1\tabc\tabc\t5\n2\tabc\thij\t1\n"
    )
    monkeypatch.setattr("sentsmith.encoders.loading.load", lambda name: name)
    monkeypatch.setattr("sentsmith.encoders.embedding.as_encoder", lambda model: Letters())
    return tmp_path / "data"


def run(*arguments):
    return CliRunner().invoke(app, ["evaluate", *map(str, arguments)])


def test_one_model_prints_a_row_and_writes_results(data, tmp_path):
    result = run("m", "--suite", "sts-dev", "--data-dir", data, "--output", tmp_path / "out")
    assert result.exit_code == 0, result.output
    assert "STSB-dev" in result.stdout
    assert "avg" in result.stdout
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["model"] == "m"
    assert written["scores"]["SICKR-dev"] == pytest.approx(100)


def test_several_models_get_a_row_and_a_folder_each(data, tmp_path):
    result = run("x/a", "x/b", "--suite", "sts-dev", "--data-dir", data, "--output", tmp_path, "--quiet")
    assert "x/a" in result.stdout
    assert "x/b" in result.stdout
    assert (tmp_path / "a" / "results.json").is_file()
    assert (tmp_path / "b" / "results.json").is_file()


def test_json_is_what_was_written(data, tmp_path):
    result = run("m", "--suite", "sts-dev", "--data-dir", data, "--output", tmp_path, "--json", "--quiet")
    assert json.loads(result.stdout) == json.loads((tmp_path / "results.json").read_text())
    both = run("m", "n", "--suite", "sts-dev", "--data-dir", data, "--output", tmp_path, "--json", "--quiet")
    assert [entry["model"] for entry in json.loads(both.stdout)] == ["m", "n"]


def test_wrong_suite_and_wrong_data_are_errors(data, tmp_path):
    wrong = run("m", "--suite", "sts-dve", "--data-dir", data, "--output", tmp_path)
    assert isinstance(wrong.exception, SettingsError)
    assert "did you mean 'sts-dev'" in str(wrong.exception)
    missing = run("m", "--suite", "sts,sts-dev", "--data-dir", data, "--output", tmp_path)
    assert isinstance(missing.exception, InputError)
    assert "missing STS12-en-test" in str(missing.exception)
    assert wrong.exception.exit_code == missing.exception.exit_code == 2
    assert not (tmp_path / "results.json").exists()


def test_diagnostics_of_a_real_model(data, tmp_path, tiny_bert, monkeypatch):
    monkeypatch.undo()
    dev = "a man sings .,a man sings again .,4.8\na dog runs .,the cat sleeps .,0.5\nred book .,a blue book .,2.5\n"
    (data / "sts" / "STSBenchmark" / "dev.csv").write_text(dev)
    arguments = (tiny_bert, "--suite", "diagnostics", "--data-dir", data, "--output", tmp_path / "out")
    result = run(*arguments, "--sentence", "a small dog", "--tokens", 8)
    assert result.exit_code == 0, result.output
    assert "uniformity" in result.stdout
    found = json.loads((tmp_path / "out" / "results.json").read_text())["diagnostics"]
    assert {"alignment", "uniformity", "e_cls", "e_cls_by_layer", "gmacs", "score_per_gmac", "bands"} <= set(found)
    assert (found["tokens"], found["sentence"], found["notes"]) == (8, "a small dog", [])
    assert len(found["e_cls_by_layer"]) == 2
    assert "small" in (tmp_path / "out" / "attention.svg").read_text()
    assert (tmp_path / "out" / "similarities.svg").is_file()


def test_options_of_diagnostics_without_it_are_an_error(data, tmp_path):
    result = run("m", "--suite", "sts-dev", "--tokens", 8, "--data-dir", data, "--output", tmp_path)
    assert isinstance(result.exception, SettingsError)
    assert "add it to the suites" in str(result.exception)


def test_layers_errors_and_shared_sentences_of_a_real_model(data, tmp_path, tiny_bert, monkeypatch):
    from sentsmith.report.runs import compare

    monkeypatch.undo()
    dev = "a man sings .,a man sings again .,4.8\na dog runs .,the cat sleeps .,0.5\nred book .,a blue book .,2.5\n"
    (data / "sts" / "STSBenchmark" / "dev.csv").write_text(dev)
    (tmp_path / "train.txt").write_text("A dog runs\n")
    arguments = (tiny_bert, "--suite", "layers,errors,sts-dev", "--data-dir", data, "--output", tmp_path / "out")
    result = run(*arguments, "--trained-on", tmp_path / "train.txt")
    assert result.exit_code == 0, result.output
    written = json.loads((tmp_path / "out" / "results.json").read_text())
    assert written["details"]["tasks"]["STSB-dev"]["without_shared"]["left_out"] == 1
    assert written["details"]["seconds"]["layers"] > 0
    for said in ("(2 of 3)", "The best single layer", "last token", "off by"):
        assert said in result.stdout
    svg = (tmp_path / "out" / "layers.svg").read_text()
    assert "last token: 2 points" in svg
    assert "Best single layer: layer" in svg
    titles = {section.title for section in compare([tmp_path / "out"]).sections}
    assert {"Correlation by layer", "Largest errors"} <= titles


def test_training_data_is_for_a_model_and_for_sts(data, tmp_path):
    arguments = ("--data-dir", data, "--output", tmp_path / "out", "--trained-on", tmp_path)
    wrong = run("m", "--suite", "errors", *arguments)
    assert "add one to the suites" in str(wrong.exception)
    llm = run("--llm", "x", *arguments)
    assert isinstance(llm.exception, SettingsError)
    assert "--trained-on" in str(llm.exception)
