"""BERT and RoBERTa, sdpa and eager, through the whole product; and the recipes with the published settings."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from transformers import BertModel, RobertaModel

from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.dropout import set_dropout
from sentsmith.encoders.loading import load
from sentsmith.methods.jtcse import recipe as jtcse
from sentsmith.methods.jtcse.cross import CrossPlan
from sentsmith.methods.jtcse.objective import JTCSELoss
from sentsmith.methods.jtcse.towers import tower_pair, twin
from sentsmith.methods.registry import load_recipe


@pytest.mark.parametrize("attention", ["sdpa", "eager"])
@pytest.mark.parametrize("family", [BertModel, RobertaModel])
def test_families_and_attention_from_folder_to_loss_and_back(save_tiny, sentences, tmp_path, family, attention):
    """Chunks give the loss of one pass, and the saved twin the same vectors: RoBERTa numbers positions by padding."""
    folders = [save_tiny(family, seed=seed, pad_token_id=0) for seed in (0, 1)]
    model = twin(*(load(folder, device="cpu") for folder in folders))
    for encoder in tower_pair(model).encoders:
        encoder.set_attn_implementation(attention)
    model.save_pretrained(str(tmp_path / "twin"))
    again = load(tmp_path / "twin", device="cpu")
    np.testing.assert_allclose(again.encode(sentences), model.eval().encode(sentences), atol=1e-5)
    for tower in tower_pair(model).pair:
        set_dropout(tower, 0.0)
    features = [model.train().preprocess(sentences[:9])]
    found = []
    for chunking in (Chunking(10_000, 100), Chunking(24, 1)):
        torch.manual_seed(0)
        parts = JTCSELoss(model, cross=CrossPlan((1,)), chunking=chunking)(features)
        found.append({name: part.item() for name, part in parts.items()})
    assert found[0] == pytest.approx(found[1], abs=2e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "family", "batch_size", "rates", "pooler"),
    [
        ("jtcse-bert-base", BertModel, 64, (1.3e-6, 1.5e-5, 2e-5), "own"),
        ("jtcse-roberta-base", RobertaModel, 256, (1e-6, 1.5e-5, 1.25e-5), "fresh"),
    ],
)
def test_published_recipes(save_tiny, sentence_file, tmp_path, name, family, batch_size, rates, pooler):
    """Their numbers (METHODS §5 and §7), and one step of each stage with twelve tiny layers."""
    recipe, _ = load_recipe(name)
    assert (recipe.training.batch_size, recipe.jtcse.simcse.batch_size) == (batch_size, 64)
    assert (recipe.training.learning_rate, *(recipe.tower(i).learning_rate for i in (0, 1))) == rates
    assert (recipe.training.max_length, recipe.training.schedule, recipe.training.max_grad_norm) == (64, "constant", 0)
    assert (recipe.training.seed, recipe.training.eval_steps, recipe.training.weight_decay) == (42, 100, 0.01)
    assert (recipe.jtcse.temperature, recipe.jtcse.pooling, recipe.jtcse.pooler) == (0.05, "cls", pooler)
    stage = recipe.jtcse.simcse
    assert (stage.schedule, stage.max_grad_norm, stage.weight_decay, stage.max_length) == ("linear", 1.0, 0.0, 32)
    start = save_tiny(family, num_hidden_layers=12, pad_token_id=0)
    changes = [
        f"model={start}", f"data.train={sentence_file}", "data.dev=[]", "data.held_out=0", "training.batch_size=8",
        "training.max_steps=1", "jtcse.simcse.max_steps=1", "jtcse.simcse.batch_size=8",
    ]  # fmt: skip
    recipe, _ = load_recipe(name, changes)
    record = jtcse.run(recipe, tmp_path / "m")
    assert record["speed"]["steps"] == 1
    assert "attention crosses at layers 2, 4, 6, 8, 10, 12 (last)" in (tmp_path / "m" / "README.md").read_text()
