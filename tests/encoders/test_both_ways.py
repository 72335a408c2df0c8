"""Layers that look both ways: what each token sees, in every architecture; padding; what is refused; METHODS.md §2."""

from __future__ import annotations

import copy
import importlib.util
import pickle

import pytest
import torch
from transformers import (
    AutoModel,
    BertConfig,
    BloomConfig,
    FalconConfig,
    Gemma2Config,
    Gemma3TextConfig,
    GemmaConfig,
    GPT2Config,
    GPTNeoXConfig,
    LlamaConfig,
    MambaConfig,
    MistralConfig,
    Qwen2Config,
    Qwen3Config,
)

from sentsmith.encoders.both_ways import both_ways_layers, check_sight, look_both_ways
from sentsmith.errors import SentsmithError, SettingsError

_SHARED = {
    "vocab_size": 64,
    "hidden_size": 32,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "initializer_range": 0.3,
}
_GROUPED = {**_SHARED, "num_key_value_heads": 2, "pad_token_id": 0}
_WIDE = {**_GROUPED, "head_dim": 8}
_GPT2 = {"vocab_size": 64, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": 64, "initializer_range": 0.3}
_NO_DROPOUT = {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0, "bos_token_id": 1, "eos_token_id": 2}

# Windows of 4: the texts of the tests are longer.
ARCHITECTURES = {
    "llama": lambda: LlamaConfig(**_GROUPED),
    "mistral": lambda: MistralConfig(**_GROUPED, sliding_window=None),
    "mistral-sliding": lambda: MistralConfig(**_GROUPED, sliding_window=4),
    "qwen2": lambda: Qwen2Config(**_GROUPED),
    # The layers from the second on have windows.
    "qwen2-sliding": lambda: Qwen2Config(**_GROUPED, use_sliding_window=True, sliding_window=4, max_window_layers=1),
    "qwen3": lambda: Qwen3Config(**_WIDE),
    "gemma": lambda: GemmaConfig(**_WIDE),
    # Every other layer has a window.
    "gemma2": lambda: Gemma2Config(**_WIDE, sliding_window=4),
    "gemma3": lambda: Gemma3TextConfig(
        **_WIDE, sliding_window=4, layer_types=["sliding_attention", "full_attention", "sliding_attention"]
    ),
    "gpt2": lambda: GPT2Config(**_GPT2, **_NO_DROPOUT),
    "gpt-neox": lambda: GPTNeoXConfig(**_SHARED, hidden_dropout=0.0, attention_dropout=0.0),
}
EAGER_ONLY = {"gemma2"}
QUICK = {("llama", "sdpa"), ("mistral-sliding", "sdpa"), ("gpt2", "sdpa")}
MATRIX = [
    pytest.param(name, how, marks=() if (name, how) in QUICK else pytest.mark.slow, id=f"{name}-{how}")
    for name in ARCHITECTURES
    for how in ("eager", "sdpa")
    if how == "eager" or name not in EAGER_ONLY
]
LENGTH = 9


def build(config, how="sdpa"):
    torch.manual_seed(0)
    return AutoModel.from_config(config, attn_implementation=how).eval()


def sees(model, ids, mask=None):
    """Return the token states ``[rows, width, d]``; positions count from a row's first real token."""
    mask = torch.ones_like(ids) if mask is None else mask
    positions = (mask.cumsum(dim=1) - 1).clamp(min=0)
    with torch.no_grad():
        return model(input_ids=ids, attention_mask=mask, position_ids=positions, use_cache=False).last_hidden_state


def texts(*lengths, left=False):
    """Return random ids and their mask, padded with an id that is also in the texts."""
    dice, width = torch.Generator().manual_seed(len(lengths)), max(lengths)
    ids = torch.randint(3, 60, (len(lengths), width), generator=dice)
    columns = torch.arange(width)
    given = torch.tensor(lengths)[:, None]
    return ids, (columns >= width - given if left else columns < given).long()


def influence(model, width=LENGTH):
    """Return bool ``[i, j]``: whether token i changes when token j does."""
    ids, _ = texts(width)
    rows = ids.repeat(width + 1, 1)
    for column in range(width):
        rows[column, column] = (ids[0, column] + 1) % 60
    states = sees(model, rows)
    return ((states[:-1] - states[-1]).abs().amax(dim=2) > 1e-4).T


def reach(config, start):
    """Return bool ``[i, j]``: whether token i is to see token j, through all layers, those from ``start`` both ways."""
    places = torch.arange(LENGTH)
    back = places[:, None] - places[None, :]
    window = getattr(config, "sliding_window", None)
    kinds = getattr(config, "layer_types", None) or ["full_attention" if window is None else "sliding_attention"] * 3
    seen = torch.eye(LENGTH)
    for layer, kind in enumerate(kinds):
        visible = (back >= 0) | torch.tensor(layer >= start)
        if kind == "sliding_attention":
            visible &= back.abs() < window
        seen = visible.float() @ seen
    return seen > 0


def close(first, second):
    return torch.allclose(first, second, rtol=1e-4, atol=2e-5)


@pytest.mark.parametrize(("name", "how"), MATRIX)
def test_what_is_seen(name, how):
    """All of it on one model, layer by layer: sight, padding on both sides, batches, and the way back."""
    model = build(ARCHITECTURES[name](), how)
    ids, _ = texts(LENGTH)
    causal = sees(model, ids)
    assert torch.equal(influence(model), reach(model.config, 3))
    check_sight(model)
    for start in (2, 1, 0):
        look_both_ways(model, start)
        check_sight(model)
        assert torch.equal(influence(model), reach(model.config, start))
        states = sees(model, ids)
        # The last layer alone does not change what the last token says; it changes every other, and so the mean.
        assert close(states[:, -1], causal[:, -1]) == (start == 2)
        assert not close(states.mean(dim=1), causal.mean(dim=1))
        check_padding(model)
    look_both_ways(model, None)
    assert torch.equal(sees(model, ids), causal)


def check_padding(model):
    """What stands under padding changes nothing, nor the side it is on, nor the other rows of a batch."""
    ids, mask = texts(7, 3, 5)
    left_ids, left_mask = texts(7, 3, 5, left=True)
    left_ids[left_mask.bool()] = ids[mask.bool()]
    alone = [sees(model, row[real.bool()][None])[0] for row, real in zip(ids, mask, strict=True)]
    for given, real in ((ids, mask), (ids.where(mask.bool(), torch.tensor(7)), mask), (left_ids, left_mask)):
        together = sees(model, given, real)
        for row, where, one in zip(together, real, alone, strict=True):
            assert close(row[where.bool()], one)


@pytest.mark.parametrize("how", ["eager", "sdpa"])
@pytest.mark.parametrize(
    "config",
    [
        MistralConfig(**_GROUPED | {"num_hidden_layers": 1}, sliding_window=3),
        Gemma3TextConfig(**_WIDE | {"num_hidden_layers": 1}, sliding_window=3, layer_types=["sliding_attention"]),
    ],
    ids=["mistral", "gemma3"],
)
def test_a_window_is_kept_to_both_sides(config, how):
    """A window of 3 is the token itself and the 2 before it; then the 2 behind it too, and no more."""
    model = build(config, how)
    places = torch.arange(LENGTH)
    back = places[:, None] - places[None, :]
    assert torch.equal(influence(model), (back >= 0) & (back < 3))
    look_both_ways(model, 0)
    assert torch.equal(influence(model), back.abs() < 3)
    for narrow in (2, 3):
        model.config.sliding_window = narrow
        check_sight(model)


def test_without_padding_the_flag_decides():
    """Under sdpa there is no mask for such a batch; were the flag left as it was, the layers would be causal."""
    model = build(ARCHITECTURES["llama"]())
    ids, _ = texts(LENGTH)
    causal = sees(model, ids)
    look_both_ways(model, 0)
    masks = []
    for layer in model.layers:
        layer.self_attn.register_forward_pre_hook(
            lambda _, __, kwargs: masks.append(kwargs["attention_mask"]), with_kwargs=True
        )
    both = sees(model, ids)
    assert masks == [None] * 3
    assert not close(both[:, 0], causal[:, 0])
    for layer in model.layers:
        layer.self_attn.is_causal = True
    assert close(sees(model, ids), causal)
    with pytest.raises(SentsmithError, match="LlamaModel sees only backwards although layers look both ways"):
        check_sight(model)


def test_the_check_finds_what_is_wrong():
    model = build(ARCHITECTURES["llama"]())
    look_both_ways(model, 0)
    # Without the hooks of the attention modules the flag alone is left: a batch with padding gets the causal mask.
    for handle in model._sentsmith_both_ways.handles[1:]:
        handle.remove()
    with pytest.raises(SentsmithError, match="LlamaModel sees only backwards"):
        check_sight(model)
    look_both_ways(model, 0, pad_leak=True)
    object.__setattr__(model._sentsmith_both_ways, "pad_leak", False)
    with pytest.raises(SentsmithError, match="LlamaModel sees padding on the left"):
        check_sight(model)
    with pytest.raises(SettingsError, match="BertModel sees the future although no layer was told to: it is no decod"):
        check_sight(build(BertConfig(**_SHARED)))


def test_padding_leaks_if_asked_to():
    """The authors' code masks nothing in these layers: a vector depends on the length of its neighbours."""
    model = build(ARCHITECTURES["llama"]())
    ids, mask = texts(7, 4)
    alone = {}
    for leak in (False, True):
        look_both_ways(model, 2, pad_leak=leak)
        check_sight(model)
        one, two = sees(model, ids[1:, :4])[0, 3], sees(model, ids, mask)[1, 3]
        assert close(one, two) != leak
        alone[leak] = one
    assert close(alone[False], alone[True])


@pytest.mark.parametrize("made", [copy.deepcopy, lambda model: pickle.loads(pickle.dumps(model))])
def test_a_copy_has_a_surgery_of_its_own(made):
    model = build(ARCHITECTURES["llama"]())
    ids, mask = texts(7, 4)
    causal = sees(model, ids, mask)
    look_both_ways(model, 0)
    both = sees(model, ids, mask)
    other = made(model)
    assert torch.equal(sees(other, ids, mask), both)
    check_sight(other)
    look_both_ways(other, None)
    assert torch.equal(sees(other, ids, mask), causal)
    assert torch.equal(sees(model, ids, mask), both)
    check_sight(model)


def test_another_attention_implementation_later():
    model = build(ARCHITECTURES["mistral-sliding"](), "eager")
    look_both_ways(model, 1)
    ids, mask = texts(7, 4)
    before = sees(model, ids, mask)[mask.bool()]
    model.set_attn_implementation("sdpa")
    check_sight(model)
    assert close(sees(model, ids, mask)[mask.bool()], before)


@pytest.mark.skipif(
    not torch.cuda.is_available() or importlib.util.find_spec("flash_attn") is None,
    reason="flash attention needs CUDA and the package flash_attn",
)
@pytest.mark.parametrize("name", ["llama", "mistral-sliding"])
def test_flash_attention(name):
    model = build(ARCHITECTURES[name](), "flash_attention_2").to("cuda", torch.bfloat16)
    ids, mask = texts(7, 3, 5)
    for start in (None, 2, 0):
        look_both_ways(model, start)
        check_sight(model)
        together = sees(model, ids.cuda(), mask.cuda())
        for row, real, states in zip(ids, mask, together, strict=True):
            alone = sees(model, row[real.bool()][None].cuda())[0]
            torch.testing.assert_close(states[real.bool().cuda()], alone, atol=0.05, rtol=0.05)


def test_the_layers():
    """Vector bellm_bi_layers."""
    found = [both_ways_layers(32, start) for start in (31, 0, -1, 32)]
    assert found == [[31], list(range(32)), [], []]


def test_the_last_layers_masks():
    """Vector bellm_last_layer_masks: one attention with weights of one, on a real layer."""
    config = LlamaConfig(
        **_SHARED | {"hidden_size": 2, "num_hidden_layers": 1, "num_attention_heads": 1, "intermediate_size": 2}
    )
    model = build(config).double()
    layer = model.layers[0]
    layer.input_layernorm = torch.nn.Identity()
    for name in ("q_proj", "k_proj", "v_proj", "o_proj"):
        torch.nn.init.eye_(getattr(layer.self_attn, name).weight)
    said = []
    layer.self_attn.register_forward_hook(lambda _, __, output: said.append(output[0][0]))
    states = torch.tensor([[[1.0, 0.0], [0.0, 1.0], [1.0, 1.0], [3.0, -3.0]]], dtype=torch.float64)

    def attend():
        # All at one position: nothing is rotated.
        mask, positions = torch.tensor([[1, 1, 1, 0]]), torch.zeros(1, 4, dtype=torch.long)
        model(inputs_embeds=states, attention_mask=mask, position_ids=positions, use_cache=False)
        return said[-1][2], said[-1][:3].mean(dim=0)

    def check(found, *wanted):
        for one, other in zip(found, wanted, strict=True):
            torch.testing.assert_close(one, torch.tensor(other, dtype=torch.float64), atol=1e-6, rtol=0)

    last = [0.751745, 0.751745]
    check(attend(), last, [0.693994, 0.473835])
    look_both_ways(model, 0)
    check(attend(), last, [0.717619, 0.717619])
    look_both_ways(model, 0, pad_leak=True)
    check(attend()[:1], [0.996934, 0.342589])


@pytest.mark.parametrize("name", ["llama", pytest.param("gpt2", marks=pytest.mark.slow)])
def test_a_pass_that_is_computed_again_finds_its_own_masks(name):
    """Gradient checkpointing, with two batches under way at a time, as in a step that is cut into chunks."""

    def gradients(model):
        model.zero_grad()
        batches = [texts(7, 4), texts(5, 2, 5)]
        losses = [
            model(input_ids=ids, attention_mask=mask).last_hidden_state[mask.bool()].pow(2).sum()
            for ids, mask in batches
        ]
        sum(losses).backward()
        return [parameter.grad.clone() for parameter in model.parameters()]

    model = build(ARCHITECTURES[name]()).train()
    look_both_ways(model, 1)
    plain = gradients(model)
    model.gradient_checkpointing_enable()
    passes = []
    next(module for module in model.modules() if getattr(module, "layer_idx", None) == 0).register_forward_hook(
        lambda *_: passes.append(1)
    )
    again = gradients(model)
    assert len(passes) == 4  # each batch twice
    for one, other in zip(plain, again, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (BloomConfig(vocab_size=64, hidden_size=32, n_layer=2, n_head=4), "BloomModel cannot look both ways: 0 of its"),
        (MambaConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2), "MambaModel cannot look both ways: 0 of its"),
        (BertConfig(**_SHARED), "BertModel is no decoder: its tokens see what follows them already"),
    ],
    ids=["bloom", "mamba", "bert"],
)
def test_what_has_no_attention_that_can_be_switched_is_refused(config, message):
    model = build(config, "eager")
    with pytest.raises(SettingsError) as caught:
        look_both_ways(model, 0)
    assert message in str(caught.value)


def test_a_model_that_hands_nothing_on_is_refused():
    config = FalconConfig(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4)
    model = build(config)
    look_both_ways(model, 0)
    with pytest.raises(SentsmithError, match="the layers of this model do not hand on what its call is given"):
        check_sight(model)


def test_wrong_calls():
    model = build(ARCHITECTURES["llama"]())
    with pytest.raises(SettingsError, match=r"layer 4 cannot be the first .* 3 layers, so give 0 \(all\) to 2"):
        look_both_ways(model, 4)
    with pytest.raises(SettingsError, match="layer -2 cannot be the first"):
        look_both_ways(model, -2)
    ids, _ = texts(4)
    cache = model(input_ids=ids, use_cache=True).past_key_values
    look_both_ways(model, 0)
    with pytest.raises(ValueError, match="call it with named arguments, no past_key_values"):
        model(input_ids=ids, past_key_values=cache)
    assert model(input_ids=ids, use_cache=True).past_key_values is None
    with pytest.raises(ValueError, match=r"must be \[rows, width\], not \[1, 1, 4, 4\]"):
        model(input_ids=ids, attention_mask=torch.ones(1, 1, 4, 4))
    # No layer: as it was before.
    for start in (-1, 3):
        look_both_ways(model, start)
        assert torch.equal(influence(model), influence(model).tril())
    model.config.layer_types = ["full_attention", "full_attention", "chunked_attention"]
    with pytest.raises(SettingsError, match="layer 2 of LlamaModel is of the kind 'chunked_attention'"):
        look_both_ways(model, 1)
