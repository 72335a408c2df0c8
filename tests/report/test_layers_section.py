"""Layers, errors and FREEZE's own findings on the report's page, and the pictures they are drawn as."""

import json

import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation.largest_errors import MOST
from sentsmith.report.bars import score_bars, signed_bars
from sentsmith.report.page import render
from sentsmith.report.pictures import curve
from sentsmith.report.runs import compare
from sentsmith.report.tables import Score


def readout(spearman, layers=None, **more):
    layers = layers or list(range(1, len(spearman) + 1))
    best = layers[spearman.index(max(spearman))]
    return {"layers": layers, "pearson": [value - 1 for value in spearman], "spearman": spearman, "best": best, **more}


def results(pearson=70.0, codes=None):
    miss = {"sentence1": "a <b>dog</b> & co", "sentence2": "x", "gold": 0.0, "fitted": 4.25}
    readouts = {"last": readout([20.0, 30.0, 25.0], norms=[1.0, 2.0, 40.0])}
    return {
        "model": "m",
        "scores": {"STSB": pearson - 2},
        "details": {"tasks": {"STSB": {"pearson": pearson, "without_shared": {"score": pearson - 12.5, "rows": 2}}}},
        "layers": {"task": "STSB-dev", "rows": 9, "readouts": readouts | ({"codes": codes} if codes else {})},
        "errors": {"rows": 9, "spread": 0.75, "too_high": [miss] * MOST, "too_low": []},
    }


def record(**freeze):
    return {"method": "freeze", "settings": {"freeze": {"leave_out": freeze.pop("leave_out", [])}}, "freeze": freeze}


def run(root, name, run=None, results=None):
    place = root / name
    place.mkdir(parents=True)
    for file, value in (("run.json", run), ("results.json", results)):
        if value is not None:
            (place / file).write_text(json.dumps(value), encoding="utf-8")
    return place


def sections(page):
    return {section.title: section for section in page.sections}


def test_the_page_of_a_ladder(tmp_path):
    whole = {"loss": [0.25, 0.5, 100.0], "explained": [0.9, 0.8, 0.75], "bottlenecks": [4, 4, 8]}
    # Layers that are left out have autoencoders all the same.
    small = {"loss": [0.5, 0.5, 0.75], "explained": [0.5, 0.25, 0.5], "bottlenecks": [2, 3, 4]}
    codes = readout([60.0, 81.0], layers=[1, 3], weights=[1.5, -0.5])
    page = compare(
        [
            run(tmp_path, "zero", results=results(60.0)),
            run(tmp_path, "one", record(layers=3, weights=[0.5, 1.0, 2.0], reconstruction=whole), results(65.0)),
            run(tmp_path, "two", record(layers=3, leave_out=[2], reconstruction=small), results(70.0, codes)),
        ]
    )
    found = sections(page)
    # Three runs of one frozen model: their layers are the same, so a picture has one line.
    last, trained = (picture.svg for picture in found["Correlation by layer"].pictures)
    assert "zero and 2 more: 3 points" in last
    assert "highest 30 at 2" in last
    assert "two: 2 points, 60 at 1, 81 at 3" in trained
    best, *every = found["Correlation by layer"].tables
    assert [row[:3] for row in best.rows] == [
        ["zero and 2 more", "last token", "2 of 3"],
        ["two", "trained codes", "3 of 3"],
    ]
    assert every[2].columns[-1] == "trained codes: weight"
    assert every[2].rows[1][-1] is None  # layer 2 was left out
    assert every[2].rows[2][-1] == Score(-0.5, digits=3)
    # The losses span much, so their scale is that of powers.
    loss, share = (picture.svg for picture in found["Reconstruction by layer"].pictures)
    assert ">100<" in loss
    assert "highest 90 at 1" in share
    assert "two: 3 points" in loss
    rows = [[row[:2] for row in table.rows] for table in found["Reconstruction by layer"].tables]
    assert rows == [[[1, 4], [2, 4], [3, 8]], [[1, 2], [2, 3], [3, 4]]]
    (weights,) = (picture.svg for picture in found["Learned layer weights"].pictures)
    assert "one: 3 of them, highest 2.00 at layer 3, lowest 0.50 at layer 1, 0 below zero" in weights
    assert "two: 2 of them, highest 1.50 at layer 1, lowest −0.50 at layer 3, 1 below zero" in weights
    (ladder,) = (picture.svg for picture in found["The ladder"].pictures)
    assert (
        "zero: Pearson 60.00, Spearman 58.00; one: Pearson 65.00, Spearman 63.00; two: Pearson 70.00, Spearman 68.00"
        in ladder
    )
    errors = found["Largest errors"]
    assert [(len(table.rows), table.folded) for table in errors.tables] == [(MOST, True)] * 3
    without = found["Scores"].tables[-1]
    assert without.caption == "Without the sentences that the model was trained on"
    assert without.rows[0][0] == "STSB without"
    html = render(page)
    assert "a &lt;b&gt;dog&lt;/b&gt; &amp; co" in html
    assert "<b>dog" not in html


def test_one_run_shows_everything_open_and_no_ladder(tmp_path):
    found = sections(compare([run(tmp_path, "one", record(layers=3, weights=None), results())]))
    assert "The ladder" not in found
    assert "Reconstruction by layer" not in found
    assert "Learned layer weights" not in found
    (picture,) = found["Correlation by layer"].pictures
    assert "Best single layer: layer 2" in picture.svg
    assert not found["Largest errors"].tables[0].folded


@pytest.mark.parametrize("odd", [3, {}, [], {"readouts": {}}, {"readouts": {"last": {"spearman": []}}}, "text"])
def test_what_only_looks_like_findings_is_passed_over(odd, tmp_path):
    wrong = {
        "freeze": {"layers": odd, "reconstruction": odd, "weights": odd},
        "method": "freeze",
        "settings": {"freeze": {"leave_out": odd}},
    }
    page = compare(
        [
            run(tmp_path, "a", wrong, {"layers": odd, "errors": odd, "details": odd, "scores": odd}),
            run(tmp_path, "b", {"method": "freeze", "freeze": odd, "settings": odd}, {"errors": {"too_high": [odd]}}),
        ]
    )
    assert not {"Correlation by layer", "Largest errors", "The ladder"} & set(sections(page))
    render(page)


def test_weights_of_something_else_than_layers_are_not_drawn(tmp_path):
    summed = record(layers=3, weights=[6.0])  # one weight for the sum of all codes
    assert "Learned layer weights" not in sections(compare([run(tmp_path, "a", summed)]))


def test_bars_and_curves_say_what_they_cannot_draw():
    for bad in ({}, {"a": {}}, {"a": {"x": float("nan")}}, {"a": {"x": 1.0}, "b": {"y": 1.0}}):
        with pytest.raises(InputError, match="nothing to draw for 'T'"):
            score_bars(bad, x_label="x", title="T")
    for bad in ({}, {"a": {}}, {"a": {1: float("inf")}}):
        with pytest.raises(InputError, match="nothing to draw for 'T'"):
            signed_bars(bad, x_label="x", y_label="y", title="T")
    assert "0.01<" in curve({"a": [(1, 0.01), (2, 10), (3, -1)]}, x_label="x", y_label="y", title="T", powers=True)
    with pytest.raises(InputError, match="nothing to draw"):
        curve({"a": [(1, 0.0), (2, -1.0)]}, x_label="x", y_label="y", title="T", powers=True)
    below = score_bars({"a": {"x": -3.0}, "b": {"x": 2.0}}, x_label="x", title="T")
    assert "a: x −3.00; b: x 2.00" in below
