"""The decoding loop: transformers' own output token by token, whatever stands beside a prompt."""

from __future__ import annotations

import copy
import functools
import random

import numpy as np
import pytest
import torch
from transformers import DynamicCache
from transformers.cache_utils import DynamicLayer, DynamicSlidingWindowLayer

from sentsmith.llm import decoding as decoding_module
from sentsmith.llm.backend import Decoding
from sentsmith.llm.cache import GrowingLayer, growing_cache
from sentsmith.llm.decoding import Decoder, Pair, Written
from sentsmith.llm.guidance import choose, combine_logits, keep_plausible

DECODERS = ("llama", "gpt2", "qwen3-sliding")
ENCODERS = ("t5", "bart")
LIMIT = 14
# Several ends, so that random models come to one, each at another place.
ENDS = (3, 11, 40, 57)
GREEDY = Decoding(max_new_tokens=LIMIT)
STEERED = Decoding(max_new_tokens=LIMIT, second_weight=-0.6)
FLOOR = Decoding(max_new_tokens=LIMIT, first_weight=1.5, second_weight=-0.5, floor=0.2)
DRAWN = Decoding(max_new_tokens=LIMIT, second_weight=-0.6, temperature=0.9, top_p=0.9)


@pytest.fixture(scope="module")
def models(make_writer):
    return {kind: make_writer(kind) for kind in (*DECODERS, *ENCODERS)}


@pytest.fixture
def model(models, request):
    """Return a copy of a model, whose settings a decoder may replace."""
    return copy.deepcopy(models[request.param])


every_kind = pytest.mark.parametrize("model", [*DECODERS, *ENCODERS], indirect=True)


def some_of(every, quick):
    """Return all cases, those that are not among the quick ones marked as slow."""
    assert all(case in every for case in quick)
    return [case if case in quick else pytest.param(*case, marks=pytest.mark.slow) for case in every]


def prompts(count, seed=0):
    dice = random.Random(seed)
    return [dice.choices(range(5, 80), k=dice.choice([1, 2, 3, 7, 12, 20])) for _ in range(count)]


def pairs(count=12, *, seed=0):
    """Return pairs whose two prompts differ in everything, length included, each with numbers of its own."""
    dice = np.random.default_rng(seed)
    return [
        Pair(first, second, LIMIT, dice.random(LIMIT))
        for first, second in zip(prompts(count, seed), prompts(count, seed + 100), strict=True)
    ]


def plain(pair):
    return Pair(pair.first, None, pair.limit, pair.uniform)


def tokens(written):
    return [one.tokens for one in written]


def library(model, ids, **options):
    """Return what transformers itself writes after one prompt."""
    ids = torch.tensor([ids])
    found = model.generate(
        input_ids=ids,
        attention_mask=torch.ones_like(ids),
        do_sample=False,
        max_new_tokens=LIMIT,
        eos_token_id=list(ENDS),
        **options,
    )
    return found[0, 1 if model.config.is_encoder_decoder else ids.shape[1] :].tolist()


@torch.no_grad()
def by_hand(model, pair, decoding):
    """Write without cache, batch or padding: each step reads both prompts and everything written so far."""

    def logits(prompt, answer):
        ids = torch.tensor([prompt])
        if model.config.is_encoder_decoder:
            start = [model.generation_config.decoder_start_token_id]
            return model(input_ids=ids, decoder_input_ids=torch.tensor([start + answer]), use_cache=False).logits[:, -1]
        return model(input_ids=torch.tensor([[*prompt, *answer]]), use_cache=False).logits[:, -1]

    answer: list[int] = []
    while len(answer) < pair.limit and (not answer or answer[-1] not in ENDS):
        first = logits(pair.first, answer)
        weights = {"first_weight": decoding.first_weight, "second_weight": decoding.second_weight}
        combined = first if pair.second is None else combine_logits(first, logits(pair.second, answer), **weights)
        combined = keep_plausible(combined, first, floor=decoding.floor)
        uniform = torch.tensor([pair.uniform[len(answer)]])
        answer.append(choose(combined, temperature=decoding.temperature, top_p=decoding.top_p, uniform=uniform).item())
    return answer


# -- the proofs ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("model", "second"),
    some_of(
        [(kind, second) for kind in (*DECODERS, *ENCODERS) for second in (True, False)],
        [("llama", True), ("qwen3-sliding", False), ("t5", True)],
    ),
    indirect=["model"],
)
def test_weights_1_and_0_are_the_greedy_search_of_transformers(model, second):
    expected = [library(model, pair.first) for pair in pairs()]
    given = pairs() if second else list(map(plain, pairs()))
    assert tokens(Decoder(model, ends=ENDS).decode(given, GREEDY)) == expected
    assert len(set(map(tuple, expected))) > 6
    assert len(set(map(len, expected))) > 1


@pytest.mark.parametrize(
    ("model", "strength"),
    some_of([(kind, strength) for kind in DECODERS for strength in (0.5, 1.5)], [("llama", 0.5)]),
    indirect=["model"],
)
def test_it_is_the_classifier_free_guidance_of_transformers(model, strength):
    expected = [
        library(model, pair.first, negative_prompt_ids=torch.tensor([pair.second]), guidance_scale=1 + strength)
        for pair in pairs()
    ]
    decoding = Decoding(max_new_tokens=LIMIT, first_weight=1 + strength, second_weight=-strength)
    decoder = Decoder(model, ends=ENDS)
    assert tokens(decoder.decode(pairs(), decoding)) == expected
    # Not so by nature: without guidance the same prompts are answered otherwise.
    assert tokens(decoder.decode(pairs(), GREEDY)) != expected


@pytest.mark.parametrize(
    ("model", "decoding"),
    some_of(
        [(kind, decoding) for kind in (*DECODERS, *ENCODERS) for decoding in (STEERED, DRAWN, FLOOR)],
        [("llama", FLOOR), ("qwen3-sliding", DRAWN), ("t5", STEERED)],
    ),
    indirect=["model"],
)
def test_a_loop_without_cache_writes_the_same(model, decoding):
    reference = copy.deepcopy(model)
    given = pairs(6)
    expected = [by_hand(reference, pair, decoding) for pair in given]
    found = Decoder(model, ends=ENDS).decode(given, decoding)
    assert tokens(found) == expected
    assert [one.finished for one in found] == [answer[-1] in ENDS for answer in expected]


@pytest.mark.parametrize(
    ("model", "decoding", "guided"),
    some_of(
        [(kind, *how) for kind in (*DECODERS, *ENCODERS) for how in ((STEERED, True), (DRAWN, True), (DRAWN, False))],
        [("llama", STEERED, True), ("t5", DRAWN, True)],
    ),
    indirect=["model"],
)
def test_what_stands_beside_a_prompt_does_not_matter(model, decoding, guided):
    decoder, given = Decoder(model, ends=ENDS), pairs(10)
    given = given if guided else list(map(plain, given))
    alone = [decoder.decode([pair], decoding)[0].tokens for pair in given]
    assert tokens(decoder.decode(given, decoding)) == alone
    order = random.Random(1).sample(range(10), 10)
    assert tokens(decoder.decode([given[i] for i in order], decoding)) == [alone[i] for i in order]
    assert tokens(decoder.decode(given[:3], decoding)) + tokens(decoder.decode(given[3:], decoding)) == alone


@every_kind
@pytest.mark.parametrize("decoding", [pytest.param(STEERED, marks=pytest.mark.slow), DRAWN], ids=["greedy", "drawn"])
def test_the_two_rows_of_a_pair_never_part_and_leave_together(model, decoding, monkeypatch):
    fed, prepare = [], model.prepare_inputs_for_generation

    @functools.wraps(prepare)  # generate reads the signature
    def spy(input_ids, **options):
        fed.append(input_ids.clone())
        return prepare(input_ids, **options)

    monkeypatch.setattr(model, "prepare_inputs_for_generation", spy)
    found = Decoder(model, ends=range(3, 83, 4)).decode(pairs(16), decoding)
    written = [ids[:, fed[0].shape[1] :] for ids in fed]
    for ids in written:
        first, second = ids.chunk(2)
        assert first.equal(second)
    counts = [len(ids) // 2 for ids in written]
    assert counts == sorted(counts, reverse=True)
    assert counts[-1] < counts[0] == 16
    # Rows that have ended stay until enough others have; at each step, at most an eighth of the batch.
    for step, count in enumerate(counts):
        still = sum(len(one.tokens) > step for one in found)
        assert still <= count < still + max(1, count / 8)


# -- ends, limits, what the model says of itself -------------------------------------------------------------------


@every_kind
def test_an_answer_ends_at_any_end_or_at_its_limit(model):
    decoder = Decoder(model, ends=[10**6])
    endless = tokens(decoder.decode(pairs(), STEERED))
    assert {len(answer) for answer in endless} == {LIMIT}
    assert not any(one.finished for one in decoder.decode(pairs(), STEERED))
    decoder.ends = frozenset(ENDS)
    for one, whole in zip(decoder.decode(pairs(), STEERED), endless, strict=True):
        end = next((i for i, token in enumerate(whole) if token in ENDS), None)
        assert one.tokens == whole[: LIMIT if end is None else end + 1]
        assert one.finished is (end is not None)
    limits = [1 + i % LIMIT for i in range(12)]
    short = [Pair(pair.first, pair.second, limit) for pair, limit in zip(pairs(), limits, strict=True)]
    decoder.ends = frozenset([10**6])
    assert tokens(decoder.decode(short, STEERED)) == [a[:n] for a, n in zip(endless, limits, strict=True)]


@pytest.mark.parametrize("ends", [3, [3, 11, 40, 57]])
def test_the_models_own_ends(make_writer, ends):
    model = make_writer("llama")
    model.generation_config.eos_token_id = ends
    assert Decoder(model).ends == frozenset([3] if ends == 3 else ends)
    model.generation_config.eos_token_id = None
    with pytest.raises(ValueError, match="no token ends an answer"):
        Decoder(model)


@pytest.mark.parametrize("model", ["llama", "bart"], indirect=True)
def test_the_taste_of_the_model_does_not_interfere(model):
    expected = tokens(Decoder(copy.deepcopy(model), ends=ENDS).decode(pairs(), STEERED))
    model.generation_config.update(
        do_sample=True, temperature=0.2, top_k=3, top_p=0.3, repetition_penalty=3.0, num_beams=4, max_length=5,
        min_new_tokens=9, no_repeat_ngram_size=1, guidance_scale=3.0, renormalize_logits=True, forced_eos_token_id=3,
    )  # fmt: skip
    assert tokens(Decoder(model, ends=ENDS).decode(pairs(), STEERED)) == expected


@pytest.mark.parametrize("model", ["bart", "llama"], indirect=True)
def test_what_it_cannot_write_right_without_stays(model):
    plainly = [library(model, pair.first) for pair in pairs(6)]
    common = max(
        {token for answer in plainly for token in answer if token not in ENDS},
        key=lambda token: str(plainly).count(f" {token},"),
    )
    model.generation_config.update(suppress_tokens=[common], begin_suppress_tokens=[20], bad_words_ids=[[0], [31, 32]])
    if model.config.is_encoder_decoder:
        model.generation_config.forced_bos_token_id = 12
    expected = [library(model, pair.first) for pair in pairs(6)]
    decoder = Decoder(model, ends=ENDS)
    assert tokens(decoder.decode(list(map(plain, pairs(6))), GREEDY)) == expected != plainly
    steered = tokens(decoder.decode(pairs(), STEERED))
    assert not any(common in answer for answer in steered)
    if model.config.is_encoder_decoder:
        assert {answer[0] for answer in steered} == {12}


def test_logits_that_are_no_numbers(make_writer, monkeypatch):
    """One prompt breaks; the others are answered."""
    decoder = Decoder(make_writer("llama"), ends=ENDS)
    expected = {decoding: decoder.decode(pairs(), decoding) for decoding in (STEERED, DRAWN)}
    read = decoding_module.prefill

    def breaking(*given):
        outputs = read(*given)
        outputs.logits[4] = torch.nan
        return outputs

    monkeypatch.setattr(decoding_module, "prefill", breaking)
    for decoding, answers in expected.items():
        found = decoder.decode(pairs(), decoding)
        assert found[4] == Written(broken=True)
        assert found[:4] + found[5:] == answers[:4] + answers[5:]


@pytest.mark.parametrize(
    ("model", "decoding"),
    some_of([(kind, how) for kind in ("llama", "t5") for how in (STEERED, DRAWN)], [("llama", DRAWN)]),
    indirect=["model"],
)
def test_two_equal_prompts_are_one_row(model, decoding, monkeypatch):
    """They answer alike for ever, so the model is asked once, whoever is beside them."""
    decoder = Decoder(model, ends=ENDS)
    some = [Pair(p.first, p.first if i % 3 else p.second, LIMIT, p.uniform) for i, p in enumerate(pairs(6))]
    rows, read = [], decoding_module.prefill
    monkeypatch.setattr(decoding_module, "prefill", lambda *given: rows.append(len(given[1])) or read(*given))
    expected = [by_hand(model, pair, decoding) for pair in some]
    assert tokens(decoder.decode(some, decoding)) == expected
    equal = [i for i in range(6) if i % 3]
    assert tokens(decoder.decode([some[i] for i in equal], decoding)) == [expected[i] for i in equal]
    assert rows == [8, 4]


def test_batches_of_both_kinds_or_without_numbers_are_refused(make_writer):
    decoder = Decoder(make_writer("llama"), ends=ENDS)
    with pytest.raises(ValueError, match="all pairs have a second prompt, or none"):
        decoder.decode([pairs()[0], plain(pairs()[1])], STEERED)
    with pytest.raises(ValueError, match="as many uniform numbers"):
        decoder.decode([Pair([5], None, 3)], DRAWN)
    assert decoder.decode([], GREEDY) == []


# -- the cache -----------------------------------------------------------------------------------------------------


def test_the_growing_layer_is_the_librarys_layer_without_its_copies():
    ours, theirs = GrowingLayer(), DynamicLayer()
    dice = torch.Generator().manual_seed(0)
    kept = set()
    for step, new in enumerate([5, *[1] * 90]):
        states = [torch.randn(6 if step < 40 else 3, 2, new, 4, generator=dice) for _ in range(2)]
        for mine, other in zip(ours.update(*states), theirs.update(*states), strict=True):
            assert mine.equal(other)
        assert ours.get_seq_length() == theirs.get_seq_length()
        kept.add(ours.keys.data_ptr())
        if step == 39:
            for layer in (ours, theirs):
                layer.reorder_cache(torch.tensor([5, 0, 2]))
    assert len(kept) < 6


def test_only_layers_that_keep_everything_grow(models):
    cache = growing_cache(models["qwen3-sliding"])
    assert sorted(type(layer).__name__ for layer in cache.layers) == ["DynamicSlidingWindowLayer", "GrowingLayer"]
    assert isinstance(cache, DynamicCache)
    assert any(isinstance(layer, DynamicSlidingWindowLayer) for layer in cache.layers)
    t5 = growing_cache(models["t5"])
    assert {type(layer) for layer in t5.self_attention_cache.layers} == {GrowingLayer}
    assert {type(layer) for layer in t5.cross_attention_cache.layers} == {DynamicLayer}
