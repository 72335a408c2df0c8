"""Whitening as a run: the saved model gives whitened vectors, also to who knows nothing of this package."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from sentsmith import settings
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, SettingsError
from sentsmith.methods.whitening import recipe as whitening
from sentsmith.methods.whitening.objective import fit_whitening, whiten


@pytest.fixture
def run(tiny_bert, sentence_file):
    def go(output, *overrides, **options):
        values = {"method": "whitening", "model": str(tiny_bert), "data": {"train": str(sentence_file)}}
        return whitening.run(settings.resolve(whitening.Recipe, values, overrides), output, **options)

    return go


def test_the_saved_model_whitens(run, tmp_path, tiny_bert, sentences):
    record = run(tmp_path / "m", "whitening.dimension=6")
    vectors = SentenceTransformer(str(tmp_path / "m"), device="cpu", local_files_only=True).encode(sentences)
    assert vectors.shape == (60, 6)
    assert np.cov(vectors, rowvar=False, ddof=0) == pytest.approx(np.eye(6), abs=1e-3)
    start = load(tiny_bert, device="cpu").encode(sentences)
    expected = whiten(start, fit_whitening(start, dimension=6))
    # Unique up to the sign of each direction.
    assert np.abs(vectors) == pytest.approx(np.abs(expected), abs=1e-3)
    assert json.loads((tmp_path / "m" / "run.json").read_text()) == record
    assert (record["method"], record["data"]["rows"], record["selection"]) == ("whitening", 60, None)
    card = (tmp_path / "m" / "README.md").read_text()
    assert "BERT-whitening" in card
    assert "- seed" not in card
    assert not (tmp_path / "m" / "work").exists()


def test_too_many_dimensions(run, tmp_path):
    with pytest.raises(SettingsError, match="whitening: dimension must lie in 1…32, not 33"):
        run(tmp_path / "m", "whitening.dimension=33")
    assert not (tmp_path / "m").exists()


def test_too_few_sentences_are_said(run, tmp_path):
    record = run(tmp_path / "m", "data.limit=20")
    assert "20 sentences cannot span 32 dimensions; bring more" in record["warnings"]


def test_a_finished_run_is_kept_unless_told(run, tmp_path):
    run(tmp_path / "m")
    with pytest.raises(InputError, match="holds a finished run"):
        run(tmp_path / "m")
    assert run(tmp_path / "m", "whitening.dimension=3", overwrite=True)["settings"]["whitening"]["dimension"] == 3
