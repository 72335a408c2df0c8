"""The losses of JTCSE against worked numbers, and where they are easy to get wrong."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.autograd import gradcheck

from sentsmith.methods.jtcse.objective import (
    Parts,
    joint_loss,
    log_coefficient,
    modulus_constraint,
    modulus_loss,
    nce,
)

# First and second views of two sentences, by stream.
VIEWS = {
    "cls_1": ([[1.0, 0.0], [0.6, 0.8]], [[0.8, 0.6], [0.0, 1.0]]),
    "cls_2": ([[0.9, 0.1], [0.5, 0.5]], [[0.7, -0.2], [0.1, 0.9]]),
    "pooler_1": ([[0.5, 0.2], [-0.1, 0.6]], [[0.4, 0.3], [0.0, 0.7]]),
    "pooler_2": ([[0.9, 0.1], [0.2, 0.2]], [[0.3, -0.1], [-0.3, 0.8]]),
    "cross_1": ([[1.0, 0.2], [0.1, 1.0]], [[0.9, 0.1], [0.3, 0.9]]),
    "cross_2": ([[0.8, -0.1], [0.2, 0.7]], [[1.0, 0.4], [-0.2, 1.0]]),
}
NCE_1, NCE_2, ICTM = 1.62941, 0.187207, 0.14624
ICNCE = {True: 0.670821, False: 1.43065}
TOTAL = {True: 2.633679, False: 3.393508}
CLOSE = {"abs": 1e-6}
FINITE = ("equal", "zero", "one zero", "opposite", "right angle", "one row")


def worked(dtype=torch.float64):
    """Return the streams of the worked example, views interleaved."""
    return {
        name: torch.stack([torch.tensor(part, dtype=dtype) for part in views], dim=1).flatten(0, 1)
        for name, views in VIEWS.items()
    }


def drawn(rows=8, width=5, dtype=torch.float64, seed=0):
    """Return six random streams that need gradients."""
    generator = torch.Generator().manual_seed(seed)
    return [
        torch.randn(rows, width, dtype=torch.float64, generator=generator).to(dtype).requires_grad_() for _ in range(6)
    ]


def loss_of(streams, **changes):
    return joint_loss(*streams, **({"temperature": 0.05, "first_queries_second": True} | changes))


def values(parts):
    return {name: part.item() for name, part in parts.items()}


# Worked numbers -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("k", "t", "expected"),
    [(1, 1, 0.0), (2, 1, 0.333333), (0.5, 1, 0.333333), (1, 0, 0.707107), (1, -1, 1.0), (3, 0.5, 0.661438)],
)
def test_modulus_constraint_by_ratio_and_cosine(k, t, expected):
    u = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    v = k * torch.tensor([[t, math.sqrt(1 - t * t)]], dtype=torch.float64)
    assert modulus_constraint(u, v).item() == pytest.approx(expected, **CLOSE)


def test_modulus_constraint_of_vectors():
    u = torch.tensor([[3.0, 4.0], [3.0, 4.0], [1.0, 0.0]])
    v = torch.tensor([[3.0, 4.0], [6.0, 8.0], [0.0, 1.0]])
    assert modulus_constraint(u, v).tolist() == pytest.approx([0.0, 0.333333, 0.707107], **CLOSE)


def test_log_coefficient():
    found = log_coefficient(torch.tensor([1, 0.5, 0.001, 0, -0.3], dtype=torch.float64))
    assert found.tolist() == pytest.approx([0.0, 0.693147, 6.907755, 9.21034, 9.21034], **CLOSE)


@pytest.mark.parametrize("first_queries_second", [True, False])
def test_full_loss(first_queries_second):
    total, parts = joint_loss(**worked(), temperature=0.05, first_queries_second=first_queries_second)
    expected = {"nce_1": NCE_1, "nce_2": NCE_2, "icnce": ICNCE[first_queries_second], "ictm": ICTM}
    assert values(parts) == pytest.approx(expected, **CLOSE)
    assert total.item() == pytest.approx(TOTAL[first_queries_second], **CLOSE)


def test_half_the_modulus_constraint_as_the_released_code_has_it():
    total, parts = joint_loss(**worked(), temperature=0.05, first_queries_second=True, parts=Parts(half_tmc=True))
    expected = {"nce_1": NCE_1, "nce_2": NCE_2, "icnce": ICNCE[True], "ictm": 0.07312}
    assert values(parts) == pytest.approx(expected, **CLOSE)
    assert total.item() == pytest.approx(2.560559, **CLOSE)


def test_literal_views():
    streams = worked()
    assert nce(streams["cls_1"], temperature=0.05, views="literal").item() == pytest.approx(1.619977, **CLOSE)
    across = nce(streams["cls_1"], streams["cls_2"], temperature=0.05, views="literal")
    assert across.item() == pytest.approx(0.002726, **CLOSE)
    _, parts = joint_loss(
        **streams | {"cross_1": None, "cross_2": None},
        temperature=0.05,
        first_queries_second=True,
        parts=Parts(views="literal", cross=False),
    )
    assert parts["nce_1"].item() == pytest.approx(1.619977, **CLOSE)
    assert parts["icnce"].item() == pytest.approx(0.002726, **CLOSE)


def test_literal_views_of_equal_towers_are_across_all_the_same():
    """One tensor for both towers is two streams: the positive is the same view, at cosine 1."""
    stream = worked()["cls_1"]
    across = nce(stream, stream, temperature=0.05, views="literal")
    assert across.item() == nce(stream, stream.clone(), temperature=0.05, views="literal").item()
    assert across.item() != pytest.approx(nce(stream, temperature=0.05, views="literal").item(), abs=0.1)


def test_interleaved_views_by_hand():
    queries, keys = worked()["cls_1"], worked()["cls_2"]
    expected = []
    for i, query in enumerate(queries):
        cosines = [float(query @ key / query.norm() / key.norm()) for key in keys]
        candidates = [math.exp(cosine / 0.3) for k, cosine in enumerate(cosines) if k != i]
        partner = i + 1 if i % 2 == 0 else i - 1
        expected.append(math.log(sum(candidates)) - cosines[partner] / 0.3)
    assert nce(queries, keys, temperature=0.3).item() == pytest.approx(sum(expected) / 4, abs=1e-12)


def test_the_random_bit_turns_both_halves_of_icnce():
    streams = [stream.detach() for stream in drawn()]
    swapped = [streams[i] for i in (1, 0, 3, 2, 5, 4)]
    _, first = loss_of(streams, first_queries_second=True)
    _, second = loss_of(swapped, first_queries_second=False)
    assert first["icnce"].item() == pytest.approx(second["icnce"].item(), abs=1e-12)
    halves = [nce(streams[0], streams[1], temperature=0.05), nce(streams[4], streams[5], temperature=0.05)]
    assert first["icnce"].item() == pytest.approx(sum(halves).item(), abs=1e-12)
    _, other = loss_of(streams, first_queries_second=False)
    assert other["icnce"].item() != pytest.approx(first["icnce"].item(), abs=1e-3)


def test_modulus_loss_goes_from_first_to_second_views():
    """Neither the second views' own direction nor same-view pairs take part."""
    streams = [stream.detach() for stream in drawn()[:4]]
    base = modulus_loss(*streams).item()
    turned = [stream.clone() for stream in streams]
    turned[0][0::2] *= 2  # the length of sentence vectors is not read
    assert modulus_loss(*turned).item() == pytest.approx(base, abs=1e-12)
    for index, stream in enumerate(streams):
        changed = list(streams)
        changed[index] = stream.clone()
        changed[index][1] = -stream[1]
        assert modulus_loss(*changed).item() != pytest.approx(base, abs=1e-6)
    alike = modulus_loss(streams[0], streams[0].reshape(4, 2, 5).flip(1).flatten(0, 1), *streams[2:])
    assert alike.item() == pytest.approx(0, abs=1e-6), "the partner of a first view is the other tower's second view"


# Properties ---------------------------------------------------------------------------------------------------------


@given(k=st.floats(1e-3, 1e3), t=st.floats(-1, 1))
def test_modulus_constraint_is_the_same_for_k_and_its_inverse(k, t):
    u = torch.tensor([[1.0, 0.0]], dtype=torch.float64)
    v = torch.tensor([[t, math.sqrt(1 - t * t)]], dtype=torch.float64)
    found = modulus_constraint(u, k * v).item()
    assert found == pytest.approx(modulus_constraint(u, v / k).item(), abs=1e-9)
    assert found == pytest.approx(modulus_constraint(k * v, u).item(), abs=1e-12)
    assert found == pytest.approx(math.sqrt(max(1 + k * k - 2 * k * t, 0)) / (1 + k), abs=1e-7)
    assert 0 <= found <= 1 + 1e-12


def test_gradients():
    streams = drawn(rows=4, width=3)
    for first_queries_second in (True, False):
        for parts in (Parts(), Parts(views="literal", half_tmc=True)):

            def loss(*given, bit=first_queries_second, parts=parts):
                return joint_loss(*given, temperature=0.5, first_queries_second=bit, parts=parts)[0]

            assert gradcheck(loss, streams)
            # Every stream learns.
            assert all(part.abs().max() > 1e-6 for part in torch.autograd.grad(loss(*streams), streams))
    assert gradcheck(modulus_constraint, streams[2:4])
    assert gradcheck(modulus_loss, streams[:4])


def edge(name):
    streams = [stream.detach() for stream in drawn()]
    if name == "equal":
        streams = [streams[0][:1].expand(8, 5).clone() for _ in streams]
    elif name == "zero":
        streams = [torch.zeros_like(stream) for stream in streams]
    elif name == "one zero":
        for stream in streams:
            stream[2] = 0
    elif name == "opposite":
        streams[1], streams[3], streams[5] = -streams[0], -streams[2], -streams[4]
    elif name == "right angle":
        axes = torch.eye(5, dtype=torch.float64)
        streams = [axes[index % 2].expand(8, 5).clone() for index in range(6)]
    else:
        streams = [stream[:2] for stream in streams]
    return streams


@pytest.mark.parametrize("autocast", [False, True])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("views", ["interleaved", "literal"])
@pytest.mark.parametrize("name", FINITE)
def test_finite(name, views, dtype, autocast):
    streams = [stream.to(dtype).requires_grad_() for stream in edge(name)]
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        total, parts = loss_of(streams, parts=Parts(views=views))
    total.backward()
    assert total.dtype == torch.promote_types(dtype, torch.float32)
    assert all(torch.isfinite(part) for part in (total, *parts.values()))
    assert all(torch.isfinite(stream.grad).all() for stream in streams)


def test_vectors_that_cannot_be_told_apart():
    _, parts = loss_of(edge("equal"))
    # 2B − 2 negatives and the positive, all at cosine 1; ICNCE has two such halves.
    assert values(parts) == pytest.approx(
        {"nce_1": math.log(7), "nce_2": math.log(7), "icnce": 2 * math.log(7), "ictm": 0.0}, abs=1e-6
    )


def test_a_batch_of_one_has_no_negative():
    streams = [stream.requires_grad_() for stream in edge("one row")]
    total, parts = loss_of(streams)
    assert values(parts) == pytest.approx({"nce_1": 0, "nce_2": 0, "icnce": 0, "ictm": parts["ictm"].item()})
    assert parts["ictm"] > 0
    total.backward()
    # Nothing to tell apart: the contrastive streams get no gradient, not even an infinite one.
    assert not streams[4].grad.any()


@pytest.mark.parametrize("autocast", [False, True])
def test_half_precision_is_computed_in_single(autocast):
    streams = [stream.detach() for stream in drawn(rows=32, width=64, dtype=torch.bfloat16)]
    expected, _ = loss_of([stream.float() for stream in streams])
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found, _ = loss_of(streams)
        assert modulus_constraint(*streams[:2]).dtype == torch.float32
    assert found.dtype == torch.float32
    assert found.item() == pytest.approx(expected.item(), abs=1e-6)


# Parts --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("parts", "names"),
    [
        (Parts(), {"nce_1", "nce_2", "icnce", "ictm"}),
        (Parts(nce=False), {"icnce", "ictm"}),
        (Parts(icnce=False), {"nce_1", "nce_2", "ictm"}),
        (Parts(ictm=False), {"nce_1", "nce_2", "icnce"}),
        (Parts(nce=False, icnce=False), {"ictm"}),
    ],
)
def test_a_part_can_be_left_out(parts, names):
    whole = values(loss_of(drawn())[1])
    total, found = loss_of(drawn(), parts=parts)
    assert set(found) == names
    assert values(found) == pytest.approx({name: whole[name] for name in names}, abs=1e-12)
    assert total.item() == pytest.approx(sum(whole[name] for name in names), abs=1e-12)


def test_without_cross_streams():
    """TNCSE: by what is given, or by what is wanted."""
    streams = [stream.detach() for stream in drawn()]
    _, absent = loss_of([*streams[:4], None, None])
    _, unread = loss_of(streams, parts=Parts(cross=False))
    expected = nce(streams[0], streams[1], temperature=0.05).item()
    assert absent["icnce"].item() == unread["icnce"].item() == pytest.approx(expected, abs=1e-12)
    assert not Parts(icnce=False).needs_cross


def test_without_poolers():
    total, parts = loss_of([*drawn()[:2], None, None, *drawn()[4:]], parts=Parts(ictm=False))
    assert set(parts) == {"nce_1", "nce_2", "icnce"}
    assert torch.isfinite(total)


WIDE, ROWS, ODD, FLAT = torch.ones(8, 6), torch.ones(6, 5), torch.ones(7, 5), torch.ones(8)


@pytest.mark.parametrize(
    ("streams", "changes", "message"),
    [
        ({1: WIDE}, {}, r"all streams must be \[2B, d\].*\[\[8, 5\], \[8, 6\], "),
        ({4: ROWS}, {}, r"\[6, 5\]"),
        (dict.fromkeys(range(6), ODD), {}, "two views of each sentence"),
        (dict.fromkeys(range(6), FLAT), {}, r"\[2B, d\]"),
        (dict.fromkeys(range(6), torch.ones(0, 5)), {}, r"\[2B, d\]"),
        ({2: None}, {}, "reads pooler_1 and pooler_2; give them, or switch it off"),
        ({5: None}, {}, "reads cross_1 and cross_2; give them, or switch it off"),
        ({4: None, 5: None}, {"parts": Parts()}, "reads cross_1 and cross_2"),
        ({}, {"parts": Parts(nce=False, icnce=False, ictm=False)}, "no part of the loss is left"),
        ({}, {"temperature": 0.0}, "temperature must be above 0, not 0.0"),
        ({}, {"temperature": -1.0}, "above 0, not -1.0"),
    ],
)
def test_what_does_not_fit_is_refused(streams, changes, message):
    given = [streams.get(index, stream.detach()) for index, stream in enumerate(drawn())]
    with pytest.raises(ValueError, match=message):
        loss_of(given, **changes)
