"""BERT and RoBERTa through the recipes with the published settings, and the recipe for a laptop."""

from __future__ import annotations

import json

import pytest
from transformers import BertConfig, BertModel, RobertaConfig, RobertaModel

from sentsmith.methods.multicsr import recipe as multicsr
from sentsmith.methods.registry import load_recipe

UNSUPERVISED = "princeton-nlp/unsup-simcse"
# The recipe's name: start model, masker, batch size, head, rows of gold.
PUBLISHED = {
    "multicsr-bert-base": ("bert-base-uncased", f"{UNSUPERVISED}-bert-base-uncased", 256, "training", False),
    "multicsr-roberta-base": ("roberta-base", f"{UNSUPERVISED}-roberta-base", 256, "training", False),
    "multicsr-sup-bert-base": (
        "bert-base-uncased",
        "princeton-nlp/sup-simcse-bert-base-uncased",
        256,
        "training",
        True,
    ),
    "syncse-bert-base": ("bert-base-uncased", None, 512, "kept", False),
}


@pytest.fixture(scope="module")
def save_start(tmp_path_factory, tokenizer):
    """Return a function that saves a tiny start model of a family."""

    def save(family):
        folder = tmp_path_factory.mktemp("start")
        kind, config = (RobertaModel, RobertaConfig) if family == "roberta" else (BertModel, BertConfig)
        sizes = {"hidden_size": 32, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 64}
        kind(config(vocab_size=len(tokenizer), pad_token_id=0, **sizes)).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_recipes(save_start, triplet_file, tmp_path, name):
    """Their numbers (METHODS §3, and §1 for SynCSE), and one step with tiny models."""
    model, masker, batch_size, head, gold = PUBLISHED[name]
    recipe, _ = load_recipe(name)
    training, mine = recipe.training, recipe.multicsr
    assert recipe.model == model
    assert (training.batch_size, training.learning_rate, training.epochs) == (batch_size, 5e-5, 3)
    assert (training.max_length, training.seed, training.eval_steps) == (32, 42, 25)
    assert (training.weight_decay, training.warmup, training.schedule, training.max_grad_norm) == (0, 0, "linear", 1)
    assert (mine.temperature, mine.pooling, mine.head, mine.hard_negative_log_weight) == (0.05, "cls", head, 0)
    assert (mine.mask, mine.threshold) == (masker is not None, 0.9)
    if masker is not None:
        assert (mine.masker, mine.masker_pooling) == (masker, "cls")
    assert (mine.mask_duplicates, mine.bce_logit_zero, mine.eta_dropout) == (False, False, False)
    assert (mine.gold is not None) is gold
    assert len(recipe.data.dev) == (1 if masker else 2)
    start = save_start(model.partition("-")[0])
    changes = [
        f"model={start}", f"data.train={triplet_file}", "data.dev=[]", "data.held_out=0", "training.batch_size=8",
        "training.max_steps=1", f"multicsr.masker={start}", *([f"multicsr.gold={triplet_file}"] if gold else []),
    ]  # fmt: skip
    recipe, _ = load_recipe(name, changes)
    record = multicsr.run(recipe, tmp_path / "m")
    assert record["speed"]["steps"] == 1
    saved = json.loads((tmp_path / "m" / "modules.json").read_text(encoding="utf-8"))
    modules = ["Transformer", "Pooling", *(["Dense"] if head == "kept" else [])]
    assert [entry["type"].rpartition(".")[2] for entry in saved] == modules
    assert record["data"]["rows"] == (48 if gold else 24)


def test_the_small_recipe_is_ours():
    recipe, _ = load_recipe("multicsr-small")
    assert (recipe.model, recipe.multicsr.masker, recipe.multicsr.mask) == ("minilm", "minilm", True)
    # Where no paper is followed, a copy of the anchor or of its positive is no negative.
    assert recipe.multicsr.mask_duplicates
