"""Dropout is set everywhere in the transformer, and the saved model says so."""

from __future__ import annotations

import pytest
import torch

from sentsmith.encoders.dropout import set_dropout
from sentsmith.encoders.loading import load


@pytest.mark.parametrize("folder", ["tiny_bert", "tiny_llama"])
def test_at_zero_two_passes_in_training_agree(folder, request, sentences):
    model = load(request.getfixturevalue(folder))
    model.train()

    def vectors():
        return model(model.preprocess(sentences[:4]))["sentence_embedding"]

    set_dropout(model, 0.3)
    assert not torch.equal(vectors(), vectors())
    set_dropout(model, 0.0)
    assert torch.equal(vectors(), vectors())


def test_the_saved_model_keeps_it(tiny_bert, tmp_path):
    model = load(tiny_bert)
    set_dropout(model, 0.25)
    model.save_pretrained(str(tmp_path / "m"))
    config = load(tmp_path / "m")[0].model.config
    assert (config.hidden_dropout_prob, config.attention_probs_dropout_prob) == (0.25, 0.25)
