"""The loss as the trainer calls it: one column of sentences, in chunks, on one process and on two."""

from __future__ import annotations

import pytest
import torch
from torch.nn.parallel import DistributedDataParallel

from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.dropout import set_dropout
from sentsmith.encoders.loading import load
from sentsmith.errors import SettingsError
from sentsmith.methods.jtcse.cross import CrossPlan
from sentsmith.methods.jtcse.objective import JTCSELoss, Parts, joint_loss
from sentsmith.methods.jtcse.towers import Joint, tower_pair

# Rows of the first and of the second process.
COUNTS = (5, 3)
PLANS = {"last": CrossPlan((0, 1)), "carry": CrossPlan((0, 1), "carry"), "TNCSE": None}
# Of torch's generator: the first bit that it draws.
SEEDS = {True: 1, False: 0}


def quiet(model):
    """Return the model in training, in float64, without dropout."""
    for tower in tower_pair(model).pair:
        set_dropout(tower, 0.0)
    return model.double().train()


def gradients(model, parts):
    model.zero_grad()
    sum(parts.values()).backward()
    found = {name: weights.grad.clone() for name, weights in model.named_parameters() if weights.grad is not None}
    return {name: part.item() for name, part in parts.items()}, found


def assert_same(found, expected):
    assert found[0] == pytest.approx(expected[0], abs=1e-9)
    assert found[1].keys() == expected[1].keys()
    # A comparison of zeros with zeros would prove nothing.
    assert max(gradient.abs().max() for gradient in expected[1].values()) > 1e-3
    for name in expected[1]:
        torch.testing.assert_close(found[1][name], expected[1][name], atol=1e-9, rtol=1e-7, msg=name)


@pytest.fixture(scope="module")
def model(pair_of_berts):
    return quiet(pair_of_berts())


@pytest.fixture(scope="module")
def features(model, sentences):
    return [model.preprocess(sentences[: sum(COUNTS)])]


def at_once(model, features, plan, first_queries_second):
    """Return the loss of all rows in one pass, through the pure functions."""
    given = {key: features[0][key].repeat_interleave(2, dim=0) for key in ("input_ids", "attention_mask")}
    streams = tower_pair(model).streams(given, Joint(cross=plan))
    streams += [None] * (6 - len(streams))
    return joint_loss(*streams, temperature=0.05, first_queries_second=first_queries_second)[1]


@pytest.mark.parametrize(
    ("tokens", "recompute", "bit"), [(48, False, True), (48, True, True), (48, True, False), (10_000, False, False)]
)
@pytest.mark.parametrize("mode", PLANS)
def test_chunks_do_not_matter(model, features, mode, tokens, recompute, bit):
    plan = PLANS[mode]
    expected = gradients(model, at_once(model, features, plan, bit))
    loss = JTCSELoss(model, cross=plan, chunking=Chunking(tokens, 1, recompute))
    torch.manual_seed(SEEDS[bit])
    assert_same(gradients(model, loss(features)), expected)


def test_both_towers_and_their_poolers_learn(model, features):
    torch.manual_seed(0)
    _, found = gradients(model, JTCSELoss(model, cross=PLANS["last"])(features))
    for tower in ("towers.0", "towers.1"):
        for part in ("pooler.dense.weight", "layer.0.attention.self.query.weight", "layer.1.output.dense.weight"):
            (name,) = [name for name in found if tower in name and name.endswith(part)]
            assert found[name].abs().max() > 1e-6, name


def test_recomputed_chunks_repeat_their_dropout(pair_of_berts, sentences):
    model = pair_of_berts().double().train()
    features = [model.preprocess(sentences[:6])]
    seen = []
    for recompute in (False, True):
        loss = JTCSELoss(model, cross=PLANS["carry"], chunking=Chunking(24, 1, recompute))
        torch.manual_seed(3)
        seen.append(gradients(model, loss(features)))
    assert_same(seen[1], seen[0])
    torch.manual_seed(4)
    assert gradients(model, loss(features))[0] != pytest.approx(seen[0][0], abs=1e-3)


def test_dropout_makes_the_views(pair_of_berts, sentences):
    model = pair_of_berts().train()
    given = {key: value[:1].repeat(2, 1) for key, value in model.preprocess(sentences[:1]).items() if key != "modality"}
    streams = tower_pair(model).streams(given, Joint(cross=PLANS["last"]))
    assert len(streams) == 6
    for stream in streams:
        assert (stream[0] - stream[1]).abs().max() > 1e-3


def test_the_random_bit_is_torchs_own(model, features):
    """A checkpoint keeps torch's state, and with it the bits to come."""
    loss = JTCSELoss(model, cross=PLANS["last"])
    torch.manual_seed(11)
    state = torch.get_rng_state()
    first = [loss(features)["icnce"].item() for _ in range(12)]
    torch.set_rng_state(state)
    assert [loss(features)["icnce"].item() for _ in range(12)] == first
    assert len(set(first)) == 2
    torch.set_rng_state(state)
    bits = [bool(torch.randint(2, ())) for _ in range(12)]
    assert len({(bit, value) for bit, value in zip(bits, first, strict=True)}) == 2


@pytest.mark.parametrize(
    ("parts", "width"),
    [
        (Parts(), 6),
        (Parts(ictm=False), 4),
        (Parts(cross=False), 4),
        (Parts(icnce=False), 4),
        (Parts(ictm=False, icnce=False), 2),
    ],
)
def test_streams_that_no_part_reads_are_not_computed(model, features, parts, width):
    loss = JTCSELoss(model, parts=parts, cross=PLANS["last"])
    whole = at_once(model, features, PLANS["last"], True)
    torch.manual_seed(SEEDS[True])
    found = loss(features)
    assert model(dict(features[0]))["streams"].shape[1] == width * 32
    for name in found:
        if name != "icnce" or parts.cross:
            assert found[name].item() == pytest.approx(whole[name].item(), abs=1e-9)


def test_two_losses_of_one_model_do_not_disturb_each_other(model, features):
    first, second = JTCSELoss(model, cross=PLANS["last"]), JTCSELoss(model)

    def value(loss):
        torch.manual_seed(SEEDS[True])
        return {name: part.item() for name, part in loss(features).items()}

    before = value(first)
    value(second)
    assert value(first) == before


def test_what_the_loss_refuses(model, features, tiny_bert):
    with pytest.raises(ValueError, match="one column of sentences, not 2"):
        JTCSELoss(model)(features * 2)
    with pytest.raises(ValueError, match=r"parts\.cross reads cross streams; say where attention crosses"):
        JTCSELoss(model, parts=Parts())
    with pytest.raises(SettingsError, match="a model of two towers is needed"):
        JTCSELoss(load(tiny_bert, device="cpu"))


@pytest.mark.parametrize("autocast", [False, True])
def test_single_and_half_precision(pair_of_berts, sentences, autocast):
    model = pair_of_berts().train()
    loss = JTCSELoss(model, cross=PLANS["carry"], chunking=Chunking(48, 1))
    torch.manual_seed(0)
    with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
        found = loss([model.preprocess(sentences[:8])])
    assert {part.dtype for part in found.values()} == {torch.float32}
    values, slopes = gradients(model, found)
    assert all(torch.isfinite(torch.tensor(value)) for value in values.values())
    assert all(torch.isfinite(slope).all() for slope in slopes.values())


# Two processes ------------------------------------------------------------------------------------------------------


def of_two(rank, folder, sentences):
    """Return the loss and the averaged gradients of this process's rows by mode, chunks kept and recomputed."""
    model = quiet(load(folder, device="cpu"))
    own = sentences[: COUNTS[0]] if rank == 0 else sentences[COUNTS[0] :]
    features = [model.preprocess(own)]
    found = {}
    for mode, plan in PLANS.items():
        for recompute in (False, True):
            loss = JTCSELoss(model, cross=plan, chunking=Chunking(64, 1, recompute))
            loss.model = DistributedDataParallel(model, find_unused_parameters=True, broadcast_buffers=False)
            # The first process draws a 1, the second would draw a 0.
            torch.manual_seed(1 - rank)
            found[mode, recompute] = gradients(model, loss(features))
    return found


@pytest.mark.slow
def test_two_processes_get_the_gradients_of_one(in_two_processes, model, features, sentences, tmp_path):
    for bit, seed in SEEDS.items():
        torch.manual_seed(seed)
        assert torch.randint(2, ()) == bit
    model.save_pretrained(str(tmp_path / "twin"), create_model_card=False)
    found = in_two_processes(of_two, tmp_path / "twin", sentences[: sum(COUNTS)])
    for mode, plan in PLANS.items():
        expected = gradients(model, at_once(model, features, plan, True))
        for one in found:
            assert_same(one[mode, False], expected)
            assert_same(one[mode, True], expected)


def test_a_model_in_evaluation_mode_is_refused(pair_of_berts, sentences):
    loss = JTCSELoss(pair_of_berts().eval())
    with pytest.raises(ValueError, match="put the model in training mode"):
        loss([loss.model.preprocess(sentences[:4])])
