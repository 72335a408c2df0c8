"""Two processes with rows of their own compute what one process with all rows computes."""

from __future__ import annotations

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from sentsmith.encoders.chunked import Chunking, join
from sentsmith.encoders.gathering import gather_features, gather_rows, process_count, same_everywhere, shared_bit
from sentsmith.encoders.loading import load
from sentsmith.methods.simcse.objective import SimCSELoss, distinct, info_nce

# Rows of the first and of the second process.
COUNTS = (5, 3)


def own(rank, rows):
    """Return the rows that belong to a process."""
    return rows[: COUNTS[0]] if rank == 0 else rows[COUNTS[0] :]


# What the two processes do ------------------------------------------------------------------------------------------


def exchange(rank):
    """Gather what is easy to get wrong; returns by name what this process sees."""
    rows = torch.arange(16.0, dtype=torch.float64).reshape(8, 2)
    seen = {"count": process_count(), "uneven": gather_rows(own(rank, rows))}
    seen["none"] = gather_rows(rows[:3] if rank == 1 else rows[:0])
    seen["all_none"] = gather_rows(rows[:0])
    seen["stacked"] = gather_rows(own(rank, rows.reshape(8, 1, 2).repeat(1, 3, 1)))
    for dtype in (torch.bool, torch.int64, torch.bfloat16, torch.float16):
        seen[str(dtype)] = gather_rows(own(rank, torch.arange(8) % 3).to(dtype))
    # A loss that differs by process: the gradient of a row is the sum over the processes.
    mine = own(rank, rows).clone().requires_grad_()
    weights = torch.arange(8.0, dtype=torch.float64)[:, None] + 100 * rank
    (gather_rows(mine) * weights).sum().backward()
    seen["gradient"] = mine.grad
    # Only the second process has something to learn; the first has to answer its backward pass.
    mine = own(rank, rows).clone().requires_grad_(rank == 1)
    gather_rows(mine).square().sum().backward()
    seen["half_frozen"] = mine.grad
    with torch.no_grad():
        seen["no_grad"] = gather_rows(mine).requires_grad
    seen["broadcast"] = same_everywhere(torch.tensor([1.5, 2.5]) + rank)
    torch.manual_seed(rank)
    seen["bits"] = [shared_bit() for _ in range(40)]
    return seen


def gather_texts(rank, columns):
    """Gather features that are padded to a width of their own; ``columns`` has one entry per process."""
    return gather_features(columns[rank], pad_token_id=9)


def linear_gradients(rank, columns):
    """Return loss and averaged gradients of a linear model under DistributedDataParallel."""
    model = linear()
    parallel = DistributedDataParallel(model)
    vectors = torch.stack([parallel(own(rank, column)) for column in columns], dim=1)
    return gradients(model, info_nce(*gather_rows(vectors).unbind(1), temperature=0.05))


def bert_gradients(rank, folder, columns, gather):
    """Return loss and averaged gradients of the tiny BERT, in several chunks, kept and recomputed."""
    model = load(folder, device="cpu").double().eval()
    found = {}
    for recompute in (False, True):
        model.zero_grad()
        parallel = DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False)
        loss = SimCSELoss(parallel, chunking=Chunking(48, 1, recompute), gather_across_devices=gather)
        # A second step, in which DistributedDataParallel has its buckets in order.
        for _ in range(2):
            model.zero_grad()
            found[recompute] = gradients(model, loss(features_of(model, [own(rank, column) for column in columns])))
    return found


def linear():
    torch.manual_seed(0)
    return nn.Linear(6, 4).double()


def features_of(model, columns):
    return [model.preprocess(column) for column in columns]


def gradients(model, loss):
    loss.backward()
    return loss.item(), {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


# What comes of it ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def seen(in_two_processes):
    return in_two_processes(exchange)


def test_rows_of_all_processes_in_the_order_of_ranks(seen):
    rows = torch.arange(16.0, dtype=torch.float64).reshape(8, 2)
    for one in seen:
        assert one["count"] == 2
        assert torch.equal(one["uneven"], rows)
        assert torch.equal(one["none"], rows[:3])
        assert one["all_none"].shape == (0, 2)
        assert torch.equal(one["stacked"], rows.reshape(8, 1, 2).repeat(1, 3, 1))
        for dtype in (torch.bool, torch.int64, torch.bfloat16, torch.float16):
            expected = (torch.arange(8) % 3).to(dtype)
            assert torch.equal(one[str(dtype)], expected)
            assert one[str(dtype)].dtype == dtype


def test_a_gradient_is_the_sum_over_the_processes(seen):
    expected = (2 * torch.arange(8.0, dtype=torch.float64) + 100)[:, None].expand(8, 2)
    assert torch.equal(torch.cat([one["gradient"] for one in seen]), expected)


def test_a_process_that_learns_nothing_takes_part(seen):
    assert seen[0]["half_frozen"] is None
    rows = torch.arange(16.0, dtype=torch.float64).reshape(8, 2)
    assert torch.equal(seen[1]["half_frozen"], 2 * 2 * rows[5:])
    assert not seen[0]["no_grad"]
    assert not seen[1]["no_grad"]


def test_the_first_process_decides(seen):
    for one in seen:
        assert one["broadcast"].tolist() == [1.5, 2.5]
    assert seen[0]["bits"] == seen[1]["bits"]
    assert 8 < sum(seen[0]["bits"]) < 32


@pytest.mark.parametrize("side", ["left", "right"])
def test_features_are_padded_as_join_pads_them(in_two_processes, side):
    wide = {"input_ids": torch.tensor([[1, 2, 3, 4], [5, 6, 9, 9]]), "prompt_length": torch.tensor([2])}
    wide["attention_mask"] = torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]])
    if side == "left":
        wide = {key: value.flip(-1) for key, value in wide.items()}
    # Its only row is whole, so nothing in it tells on which side this tokenizer pads.
    narrow = {"attention_mask": torch.tensor([[1, 1]]), "input_ids": torch.tensor([[5, 6]])}
    expected = join([narrow, wide], pad_token_id=9)
    for one in in_two_processes(gather_texts, [narrow, wide]):
        assert one.keys() == {"input_ids", "attention_mask"}
        assert all(torch.equal(one[key], expected[key]) for key in one)


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], abs=1e-9)
    assert found[1].keys() == expected[1].keys()
    # A comparison of zeros with zeros would prove nothing.
    assert max(gradient.abs().max() for gradient in expected[1].values()) > 1e-3
    for name in expected[1]:
        torch.testing.assert_close(found[1][name], expected[1][name], atol=1e-9, rtol=1e-7, msg=name)


def test_a_linear_model_gets_the_gradients_of_one_process(in_two_processes):
    columns = list(torch.randn(3, 8, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1)))
    model = linear()
    expected = gradients(model, info_nce(*map(model, columns), temperature=0.05))
    for found in in_two_processes(linear_gradients, columns):
        assert_same(found, expected)


@pytest.fixture(scope="module")
def columns(sentences):
    """Return three columns; one text is a positive in both processes, and so no negative in either."""
    columns = [sentences[:8], sentences[8:16], sentences[16:24]]
    return [columns[0], [*columns[1][:7], columns[1][0]], columns[2]]


def test_bert_gets_the_gradients_of_one_process(in_two_processes, tiny_bert, columns):
    model = load(tiny_bert, device="cpu").double().eval()
    assert not distinct(join(features_of(model, columns)), 8)[0, 7]
    expected = gradients(model, SimCSELoss(model)(features_of(model, columns)))
    for found in in_two_processes(bert_gradients, tiny_bert, columns, True):
        assert_same(found[False], expected)
        assert_same(found[True], expected)


def test_without_gathering_each_process_has_its_own_negatives(in_two_processes, tiny_bert, columns):
    model = load(tiny_bert, device="cpu").double().eval()
    losses = [SimCSELoss(model)(features_of(model, [own(rank, column) for column in columns])) for rank in (0, 1)]
    expected = gradients(model, sum(losses) / 2)
    found = in_two_processes(bert_gradients, tiny_bert, columns, False)
    for rank, one in enumerate(found):
        assert_same((losses[rank].item(), one[False][1]), (losses[rank].item(), expected[1]))
        assert one[False][0] == pytest.approx(losses[rank].item(), abs=1e-9)


def test_alone_nothing_changes():
    rows = torch.randn(3, 2, requires_grad=True)
    assert process_count() == 1
    assert gather_rows(rows) is rows
    features = {"input_ids": torch.ones(2, 3), "attention_mask": torch.ones(2, 3)}
    assert gather_features(features) == features
    assert torch.equal(same_everywhere(rows), rows)
    assert {shared_bit() for _ in range(60)} == {True, False}
