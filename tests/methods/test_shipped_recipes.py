"""The recipes that ship, and names of recipes and methods that are not there."""

from __future__ import annotations

import pytest

from sentsmith.errors import SettingsError
from sentsmith.methods import registry


@pytest.mark.parametrize("name", registry.recipe_names())
def test_shipped_recipes_resolve(name):
    recipe, module = registry.load_recipe(name)
    assert isinstance(recipe, module.Recipe)
    assert recipe.method == module.__name__.split(".")[-2]
    # Comments say what a reader should know; a setting spelled twice would hide one.
    text = (registry._shipped() / f"{name}.yaml").read_text(encoding="utf-8")
    assert text.startswith("#")


def test_published_settings():
    recipe, _ = registry.load_recipe("simcse-bert-base")
    assert (recipe.model, recipe.training.batch_size, recipe.training.learning_rate) == ("bert-base-uncased", 64, 3e-5)
    assert (recipe.simcse.temperature, recipe.simcse.head, recipe.simcse.pooling) == (0.05, "training", "cls")
    assert not recipe.simcse.mask_duplicates
    recipe, _ = registry.load_recipe("simcse-supervised-bert-base")
    assert (recipe.training.batch_size, recipe.training.learning_rate, recipe.training.epochs) == (512, 5e-5, 3)
    assert (recipe.simcse.rows, recipe.simcse.head) == ("triplets", "kept")
    for name, batch_size in (("bert", 64), ("roberta", 256)):
        recipe, _ = registry.load_recipe(f"distill-{name}-base")
        assert (recipe.training.batch_size, recipe.training.learning_rate) == (batch_size, 1e-5)
        assert (recipe.distill.pooling, recipe.distill.normalized, recipe.training.eval_steps) == ("cls", False, 100)


def test_recipes_and_methods_that_are_not_there(tmp_path):
    with pytest.raises(Exception, match="did you mean 'simcse-small'"):
        registry.load_recipe("simcse-smal")
    (tmp_path / "r.yaml").write_text("method: simsce\ndata:\n  train: x\n")
    with pytest.raises(SettingsError, match="method 'simsce' is unknown; did you mean 'simcse'"):
        registry.load_recipe(tmp_path / "r.yaml")
    (tmp_path / "r.yaml").write_text("data:\n  train: x\n")
    with pytest.raises(SettingsError, match=r"method '' is unknown; methods: .*simcse, whitening"):
        registry.load_recipe(tmp_path / "r.yaml")
