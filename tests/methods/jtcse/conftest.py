"""Tiny towers, and a JTCSE run of them that takes about a second."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def save_tiny(tmp_path_factory, tokenizer):
    """Return a function that saves a tiny encoder of a transformers class, plain transformers format, as a folder."""
    import torch

    def save(kind, seed=0, tokenizer=tokenizer, **changes):
        torch.manual_seed(seed)
        folder = tmp_path_factory.mktemp("tiny-tower")
        sizes = {
            "vocab_size": len(tokenizer),
            "hidden_size": 32,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "intermediate_size": 64,
            "max_position_embeddings": 64,
            # The usual 0.02 makes all vectors of so small a model alike, and every gradient vanish.
            "initializer_range": 0.3,
        }
        kind(kind.config_class(**(sizes | changes))).save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        return folder

    return save


@pytest.fixture(scope="session")
def other_bert(save_tiny):
    """Return the folder of a tiny BERT like ``tiny_bert`` with other weights."""
    from transformers import BertModel

    return save_tiny(BertModel, seed=1)


@pytest.fixture(scope="session")
def tiny_distilbert(save_tiny):
    """Return the folder of a tiny DistilBERT, whose architecture has no pooler."""
    from transformers import DistilBertModel

    return save_tiny(DistilBertModel)


@pytest.fixture(scope="session")
def pair_of_berts(tiny_bert, other_bert):
    """Return a function that makes a model of two different tiny BERTs, in evaluation mode, on the processor."""
    from sentsmith.encoders.loading import load
    from sentsmith.methods.jtcse.towers import twin

    def make():
        return twin(load(tiny_bert, device="cpu"), load(other_bert, device="cpu")).eval()

    return make


@pytest.fixture(scope="session")
def jtcse_settings(tiny_bert, sentence_file) -> dict:
    """Return the settings of a run of both stages: two steps of each tower alone, then three of both together."""
    return {
        "method": "jtcse",
        "model": str(tiny_bert),
        "data": {"train": str(sentence_file), "held_out": 0.0},
        "training": {
            "batch_size": 4,
            "learning_rate": 5e-3,
            "max_steps": 3,
            "precision": "fp32",
            "max_length": 32,
            "eval_steps": 2,
        },
        "jtcse": {"simcse": {"batch_size": 8, "learning_rate": 5e-3, "max_steps": 2}},
    }


@pytest.fixture(scope="session")
def jtcse_tiny(trains, jtcse_settings):
    """Return a function that trains by these settings, with overrides, into a folder; returns the run record."""
    return trains("jtcse", jtcse_settings)
