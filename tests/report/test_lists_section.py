"""Ranked lists on the report's page."""

import json

import numpy as np
import pytest

from sentsmith.evaluation.lists import ListsTask
from sentsmith.evaluation.suite import measure
from sentsmith.report import lists as module
from sentsmith.report.lists import section
from sentsmith.report.page import render
from sentsmith.report.runs import compare
from sentsmith.report.tables import Delta, Score


class Letters:
    """Counts letters."""

    def encode(self, sentences):
        return np.array([[text.count(letter) for letter in "abcdefg"] for text in sentences], dtype=np.float32)


def summary(score, *, low=0.5):
    positions = np.full((3, 3), low) + (1 - low) * np.eye(3)
    return {
        "score": score,
        "rows": 1200,
        "sentences_per_list": 3.0,
        "distinct_per_list": 2.75,
        "in_order": score / 2,
        "in_order_first": 40.0,
        "positions": positions.tolist(),
    }


def result(low=0.5, **scores):
    """What an evaluation writes of files with these scores; a task's own score stands apart from its details."""
    tasks = {name: {**summary(score, low=low), "random": summary(1.5, low=0.25)} for name, score in scores.items()}
    for details in tasks.values():
        del details["score"]
    return {"scores": {"STSB": 80.0, **scores}, "details": {"tasks": {"STSB": {"rows": 3}, **tasks}}}


@pytest.fixture
def drawn(monkeypatch):
    """Pictures are words: what was asked for."""
    monkeypatch.setattr(module, "positions_map", lambda matrix, name, limits, small: f"{name} {limits} {small}")
    monkeypatch.setattr(module, "first_rows", lambda maps, references, title: f"{title}: {[*maps]} {[*references]}")


def svgs(found):
    return [picture.svg for picture in found.pictures]


def test_one_run_has_a_row_and_a_map_for_each_file_and_its_reference(drawn):
    found = section({"a": result(one=60.0, other=50.0)})
    (table,) = found.tables
    assert table.columns == ("file", "lists", "length", "distinct", "τ", "in order", "first row")
    counts = [1200, Score(3.0, digits=1), Score(2.75, digits=1)]
    assert table.rows == [
        ["one", *counts, Score(60.0), Score(30.0), Score(40.0)],
        ["one, random", *counts, Score(1.5), Score(0.75), Score(40.0)],
        ["other", *counts, Score(50.0), Score(25.0), Score(40.0)],
        ["other, random", *counts, Score(1.5), Score(0.75), Score(40.0)],
    ]
    maps = [f"{name} (0.25, 1.0) True" for name in ("one", "other", "one, random", "other, random")]
    assert svgs(found) == ["How far the lists drift: ['one', 'other'] ['one', 'other']", *maps]
    assert [picture.small for picture in found.pictures] == [False, True, True, True, True]
    assert found.notes == []


def test_runs_stand_beside_each_other_and_are_compared_with_the_first(drawn):
    found = section(
        {"a": result(one=60.0), "none": {"scores": {"STSB": 1.0}}, "b": result(one=62.0, new=10.0, low=0.1)}
    )
    (table,) = found.tables
    assert [row[:2] for row in table.rows] == [
        ["one", "a"], ["one", "b"], ["one, random", "a"], ["one, random", "b"], ["new", "b"], ["new, random", "b"],
    ]  # fmt: skip
    assert table.rows[0][5:] == [Score(60.0), Score(30.0), Score(40.0)]
    assert table.rows[1][5:] == [Score(62.0, Delta(2.0)), Score(31.0, Delta(1.0)), Score(40.0, Delta(0.0))]
    # The reference tells nothing of a run, and the first run has no file "new".
    assert all(cell.delta is None for row in table.rows[2:] for cell in row[3:])
    assert svgs(found) == [
        "How far the lists drift: a: ['one'] ['one']",
        "How far the lists drift: b: ['one', 'new'] ['one', 'new']",
        # A run has one scale; that of another would hide what its own maps show.
        "a: one (0.25, 1.0) True",
        "b: one (0.1, 1.0) True",
        "b: new (0.1, 1.0) True",
        "a: one, random (0.25, 1.0) True",
        "b: one, random (0.1, 1.0) True",
        "b: new, random (0.1, 1.0) True",
    ]


def test_a_page_holds_so_many_maps_and_says_so(drawn):
    files = {f"file{number}": 50.0 for number in range(5)}
    found = section({"a": result(**files)})
    assert len(svgs(found)) == 1 + 8
    assert sum("random" in svg for svg in svgs(found)[1:]) == 3
    assert len(found.tables[0].rows) == 10
    assert found.notes[0].startswith("2 more maps are not shown")


def changed(path, value):
    """A good result with one thing replaced, or taken away."""
    found = result(one=60.0, good=50.0)
    *way, last = path
    place = found
    for step in way:
        place = place[step]
    if value is None:
        del place[last]
    else:
        place[last] = value
    return found


ONE = ("details", "tasks", "one")


@pytest.mark.parametrize(
    ("path", "value"),
    [
        ((*ONE, "positions"), "x"),
        ((*ONE, "positions"), [[1, 2, 3], [1, 2]]),
        ((*ONE, "positions"), [[1, 0.5], [0.5, 1]]),
        ((*ONE, "positions"), [1, 0.5, 0.5]),
        ((*ONE, "positions"), [[1, 0.5, float("nan")]] * 3),
        ((*ONE, "random"), None),
        ((*ONE, "random"), [1]),
        ((*ONE, "random", "positions"), None),
        ((*ONE, "in_order"), None),
        ((*ONE, "in_order"), "high"),
        (("scores", "one"), float("nan")),
    ],
)
def test_a_task_that_is_not_whole_is_passed_over(drawn, path, value):
    found = section({"a": changed(path, value)})
    assert [row[0] for row in found.tables[0].rows] == ["good", "good, random"]


@pytest.mark.parametrize(
    "odd", [{}, {"details": 3}, {"details": {"tasks": [1]}}, {"details": {"tasks": {"a": 3}}}, {"scores": None}]
)
def test_without_lists_there_is_no_section(odd):
    assert section({"a": odd, "b": result()}) is None


def test_what_the_suite_writes_is_on_the_page(tmp_path):
    rows = ("a b c d", "a b c", "a b", "a"), ("e f g", "e f", "e")
    (tmp_path / "run").mkdir()
    measured = measure(Letters(), {"lists": [ListsTask("few <b>", rows)]}, name="letters")
    (tmp_path / "run" / "results.json").write_text(json.dumps(measured))
    page = compare([tmp_path / "run"])
    assert [part.title for part in page.sections] == ["Runs", "Scores", "Ranked lists", "Data and machine"]
    table = page.sections[2].tables[0]
    assert table.rows[0] == ["few <b>", 2, Score(3.5, digits=1), Score(3.5, digits=1), *[Score(100.0)] * 3]
    html = render(page)
    assert "few <b>" not in html
    assert html.count('<figure class="small">') == 2
    assert html.count("<figure>") == 1
    assert "4 rows by 4 columns" in html
