"""The suite ``lists``: files of ranked lists as tasks."""

import json

import numpy as np
import pytest

from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.drift import drift, shuffled_across
from sentsmith.evaluation.lists import SEED, lists_of, load_lists, table
from sentsmith.evaluation.suite import evaluate, evaluate_models, load_suites

LONG = [["a b c d", "a b c", "a b", "a"], ["e f g", "e f", "e"]]
BACK = [["a b c d", "a", "a b", "a b c"]]


@pytest.fixture
def files(tmp_path):
    """Two files of lists, under names of more than letters."""
    paths = tmp_path / "long ones.jsonl", tmp_path / "back.JSONL"
    for path, lists in zip(paths, (LONG, BACK), strict=True):
        path.write_text("".join(json.dumps({"sentences": sentences}) + "\n" for sentences in lists))
    return paths


def test_results_hold_each_file_and_its_random_reference(files, bag_of_words):
    result = evaluate(bag_of_words, suites=["lists"], name="bag", lists=files)
    assert list(result["scores"]) == ["long-ones", "back"]
    assert result["averages"] == {}
    found, details = drift(bag_of_words, LONG), lists_of(result)["long-ones"]
    assert details["score"] == pytest.approx(100 * found.tau.mean())
    assert details["in_order"] == pytest.approx(100 * found.in_order.mean())
    assert details["in_order_first"] == pytest.approx(100 * found.in_order_first.mean())
    assert (details["rows"], details["sentences_per_list"], details["distinct_per_list"]) == (2, 3.5, 3.5)
    assert details["distinct_sentences"] == 7
    np.testing.assert_allclose(details["positions"], found.positions)
    chance = drift(bag_of_words, shuffled_across(LONG, seed=SEED))
    assert details["random"]["seed"] == SEED
    assert details["random"]["score"] == pytest.approx(100 * chance.tau.mean())
    np.testing.assert_allclose(details["random"]["positions"], chance.positions)
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_all_files_share_one_embedding(files, bag_of_words):
    evaluate(bag_of_words, suites=["lists"], name="bag", lists=files)
    assert [sorted(call) for call in bag_of_words.calls] == [sorted({text for row in LONG for text in row})]


def test_lists_stand_beside_another_suite(sts_dir, files, bag_of_words):
    result = evaluate(bag_of_words, suites=["sts-dev", "lists"], name="bag", data_dir=sts_dir, lists=files)
    assert list(result["scores"]) == ["STSB-dev", "SICKR-dev", "long-ones", "back"]
    assert list(result["averages"]) == ["sts-dev"]
    assert list(lists_of(result)) == ["long-ones", "back"]


def test_files_of_one_name_get_names_of_their_own(tmp_path, files):
    others = [tmp_path / name / "back.jsonl" for name in ("x", "y")]
    for other in others:
        other.parent.mkdir()
        other.write_bytes(files[1].read_bytes())
    # A file that is given twice is measured once.
    assert list(load_lists([files[1], *others, files[1]])) == ["back", "back-2", "back-3"]


def test_table_has_a_row_for_the_reference(files, bag_of_words):
    result = evaluate(bag_of_words, suites=["lists"], name="bag", lists=files)
    columns, rows = table([result])
    assert [row[0] for row in rows] == ["long-ones", "long-ones, random", "back", "back, random"]
    # Of the list that comes back, the pairs to the left of a sentence are in order, those to the right are not.
    assert rows[0] == ["long-ones", "2", "3.5", "3.5", "100.00", "100.00", "100.00"]
    assert rows[2] == ["back", "1", "4.0", "4.0", "-100.00", "50.00", "0.00"]
    assert all(len(row) == len(columns) for row in rows)
    assert [row[0] for row in table([result, result | {"model": "other"}])[1]][4] == "other: long-ones"


def test_models_are_drawn_into_their_folders(tmp_path, files, bag_of_words, constant):
    drawn = []
    encoders = {"runs/a": bag_of_words, "runs/b": constant}
    results = evaluate_models(
        list(encoders),
        encoders.get,
        suites=["lists"],
        output=tmp_path / "out",
        lists=files,
        draw=lambda result, _, place: drawn.append((result["model"], place.name)),
    )
    assert drawn == [("runs/a", "a"), ("runs/b", "b")]
    assert results[1]["scores"] == {"long-ones": 0.0, "back": 0.0}
    assert json.loads((tmp_path / "out" / "a" / "results.json").read_text()) == results[0]


def test_lists_and_suite_need_each_other(files):
    with pytest.raises(SettingsError, match="give --lists FILE"):
        load_suites(["lists"])
    with pytest.raises(SettingsError, match="are for the suite 'lists'; add it"):
        load_suites(["sts"], lists=files)


def test_wrong_files_are_errors_that_name_them(tmp_path, files):
    short = tmp_path / "short.jsonl"
    short.write_text('{"sentences": ["a", "b", "c"]}\n{"sentences": ["a", "b"]}\n')
    with pytest.raises(InputError, match=r"short\.jsonl.*ranked list 2 has 2 sentences; three or more"):
        load_lists([files[0], short])
    with pytest.raises(InputError, match=r"none\.jsonl.*does not exist"):
        load_lists([tmp_path / "none.jsonl"])


def test_a_file_called_as_a_task_is_an_error(tmp_path, sts_dir, files):
    named = tmp_path / "STSB-dev.jsonl"
    named.write_bytes(files[0].read_bytes())
    with pytest.raises(SettingsError, match="a file of lists is called 'STSB-dev'"):
        load_suites(["sts-dev", "lists"], data_dir=sts_dir, lists=[named])
    assert list(load_lists([named])) == ["STSB-dev"]
