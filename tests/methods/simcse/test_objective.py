"""The contrastive loss against worked numbers, and where it is easy to get wrong."""

from __future__ import annotations

import math

import pytest
import torch
from torch.autograd import gradcheck

from sentsmith.encoders.chunked import Chunking, join
from sentsmith.encoders.loading import load
from sentsmith.methods.simcse.objective import SimCSELoss, cosine_matrix, distinct, info_nce

# Worked by hand from the equations: cosines of three anchors with their positives and with their hard negatives.
TO_POSITIVES = torch.tensor([[0.8, 0.3, 0.1], [0.25, 0.75, 0.2], [0.05, 0.15, 0.7]], dtype=torch.float64)
TO_NEGATIVES = torch.tensor([[0.4, 0.2, 0.0], [0.1, 0.5, 0.3], [-0.1, 0.05, 0.35]], dtype=torch.float64)


def vectors_with(*cosines):
    """Return unit anchors and unit candidates, one set per matrix, whose cosines are these.

    The anchors are axes; a candidate holds its cosines with them, and the rest of its length on an axis of its own.
    """
    size = len(cosines[0])
    width = size * (1 + len(cosines))
    anchors = torch.eye(size, width, dtype=torch.float64)
    sets = []
    for number, matrix in enumerate(cosines):
        rest = (1 - matrix.square().sum(dim=0)).sqrt()
        candidates = torch.zeros(size, width, dtype=torch.float64)
        candidates[:, :size] = matrix.T
        own = torch.arange(size)
        candidates[own, size * (1 + number) + own] = rest
        sets.append(candidates)
    return anchors, *sets


def test_the_construction_has_these_cosines():
    anchors, positives, negatives = vectors_with(TO_POSITIVES, TO_NEGATIVES)
    torch.testing.assert_close(cosine_matrix(anchors, 3 * positives), TO_POSITIVES)
    torch.testing.assert_close(cosine_matrix(0.1 * anchors, negatives), TO_NEGATIVES)


@pytest.mark.parametrize(
    ("temperature", "negatives", "weight", "expected"),
    [
        (0.05, False, 0.0, 0.000042),
        (0.5, False, 0.0, 0.494485),
        (0.5, True, 0.0, 0.994387),
        (0.5, True, 0.693147, 1.168541),
    ],
)
def test_worked_numbers(temperature, negatives, weight, expected):
    anchors, positives, hard = vectors_with(TO_POSITIVES, TO_NEGATIVES)
    found = info_nce(
        anchors, positives, hard if negatives else None, temperature=temperature, hard_negative_log_weight=weight
    )
    assert found.item() == pytest.approx(expected, abs=1e-5)


def test_the_length_of_a_vector_does_not_matter():
    anchors, positives = vectors_with(TO_POSITIVES)
    assert info_nce(7 * anchors, 0.2 * positives, temperature=0.5).item() == pytest.approx(0.494485, abs=1e-5)


def test_a_masked_candidate_vanishes_from_the_sum():
    anchors, positives, hard = vectors_with(TO_POSITIVES, TO_NEGATIVES)
    keep = torch.ones(3, 6, dtype=torch.bool)
    keep[0, 1] = keep[0, 5] = keep[2, 3] = False
    found = info_nce(anchors, positives, hard, temperature=0.5, keep=keep)
    cosines = torch.cat([TO_POSITIVES, TO_NEGATIVES], dim=1)
    losses = [
        math.log(sum(math.exp(cosine / 0.5) for cosine, kept in zip(row, mask, strict=True) if kept)) - row[i] / 0.5
        for i, (row, mask) in enumerate(zip(cosines.tolist(), keep.tolist(), strict=True))
    ]
    assert found.item() == pytest.approx(sum(losses) / 3, abs=1e-9)
    assert found < info_nce(anchors, positives, hard, temperature=0.5)


def test_a_masked_candidate_has_no_gradient():
    anchors, positives = (part.clone().requires_grad_() for part in vectors_with(TO_POSITIVES))
    keep = torch.ones(3, 3, dtype=torch.bool)
    keep[:2, 2] = False
    rows = info_nce(anchors, positives, temperature=0.5, keep=keep)
    (gradient,) = torch.autograd.grad(rows, anchors)
    # Anchor 0 may not move along what only candidate 2 holds.
    own_axis = 3 + 2
    assert gradient[0, own_axis] == 0
    assert gradient[2, own_axis] != 0


def test_the_own_positive_is_never_removed():
    anchors, positives, hard = vectors_with(TO_POSITIVES, TO_NEGATIVES)
    keep = torch.ones(3, 6, dtype=torch.bool)
    whole = info_nce(anchors, positives, hard, temperature=0.5, keep=keep)
    keep[torch.arange(3), torch.arange(3)] = False
    given = keep.clone()
    assert info_nce(anchors, positives, hard, temperature=0.5, keep=keep) == whole
    assert torch.equal(keep, given)
    assert info_nce(anchors, positives, hard, temperature=0.5, keep=torch.zeros_like(keep)).item() == 0


def test_half_precision_is_computed_in_single():
    torch.manual_seed(0)
    anchors, positives = torch.randn(2, 16, 64, dtype=torch.bfloat16)
    found = info_nce(anchors, positives, temperature=0.05)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(info_nce(anchors.float(), positives.float(), temperature=0.05).item(), abs=0)
    # The vectors of a batch must not tie because their cosines were rounded to three digits.
    assert cosine_matrix(anchors, positives).unique().numel() == 256
    assert info_nce(anchors.double(), positives.double(), temperature=0.05).dtype == torch.float64


def test_autocast_does_not_reach_the_cosines():
    torch.manual_seed(0)
    anchors, positives = torch.randn(2, 8, 32)
    expected = info_nce(anchors, positives, temperature=0.05)
    with torch.autocast("cpu", torch.bfloat16):
        found = info_nce(anchors, positives, temperature=0.05)
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


def test_a_batch_of_one_teaches_nothing():
    anchors, positives = torch.randn(2, 1, 8).requires_grad_()
    loss = info_nce(anchors, positives, temperature=0.05)
    assert loss.item() == 0
    gradient = torch.autograd.grad(loss, (anchors, positives))
    assert all((part == 0).all() for part in gradient)


def test_zero_vectors_make_no_nan():
    anchors = torch.zeros(3, 4, requires_grad=True)
    positives = torch.cat([torch.zeros(1, 4), torch.eye(4)[:2]]).requires_grad_()
    loss = info_nce(anchors, positives, temperature=0.05)
    loss.backward()
    assert loss.item() == pytest.approx(math.log(3), abs=1e-6)
    assert torch.isfinite(anchors.grad).all()
    assert torch.isfinite(positives.grad).all()


def test_gradients():
    torch.manual_seed(1)
    parts = [torch.randn(4, 5, dtype=torch.float64, requires_grad=True) for _ in range(3)]
    keep = torch.rand(4, 8) > 0.3

    def loss(anchors, positives, negatives):
        return info_nce(anchors, positives, negatives, temperature=0.3, keep=keep, hard_negative_log_weight=0.4)

    assert gradcheck(loss, parts)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"temperature": 0.0}, "temperature must be above 0, not 0.0"),
        ({"temperature": -1.0}, "temperature must be above 0"),
        ({"positives": torch.zeros(2, 4)}, r"must both be \[B, d\], not \[3, 4\] and \[2, 4\]"),
        ({"anchors": torch.zeros(3)}, r"must both be \[B, d\]"),
        ({"negatives": torch.zeros(3, 5)}, r"negatives must be \[3, 4\] like the anchors, not \[3, 5\]"),
        ({"keep": torch.ones(3, 6, dtype=torch.bool)}, r"keep must be bool \[3, 3\]"),
        ({"keep": torch.ones(3, 3)}, "not torch.float32"),
        (
            {"keep": torch.ones(3, 3, dtype=torch.bool), "negatives": torch.zeros(3, 4)},
            r"keep must be bool \[3, 6\]",
        ),
    ],
)
def test_what_does_not_fit_is_refused(change, message):
    given = {"anchors": torch.ones(3, 4), "positives": torch.ones(3, 4), "temperature": 0.05, **change}
    with pytest.raises(ValueError, match=message):
        info_nce(**given)


def test_distinct_finds_copies_of_the_anchor_and_of_the_positive(tiny_bert):
    model = load(tiny_bert, device="cpu")
    texts = [["a dog .", "a cat .", "a bird ."], ["a man .", "a dog .", "a man ."], ["a cat .", "a song .", "a man ."]]
    keep = distinct(join([model.preprocess(column) for column in texts]), 3)
    wanted = [
        # positives: a man, a dog, a man            negatives: a cat, a song, a man
        [True, False, False, True, True, False],  # a dog, with a man
        [True, True, True, False, True, True],  # a cat, with a dog
        [False, True, True, True, True, False],  # a bird, with a man
    ]
    assert keep.tolist() == wanted


def test_distinct_is_not_fooled_by_padding():
    long = {"input_ids": torch.tensor([[1, 2, 3], [1, 2, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    # The padding id may also be a token: [1, 2] and [1, 2, 0] are two texts.
    other = {"input_ids": torch.tensor([[1, 2, 0], [1, 2, 0]]), "attention_mask": torch.tensor([[1, 1, 1], [1, 1, 0]])}
    assert distinct(join([long, other]), 2).tolist() == [[True, True], [True, True]]
    assert distinct(join([other, long]), 2).tolist() == [[True, True], [True, True]]
    same = {"input_ids": torch.tensor([[1, 2], [4, 5]]), "attention_mask": torch.ones(2, 2, dtype=torch.int64)}
    assert distinct(join([other, same]), 2).tolist() == [[True, True], [False, True]]


@pytest.fixture
def model(tiny_bert):
    return load(tiny_bert, device="cpu")


def test_one_column_is_encoded_twice_with_two_dropouts(model, sentences):
    batch = [model.preprocess(sentences[:6])]
    quiet = SimCSELoss(model, mask_duplicates=False)
    vectors = model(dict(batch[0]))["sentence_embedding"]
    assert quiet(batch).item() == pytest.approx(info_nce(vectors, vectors, temperature=0.05).item(), abs=1e-5)
    model.train()
    torch.manual_seed(0)
    loud = quiet(batch)
    torch.manual_seed(1)
    assert quiet(batch).item() != pytest.approx(loud.item(), abs=1e-6)


@pytest.mark.parametrize("columns", [2, 3])
def test_two_and_three_columns(model, sentences, columns):
    batch = [model.preprocess(sentences[i * 6 : i * 6 + 6]) for i in range(columns)]
    parts = [model(dict(column))["sentence_embedding"] for column in batch]
    loss = SimCSELoss(model, temperature=0.2, chunking=Chunking(40, 2), hard_negative_log_weight=0.5)
    expected = info_nce(*parts, temperature=0.2, hard_negative_log_weight=0.5)
    assert loss(batch, labels=None).item() == pytest.approx(expected.item(), abs=1e-5)
    assert loss.get_config_dict() == {
        "temperature": 0.2,
        "hard_negative_log_weight": 0.5,
        "mask_duplicates": True,
        "gather_across_devices": True,
    }


def test_duplicates_are_masked_or_counted(model, sentences):
    texts = [*sentences[:5], sentences[0]]
    batch = [model.preprocess(texts)]
    assert SimCSELoss(model)(batch) < SimCSELoss(model, mask_duplicates=False)(batch) - 0.1


def test_four_columns_are_refused(model, sentences):
    with pytest.raises(ValueError, match="one, two or three text columns, not 4"):
        SimCSELoss(model)([model.preprocess(sentences[:2])] * 4)
