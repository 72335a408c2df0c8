"""STS: the readers, the "all" aggregation, and the published values of MiniLM."""

import logging
import os
import shutil
from pathlib import Path

import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.pairs import read_scored_pairs
from sentsmith.evaluation.similarity import spearman
from sentsmith.evaluation.sts import all_aggregation, load_part, load_sts, load_sts_dev, score_pairs

# Worked numbers: two subsets whose scales differ.
GOLD = ([0, 1, 2, 3], [5, 4, 4, 0, 1])
PREDICTED = ([0.1, 0.3, 0.2, 0.4], [0.35, 0.3, 0.25, 0.15, 0.05])


def test_all_aggregation_is_one_correlation_over_all_subsets():
    per = [spearman(p, g) for p, g in zip(PREDICTED, GOLD, strict=True)]
    assert per == pytest.approx([0.8, 0.872082], abs=1e-6)
    assert all_aggregation(PREDICTED, GOLD) == pytest.approx(0.69494, abs=1e-6)
    assert np.mean(per) == pytest.approx(0.836041, abs=1e-6)


def test_seven_tasks_with_all_their_subsets(sts_dir):
    tasks = load_sts(sts_dir)
    assert list(tasks) == ["STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR"]
    assert [subset.name for subset in tasks["STS13"].subsets] == ["FNWN", "OnWN", "headlines"]
    first = tasks["STS12"].subsets[0].pairs
    assert first.sentences1 == ("a dog runs", "red car")
    assert first.gold.tolist() == [4.5, 0.2]
    assert first.skipped == 1
    assert tasks["STSB"].subsets[0].pairs.sentences2[0] == "A dog, a test, runs."
    assert tasks["SICKR"].subsets[0].pairs.sentences1[0] == "A test_annotated dog"


def test_dev_parts_hold_nothing_of_the_tests(sts_dir):
    for folder in (sts_dir / "sts").glob("STS1*"):
        shutil.rmtree(folder)
    (sts_dir / "sts" / "STSBenchmark" / "test.csv").unlink()
    (sts_dir / "sts" / "SICK" / "SICK_test_annotated.txt").unlink()
    tasks = load_sts_dev(sts_dir)
    assert [(name, task.part) for name, task in tasks.items()] == [("STSB-dev", "dev"), ("SICKR-dev", "dev")]
    assert "A trial dog" in set(tasks["SICKR-dev"].texts())


def test_train_part_and_unknown_parts(sts_dir):
    assert "A dog, a train, runs." in set(load_part(sts_dir, "STSB", "train").texts())
    with pytest.raises(InputError, match="no part 'trial' of 'SICKR'"):
        load_part(sts_dir, "SICKR", "trial")


def test_a_task_tells_how_its_score_came_about(sts_dir, bag_of_words):
    task = load_sts(sts_dir)["STS12"]
    result = task.score(Embedded(task.texts(), bag_of_words))
    assert result["score"] > 80
    assert (result["rows"], result["rows_without_gold"], result["aggregation"]) == (10, 5, "all")
    assert result["subsets"]["MSRpar"] == {"spearman": pytest.approx(100), "rows": 2}


def test_constant_predictions_score_zero_with_a_warning(sts_dir, constant, caplog):
    task = load_sts(sts_dir)["STS12"]
    with caplog.at_level(logging.WARNING):
        assert task.score(Embedded(task.texts(), constant))["score"] == 0.0
    assert "all the same" in caplog.text


def test_gold_without_input_and_input_without_gold_are_skipped_and_said(sts_dir, caplog):
    folder = sts_dir / "sts" / "STS13-en-test"
    (folder / "STS.gs.SMT.txt").write_text("1.0\n")
    (folder / "STS.input.new.txt").write_text("a\tb\n")
    with caplog.at_level(logging.INFO):
        task = load_sts(sts_dir)["STS13"]
    assert task.skipped_files == (
        "STS.gs.SMT.txt: no STS.input.SMT.txt beside it",
        "STS.input.new.txt: no STS.gs.new.txt beside it",
    )
    assert "no STS.input.SMT.txt beside it; skipped" in caplog.text
    assert len(task.subsets) == 3
    assert not task.missing


def test_a_missing_subset_is_said(sts_dir, caplog):
    (sts_dir / "sts" / "STS16-en-test" / "STS.gs.headlines.txt").unlink()
    task = load_sts(sts_dir)["STS16"]
    assert task.missing == ("headlines",)
    assert "STS16 lacks headlines: its score does not compare" in caplog.text


@pytest.mark.parametrize("score", ["5.001", "-0.1", "nan", "inf", "good"])
def test_gold_out_of_range_names_file_and_row(sts_dir, score):
    file = sts_dir / "sts" / "STS14-en-test" / "STS.gs.images.txt"
    file.write_text(f"\n{score}\n1\n")
    with pytest.raises(InputError, match=rf"STS.gs.images.txt, row 2: gold score '{score}' is no number from 0 to 5"):
        load_sts(sts_dir)


def test_files_of_different_length_are_an_error(sts_dir):
    (sts_dir / "sts" / "STS14-en-test" / "STS.gs.images.txt").write_text("1\n2\n")
    with pytest.raises(InputError, match=r"has 2 lines and STS.input.images.txt has 3"):
        load_sts(sts_dir)


def test_a_row_with_one_sentence_is_an_error_only_with_gold(sts_dir):
    file = sts_dir / "sts" / "STS14-en-test" / "STS.input.images.txt"
    file.write_text("a\tb\nc\td\nalone\n")
    load_sts(sts_dir)
    file.write_text("a\tb\nalone\ne\tf\n")
    with pytest.raises(InputError, match=r"STS.input.images.txt, row 2: has no two sentences"):
        load_sts(sts_dir)


def test_missing_folders_are_all_named_with_the_layout(sts_dir):
    shutil.rmtree(sts_dir / "sts" / "STS15-en-test")
    shutil.rmtree(sts_dir / "sts" / "SICK")
    message = r"missing STS15-en-test, SICK/SICK_test_annotated.txt; expected SentEval's layout"
    with pytest.raises(InputError, match=message):
        load_sts(sts_dir)
    with pytest.raises(InputError, match=r"missing SICK/SICK_trial.txt"):
        load_sts_dev(sts_dir)
    with pytest.raises(InputError, match=r"no such folder; --data-dir must hold sts/"):
        load_sts(sts_dir / "sts")


def test_an_empty_year_is_an_error(sts_dir):
    for file in (sts_dir / "sts" / "STS15-en-test").iterdir():
        file.unlink()
    with pytest.raises(InputError, match=r"STS15-en-test: no STS\.input\.NAME\.txt"):
        load_sts(sts_dir)


def test_score_pairs_embeds_each_sentence_once(sts_dir, bag_of_words):
    pairs = read_scored_pairs(sts_dir / "sts" / "STSBenchmark" / "dev.csv")
    assert score_pairs(bag_of_words, pairs) == pytest.approx(1.0)
    assert len(bag_of_words.calls) == 1
    assert len(bag_of_words.calls[0]) == len(set(bag_of_words.calls[0])) == 4


def _development_data() -> Path:
    beside = Path(__file__).parents[2].parent / "shared" / "data"
    folder = Path(os.environ.get("SENTSMITH_DATA", beside))
    if not (folder / "sts").is_dir():
        pytest.skip("the development data is not here (SENTSMITH_DATA names its folder)")
    return folder


@pytest.mark.slow
def test_minilm_scores_what_its_makers_published():
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load
    from sentsmith.evaluation.suite import evaluate

    result = evaluate(as_encoder(load("minilm")), suites=["sts"], data_dir=_development_data(), name="minilm")
    expected = {
        "STS12": 72.37,
        "STS13": 80.60,
        "STS14": 75.59,
        "STS15": 85.39,
        "STS16": 78.99,
        "STSB": 82.03,
        "SICKR": 77.15,
    }
    assert {name: round(score, 2) for name, score in result["scores"].items()} == expected
    assert result["averages"]["sts"] == pytest.approx(np.mean(list(expected.values())), abs=0.006)
    tasks = result["details"]["tasks"]
    assert [tasks[f"STS{year}"]["rows"] for year in range(12, 17)] == [3108, 1500, 3750, 3000, 1186]
    assert tasks["STS13"]["skipped_files"] == ["STS.gs.SMT.txt: no STS.input.SMT.txt beside it"]
