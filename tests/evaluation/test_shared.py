"""Sentences that a test shares with training data: found, warned of, and the score without them."""

import json
import logging

import numpy as np
import pytest

from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.shared import find_shared, hint, shared_with, table
from sentsmith.evaluation.similarity import pearson, spearman
from sentsmith.evaluation.sts import StsSubset, StsTask
from sentsmith.evaluation.suite import evaluate, load_suites

FIRST = ("A man plays the old guitar .", "The dog sleeps near the river", "one two three four five", "red car")
SECOND = ("A child reads a book", "a cat", "six seven eight nine ten", " red car ")


@pytest.fixture
def task():
    halves = [ScoredPairs(FIRST[rows], SECOND[rows], np.array(gold)) for rows, gold in (
        (slice(0, 2), [1.0, 4.0]), (slice(2, 4), [0.5, 5.0]),
    )]  # fmt: skip
    return StsTask("STS12", "test", tuple(StsSubset(str(row), pairs) for row, pairs in enumerate(halves)))


def test_what_is_shared_is_counted_by_kind_and_warned_of(task, tmp_path, caplog):
    (tmp_path / "train.csv").write_text('"a MAN plays the old guitar",something else entirely,3\n"red car",x y z,1\n')
    (tmp_path / "more.jsonl").write_text(
        '{"anchor": "two one three four six", "positive": "five words are here too"}\n'
    )
    found = find_shared({"STS12": task}, [tmp_path / "train.csv", tmp_path / "more.jsonl"])["STS12"]
    assert found.counts == {"sentences": 7, "exact": 1, "normalised": 1, "near": 1}
    assert found.sentences == {FIRST[0], FIRST[2], "red car", " red car "}
    assert "STS12: 3 of 7 sentences are in the training data (1 to the letter, 1 but for case" in caplog.text
    scores = [np.array([0.3, 0.2]), np.array([0.9, 0.1])]
    (told,) = shared_with({"sts": [task]}, [tmp_path / "train.csv"])["sts"]
    plain, details = task.score_of(scores), told.score_of(scores)
    assert "without_shared" not in plain
    assert plain == {key: value for key, value in details.items() if "shared" not in key}
    # Pairs 2 and 3 are left, whose order is wrong.
    assert details["without_shared"] == {
        "score": pytest.approx(-100), "pearson": pytest.approx(-100), "rows": 2, "left_out": 2,
    }  # fmt: skip


def test_other_suites_are_left_as_they_are_and_nothing_may_be_left(task, tmp_path):
    (tmp_path / "all.txt").write_text("\n".join([*FIRST, *SECOND]))
    other = object()
    tasks = shared_with({"sts-hub": [task], "transfer": [other]}, [tmp_path / "all.txt"])
    assert tasks["transfer"] == [other]
    details = tasks["sts-hub"][0].score_of([[0.1, 0.2], [0.3, 0.4]])
    assert details["without_shared"] == {"score": None, "pearson": None, "rows": 0, "left_out": 4}
    result = {"model": "m", "details": {"tasks": {"STS12": details, "MR": {}}}}
    assert table([result, {"model": "n", "details": {"tasks": {"MR": {}}}}]) == (["model", "STS12"], [["m", "–"]])
    assert shared_with({"sts": [task]}, []) == {"sts": [task]}


def test_an_evaluation_tells_both_scores(sts_dir, bag_of_words):
    train = sts_dir / "sts" / "STSBenchmark" / "train.csv"
    dev = [
        ("a dog runs here", "the cat runs", 1.0),
        ("a b c d", "a b c d", 5.0),
        ("e f g", "e f h", 2.0),
        ("i", "j", 4.0),
    ]
    (train.parent / "dev.csv").write_text("".join(f"{one},{two},{gold}\n" for one, two, gold in dev))
    train.write_text('"A dog, runs here.",x,0\n')
    result = evaluate(bag_of_words, suites=["sts-dev"], data_dir=sts_dir, name="bag", trained_on=[train])
    found = result["details"]["tasks"]["STSB-dev"]
    one, two = (bag_of_words.encode([row[side] for row in dev]).astype(float) for side in (0, 1))
    cosines = (one * two).sum(axis=1) / np.linalg.norm(one, axis=1) / np.linalg.norm(two, axis=1)
    gold = [row[2] for row in dev]
    assert result["scores"]["STSB-dev"] == pytest.approx(100 * spearman(cosines, gold))
    assert found["without_shared"]["score"] == pytest.approx(100 * spearman(cosines[1:], gold[1:]))
    assert found["without_shared"]["pearson"] == pytest.approx(100 * pearson(cosines[1:], gold[1:]))
    assert (found["without_shared"]["rows"], found["without_shared"]["left_out"]) == (3, 1)
    assert result["details"]["trained_on"][0]["path"] == str(train)
    assert json.loads(json.dumps(result, allow_nan=False)) == result
    columns, rows = table([result])
    assert columns == ["model", "STSB-dev", "SICKR-dev"]
    assert rows[0][1].endswith(" (3 of 4)")


def test_training_data_that_cannot_be_compared_is_refused(sts_dir, tmp_path):
    with pytest.raises(SettingsError, match="compared with the suites sts and sts-dev; add one"):
        load_suites(["errors"], data_dir=sts_dir, trained_on=[tmp_path])
    with pytest.raises(InputError, match="does not exist"):
        load_suites(["sts-dev"], data_dir=sts_dir, trained_on=[tmp_path / "none.csv"])


@pytest.mark.parametrize(
    ("record", "told"),
    [
        ({"data": {"path": "train.csv", "audit": None}}, True),
        ({"data": {"path": "train.csv", "audit": {"clean": False}}}, True),
        ({"data": {"path": "train.csv", "audit": {"clean": True}}}, False),
        ({"data": None}, False),
        ([], False),
    ],
)
def test_a_run_record_that_names_training_data_is_pointed_out(record, told, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    (tmp_path / "run.json").write_text(json.dumps(record))
    hint(tmp_path)
    hint(tmp_path / "none")
    assert ("was trained on train.csv; --trained-on FILE" in caplog.text) is told
