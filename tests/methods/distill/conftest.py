"""A narrow tiny BERT, and a distillation run of tiny models that takes part of a second."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def narrow_bert(tmp_path_factory, tokenizer):
    """Return the folder of a tiny BERT of width 16, plain transformers format."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(1)
    folder = tmp_path_factory.mktemp("narrow-bert")
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=16,
        num_hidden_layers=2,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=64,
        initializer_range=0.3,
    )
    BertModel(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def normalized_bert(tmp_path_factory, tiny_bert):
    """Return the folder of the tiny BERT with a closing normalisation."""
    from sentence_transformers.base.modules import Normalize

    from sentsmith.encoders.loading import load
    from sentsmith.encoders.pooling import rebuilt

    folder = tmp_path_factory.mktemp("normalized") / "model"
    model = load(tiny_bert)
    rebuilt(model, [*model, Normalize()]).save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="session")
def noisy_bert(tmp_path_factory, tiny_bert):
    """Return the folder of the tiny BERT with noise on its weights."""
    import torch
    from transformers import AutoTokenizer, BertModel

    folder = tmp_path_factory.mktemp("noisy-bert")
    model = BertModel.from_pretrained(tiny_bert)
    torch.manual_seed(2)
    with torch.no_grad():
        for weights in model.parameters():
            weights.add_(0.05 * torch.randn_like(weights))
    model.save_pretrained(folder)
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(folder)
    return folder


@pytest.fixture(scope="session")
def distill_settings(tiny_bert, noisy_bert, sentence_file):
    """Return the settings of a run that teaches the noisy model to be the tiny BERT again."""
    return {
        "method": "distill",
        "model": str(noisy_bert),
        "data": {"train": str(sentence_file), "held_out": 0.0},
        "training": {
            "batch_size": 8,
            "learning_rate": 3e-3,
            "max_steps": 4,
            "precision": "fp32",
            "max_length": 32,
            "eval_steps": 2,
        },
        "distill": {"teachers": str(tiny_bert)},
    }


@pytest.fixture(scope="session")
def distill_tiny(trains, distill_settings):
    """Return a function that trains by these settings, with overrides, into a folder; returns the run record."""
    return trains("distill", distill_settings)
