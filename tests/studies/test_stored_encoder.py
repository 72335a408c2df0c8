"""What the study measures by: the frozen part of a FREEZE model looked up, the same vectors."""

from __future__ import annotations

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

import sentsmith
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.layered import make_layered
from sentsmith.methods.freeze.codes import LayerCodes


@pytest.mark.parametrize("head", ["linear", "nonnegative"])
def test_looked_up_is_the_same_as_run(study_of, tiny_bert, sentences, tmp_path, head):
    study = study_of("stored")
    frozen = make_layered(tiny_bert)[0]
    codes = LayerCodes(frozen.layers, frozen.width, start="pca", bottlenecks=(8, 8), head=head)
    SentenceTransformer(modules=[frozen, codes]).save_pretrained(str(tmp_path / "model"))
    model = sentsmith.load(tmp_path / "model")
    assert study.can_store(model)
    stored = study.StoredEncoder(model, tmp_path / "model", tmp_path / "store")
    expected = as_encoder(model).encode(sentences)
    np.testing.assert_allclose(stored.encode(sentences), expected, atol=1e-5)
    model[0].forward = None  # it is not called again
    np.testing.assert_allclose(stored.encode(sentences), expected, atol=1e-5)
    assert (stored.pair_scores is None) == (head == "nonnegative")


def test_what_cannot_be_stored(study_of, tiny_bert):
    study = study_of("stored")
    assert not study.can_store(sentsmith.load(tiny_bert))
    assert not study.can_store(make_layered(tiny_bert, readout="attention"))
