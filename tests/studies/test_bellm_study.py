"""The study of BeLLM: its rows resolve to different settings, and what is looked at is what was trained."""

from __future__ import annotations

import pytest

from sentsmith.methods.registry import load_recipe


@pytest.fixture(scope="module")
def study(study_of):
    """Return the module of the study."""
    return study_of("bellm")


def test_every_row_resolves_and_has_a_name_of_its_own(study):
    trained = [*study.TRAINED, *study.OTHERS]
    rows = [*study.START, *trained, *study.TEST]
    assert len(rows) == len({row.name for row in rows})
    settings = set()
    for row in trained:
        fill = {"seed": 7, "runs": "r", "decoder": "lm", "sentences": "clean.csv"}
        recipe, _ = load_recipe(row.recipe, [text.format(**fill) for text in row.overrides])
        assert (recipe.training.seed, recipe.training.select, recipe.model) == (7, "last", "lm")
        assert recipe.training.max_steps == (study.LONG if row.name == "long" else study.STEPS)
        settings.add(recipe.model_dump_json())
    assert len(settings) == len(trained)


def test_what_is_looked_at_has_been_made(study):
    made = {f"{{runs}}/{row.name}-{{seed}}" for row in (*study.TRAINED, *study.OTHERS)}
    made |= {row.model for row in study.START}
    assert all(row.model in made for row in study.TEST)
    several = {row.name for row in study.TEST if row.seeds is None}
    assert several == {"test-lora", *(f"test-trained-{start}-{readout}" for start, readout in study.CHOSEN)}
