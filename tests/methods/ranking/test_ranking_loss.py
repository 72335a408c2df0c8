"""From rows to the loss: lists of different lengths tokenised together, triplets beside them, gradients."""

from __future__ import annotations

import pytest
import torch
from torch.nn import functional

from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.loading import load
from sentsmith.methods.ranking.loss import ListCollator, RankingLoss, list_cosines
from sentsmith.methods.ranking.objective import list_mle, rank_targets
from sentsmith.methods.simcse.objective import info_nce

WHOLE = Chunking(tokens=10**9)


@pytest.fixture
def model(tiny_bert):
    return load(tiny_bert).eval()


def by_place(labels, sizes):
    n = labels.shape[1]
    return rank_targets(torch.zeros(len(labels), n, n))


def batch_of(model, rows):
    batch = ListCollator(model.preprocess)(rows)
    labels = batch.pop("label")
    names = dict.fromkeys(key.removesuffix("_input_ids") for key in batch if key.endswith("_input_ids"))
    columns = [
        {key.removeprefix(f"{name}_"): value for key, value in batch.items() if key.startswith(f"{name}_")}
        for name in names
    ]
    return columns, labels


def rows_of(lists):
    return [{"sentences": sentences, "label": list(range(len(sentences)))} for sentences in lists]


def vectors_of(model, texts):
    return model(model.preprocess(texts))["sentence_embedding"]


def test_a_list_of_two_texts_is_two_texts(model, sentences):
    """The library's collator makes one text pair of it."""
    (features,), labels = batch_of(model, rows_of([sentences[:2], sentences[2:5]]))
    assert features["input_ids"].shape[0] == 5
    assert labels.tolist() == [[0, 1, -1], [0, 1, 2]]
    wanted = model.preprocess(sentences[:5])["input_ids"]
    assert torch.equal(features["input_ids"], wanted)


def test_cosines_within_each_list(model, sentences):
    vectors = vectors_of(model, sentences[:6]).detach()
    found = list_cosines(vectors, torch.tensor([2, 1, 3]), width=4)
    assert found.shape == (3, 4, 4)
    units = functional.normalize(vectors, dim=1)
    torch.testing.assert_close(found[0, :2, :2], units[:2] @ units[:2].T)
    torch.testing.assert_close(found[2, :3, :3], units[3:] @ units[3:].T)
    assert float(found[1, 0, 0]) == pytest.approx(1.0, abs=1e-6)
    assert float(found[0, 2:].abs().sum() + found[0, :, 2:].abs().sum() + found[1, 1:].abs().sum()) == 0.0
    assert list_cosines(vectors.bfloat16(), torch.tensor([6]), width=6).dtype == torch.float32


def test_several_lists_in_a_step_are_their_mean(model, lists):
    loss = RankingLoss(model, by_place, chunking=WHOLE)

    def value(rows):
        columns, labels = batch_of(model, rows_of(rows))
        return loss(columns, labels)["ranking"]

    together = value(lists[:5])
    torch.testing.assert_close(together, torch.stack([value([row]) for row in lists[:5]]).mean(), atol=2e-5, rtol=0)


def test_a_list_by_hand(model, sentences):
    columns, labels = batch_of(model, rows_of([sentences[:4]]))
    parts = RankingLoss(model, by_place, temperature=0.1)(columns, labels)
    units = functional.normalize(vectors_of(model, sentences[:4]), dim=1)
    wanted = list_mle(units @ units.T / 0.1, rank_targets(torch.zeros(4, 4)))
    assert list(parts) == ["ranking"]
    torch.testing.assert_close(parts["ranking"], wanted, atol=1e-5, rtol=1e-5)


def test_triplets_beside_the_lists(model, sentences):
    rows = rows_of([sentences[:3], sentences[3:5]])
    for place, row in enumerate(rows):
        for name, start in (("anchor", 10), ("positive", 20), ("negative", 30)):
            row[name] = sentences[start + 2 * place : start + 2 * place + 2]
    columns, labels = batch_of(model, rows)
    parts = RankingLoss(model, by_place, temperature=0.1, triplet_weight=3.0)(columns, labels)
    thirds = [vectors_of(model, sentences[start : start + 4]) for start in (10, 20, 30)]
    torch.testing.assert_close(parts["contrastive"], 3 * info_nce(*thirds, temperature=0.1), atol=1e-4, rtol=1e-4)
    alone, labels = batch_of(model, rows_of([sentences[:3], sentences[3:5]]))
    torch.testing.assert_close(
        parts["ranking"], RankingLoss(model, by_place, temperature=0.1)(alone, labels)["ranking"]
    )


@pytest.mark.parametrize("chunking", [Chunking(tokens=20, min_rows=2), Chunking(tokens=20, min_rows=2, recompute=True)])
def test_chunks_and_recomputation_change_no_gradient(tiny_bert, lists, chunking):
    gradients = []
    for way in (WHOLE, chunking):
        model = load(tiny_bert).eval()
        columns, labels = batch_of(model, rows_of(lists[:6]))
        RankingLoss(model, by_place, chunking=way)(columns, labels)["ranking"].backward()
        gradients.append({name: p.grad for name, p in model.named_parameters() if p.grad is not None})
    assert gradients[0].keys() == gradients[1].keys()
    for name, wanted in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], wanted, atol=1e-5, rtol=1e-4)
