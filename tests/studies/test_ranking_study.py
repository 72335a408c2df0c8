"""The study of ranked lists: its rows resolve, and its data are what their names say."""

from __future__ import annotations

import json

import pytest

from sentsmith.corpus.reading import read_rankings, read_triplets
from sentsmith.methods.registry import load_recipe


@pytest.fixture(scope="module")
def study(study_of):
    """Return the module of the study."""
    return study_of("ranking")


def test_every_row_resolves_and_has_a_name_of_its_own(study):
    trained = [*study.START, *study.BY_WRITER, *study.ABLATIONS, *study.SWEEPS, *study.JOINT]
    rows = [*trained, *study.TEST, *study.TRANSFER]
    assert len(rows) == len({row.name for row in rows})
    settings = set()
    for row in trained:
        if row.recipe is not None:
            fill = {"seed": 7, "runs": "r", "llm": "writer", "sentences": "clean.txt"}
            recipe, _ = load_recipe(row.recipe, [text.format(**fill) for text in row.overrides])
            assert (recipe.training.seed, recipe.training.select) == (7, "last")
            assert recipe.training.max_steps == (study.LONG if row.name == "long" else study.STEPS)
            settings.add(recipe.model_dump_json())
    assert len(settings) == len([row for row in trained if row.recipe is not None])
    names = {row.name for row in trained}
    for row in (*study.TEST, *study.TRANSFER[1:]):
        assert row.name.partition("-")[2] in names


def test_lists_and_triplets_begin_with_their_premise(study, tmp_path):
    rows = [{"premise": "p", "entailment": "e", "contradiction": "c", "ranking": ["r1", "r2"]}]
    (tmp_path / "written.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
    study._unpack(tmp_path / "written.jsonl", tmp_path / "data")
    assert [row.sentences for row in read_rankings(tmp_path / "data" / "written.jsonl")] == [("p", "r1", "r2")]
    (triplet,) = read_triplets(tmp_path / "data" / "triplets.jsonl")
    assert (triplet.anchor, triplet.positive, triplet.negative) == ("p", "e", "c")
