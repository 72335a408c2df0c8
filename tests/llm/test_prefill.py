"""Reading prompts: the same logits as from the padded batch, at every step after, and each token read once."""

from __future__ import annotations

import random

import pytest
import torch

from sentsmith.llm.backend import Decoding
from sentsmith.llm.cache import growing_cache
from sentsmith.llm.decoding import Decoder, Pair
from sentsmith.llm.prefill import prefill


@pytest.fixture
def model(make_writer, request):
    return make_writer(request.param)


def words(count, seed):
    return random.Random(seed).choices(range(5, 80), k=count)


def prompts():
    """Return prompts of 1 to 50 tokens: two groups that begin alike, some of one group further still, some equal."""
    one, other = words(16, 1), words(12, 2)
    deeper = [*one, *words(14, 3)]
    found = [[*one, *words(length, 10 + length)] for length in (1, 2, 2, 5, 9, 9, 14, 34)]
    found += [[*deeper, *words(length, 30 + length)] for length in range(1, 12)]
    found += [[*other, *words(length, 50 + length)] for length in range(1, 14)]
    found += [[7], [9], [8, 7], one, deeper, found[3], found[3], [7]]
    return random.Random(0).sample(found, len(found))


def run(model, rows, read, *, steps=4):
    """Return the logits ``[step, rows, vocabulary]`` after the prompts and after some tokens more."""
    width = max(map(len, rows))
    ids = torch.tensor([[0] * (width - len(row)) + row for row in rows])
    mask = torch.tensor([[0] * (width - len(row)) + [1] * len(row) for row in rows])
    found = []

    def loop(model, input_ids, logits_processor, stopping_criteria, generation_config, **given):
        outputs = read(model, input_ids, generation_config, given)
        for step in range(steps):
            if step:
                given = model._update_model_kwargs_for_generation(outputs, given)
                input_ids = torch.cat([input_ids, torch.arange(len(rows))[:, None] + 5 + step], dim=1)
                inputs = model.prepare_inputs_for_generation(input_ids, next_sequence_length=1, **given)
                outputs = model(**inputs, return_dict=True)
            found.append(outputs.logits[:, -1])
        return input_ids

    with torch.inference_mode():
        cache = growing_cache(model)
        model.generate(
            input_ids=ids, attention_mask=mask, max_new_tokens=9, custom_generate=loop, past_key_values=cache
        )
    return torch.stack(found)


def padded(model, input_ids, generation_config, model_kwargs):
    return model._prefill(input_ids, generation_config, model_kwargs)


@pytest.mark.parametrize("model", ["llama", "gpt2", "qwen3"], indirect=True)
@pytest.mark.parametrize("rows", [prompts(), prompts()[:3], [[5, 6]] * 3, [[5, 6, 7]]], ids=len)
def test_logits_are_those_of_the_padded_batch(model, rows):
    expected = run(model, rows, padded)
    torch.testing.assert_close(run(model, rows, prefill), expected, rtol=1e-4, atol=1e-4)
    # Not so by nature: another prompt has other logits.
    assert len(rows) < 4 or (expected - expected.roll(1, dims=1)).abs().amax() > 0.1


@pytest.mark.parametrize("model", ["llama", "gpt2", "qwen3"], indirect=True)
def test_each_token_is_read_once(model):
    read, rows = [], prompts()
    model.register_forward_pre_hook(
        lambda module, args, given: read.append((given["input_ids"] > 0).sum().item()), with_kwargs=True
    )
    run(model, rows, prefill, steps=1)
    beginnings = {tuple(row[:length]) for row in rows for length in range(1, len(row) + 1)}
    # Next to nothing is shared beside the three beginnings; of those, the last token of a prompt is always its own.
    assert len(beginnings) <= sum(read) < 1.15 * len(beginnings) < sum(map(len, rows)) / 2
    read.clear()
    run(model, [[5, 6, 7, 8]] * 9, prefill, steps=1)
    assert sum(read) == 4


@pytest.mark.parametrize("model", ["qwen3-sliding", "t5", "bart"], indirect=True)
def test_models_that_keep_something_else_read_the_padded_batch(model, monkeypatch):
    shapes, read = [], model._prefill

    def spy(input_ids, *given):
        shapes.append(input_ids.shape)
        return read(input_ids, *given)

    monkeypatch.setattr(model, "_prefill", spy)
    pairs = [Pair(row, [*row[::-1], 5], 2) for row in prompts()]
    Decoder(model, ends=[3]).decode(pairs, Decoding(max_new_tokens=2, second_weight=-0.5))
    assert len(shapes) == 1
    assert shapes[0][0] == 2 * len(pairs)
