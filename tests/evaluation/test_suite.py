"""Suites: one embedding for all tasks, results.json, the table."""

import json

import pytest

from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.softmax import ProbeSettings
from sentsmith.evaluation.sts import load_sts
from sentsmith.evaluation.suite import evaluate, evaluate_models, load_suites, table

QUICK = ProbeSettings(folds=3, max_epochs=8, learning_rate=0.02)


def test_results_of_both_suites(sts_dir, transfer_dir, bag_of_words):
    result = evaluate(bag_of_words, suites=["sts", "transfer"], data_dir=sts_dir, name="bag", probe=QUICK)
    scores = result["scores"]
    sts = ["STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR"]
    transfer = ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
    assert list(scores) == [*sts, *transfer]
    assert result["model"] == "bag"
    assert result["averages"] == {
        "sts": pytest.approx(sum(scores[name] for name in sts) / 7),
        "transfer": pytest.approx(sum(scores[name] for name in transfer) / 7),
    }
    details = result["details"]
    assert details["aggregation"] == "all"
    assert details["classifier"] == QUICK.describe()
    assert details["tasks"]["MRPC"]["f1"] > 0
    assert details["versions"]["python"]
    assert details["seconds"]["total"] >= details["seconds"]["embedding"] > 0
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_every_sentence_is_embedded_once_whatever_tasks_it_is_in(sts_dir, transfer_dir, bag_of_words):
    names = ["sts", "sts-dev", "transfer"]
    evaluate(bag_of_words, suites=[*names, "sts"], data_dir=sts_dir, name="bag", probe=QUICK)
    tasks = load_suites(names, data_dir=sts_dir, probe=QUICK)
    every = [text for suite in tasks.values() for task in suite for text in task.texts()]
    assert len(bag_of_words.calls) == 1
    asked = bag_of_words.calls[0]
    assert len(asked) == len(set(asked)) == len(set(every)) < len(every)


def test_the_average_with_whole_sick_has_a_name_of_its_own(sts_dir, bag_of_words, monkeypatch):
    monkeypatch.setattr("sentsmith.evaluation.suite.load_sts_from_hub", lambda: load_sts(sts_dir))
    result = evaluate(bag_of_words, suites=["sts"], name="bag")
    assert list(result["averages"]) == ["sts-hub"]
    assert list(evaluate(bag_of_words, suites=["sts"], data_dir=sts_dir, name="bag")["averages"]) == ["sts"]


def test_the_dev_suite_scores_nothing_of_the_tests(sts_dir, bag_of_words):
    result = evaluate(bag_of_words, suites=["sts-dev"], data_dir=sts_dir, name="bag")
    assert list(result["scores"]) == ["STSB-dev", "SICKR-dev"]
    assert list(result["averages"]) == ["sts-dev"]
    assert not any("test" in text for text in bag_of_words.calls[0])


def test_scores_are_not_rounded_and_the_table_is(sts_dir, bag_of_words):
    result = evaluate(bag_of_words, suites=["sts"], data_dir=sts_dir, name="bag")
    result["scores"]["STS12"] = 72.36789
    columns, rows = table([result, {"model": "other", "scores": {"MR": 1.0}, "averages": {"transfer": 1.0}}])
    assert columns[:2] == ["model", "STS12"]
    assert columns[-2:] == ["avg sts", "avg transfer"]
    assert rows[0][1] == "72.37"
    assert rows[1] == ["other", *["–"] * 7, "1.00", "–", "1.00"]


@pytest.mark.parametrize(
    ("suites", "message"),
    [
        (["transfre"], "unknown suite 'transfre'; did you mean 'transfer'"),
        (["glue-x"], "unknown suite 'glue-x'; known suites: sts, sts-dev, transfer, bitext, captions, diagnostics"),
        ([], "no suite given"),
        (["transfer"], "suite 'transfer' is read from a folder: give --data-dir"),
        (["sts-dev"], "suite 'sts-dev' is read from a folder"),
        (["diagnostics"], "suite 'diagnostics' is read from a folder"),
    ],
)
def test_wrong_suites_are_errors(suites, message):
    with pytest.raises(SettingsError, match=message):
        load_suites(suites)


def test_one_model_and_several(tmp_path, sts_dir, bag_of_words, constant):
    encoders = {"runs/a": bag_of_words, "runs/b": constant}
    one = evaluate_models(["runs/a"], encoders.get, suites=["sts-dev"], data_dir=sts_dir, output=tmp_path / "one")
    assert json.loads((tmp_path / "one" / "results.json").read_text()) == one[0]
    evaluate_models(list(encoders), encoders.get, suites=["sts-dev"], data_dir=sts_dir, output=tmp_path / "two")
    found = {file.parent.name: json.loads(file.read_text()) for file in (tmp_path / "two").rglob("*.json")}
    assert {name: value["model"] for name, value in found.items()} == {"a": "runs/a", "b": "runs/b"}
    assert found["b"]["scores"] == {"STSB-dev": 0.0, "SICKR-dev": 0.0}


def test_models_of_one_name_get_folders_of_their_own(tmp_path, sts_dir, bag_of_words):
    names = ["x/model", "y/model", "y/model"]
    evaluate_models(names, lambda _: bag_of_words, suites=["sts-dev"], data_dir=sts_dir, output=tmp_path / "out")
    folders = sorted(file.parent.name for file in (tmp_path / "out").rglob("results.json"))
    assert folders == ["x-model", "y-model-2", "y-model-3"]


def test_wrong_data_and_output_are_found_before_a_model_is_loaded(tmp_path, sts_dir):
    def never(name):
        raise AssertionError

    with pytest.raises(InputError, match=r"transfer: missing MR/rt-polarity\.pos"):
        evaluate_models(["m"], never, suites=["sts", "transfer"], data_dir=sts_dir, output=tmp_path / "out")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a file where a folder is needed"):
        evaluate_models(["m"], never, suites=["sts"], data_dir=sts_dir, output=tmp_path / "file")
