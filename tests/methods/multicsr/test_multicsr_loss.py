"""The loss of a training step: what is masked, that the masker is not trained, chunks, and two processes."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.methods.multicsr.masking import DropoutMasker
from sentsmith.methods.multicsr.objective import MultiCSRLoss, bce_logit_zero, false_negative_keep, released_keep
from sentsmith.methods.simcse.objective import SimCSELoss, info_nce

SIGMA = 0.5
COUNTS = (5, 3)
# Vectors of which no two are alike.
APART = torch.eye(24, dtype=torch.float64).reshape(8, 3, 24)


class Given:
    """A masker with vectors that a test has chosen, looked up by label."""

    def __init__(self, vectors):
        self.vectors = vectors

    def __call__(self, features, labels):
        return self.vectors[labels]


def features_of(model, columns):
    return [model.preprocess(column) for column in columns]


def gradients(model, loss):
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def own(rank, rows):
    return rows[: COUNTS[0]] if rank == 0 else rows[COUNTS[0] :]


def together(rank, folder, columns, frozen):
    """Return loss and averaged gradients, in several chunks, kept and recomputed; the processes have 5 and 3 rows."""
    model = load(folder, device="cpu").double().eval()
    found = {}
    for bce, recompute in itertools.product((False, True), repeat=2):
        model.zero_grad()
        parallel = DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False)
        loss = MultiCSRLoss(
            parallel, Given(frozen), threshold=SIGMA, bce_logit_zero=bce, chunking=Chunking(48, 1, recompute)
        )
        mine = [own(rank, column) for column in columns]
        found[bce, recompute] = gradients(model, loss(features_of(model, mine), own(rank, torch.arange(8))))
    return found


@pytest.fixture
def model(tiny_bert):
    return load(tiny_bert, device="cpu").eval()


@pytest.fixture(scope="module")
def columns(sentences):
    """Return eight triplets; row 7 has row 0's positive."""
    columns = [sentences[:8], sentences[8:16], sentences[16:24]]
    return [columns[0], [*columns[1][:7], columns[1][0]], columns[2]]


@pytest.fixture(scope="module")
def frozen(tiny_llama, columns):
    """Return the vectors of a frozen model, ``[8, 3, 32]``, whose mask removes some candidates and keeps some."""
    encoder = as_encoder(load(tiny_llama, device="cpu"))
    vectors = torch.from_numpy(np.stack([encoder.encode(column) for column in columns], axis=1)).double()
    share = false_negative_keep(*vectors.unbind(1), threshold=SIGMA).float().mean()
    assert 0.2 < share < 0.9
    return vectors


def vectors_of(model, columns):
    return [model(dict(features))["sentence_embedding"] for features in features_of(model, columns)]


@pytest.mark.parametrize("recompute", [False, True])
def test_it_is_the_masked_loss(model, columns, frozen, recompute):
    keep = false_negative_keep(*frozen.unbind(1), threshold=SIGMA)
    expected = gradients(model, info_nce(*vectors_of(model, columns), temperature=0.1, keep=keep))
    model.zero_grad()
    loss = MultiCSRLoss(
        model, Given(frozen), threshold=SIGMA, temperature=0.1, mask_duplicates=False,
        chunking=Chunking(40, 2, recompute),
    )  # fmt: skip
    found = gradients(model, loss(features_of(model, columns), torch.arange(8)))
    assert found[0] == pytest.approx(expected[0], abs=1e-5)
    for name, gradient in expected[1].items():
        torch.testing.assert_close(found[1][name], gradient, atol=2e-5, rtol=1e-4, msg=name)
    unmasked = SimCSELoss(model, temperature=0.1, mask_duplicates=False)(features_of(model, columns))
    assert found[0] < unmasked.item() - 0.01


def test_labels_say_which_rows(model, columns, frozen):
    loss = MultiCSRLoss(model, Given(frozen), threshold=SIGMA)
    order = torch.tensor([3, 0, 6, 1])
    shuffled = features_of(model, [[column[i] for i in order] for column in columns])
    keep = false_negative_keep(*frozen[order].unbind(1), threshold=SIGMA)
    vectors = [part[order] for part in vectors_of(model, columns)]
    assert loss(shuffled, order).item() == pytest.approx(
        info_nce(*vectors, temperature=0.05, keep=keep).item(), abs=1e-5
    )
    other = false_negative_keep(*frozen[:4].unbind(1), threshold=SIGMA)
    assert not torch.equal(keep, other)


def test_without_a_masker_it_is_supervised_simcse(model, columns):
    features = features_of(model, columns)
    for duplicates in (False, True):
        loss = MultiCSRLoss(model, None, mask_duplicates=duplicates, hard_negative_log_weight=0.5)
        plain = SimCSELoss(model, mask_duplicates=duplicates, hard_negative_log_weight=0.5)
        assert torch.equal(loss(features), plain(features))


def test_duplicates_are_masked_whatever_the_masker_says(model, columns):
    # The masker alone masks nothing.
    features, labels = features_of(model, columns), torch.arange(8)
    counted, masked = (MultiCSRLoss(model, Given(APART), mask_duplicates=on)(features, labels) for on in (False, True))
    assert masked < counted - 0.01
    assert torch.equal(masked, SimCSELoss(model)(features))
    assert torch.equal(counted, SimCSELoss(model, mask_duplicates=False)(features))


@pytest.mark.parametrize("masker", [Given(APART), None])
def test_the_own_hard_negative_counts_even_where_it_is_a_copy(model, columns, masker):
    """Its text equals the anchor in row 2 and the positive in row 4; other rows' copies of the two do not count."""
    columns = [columns[0], columns[1], [*columns[2]]]
    columns[2][2], columns[2][4], columns[2][5] = columns[0][2], columns[1][4], columns[0][2]
    keep = torch.ones(8, 16, dtype=torch.bool)
    # Rows 0 and 7 have one positive; row 5's hard negative is row 2's anchor.
    keep[[0, 7, 2], [7, 0, 13]] = False
    expected = info_nce(*vectors_of(model, columns), temperature=0.05, keep=keep).item()
    features, labels = features_of(model, columns), torch.arange(8)
    assert MultiCSRLoss(model, masker)(features, labels).item() == pytest.approx(expected, abs=1e-5)
    # SimCSE goes by the text alone.
    assert SimCSELoss(model)(features).item() < expected - 0.01


@pytest.mark.parametrize("masker", [True, False])
def test_the_authors_loss(model, columns, frozen, masker):
    keep = released_keep(*frozen.unbind(1), threshold=SIGMA) if masker else torch.ones(8, 16, dtype=torch.bool)
    expected = bce_logit_zero(*vectors_of(model, columns), temperature=0.05, keep=keep)
    loss = MultiCSRLoss(
        model, Given(frozen) if masker else None, threshold=SIGMA, bce_logit_zero=True, mask_duplicates=False
    )
    assert loss(features_of(model, columns), torch.arange(8)).item() == pytest.approx(expected.item(), abs=1e-6)


def test_the_masker_is_no_part_of_the_loss(model, tiny_bert):
    masker = load(tiny_bert, device="cpu")
    loss = MultiCSRLoss(model, DropoutMasker(masker, Chunking()))
    ours = {id(p) for p in masker.parameters()}
    assert not ours & {id(p) for p in loss.parameters()}
    assert not any("masker" in name for name in loss.state_dict())
    assert masker.training
    # The trainer switches the loss between modes; the masker keeps its dropout.
    loss.eval()
    assert masker.training


def test_dropout_makes_the_mask_noisy_and_teaches_the_masker_nothing(model, tiny_bert, columns):
    frozen = load(tiny_bert, device="cpu")
    masker = DropoutMasker(frozen, Chunking(40, 2))
    loss = MultiCSRLoss(model, masker, threshold=SIGMA)
    features = features_of(model, columns)
    losses = set()
    for seed in range(4):
        torch.manual_seed(seed)
        losses.add(loss(features).item())
    assert len(losses) > 1
    loss(features).backward()
    assert all(p.grad is None for p in frozen.parameters())
    frozen.eval()
    quiet = masker(loss_features(loss, features), None)
    expected = torch.stack(vectors_of(frozen, columns), dim=1)
    torch.testing.assert_close(quiet, expected, atol=1e-5, rtol=1e-5)
    assert not quiet.requires_grad


def loss_features(loss, features):
    """Return the joined columns, as the loss gives them to its masker."""
    seen = []
    kept = MultiCSRLoss.kept
    MultiCSRLoss.kept = lambda self, columns, joined, labels: seen.append(joined) or kept(self, columns, joined, labels)
    try:
        loss(features)
    finally:
        MultiCSRLoss.kept = kept
    return seen[0]


def test_two_processes_are_one(in_two_processes, tiny_bert, columns, frozen):
    model = load(tiny_bert, device="cpu").double().eval()
    outcomes = in_two_processes(together, tiny_bert, columns, frozen)
    for bce in (False, True):
        model.zero_grad()
        loss = MultiCSRLoss(model, Given(frozen), threshold=SIGMA, bce_logit_zero=bce)
        expected = gradients(model, loss(features_of(model, columns), torch.arange(8)))
        # A comparison of zeros with zeros would prove nothing.
        assert max(gradient.abs().max() for gradient in expected[1].values()) > 1e-3
        for found, recompute in itertools.product(outcomes, (False, True)):
            value, parts = found[bce, recompute]
            assert value == pytest.approx(expected[0], abs=1e-9)
            assert parts.keys() == expected[1].keys()
            for name, gradient in expected[1].items():
                torch.testing.assert_close(parts[name], gradient, atol=1e-9, rtol=1e-7, msg=name)


def test_what_is_refused(model, columns):
    with pytest.raises(ValueError, match=r"three text columns \(anchor, positive, negative\), not 2"):
        MultiCSRLoss(model, None)(features_of(model, columns[:2]))
    with pytest.raises(ValueError, match="knows no hard_negative_log_weight"):
        MultiCSRLoss(model, None, bce_logit_zero=True, hard_negative_log_weight=1.0)


def test_what_the_card_says(model):
    assert MultiCSRLoss(model, None, threshold=0.8, bce_logit_zero=True).get_config_dict() == {
        "temperature": 0.05,
        "hard_negative_log_weight": 0.0,
        "mask_duplicates": True,
        "gather_across_devices": True,
        "mask": False,
        "threshold": 0.8,
        "bce_logit_zero": True,
    }
