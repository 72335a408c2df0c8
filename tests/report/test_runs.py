import json

import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation.suite import measure
from sentsmith.report.page import render
from sentsmith.report.runs import compare, read_run
from sentsmith.report.tables import NOT_RECORDED, Delta, Score


def record(**changes):
    return {
        "kind": "training",
        "method": "simcse",
        "status": "finished",
        "created": "2026-01-01T10:00:00+00:00",
        "commit": None,
        "settings": {"model": "minilm", "training": {"batch_size": 64, "learning_rate": 3e-5}},
        "versions": {"python": "3.11.7"},
        "hardware": {"cpu": "a cpu", "gpu": None},
        "data": {"path": "t.jsonl", "rows": 1679, "audit": None},
        "seconds": {"train": 63.25},
        "selection": {
            "metric": "spearman",
            "source": "held-out",
            "best_step": 20,
            "best_score": 84.25,
            "history": [
                {"step": 0, "score": 80.5},
                {"step": 20, "score": 84.25},
                {"step": 40, "score": None},
            ],
        },
        "loss": [{"step": 1, "loss": 1.5}, {"step": 2, "loss": 0.75}],
        "warnings": ["no audit <b>was</b> done"],
        **changes,
    }


class Fixed:
    """A task that always has the same score."""

    name = "fixed"

    def texts(self):
        yield "a sentence"

    def score(self, embedded):
        return {"score": 12.5}


class Ones:
    def encode(self, sentences):
        return np.ones((len(sentences), 2), dtype=np.float32)


def folder(root, name, run=None, results=None):
    place = root / name
    place.mkdir(parents=True)
    if run is not None:
        (place / "run.json").write_text(json.dumps(run), encoding="utf-8")
    if results is not None:
        (place / "results.json").write_text(json.dumps(results), encoding="utf-8")
    return place


def section(page, title):
    return next((section for section in page.sections if section.title == title), None)


def rows(table):
    return {row[0]: list(row[1:]) for row in table.rows}


def test_one_training_run(tmp_path):
    page = compare([folder(tmp_path, "a", record())])
    overview = rows(section(page, "Runs").tables[0])
    assert overview["training time"] == ["63.2 s"]
    assert overview["evaluation time"] == [NOT_RECORDED]
    assert overview["model"] == ["minilm"]
    assert overview["best step"] == ["20"]
    assert [callout.text for callout in section(page, "Runs").callouts] == ["`a`: no audit <b>was</b> done"]
    settings = rows(section(page, "Settings").tables[0])
    assert settings == {
        "model": ["minilm"],
        "training.batch_size": ["64"],
        "training.learning_rate": ["3e-05"],
    }
    origin = rows(section(page, "Data and machine").tables[0])
    assert origin["data.audit"] == [NOT_RECORDED]
    assert origin["data.rows"] == ["1679"]
    loss, dev = (picture.svg for picture in section(page, "Training curves").pictures)
    assert "2 points, 1.5 at 1, 0.75 at 2" in loss
    assert "2 points, 80.5 at 0, 84.25 at 20" in dev
    assert "chosen: step 20" in dev
    html = render(page)
    assert "84.25" in html
    assert "no audit &lt;b&gt;was&lt;/b&gt; done" in html


def test_runs_are_compared_with_the_first(tmp_path):
    one = folder(
        tmp_path,
        "one",
        record(),
        {"model": "m", "scores": {"STS12": 72.0, "MR": 80.0}, "averages": {"sts": 72.0}},
    )
    changed = record(settings={"model": "minilm", "training": {"batch_size": 64, "learning_rate": 1e-5}})
    two = folder(
        tmp_path,
        "two",
        changed,
        {"model": "m", "scores": {"STS12": 73.5, "MR": 79.0}, "averages": {"sts": 73.5}},
    )
    page = compare([one, two])
    averages, tasks = section(page, "Scores").tables
    assert rows(tasks) == {
        "STS12": [Score(72.0), Score(73.5, Delta(1.5))],
        "MR": [Score(80.0), Score(79.0, Delta(-1.0))],
    }
    assert rows(averages)["sts"] == [Score(72.0), Score(73.5, Delta(1.5))]
    # A fall is said in words, too.
    (warning,) = section(page, "Scores").callouts
    assert warning.text == "Below `one`: MR of `two` (−1.00)."
    different, same = section(page, "Settings").tables
    assert rows(different) == {"training.learning_rate": ["3e-05", "1e-05"]}
    assert rows(same) == {"model": ["minilm"], "training.batch_size": ["64"]}
    assert same.folded
    # The same warning of both runs is shown once.
    assert [callout.text for callout in section(page, "Runs").callouts] == ["`one`, `two`: no audit <b>was</b> done"]


def test_what_an_evaluation_writes_is_read(tmp_path):
    results = measure(Ones(), {"sts": [Fixed()]}, name="my model")
    results["details"]["seconds"]["total"] = 240.0
    page = compare([folder(tmp_path, "e", results=results)])
    overview = rows(section(page, "Runs").tables[0])
    assert overview["evaluation time"] == ["4.0 min"]
    assert overview["model"] == ["my model"]
    averages, tasks = section(page, "Scores").tables
    assert rows(averages) == {"sts": [Score(12.5)]}
    assert rows(tasks) == {"fixed": [Score(12.5)]}
    origin = rows(section(page, "Data and machine").tables[0])
    assert origin["versions.python"] == [results["details"]["versions"]["python"]]


def test_diagnostics_are_shown_beside_each_other(tmp_path):
    one = {"alignment": 0.25, "e_cls": None, "gmacs": 0.5, "tokens": 32, "notes": ["no E_CLS: <b>no</b> encoder"]}
    two = {"alignment": 0.125, "e_cls": 0.4, "e_cls_by_layer": [0.5, 0.3], "bands": {"4–5": {"mean": 0.9}}, "notes": []}
    places = [folder(tmp_path, name, results={"diagnostics": found}) for name, found in (("a", one), ("b", two))]
    found = section(compare(places), "Diagnostics")
    assert rows(found.tables[0]) == {
        "alignment": [Score(0.25, digits=3), Score(0.125, digits=3)],
        "E_CLS, mean over layers": [NOT_RECORDED, Score(0.4, digits=3)],
        "GMACs for one sentence": [Score(0.5, digits=3), NOT_RECORDED],
        "its tokens": [32, NOT_RECORDED],
        "mean cosine, gold 4–5": [NOT_RECORDED, Score(0.9, digits=3)],
    }
    assert found.notes == ["`a`: no E_CLS: <b>no</b> encoder"]
    assert "0.5 at 1, 0.3 at 2" in found.pictures[0].svg
    assert "<b>no</b>" not in render(compare(places))
    odd = folder(tmp_path, "c", results={"diagnostics": {"bands": [1], "e_cls_by_layer": "x", "notes": 3}})
    assert section(compare([odd]), "Diagnostics") is None


def test_an_evaluation_alone_has_no_curves_and_no_settings(tmp_path):
    page = compare([folder(tmp_path, "e", results={"model": "minilm", "scores": {"STSB": 82.03}})])
    assert section(page, "Training curves") is None
    assert section(page, "Settings") is None
    assert rows(section(page, "Scores").tables[0]) == {"STSB": [Score(82.03)]}
    assert rows(section(page, "Runs").tables[0])["method"] == [NOT_RECORDED]
    assert "not recorded" in render(page)


def test_a_score_that_one_run_lacks_is_not_recorded(tmp_path):
    one = folder(tmp_path, "one", results={"scores": {"STSB": 82.0}})
    two = folder(tmp_path, "two", results={"scores": {"STSB": 83.0, "MR": 70.0}})
    assert rows(section(compare([one, two]), "Scores").tables[0])["MR"] == [NOT_RECORDED, Score(70.0)]


@pytest.mark.parametrize(
    "odd",
    [
        {},
        {"selection": None, "loss": None, "scores": None, "warnings": None},
        {
            "selection": [],
            "loss": {"step": 1},
            "scores": [1, 2],
            "warnings": "text",
            "seconds": 3,
            "settings": "x",
        },
        {
            "loss": [1, None, {"step": "a", "loss": 1}, {"step": 1}],
            "selection": {"history": [{}], "best_step": "x"},
        },
        {"scores": {"a": float("nan"), "b": True, "c": "text"}, "model": {"other": 1}},
        {"status": "running", "settings": {"a": [1, {"b": None}]}},
    ],
)
def test_odd_records_are_read_leniently(tmp_path, odd):
    html = render(compare([folder(tmp_path, "a", odd), folder(tmp_path, "b", record())]))
    assert "not recorded" in html


def test_a_run_that_did_not_finish_is_said(tmp_path):
    page = compare([folder(tmp_path, "a", record(status="interrupted", warnings=[]))])
    assert [callout.text for callout in section(page, "Runs").callouts] == [
        "`a`: the record says interrupted, not finished."
    ]


def test_folders_of_the_same_name_can_be_told_apart(tmp_path):
    page = compare([folder(tmp_path, "x/run", record()), folder(tmp_path, "y/run", record())])
    assert section(page, "Runs").tables[0].columns == ("", "run", "run (2)")


def test_runs_chosen_by_different_measures_do_not_share_a_picture(tmp_path):
    other = record()
    other["selection"] = {**other["selection"], "metric": "negated loss"}
    page = compare([folder(tmp_path, "a", record()), folder(tmp_path, "b", other)])
    assert len(section(page, "Training curves").pictures) == 3


def test_bad_folders(tmp_path):
    with pytest.raises(InputError, match=r"nowhere: does not exist"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(InputError, match=r"empty: holds neither run.json nor results.json"):
        read_run(folder(tmp_path, "empty"))
    file = tmp_path / "file"
    file.touch()
    with pytest.raises(InputError, match="file: is a file"):
        read_run(file)
    for name, data, message in [
        ("broken", b"{", "cannot be read as JSON"),
        ("binary", b"\xff\xfe\x00", "cannot be read as JSON"),
        ("list", b"[1]", "holds a JSON list, not an object"),
        ("deep", b"[" * 100_000, "cannot be read as JSON"),
    ]:
        place = folder(tmp_path, name)
        (place / "results.json").write_bytes(data)
        with pytest.raises(InputError, match=rf"results\.json: {message}"):
            read_run(place)
    with pytest.raises(InputError, match="no run folder"):
        compare([])
