"""The study of FREEZE: its rows resolve to different settings, and what is looked at is what was trained."""

from __future__ import annotations

import csv
import gzip
from argparse import Namespace

import pytest

from sentsmith.methods.freeze.settings import bottlenecks, kept_layers
from sentsmith.methods.registry import load_recipe


@pytest.fixture(scope="module")
def study(study_of):
    """Return the module of the study."""
    return study_of("freeze")


def test_every_row_resolves_and_has_a_name_of_its_own(study):
    trained = [(model, row) for model, rows in study.ROWS.items() for row in rows]
    names = [row.name for _, row in trained] + [row.name for row in study.TEST]
    assert len(names) == len(set(names))
    settings = set()
    for model, row in trained:
        fill = {"seed": 7, "runs": "r", "decoder": "lm", "sentences": "raw.txt", "data": "d"}
        recipe, _ = load_recipe(row.recipe, [text.format(**fill) for text in row.overrides])
        layers, _ = study.SIZES[model]
        assert recipe.training.seed == 7
        assert len(bottlenecks(recipe.freeze, layers)) == layers
        assert kept_layers(recipe.freeze, layers)
        settings.add(recipe.model_dump_json())
    assert len(settings) == len(trained)


def test_what_is_looked_at_has_been_made(study):
    made = {f"{{runs}}/{row.name}-{{seed}}" for rows in study.ROWS.values() for row in rows}
    made |= {"minilm", "{decoder}"}
    assert all(row.model in made for row in study.TEST)
    assert len(study.TEST) == len(study._STARTS) + len(study.SIZES) * len(study._MEASURED)


def test_pairs_of_nli_have_scores(study, tmp_path, monkeypatch):
    monkeypatch.setattr(study, "NLI_ROWS", 3)
    (tmp_path / "nli").mkdir()
    rows = [("a b", "c", "entailment"), ("d", "e", "neutral"), ("f", "g", "contradiction"), ("h", "i", "-")]
    lines = ["premise\thypothesis\tlabel\tsource\tsplit", *("\t".join((*row, "snli", "train")) for row in rows)]
    with gzip.open(tmp_path / "nli" / "pairs.tsv.gz", "wt", encoding="utf-8") as stream:
        stream.write("\n".join(lines) + "\n")
    study.prepare(Namespace(output=str(tmp_path / "runs"), data_dir=str(tmp_path)))
    with (tmp_path / "runs" / "data" / "nli.csv").open(encoding="utf-8", newline="") as stream:
        found = {(row["sentence1"], float(row["score"])) for row in csv.DictReader(stream)}
    assert found == {("a b", 5.0), ("d", 2.5), ("f", 0.0)}
