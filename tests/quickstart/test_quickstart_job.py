"""The main job from end to end on a tiny model: what it leaves, what it says, what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from sentsmith.errors import InputError
from sentsmith.quickstart.job import QUESTIONS, quickstart, sample_folder
from sentsmith.quickstart.measures import NEXT_FIRST, RANKING, TRIPLETS, Comparison, compare

QUICK = ("training.max_steps=2", "training.batch_size=8")


@pytest.fixture(scope="module")
def own_lines(sentences):
    """Return 180 different lines of one sentence each."""
    return [f"The {first[:-2]} {second}." for first in sentences for second in ("again", "never", "quickly")]


@pytest.fixture(scope="module")
def sample_run(tmp_path_factory, tiny_bert):
    """Run the quickstart once on the sample."""
    folder = tmp_path_factory.mktemp("quickstart") / "out"
    return folder, quickstart(folder, overrides=[f"model={tiny_bert}", *QUICK])


def test_it_leaves_a_plain_model_a_record_and_a_page(sample_run):
    folder, outcome = sample_run
    vectors = SentenceTransformer(str(folder / "model"), device="cpu").encode(["a dog eats ."])
    assert vectors.shape == (1, 32)
    summary = json.loads((folder / "quickstart.json").read_text())
    assert [row["name"] for row in summary["measures"]] == [RANKING, TRIPLETS]
    assert summary["model"]["data"]["audit"]["clean"] is True
    page = (folder / "page.html").read_text()
    assert all(question in page for question in QUESTIONS)
    assert f"{outcome.comparisons[1].after:.2f}" in page
    assert "http://" not in page.replace("http://www.w3.org", "")


def test_both_models_are_measured_on_the_same_held_out_items(sample_run):
    _, outcome = sample_run
    assert [row.items for row in outcome.comparisons] == [240, 240]
    assert all(0 <= row.before <= 100 for row in outcome.comparisons)
    assert len(outcome.hits[0]) == len(outcome.hits[1]) == len(QUESTIONS)
    assert outcome.searched > 1500


def test_a_finished_quickstart_is_not_overwritten_untold(sample_run, tiny_bert):
    folder, _ = sample_run
    before = (folder / "page.html").read_bytes()
    with pytest.raises(InputError, match="--overwrite"):
        quickstart(folder, overrides=[f"model={tiny_bert}", *QUICK])
    assert (folder / "page.html").read_bytes() == before


def test_the_sample_is_whole_and_audited():
    from sentsmith.corpus.audit import find_record
    from sentsmith.corpus.reading import read_rankings, read_triplets

    sample = sample_folder()
    assert len(list(read_triplets(sample / "triplets-train.jsonl"))) == 1675
    assert len(list(read_rankings(sample / "rankings-held_out.jsonl"))) == 240
    for name in ("triplets-train.jsonl", "rankings-train.jsonl"):
        record = find_record(sample / name)
        assert record is not None
        assert record["clean"]


def test_own_text_is_split_into_training_and_a_next_sentence_task(tmp_path, tiny_bert, own_lines):
    path = tmp_path / "mine.txt"
    path.write_text("\n".join(own_lines), encoding="utf-8")
    outcome = quickstart(
        tmp_path / "out", sentences=path, questions=["the dog ?"], overrides=[f"model={tiny_bert}", *QUICK]
    )
    assert outcome.comparisons[0].name == NEXT_FIRST
    assert outcome.questions == ["the dog ?"]
    trained_on = set((tmp_path / "out" / "train-sentences.txt").read_text().splitlines())
    assert trained_on
    assert not trained_on & set(own_lines[-20:])
    assert outcome.record["warnings"]  # this text was not audited


@pytest.mark.slow
def test_a_training_that_was_finished_is_not_done_again(tmp_path, sample_run, tiny_bert):
    import shutil

    folder, _ = sample_run
    again = tmp_path / "out"
    shutil.copytree(folder, again)
    (again / "quickstart.json").unlink()
    (again / "page.html").unlink()
    before = (again / "model" / "model.safetensors").stat().st_mtime_ns
    quickstart(again, overrides=[f"model={tiny_bert}", *QUICK])
    assert (again / "page.html").is_file()
    assert (again / "model" / "model.safetensors").stat().st_mtime_ns == before


def test_blank_lines_part_paragraphs_and_lines_are_split(tmp_path, own_lines):
    from sentsmith.quickstart.own_text import read_own_text

    path = tmp_path / "mine.txt"
    end = ["One day it rained. The dog slept.", "", "A bird sang. Nobody heard it. It flew."]
    path.write_text("\n".join([*own_lines, "", *end]), encoding="utf-8")
    text = read_own_text(path)
    assert text.held_out[-2:] == [
        ["One day it rained.", "The dog slept."],
        ["A bird sang.", "Nobody heard it.", "It flew."],
    ]
    assert not set(text.train) & {sentence for paragraph in text.held_out for sentence in paragraph}


def test_a_column_of_plain_text_is_refused(tmp_path, own_lines):
    from sentsmith.quickstart.own_text import read_own_text

    path = tmp_path / "mine.txt"
    path.write_text("\n".join(own_lines), encoding="utf-8")
    with pytest.raises(InputError, match="no columns"):
        read_own_text(path, column="body")
    table = tmp_path / "mine.csv"
    table.write_text("n,body\n" + "".join(f'{n},"{line}"\n' for n, line in enumerate(own_lines)), encoding="utf-8")
    assert read_own_text(table, column="body").train == read_own_text(path).train


@pytest.mark.parametrize(("content", "message"), [("", "empty"), ("one sentence .\n" * 10, "at least 84")])
def test_too_little_text_is_one_clear_error(tmp_path, content, message):
    path = tmp_path / "mine.txt"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match=message):
        quickstart(tmp_path / "out", sentences=path)
    assert not (tmp_path / "out").exists()


def test_a_data_folder_without_sts_is_refused_before_anything_is_trained(tmp_path):
    with pytest.raises(InputError):
        quickstart(tmp_path / "out", data_dir=tmp_path)
    assert not (tmp_path / "out").exists()


def test_compare_tells_better_worse_and_no_clear_change():
    items = np.zeros(50)
    noise = np.where(np.arange(50) % 2, 0.5, -0.5)
    before = {"up": items, "down": items, "same": items}
    after = {"up": items + 0.25, "down": items - 0.25, "same": noise}
    rows = compare(before, after, seed=0)
    assert [row.verdict for row in rows] == ["better", "worse", "no clear change"]
    assert rows[0].change == pytest.approx(25.0)
    assert rows[0].as_dict()["verdict"] == "better"


def test_a_measure_that_fell_is_said_on_the_page(sample_run):
    from dataclasses import replace

    from sentsmith.quickstart.page import build_page
    from sentsmith.report.page import render

    _, outcome = sample_run
    fallen = replace(outcome, comparisons=[Comparison("some measure", 80.0, 70.0, -10.0, -12.0, -8.0, 240)])
    assert "some measure: worse (80.00 → 70.00)" in render(build_page(fallen))
