"""What is read of the tokens: the last one, which is asserted, or means."""

from __future__ import annotations

import pytest
import torch

from sentsmith.encoders.readout import Readout, last_token, masked_mean
from sentsmith.errors import SentsmithError, SettingsError

RIGHT = torch.tensor([[1, 1, 1, 0], [1, 0, 0, 0], [1, 1, 1, 1]])
LEFT = RIGHT.flip(1)


def features(mask, ids=None, own=None):
    tokens = torch.arange(12.0).reshape(3, 4, 1).expand(3, 4, 2)
    given = {"token_embeddings": tokens, "attention_mask": mask}
    return given | {key: value for key, value in (("input_ids", ids), ("sentence_mask", own)) if value is not None}


def test_the_last_token_is_found_by_the_mask():
    assert last_token(RIGHT).tolist() == [2, 0, 3]
    assert last_token(LEFT).tolist() == [3, 3, 3]
    for mask, wanted in ((RIGHT, [2.0, 4.0, 11.0]), (LEFT, [3.0, 7.0, 11.0])):
        found = Readout("last", 2)(features(mask))["sentence_embedding"]
        assert found.tolist() == [[value, value] for value in wanted]


def test_the_last_token_is_asserted():
    # Padding with the very id that ends prompts must not hide it.
    ids = torch.tensor([[5, 6, 9, 9], [9, 9, 9, 9], [5, 6, 7, 9]])
    Readout("last", 2, last_id=9)(features(RIGHT, ids))
    ids[0, 2] = 8
    with pytest.raises(SentsmithError, match="the last token of a sentence has id 8, not 9, which ends the prompt"):
        Readout("last", 2, last_id=9)(features(RIGHT, ids))
    # Means do not ask.
    Readout("all", 2, last_id=9)(features(RIGHT, ids))


def test_means():
    own = torch.tensor([[0, 1, 1, 0], [1, 0, 0, 0], [0, 0, 0, 0]])
    found = Readout("mean", 2)(features(RIGHT, own=own))["sentence_embedding"]
    assert found[:, 0].tolist() == [1.5, 4.0, 0.0]
    found = Readout("all", 2)(features(LEFT))["sentence_embedding"]
    assert found[:, 0].tolist() == [2.0, 7.0, 9.5]
    half = masked_mean(torch.ones(1, 3, 2, dtype=torch.bfloat16), torch.tensor([[1, 1, 0]]))
    assert half.dtype == torch.bfloat16


def test_saved_and_loaded(tmp_path):
    Readout("mean", 7, last_id=3).save(str(tmp_path))
    found = Readout.load(str(tmp_path))
    assert (found.readout, found.get_embedding_dimension(), found.last_id) == ("mean", 7, 3)
    with pytest.raises(SettingsError, match="readout 'max' is unknown; use one of last, mean, all"):
        Readout("max", 7)
