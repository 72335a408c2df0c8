"""Pictures of a diagnosis."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError
from sentsmith.evaluation.diagnostics import DiagnosticSettings, diagnose
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.report.diagnosis import _across, attention_panels, draw, similarity_bands

NASTY = "<b>$x_1$ & “日本語”"


def sink(count, strength):
    """Everything else is spread evenly; so much goes to the first token."""
    weights = np.full((count, count), (1 - strength) / (count - 1))
    weights[:, 0] = strength
    return weights


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag.endswith("}text")]


def description(svg):
    return next(element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("}desc"))


def opacities(svg):
    """Opacity → cells drawn with it."""
    found = {}
    for element in ET.fromstring(svg).iter():
        style = element.get("style", "")
        if match := re.search(r"fill: var\(--after[^;]*; opacity: ([\d.]+)", style):
            opacity = round(float(match.group(1)), 3)
            found[opacity] = found.get(opacity, 0) + element.get("d").count("M")
    return found


def test_a_panel_for_each_layer_with_its_tokens():
    tokens = ["[CLS]", NASTY, "dog", "[SEP]"]
    svg = attention_panels({f"layer {n}": sink(4, n / 10) for n in range(1, 8)}, tokens=tokens)
    written = texts(svg)
    assert [text for text in written if text.startswith("layer")] == [f"layer {n}" for n in range(1, 8)]
    # Seven panels, four side by side: four columns end in one that names the tokens, two rows begin with one.
    assert written.count("dog") == 4 + 2
    assert "token attended to (strongest shade: 0.70)" in written
    assert "layer 7: most attention goes to token 1, [CLS] (0.70 of it)" in description(svg)


def test_shades_follow_the_weights_on_one_scale():
    svg = attention_panels({"a": sink(5, 0.8), "b": sink(5, 0.4)}, tokens=list("vwxyz"))
    # 0.8 is the strongest; 0.4 half of it; 0.15 and 0.05 are what the other four columns get.
    assert opacities(svg) == {0.9: 5, 0.45: 5, 0.18: 20, 0.045: 20}


@pytest.mark.parametrize(("layers", "tokens", "expected"), [(12, 14, 4), (6, 14, 3), (2, 9, 2), (12, 20, 3), (5, 9, 4)])
def test_every_tower_starts_a_row_where_its_depth_allows(layers, tokens, expected):
    assert _across(layers, tokens) == expected


def test_row_and_column_are_not_mixed_up():
    weights = np.zeros((3, 3))
    weights[0, 2] = 1.0
    svg = attention_panels({"a": weights}, tokens=["x", "y", "z"])
    root = ET.fromstring(svg)
    (cell,) = [e for e in root.iter() if "--after" in e.get("style", "")]
    numbers = [float(number) for number in re.findall(r"-?[\d.]+", cell.get("d"))]
    xs, ys = numbers[0::2], numbers[1::2]
    _, _, width, height = map(float, root.get("viewBox").split())
    assert min(xs) > width / 2
    assert max(ys) < height / 2


def test_a_long_sentence_is_cut_and_says_so():
    svg = attention_panels({"layer 1": sink(30, 0.5)}, tokens=[f"t{n}" for n in range(30)])
    assert "(the first 24 of 30 tokens)" in " ".join(texts(svg))
    assert "t23" in texts(svg)
    assert "t24" not in texts(svg)


@pytest.mark.parametrize("panels", [{}, {"a": np.ones((2, 3))}, {"a": np.ones((3, 3)), "b": np.ones((2, 2))}])
def test_wrong_panels_are_errors(panels):
    with pytest.raises(InputError, match="attention panels need weights"):
        attention_panels(panels, tokens=["a", "b", "c"])


def test_bands_stand_with_the_highest_on_top():
    svg = similarity_bands({"0–1": [0.1, 0.2], "1–2": [], "2–3": np.array([0.5])})
    labels = [text for text in texts(svg) if text.startswith("gold")]
    assert labels == ["gold 2–3", "gold 0–1"]
    assert "gold 0–1, pairs: 2 values, median 0.15" in description(svg)


def test_the_files_of_a_diagnosis(tmp_path, tiny_bert, tiny_llama, sentences):
    pairs = ScoredPairs(tuple(sentences[:10]), tuple(sentences[10:20]), np.linspace(0, 5, 10))
    settings = DiagnosticSettings(sentence="a man sings")
    draw(diagnose(as_encoder(load(tiny_bert, device="cpu")), pairs, settings), tmp_path)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["attention.svg", "similarities.svg"]
    written = texts((tmp_path / "attention.svg").read_text(encoding="utf-8"))
    assert {"layer 1", "layer 2", "[CLS]", "sings"} <= set(written)
    # A model whose attention cannot be read does not keep the picture of another one.
    draw(diagnose(as_encoder(load(tiny_llama, device="cpu")), pairs, settings), tmp_path)
    assert [file.name for file in tmp_path.iterdir()] == ["similarities.svg"]


def test_two_towers_are_told_apart(tmp_path, tiny_bert, sentences):
    from dataclasses import replace

    pairs = ScoredPairs(tuple(sentences[:10]), tuple(sentences[10:20]), np.linspace(0, 5, 10))
    found = diagnose(as_encoder(load(tiny_bert, device="cpu")), pairs)
    draw(replace(found, maps=[*found.maps, *found.maps]), tmp_path)
    written = texts((tmp_path / "attention.svg").read_text(encoding="utf-8"))
    names = [text for text in written if text.startswith("tower")]
    assert names == [f"tower {tower}, layer {layer}" for tower in (1, 2) for layer in (1, 2)]
