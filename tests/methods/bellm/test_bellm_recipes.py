"""The recipes with the published settings: their numbers, what their comments say of memory, one step of each."""

from __future__ import annotations

import csv
import math
import re

import pytest
import torch

from sentsmith.encoders.adapters import add_lora
from sentsmith.encoders.loading import load
from sentsmith.encoders.template import IN_CONTEXT, REPRESENTATIVE_WORD
from sentsmith.methods.bellm import recipe as bellm
from sentsmith.methods.registry import _shipped, load_recipe

LLAMA, SMALL = ("bellm-llama2-7b", "bellm-llama2-13b"), ("bellm-qwen3-0.6b", "bellm-conditional-qwen3-0.6b")
TRIPLETS = 277_277  # of SNLI and MNLI
GIB = 2**30
# Hidden width, inner width, layers, query heads, key heads, width of a head, vocabulary.
SIZES = {
    "bellm-llama2-7b": (4096, 11008, 32, 32, 32, 128, 32000),
    "bellm-llama2-13b": (5120, 13824, 40, 40, 40, 128, 32000),
    "bellm-qwen3-0.6b": (1024, 3072, 28, 16, 8, 128, 151936),
    "bellm-conditional-qwen3-0.6b": (1024, 3072, 28, 16, 8, 128, 151936),
}


@pytest.mark.parametrize("name", [*LLAMA, *SMALL])
def test_published_adapter(name):
    recipe, _ = load_recipe(name)
    training, mine = recipe.training, recipe.bellm
    assert (mine.tuning, mine.lora.rank, mine.lora.alpha, mine.lora.dropout) == ("lora", 32, 32, 0.1)
    assert (training.learning_rate, training.seed, mine.temperature) == (2e-4, 42, 0.05)
    assert (training.schedule, training.max_grad_norm, mine.pad_leak, mine.mask_duplicates) == (
        "linear",
        1,
        None,
        True,
    )
    assert (mine.contrastive_weight, mine.cosine_weight, mine.angle_weight) == (1, 0, 0)


@pytest.mark.parametrize("name", LLAMA)
def test_published_llama(name):
    """METHODS §2 and §7: the paper's settings, its first README's where the paper is silent."""
    recipe, _ = load_recipe(name)
    training, mine = recipe.training, recipe.bellm
    assert recipe.model == f"meta-llama/Llama-2-{name.rpartition('-')[2]}-hf"
    assert (training.batch_size, training.epochs, training.max_length, training.weight_decay) == (128, 1, 60, 0)
    assert math.ceil(training.warmup * (TRIPLETS // training.batch_size)) == 100
    assert (mine.both_ways_from, mine.readout, mine.rows, mine.template) == (
        "n-1",
        "last",
        "triplets",
        REPRESENTATIVE_WORD,
    )
    assert (mine.quantise, training.precision, mine.full_stop) == ("nf4", "fp32", True)


def test_published_conditional():
    """METHODS §2: the prompt is BeLLM's, the rest the bi-encoder's of C-STS."""
    recipe, _ = load_recipe("bellm-conditional-qwen3-0.6b")
    training, mine = recipe.training, recipe.bellm
    assert (mine.rows, mine.template, mine.hinge_weight) == ("conditional", None, 1)
    assert (training.epochs, training.batch_size, training.weight_decay, training.warmup) == (3, 8 * 4, 0.1, 0.1)


def test_where_looking_both_ways_acts():
    for name in SMALL:
        recipe, _ = load_recipe(name)
        assert (recipe.model, recipe.bellm.both_ways_from, recipe.bellm.quantise) == ("Qwen/Qwen3-0.6B", "n/2", "none")
    assert load_recipe("bellm-qwen3-0.6b")[0].bellm.readout == "mean"


@pytest.mark.parametrize("name", ["bellm-llama2-7b", "bellm-conditional-qwen3-0.6b"])
def test_one_step_with_a_tiny_decoder(tiny_llama, sentences, tmp_path, name):
    rows = [sentences[i : i + 3] for i in range(0, 24, 3)]
    header = ["anchor", "positive", "negative"]
    if "conditional" in name:
        header = ["sentence1", "sentence2", "condition", "label"]
        rows = [(*row, 1.0 + i % 5) for i, row in enumerate(rows)]
    with (tmp_path / "rows.csv").open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([header, *rows])
    changes = [
        f"model={tiny_llama}", f"data.train={tmp_path / 'rows.csv'}", "data.dev=[]", "data.held_out=0",
        "training.batch_size=4", "training.max_steps=1", "bellm.quantise=none",
    ]  # fmt: skip
    recipe, _ = load_recipe(name, changes)
    record = bellm.run(recipe, tmp_path / "m")
    prompt = IN_CONTEXT if "conditional" in name else REPRESENTATIVE_WORD
    assert (record["speed"]["steps"], record["bellm"]["template"]) == (1, prompt)
    weights = [path.name for path in (tmp_path / "m").rglob("*.safetensors")]
    assert weights == (["adapter_model.safetensors"] if recipe.bellm.save == "adapter" else ["model.safetensors"])
    assert load(tmp_path / "m")[0].both_ways_from == record["bellm"]["both_ways_from"]


@pytest.mark.parametrize("name", SIZES)
def test_the_memory_that_a_recipe_tells(name):
    """Its terms, reckoned from the model's sizes, and their sum."""
    recipe, _ = load_recipe(name)
    width, inner, layers, heads, keys, head, vocabulary = SIZES[name]
    shapes = [
        (width, heads * head), (width, keys * head), (width, keys * head), (heads * head, width),
        (width, inner), (width, inner), (inner, width),
    ]  # fmt: skip
    linear = layers * sum(a * b for a, b in shapes)
    adapter = layers * recipe.bellm.lora.rank * sum(a + b for a, b in shapes)
    rest = vocabulary * width + (2 * layers + 1) * width
    texts = 2 * 2 if recipe.bellm.rows == "conditional" else 3
    tokens = recipe.training.batch_size * texts * recipe.training.max_length
    parts = [4 * (linear + rest)] if recipe.bellm.quantise == "none" else [4.127 / 8 * linear, 4 * rest]
    parts += [16 * adapter, 4 * layers * width * tokens]
    text = (_shipped() / f"{name}.yaml").read_text(encoding="utf-8").partition("Memory, GiB: ")[2]
    told = [float(each) for each in re.findall(r"(?:^|\+ )([\d.]+) \(", text)]
    assert told[:-1] == pytest.approx([part / GIB for part in parts], abs=0.06)
    activations = float(re.search(r"activations: ([\d.]+) MB", text)[1]) * 1e6
    assert told[-1] == pytest.approx(recipe.training.chunk_tokens * activations / GIB, abs=0.06)
    assert float(re.search(r"\) = ([\d.]+) at most", text)[1]) == pytest.approx(sum(told), abs=0.5)
    assert float(re.search(r"\(([\d.]+)M adapter weights", text)[1]) == pytest.approx(adapter / 1e6, abs=0.006)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["bellm-llama2-7b", "bellm-llama2-13b", "bellm-qwen3-0.6b"])
def test_weights_and_activations_of_the_real_sizes(name):
    """Counted on the model itself, without its memory: the adapter, and what a layer keeps for the backward pass."""
    from transformers import AutoModel, LlamaConfig, Qwen3Config

    recipe, _ = load_recipe(name)
    width, inner, layers, heads, keys, head, vocabulary = SIZES[name]
    config = (LlamaConfig if name in LLAMA else Qwen3Config)(
        vocab_size=vocabulary, hidden_size=width, intermediate_size=inner, num_hidden_layers=layers,
        num_attention_heads=heads, num_key_value_heads=keys, head_dim=head,
    )  # fmt: skip
    lora = recipe.bellm.lora
    with torch.device("meta"):
        model = AutoModel.from_config(config)
        add_lora(model, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout)
    text = (_shipped() / f"{name}.yaml").read_text(encoding="utf-8")
    trained = sum(weights.numel() for weights in model.parameters() if weights.requires_grad)
    assert f"({trained / 1e6:.2f}M adapter weights" in text
    kept = _kept(model.train(), rows=16, width=60) / (16 * 60) / layers
    assert float(re.search(r"activations: ([\d.]+) MB", text)[1]) == pytest.approx(kept / 1e6, rel=0.02)


def _kept(model, rows, width):
    """Return the bytes that a forward pass keeps for the backward pass, the weights left out."""
    weights = {each.untyped_storage()._cdata for each in model.parameters()}
    found = {}

    def keep(tensor):
        storage = tensor.untyped_storage()
        if storage._cdata not in weights:
            # The tensor too: a freed storage's address is given to another.
            found[storage._cdata] = (storage.nbytes(), tensor)
        return tensor

    given = {
        "input_ids": torch.zeros(rows, width, dtype=torch.long, device="meta"),
        "attention_mask": torch.ones(rows, 1, width, width, dtype=torch.bool, device="meta"),
        "position_ids": torch.zeros(1, width, dtype=torch.long, device="meta"),
    }
    with torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor):
        # The result is held until all is counted: what it stands on must not be freed.
        result = model(**given, use_cache=False)
        count = sum(size for size, _ in found.values())
    assert result.last_hidden_state.shape[0] == rows
    return count
