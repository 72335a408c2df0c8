"""MultiCSR's study: its rows resolve, its training sets are what their names say."""

from __future__ import annotations

import csv
from collections import Counter

import pytest

from sentsmith.corpus.reading import read_triplets
from sentsmith.corpus.writing import write_rows
from sentsmith.errors import InputError
from sentsmith.methods.multicsr.scored import COLUMNS
from sentsmith.methods.registry import load_recipe


@pytest.fixture(scope="module")
def study(study_of):
    """Return the module of the study."""
    return study_of("multicsr")


def test_every_row_resolves_and_has_a_name_of_its_own(study):
    rows = [*study.START, *study.STAGES, *study.SWEEP, *study.THRESHOLD, *study.DUPLICATES, *study.STRONG, *study.TEST]
    assert len(rows) == len({row.name for row in rows})
    for row in rows:
        if row.recipe is not None:
            recipe, _ = load_recipe(row.recipe, [text.format(seed=7, runs="r", llm="writer") for text in row.overrides])
            assert recipe.training.seed == 7
            assert recipe.training.select == "last"


def test_the_stages_are_all_different(study):
    seen = set()
    for row in study.STAGES:
        recipe, _ = load_recipe(row.recipe, [text.format(seed=1, runs="", llm="writer") for text in row.overrides])
        seen.add((recipe.data.train, recipe.multicsr.mask))
    assert len(seen) == 8


def scored(path, count):
    texts = [f"sentence {number}" for number in range(count)]
    rows = [(text, f"{text} again", f"not {text}", 4.5 if text == "sentence 9" else 3.0, 0.0) for text in texts]
    write_rows(path, (dict(zip(COLUMNS, row, strict=True)) for row in rows), columns=COLUMNS)
    return path


def test_the_nearest_positive_takes_its_share_of_the_places(study, tmp_path):
    study.repeat(scored(tmp_path / "scored.parquet", 1200), tmp_path / "out.parquet", 16)
    counts = Counter(row.anchor for row in read_triplets(tmp_path / "out.parquet"))
    assert counts.total() == 16 * study.BATCH
    assert counts["sentence 9"] == 16 * 16
    assert max(count for anchor, count in counts.items() if anchor != "sentence 9") == 1


def test_too_few_triplets_to_repeat_one_among_are_refused(study, tmp_path):
    with pytest.raises(InputError, match="holds 10 triplets"):
        study.repeat(scored(tmp_path / "few.parquet", 10), tmp_path / "out.parquet", 16)


def test_premises_are_drawn_once_and_apart(study_of, tmp_path, monkeypatch):
    rows = [("a dog runs in a park", "train"), ("a cat sleeps on a mat", "test"), ("a dog runs in a park", "test")]
    with (tmp_path / "pairs.tsv").open("w", encoding="utf-8", newline="") as stream:
        table = csv.writer(stream, delimiter="\t")
        table.writerow(["premise", "hypothesis", "label", "source", "split"])
        table.writerows([premise, "so", "neutral", "snli", split] for premise, split in rows + rows)
    for split, expected in (("train", "a dog runs in a park\n"), ("test", "a cat sleeps on a mat\n")):
        out = tmp_path / f"{split}.txt"
        arguments = ["premises.py", tmp_path / "pairs.tsv", "--split", split, "--sources", "snli", "--output", out]
        monkeypatch.setattr("sys.argv", [str(argument) for argument in arguments])
        study_of("premises").main()
        assert out.read_text(encoding="utf-8") == expected
