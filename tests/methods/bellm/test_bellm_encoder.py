"""``sentsmith encoder``: a decoder made an encoder, one of ours changed, an adapter merged."""

import json

import numpy as np
import pytest
import torch

import sentsmith
from sentsmith.encoders.adapters import add_lora, has_adapter
from sentsmith.encoders.decoder import make_encoder
from sentsmith.errors import SettingsError
from sentsmith.methods.bellm.encoder import encoder_of, write_encoder

OTHER = "the {sentence} reads"
MADE = {"both_ways_from": "n/2", "readout": "mean", "full_stop": True}


@pytest.fixture(scope="module")
def texts(sentences):
    """Sentences without a full stop at their end."""
    return [sentence.removesuffix(" .") for sentence in sentences[:4]]


@pytest.fixture(scope="module")
def ours(tiny_llama, tmp_path_factory):
    """The tiny LLaMA as an encoder: the second of two layers looks both ways, the mean is read."""
    folder = tmp_path_factory.mktemp("ours") / "model"
    write_encoder(tiny_llama, folder, **MADE)
    return folder


def test_made_of_a_plain_decoder(ours, tiny_llama, texts):
    expected = make_encoder(tiny_llama, both_ways_from=1, readout="mean", full_stop=True).encode(texts)
    np.testing.assert_array_equal(sentsmith.load(ours).encode(texts), expected)
    card = (ours / "README.md").read_text(encoding="utf-8")
    assert "sentsmith.load(" in card
    assert "- both ways from: `1`" in card
    first = encoder_of(tiny_llama, layers=1, final_norm=False, both_ways_from="n-1", readout="mean")
    assert (first[0].both_ways_from, first[0].model.config.num_hidden_layers) == (0, 1)


@pytest.mark.parametrize(
    "changes",
    [
        {"template": OTHER, "readout": "last", "full_stop": False, "both_ways_from": "0"},
        {"layers": 1, "final_norm": False, "both_ways_from": 0},
        *(
            pytest.param(alone, marks=pytest.mark.slow)
            for alone in ({"template": OTHER}, {"readout": "all"}, {"full_stop": False}, {"both_ways_from": "none"})
        ),
    ],
    ids=" ".join,
)
def test_one_of_ours_is_changed_as_if_made_so(changes, ours, tiny_llama, texts, tmp_path):
    fresh = encoder_of(tiny_llama, **MADE | changes)
    write_encoder(ours, tmp_path / "changed", **changes)
    changed = sentsmith.load(tmp_path / "changed")
    np.testing.assert_array_equal(changed.encode(texts), fresh.encode(texts))
    assert changed[1].last_id == fresh[1].last_id
    assert np.abs(changed.encode(texts) - sentsmith.load(ours).encode(texts)).max() > 1e-4


def test_layers_that_are_left_look_as_they_did(ours, tmp_path, caplog):
    facts = write_encoder(ours, tmp_path / "short", layers=1, final_norm=False)
    assert (facts["layers"], facts["both_ways_from"], facts["final_norm"]) == (1, None, False)
    assert "those from 1 on, are not among the 1 that are kept: none looks both ways now" in caplog.text
    caplog.clear()
    encoder_of(ours, layers=1, both_ways_from="none")
    assert "none looks" not in caplog.text
    with pytest.raises(SettingsError, match="was taken off"):
        encoder_of(tmp_path / "short", final_norm=True)
    with pytest.raises(SettingsError, match="the first 3 layers of 2"):
        encoder_of(ours, layers=3)


def test_an_adapter_is_merged(ours, tiny_llama, texts, tmp_path):
    pytest.importorskip("peft")
    model = make_encoder(tiny_llama, both_ways_from=1, readout="mean", full_stop=True)
    add_lora(model[0].model, rank=2, alpha=8.0, dropout=0.0)
    for name, weights in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weights, std=0.3)
    expected = model.eval().encode(texts)
    assert np.abs(expected - sentsmith.load(ours).encode(texts)).max() > 1e-2
    # As a run saves it: the adapter alone, whose base is found where it was.
    model.save_pretrained(str(tmp_path / "adapter"), create_model_card=False)
    write_encoder(tmp_path / "adapter", tmp_path / "merged")
    merged = sentsmith.load(tmp_path / "merged")
    assert not has_adapter(merged[0].model)
    np.testing.assert_allclose(merged.encode(texts), expected, atol=1e-5)


def test_the_verb(ours, tiny_llama, command, tmp_path):
    arguments = ("encoder", ours, tmp_path / "one", "--template", OTHER, "--readout", "last", "--no-full-stop")
    code, said, _ = command(*arguments, "--both-ways-from", "n-2", "--layers", 2, "--no-final-norm", "--json")
    assert code == 0
    facts = json.loads(said)
    assert facts.pop("parameters") > 0
    assert facts == {
        "layers": 2,
        "both_ways_from": 0,
        "readout": "last",
        "template": OTHER,
        "full_stop": False,
        "final_norm": False,
    }
    # The setting that changes nothing is warned of.
    code, said, warned = command("encoder", tiny_llama, tmp_path / "two", "--both-ways-from", "n-1", "--quiet")
    assert code == 0
    assert "the causal model's vector" in warned
    assert "2 layers, those from 1 on looking both ways, readout last" in said
    for wrong, words in {
        arguments: "not empty",
        ("encoder", ours, tmp_path / "x", "--both-ways-from", "half"): "n/2",
        ("encoder", ours, tmp_path / "x", "--readout", "cls"): "last, mean, all",
    }.items():
        code, _, error = command(*wrong)
        assert words in error
        assert code == 2
        assert error.splitlines()[-1].startswith("sentsmith: error: ")
        assert not (tmp_path / "x").exists()
