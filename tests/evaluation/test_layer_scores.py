"""The suite ``layers``: each layer against a hand-written forward pass; a FREEZE model's codes; what is refused."""

import numpy as np
import pytest

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.layered import make_layered
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError
from sentsmith.evaluation.inside import check_inside
from sentsmith.evaluation.layers import CODES, LAST, MEAN, Curve, best_line, measure_layers, table
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.similarity import spearman
from sentsmith.evaluation.sts import StsSubset, StsTask


@pytest.fixture(scope="module")
def task(sentences):
    gold = np.random.default_rng(0).uniform(0, 5, 30)
    pairs = ScoredPairs(tuple(sentences[:30]), tuple(sentences[30:]), gold)
    return StsTask("STSB-dev", "dev", (StsSubset("STSB", pairs),))


def states_of(folder, texts):
    """Return what each layer of a transformers model leaves, text → ``[layers, tokens, d]``, by hand."""
    import torch
    from transformers import AutoModel, AutoTokenizer

    model, tokenizer = AutoModel.from_pretrained(folder).eval(), AutoTokenizer.from_pretrained(folder)
    if hasattr(model, "norm"):
        model.norm = torch.nn.Identity()
    with torch.no_grad():
        return {
            text: np.concatenate(
                model(**tokenizer(text, return_tensors="pt"), output_hidden_states=True).hidden_states[1:]
            )
            for text in texts
        }


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_bert"])
def test_each_layer_is_measured_as_a_forward_pass_by_hand_says(kind, request, task, monkeypatch):
    monkeypatch.setattr("sentsmith.evaluation.layers._PAIRS", 16)
    folder = request.getfixturevalue(kind)
    found = measure_layers(as_encoder(load(folder, device="cpu")), task)
    pairs = task.subsets[0].pairs
    states = states_of(folder, pairs.texts())
    assert list(found.curves) == [LAST, MEAN]
    for name, read in ((LAST, lambda state: state[:, -1]), (MEAN, lambda state: state.mean(axis=1))):
        one, two = (np.array([read(states[text]) for text in side]) for side in (pairs.sentences1, pairs.sentences2))
        lengths = np.linalg.norm(one, axis=2), np.linalg.norm(two, axis=2)
        cosines = (one * two).sum(axis=2) / lengths[0] / lengths[1]
        curve = found.curves[name]
        assert curve.layers == (1, 2)
        for layer in range(2):
            expected = 100 * np.corrcoef(cosines[:, layer], pairs.gold)[0, 1]
            assert curve.pearson[layer] == pytest.approx(expected, abs=1e-3)
            assert curve.spearman[layer] == pytest.approx(100 * spearman(cosines[:, layer], pairs.gold), abs=0.5)
            assert curve.norms[layer] == pytest.approx((lengths[0] + lengths[1])[:, layer].mean() / 2, rel=1e-4)
    assert found.summary()["rows"] == 30


def freeze_model(folder, **options):
    from sentence_transformers import SentenceTransformer

    from sentsmith.methods.freeze.codes import LayerCodes

    layered = make_layered(folder, punctuation="as_is", device="cpu")
    codes = LayerCodes(2, 32, start="cosines", **options)
    return as_encoder(SentenceTransformer(modules=[layered[0], codes], device="cpu"))


def test_a_freeze_model_adds_the_curve_of_its_codes_and_their_weights(tiny_llama, task):
    found = measure_layers(freeze_model(tiny_llama), task)
    # Codes that nothing was made of are the layers themselves.
    assert found.curves[CODES].pearson == pytest.approx(found.curves[LAST].pearson, abs=1e-3)
    assert found.curves[CODES].weights == pytest.approx((3, 3))
    assert found.curves[CODES].norms is None
    second = measure_layers(freeze_model(tiny_llama, kept=[1]), task)
    assert (second.curves[CODES].layers, second.curves[LAST].layers) == ((2,), (1, 2))
    assert second.curves[CODES].pearson[0] == pytest.approx(found.curves[LAST].pearson[1], abs=1e-3)
    assert second.curves[CODES].best == 2
    summed = freeze_model(tiny_llama, combine="summed", bottlenecks=[4, 4])
    assert list(measure_layers(summed, task).curves) == [LAST, MEAN]


def test_suites_that_a_freeze_model_has_no_answer_to_are_refused(tiny_llama):
    for suite in ("dependency", "degradation"):
        with pytest.raises(InputError, match="the suite for it is layers"):
            check_inside(freeze_model(tiny_llama), [suite])
    check_inside(freeze_model(tiny_llama), ["layers", "errors", "sts"])
    with pytest.raises(InputError, match="no SentenceTransformer inside"):
        check_inside(object(), ["layers"])


def test_the_best_layer_is_named():
    curve = Curve((1, 3, 4), (1.0, 2.0, 3.0), (30.0, 60.126, 50.0))
    found = {
        "task": "STSB-dev",
        "rows": 9,
        "readouts": {LAST: curve.summary(), MEAN: Curve((1,), (9.0,), (8.0,)).summary()},
    }
    assert best_line(found) == "best layer 3 of 4, last token, Spearman 60.13"
    columns, rows = table([{"model": "a", "layers": found}, {"model": "without"}])
    assert len(columns) == len(rows[0])
    assert rows == [
        ["a", "last token", "3 of 4", "60.13", "2.00", "50.00", "3.00"],
        ["a", "mean of tokens", "1 of 1", "8.00", "9.00", "8.00", "9.00"],
    ]
