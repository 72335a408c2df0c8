"""The diagnostics of a model, whole and where a part cannot be had."""

import json

import numpy as np
import pytest

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.attention import measure_cls_energy
from sentsmith.evaluation.cost import count_gmacs
from sentsmith.evaluation.diagnostics import SENTENCE, DiagnosticSettings, asked_for, diagnose, table
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.geometry import alignment, pair_geometry, similarity_bands, uniformity
from sentsmith.evaluation.pairs import ScoredPairs
from sentsmith.evaluation.sts import score_pairs
from sentsmith.evaluation.suite import evaluate, evaluate_models


@pytest.fixture(scope="module")
def pairs(sentences):
    gold = np.linspace(0, 5, 30)
    return ScoredPairs(tuple(sentences[:30]), tuple(sentences[30:]), gold)


@pytest.fixture(scope="module")
def bert(tiny_bert):
    return load(tiny_bert, device="cpu")


class Counting:
    """Passes sentences on to an encoder and counts them."""

    def __init__(self, encoder):
        self.encoder, self.model, self.count = encoder, getattr(encoder, "model", None), 0

    def encode(self, sentences):
        self.count += len(sentences)
        return self.encoder.encode(sentences)


def test_pair_geometry_takes_the_pairs_above_four(pairs, bag_of_words):
    found = pair_geometry(Embedded(pairs.texts(), bag_of_words), pairs)
    high = [row for row, gold in enumerate(pairs.gold) if gold > 4]
    x, y = (bag_of_words.encode([side[row] for row in high]) for side in (pairs.sentences1, pairs.sentences2))
    assert found.positives == len(high) == 6
    assert found.alignment == pytest.approx(alignment(x, y))
    assert found.uniformity == pytest.approx(uniformity(bag_of_words.encode(list(dict.fromkeys(pairs.texts())))))


def test_a_pair_of_exactly_four_is_not_positive_and_repetitions_count_once(bag_of_words):
    pairs = ScoredPairs(("a b", "a b", "c"), ("a b", "d", "d"), np.array([4.5, 4.0, 1.0]))
    found = pair_geometry(Embedded(pairs.texts(), bag_of_words), pairs)
    assert (found.alignment, found.positives, found.sentences) == (pytest.approx(0), 1, 3)
    assert found.uniformity == pytest.approx(uniformity(bag_of_words.encode(["a b", "c", "d"])))


def test_pairs_on_another_scale_are_an_error(pairs, bag_of_words):
    small = ScoredPairs(pairs.sentences1, pairs.sentences2, pairs.gold / 5)
    with pytest.raises(InputError, match="no pair has a gold score above 4"):
        diagnose(bag_of_words, small)


def test_bands_hold_their_upper_end():
    gold = [0, 0.5, 1, 1.01, 2, 3, 3.5, 4, 4.001, 5]
    bands = similarity_bands(np.arange(10) / 10, gold)
    assert {name: (values * 10).round().tolist() for name, values in bands.items()} == {
        "0–1": [0, 1, 2], "1–2": [3, 4], "2–3": [5], "3–4": [6, 7], "4–5": [8, 9],
    }  # fmt: skip
    assert [len(values) for values in similarity_bands([0.5], [5.0]).values()] == [0, 0, 0, 0, 1]


@pytest.mark.parametrize(("gold", "message"), [([5.5], "outside 0 to 5"), ([float("nan")], "outside"), ([1, 2], "one")])
def test_bands_refuse_other_scales_and_lengths(gold, message):
    with pytest.raises(InputError, match=message):
        similarity_bands([0.5], gold)


def test_a_whole_diagnosis(bert, pairs):
    encoder = Counting(as_encoder(bert))
    settings = DiagnosticSettings(sentence="a man sings", tokens=16)
    found = diagnose(encoder, pairs, settings)
    assert encoder.count == len(set(pairs.texts()))
    assert found.notes == ()
    assert found.score == pytest.approx(100 * score_pairs(as_encoder(bert), pairs))
    summary = found.summary()
    energy = measure_cls_energy(bert, sorted(set(pairs.texts())))
    assert summary["e_cls"] == pytest.approx(energy.mean, rel=1e-5)
    assert summary["e_cls_by_layer"] == pytest.approx(energy.by_layer, rel=1e-5)
    assert summary["e_cls_by_tower"] == {"0.model": summary["e_cls_by_layer"]}
    assert summary["gmacs"] == count_gmacs(bert, tokens=16)
    assert summary["score_per_gmac"] == pytest.approx(found.score / summary["gmacs"])
    assert (summary["tokens"], summary["sentence"]) == (16, "a man sings")
    assert [shown.tokens for shown in found.maps] == [("[CLS]", "a", "man", "sings", "[SEP]")]
    bands = summary["bands"]
    assert [band["pairs"] for band in bands.values()] == [6, 6, 6, 6, 6]
    assert bands["4–5"]["mean"] == pytest.approx(found.bands["4–5"].mean())
    assert bands["4–5"]["quartiles"][1] == pytest.approx(np.median(found.bands["4–5"]))
    assert json.loads(json.dumps(summary, allow_nan=False)) == summary


def test_attention_that_cannot_be_read_costs_only_itself(tiny_llama, pairs, caplog):
    found = diagnose(as_encoder(load(tiny_llama, device="cpu")), pairs)
    summary = found.summary()
    assert (found.energy, summary["e_cls"], summary["e_cls_by_layer"], list(found.maps)) == (None, None, None, [])
    assert summary["gmacs"] > 0
    assert summary["uniformity"] < 0
    assert len(found.notes) == 2
    assert all("the attention of LlamaModel cannot be read" in note for note in found.notes)
    assert found.notes[0] in caplog.text


def test_an_encoder_that_is_no_model_still_gets_its_geometry(pairs, bag_of_words):
    summary = diagnose(bag_of_words, pairs).summary()
    assert summary["alignment"] > 0
    assert summary["gmacs"] is summary["score_per_gmac"] is summary["e_cls"] is None
    assert [note.partition(":")[0] for note in summary["notes"]] == ["no E_CLS", "no attention maps", "no GMACs"]


def test_a_length_beyond_the_model_is_noted(bert, pairs):
    found = diagnose(as_encoder(bert), pairs, DiagnosticSettings(tokens=65))
    assert found.gmacs is None
    assert found.notes == ("no GMACs: the model reads at most 64 tokens, not 65; give a smaller number of tokens",)


def test_settings():
    assert asked_for(sentence=None, tokens=None) is None
    assert asked_for(sentence=None, tokens=8) == DiagnosticSettings(SENTENCE, 8)
    assert asked_for(sentence="a dog", tokens=None) == DiagnosticSettings("a dog")
    with pytest.raises(SettingsError, match="0 tokens"):
        asked_for(sentence=None, tokens=0)
    with pytest.raises(SettingsError, match="is empty"):
        asked_for(sentence=" ", tokens=None)


def test_the_suite_reads_the_dev_part_and_needs_nothing_else(tmp_path, sts_dir, bag_of_words):
    only_dev = tmp_path / "only" / "sts" / "STSBenchmark"
    only_dev.mkdir(parents=True)
    (only_dev / "dev.csv").write_bytes((sts_dir / "sts" / "STSBenchmark" / "dev.csv").read_bytes())
    result = evaluate(bag_of_words, suites=["diagnostics"], data_dir=tmp_path / "only", name="bag")
    assert list(result["scores"]) == ["STSB-dev"]
    assert result["averages"] == {}
    assert result["diagnostics"]["positive_pairs"] == 1
    seconds = result["details"]["seconds"]
    assert seconds["total"] > seconds["diagnostics"] > 0
    assert len(bag_of_words.calls) == 1
    assert not any("test" in text or "train" in text for text in bag_of_words.calls[0])


def test_it_stands_beside_other_suites(tmp_path, sts_dir, bag_of_words):
    drawn = []
    (result,) = evaluate_models(
        ["bag"],
        lambda _: bag_of_words,
        suites=["sts-dev", "diagnostics"],
        data_dir=sts_dir,
        output=tmp_path,
        diagnostics=DiagnosticSettings(tokens=8),
        draw=lambda _, diagnosis, folder: drawn.append((diagnosis.summary(), folder)),
    )
    plain = evaluate(bag_of_words, suites=["sts-dev"], data_dir=sts_dir, name="bag")
    assert result["scores"] == plain["scores"]
    assert result["averages"] == plain["averages"]
    assert drawn == [(result["diagnostics"], tmp_path)]
    assert "diagnostics" not in plain
    assert json.loads((tmp_path / "results.json").read_text())["diagnostics"]["tokens"] == 8
    columns, rows = table([result, plain])
    assert columns[0] == "model"
    assert [row[0] for row in rows] == ["bag"]
    assert rows[0][columns.index("E_CLS")] == "–"


def test_settings_without_the_suite_are_an_error(tmp_path, sts_dir):
    with pytest.raises(SettingsError, match="for the suite 'diagnostics'"):
        evaluate_models(
            ["m"], None, suites=["sts"], data_dir=sts_dir, output=tmp_path, diagnostics=DiagnosticSettings()
        )
