"""Degradation: one pass gives the scores of every truncated model; pictures, table, report, command."""

import copy
import json
import re

import pytest

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.layers import keep_layers
from sentsmith.encoders.loading import load
from sentsmith.evaluation.degradation import Curve, measure_degradation, table, turning
from sentsmith.evaluation.sts import load_sts_dev
from sentsmith.evaluation.suite import evaluate
from sentsmith.report.inside import sections
from sentsmith.report.runs import compare


def test_where_a_curve_turns():
    rising = Curve({"a": (1.0, 2.0, 3.0), "b": (3.0, 4.0, 5.0)})
    assert (rising.average, rising.best, rising.falls_after) == ((2.0, 3.0, 4.0), 2, None)
    assert turning(rising.summary()) == "best with 2 of 2 layers (4.00), never falls"
    bent = Curve({"a": (1.0, 3.0, 2.0, 5.0, 5.0, 1.0)})
    assert (bent.best, bent.falls_after) == (3, 1)
    assert turning(bent.summary()) == "best with 3 of 5 layers (5.00), first falls after 1"


def test_scores_are_those_of_truncated_models(tiny_llama, sts_dir):
    model = load(tiny_llama, device="cpu")
    tasks = list(load_sts_dev(sts_dir).values())
    found = measure_degradation(as_encoder(model), tasks)
    for norm, curve in ((True, found.normed), (False, found.bare)):
        assert list(curve.scores) == ["STSB-dev", "SICKR-dev"]
        for count in (1, 2):
            cut = copy.deepcopy(model)
            keep_layers(cut, count, final_norm=norm)
            expected = evaluate(as_encoder(cut), suites=["sts-dev"], data_dir=sts_dir, name="cut")
            assert {task: scores[count] for task, scores in curve.scores.items()} == pytest.approx(expected["scores"])
            assert curve.average[count] == pytest.approx(expected["averages"]["sts-dev"])


def test_tests_are_read_only_where_they_are_asked_for(tiny_bert, sts_dir):
    encoder = as_encoder(load(tiny_bert, device="cpu"))
    dev = evaluate(encoder, suites=["degradation"], data_dir=sts_dir, name="m")
    assert list(dev["degradation"]["final_norm"]["scores"]) == ["STSB-dev", "SICKR-dev"]
    assert dev["degradation"]["no_final_norm"] is None
    assert (dev["scores"], dev["averages"]) == ({}, {})
    both = evaluate(encoder, suites=["degradation", "sts"], data_dir=sts_dir, name="m")
    last = {task: scores[-1] for task, scores in both["degradation"]["final_norm"]["scores"].items()}
    assert last == pytest.approx(both["scores"])
    assert both["details"]["seconds"]["degradation"] > 0
    columns, rows = table([dev | {"model": "one"}, both])
    assert columns == ["layers", "one: no final norm in this model", "m: no final norm in this model"]
    assert [row[0] for row in rows] == ["0", "1", "2"]


@pytest.mark.slow
def test_the_command_draws_and_the_report_shows(command, tiny_bert, tiny_llama, sts_dir, tmp_path):
    out = tmp_path / "out"
    code, stdout, _ = command(
        "evaluate", tiny_bert, tiny_llama, "--suite", "dependency,degradation", "--data-dir", sts_dir, "--output", out,
    )  # fmt: skip
    assert code == 0
    assert "Average score by number of layers" in stdout
    assert re.search(r"without it: best with \d of 2 layers", stdout)
    boxes = (out / "dependency.svg").read_text()
    assert all(f"{model}: mean" in boxes for model in (tiny_bert, tiny_llama))
    places = sorted(file.parent for file in out.rglob("degradation.svg"))
    assert places == sorted(file.parent for file in out.rglob("results.json"))
    results = [json.loads((place / "results.json").read_text()) for place in places]
    for result, place in zip(results, places, strict=True):
        best = result["degradation"]["final_norm"]["best"]
        assert f"Turning point: layers {best}." in (place / "degradation.svg").read_text()
    titles = [section.title for section in compare(places).sections]
    assert "Intra-sentence dependency" in titles
    assert "STS score by number of layers" in titles
    first, second = sections({place.name: result for place, result in zip(places, results, strict=True)})
    assert len(first.tables[0].rows) == 2
    assert len(second.notes) == 3  # a BERT has no final norm: one curve
    # What only looks like it is passed over.
    assert sections({"x": {"dependency": {"mean": 1.0}, "degradation": {"final_norm": 3}}}) == []


@pytest.mark.slow
def test_a_real_decoder_loses_by_its_later_layers(data_dir):
    from sentsmith.encoders.pooling import with_pooling
    from sentsmith.evaluation.sts import load_part

    folder = data_dir.parent / "models" / "nli-lm-8m"
    if not folder.is_dir():
        pytest.skip("the small language model is not here")
    model = with_pooling(load(folder, device="cpu"), "mean")
    found = measure_degradation(as_encoder(model), [load_part(data_dir, "STSB", "dev")])
    # What its README says of the mean of layer 0, 1 … 7 as transformers hands them out, without the norm; it is not
    # said how the sentences began and were cut into tokens.
    assert found.bare.average[:8] == pytest.approx([35, 62, 60, 57, 57, 55, 56, 55], abs=2.5)
    for curve in (found.bare, found.normed):
        assert (curve.best, curve.falls_after) == (1, 1)


def test_a_model_without_layers_is_refused_before_anything_is_measured(tmp_path):
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import BoW

    from sentsmith.errors import SettingsError
    from sentsmith.evaluation.inside import check_inside

    encoder = as_encoder(SentenceTransformer(modules=[BoW(["dog"])], device="cpu"))
    for suite in ("dependency", "degradation"):
        with pytest.raises(SettingsError, match="first module is a transformer"):
            check_inside(encoder, [suite])
    check_inside(encoder, ["sts"])
