"""The suite ``conditional``: C-STS with its labels, and without."""

from __future__ import annotations

import json

import numpy as np
import pytest

from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.conditional import load_conditional, score_conditional, submission_lines
from sentsmith.evaluation.similarity import cosine, pearson, spearman
from sentsmith.evaluation.suite import evaluate, evaluate_models, load_suites, table

PAIRS = [("a dog runs", "a cat runs"), ("the red car", "the blue car"), ("a man sings", "a man sings a song")]
CONDITIONS = ("the animal", "the action")
LABELS = [1.0, 5.0, 2.0, 4.0, 5.0, 3.0]
ROWS = [(*pair, condition) for pair in PAIRS for condition in CONDITIONS]


class Conditioned:
    """Reads tuples (sentence, condition) only, and remembers them."""

    def __init__(self, bag):
        self.bag = bag
        self.calls = []

    def encode(self, sentences):
        self.calls.append(list(sentences))
        assert all(isinstance(sentence, tuple) for sentence in sentences)
        bag = np.stack([self.bag._one(f"{sentence} {condition}") for sentence, condition in sentences])
        return bag.astype(np.float32)


@pytest.fixture
def encoder(bag_of_words):
    return Conditioned(bag_of_words)


@pytest.fixture
def files(tmp_path):
    """A file with labels and one without."""
    header = "sentence1,sentence2,condition,label\n"
    paths = tmp_path / "csts validation.csv", tmp_path / "csts_test.csv"
    for path, labels in zip(paths, (LABELS, [-1] * 6), strict=True):
        rows = [",".join(map(str, (*row, label))) for row, label in zip(ROWS, labels, strict=True)]
        path.write_text(header + "\n".join(rows) + "\n", encoding="utf-8")
    return paths


def cosines_by(encoder):
    first, second = (encoder.encode([(row[side], row[2]) for row in ROWS]) for side in (0, 1))
    return cosine(first, second)


def test_score_of_known_labels_and_predictions_for_hidden_ones(files, encoder):
    result = evaluate(encoder, suites=["conditional"], name="m", conditional=files)
    cosines = cosines_by(encoder)
    assert result["scores"] == {"csts-validation": pytest.approx(100 * spearman(cosines, LABELS))}
    assert result["averages"] == {}
    details = result["details"]["tasks"]
    assert details["csts-validation"] == {
        "rows": 6, "hidden": False, "similarity": "cosine", "pearson": pytest.approx(100 * pearson(cosines, LABELS)),
    }  # fmt: skip
    assert details["csts_test"] == {"rows": 6, "hidden": True, "similarity": "cosine"}
    # By row number from 0, on the labels' scale.
    assert list(result["submissions"]) == ["csts_test"]
    predictions = result["submissions"]["csts_test"]
    assert list(predictions) == ["0", "1", "2", "3", "4", "5"]
    np.testing.assert_allclose(list(predictions.values()), 1 + 4 * cosines, atol=1e-9)
    # Both files hold the same texts, embedded once: 6 sentences under 2 conditions.
    assert len(encoder.calls[0]) == len(set(encoder.calls[0])) == 12
    assert result["details"]["sentences"] == 12
    assert json.loads(json.dumps(result, allow_nan=False)) == result


def test_the_submission_is_written_beside_the_results(files, encoder, tmp_path):
    out = tmp_path / "out"
    results = evaluate_models(
        ["runs/a", "runs/b"], lambda name: encoder, suites=["conditional"], output=out, conditional=files
    )
    for name in ("a", "b"):
        assert sorted(file.name for file in (out / name).iterdir()) == ["csts_test.submission.json", "results.json"]
    found = json.loads((out / "a" / "csts_test.submission.json").read_text())
    np.testing.assert_allclose([found[str(row)] for row in range(6)], 1 + 4 * cosines_by(encoder), atol=1e-9)
    assert json.loads((out / "a" / "results.json").read_text()) == results[0]
    assert "submissions" not in results[0]
    assert table(results)[0] == ["model", "csts-validation"]
    assert list(submission_lines(results[1])) == [
        "runs/b: the labels of csts_test are hidden; its 6 predictions are in csts_test.submission.json"
    ]


def test_sentences_and_sentences_under_conditions_are_never_in_one_call(files, sts_dir, bag_of_words):
    class Both:
        def __init__(self):
            self.kinds = []

        def encode(self, sentences):
            self.kinds.append({type(sentence) for sentence in sentences})
            return bag_of_words.encode([" ".join(text) if isinstance(text, tuple) else text for text in sentences])

    both = Both()
    result = evaluate(both, suites=["sts-dev", "conditional"], data_dir=sts_dir, name="m", conditional=files[:1])
    assert both.kinds == [{str}, {tuple}]
    assert list(result["scores"]) == ["STSB-dev", "SICKR-dev", "csts-validation"]
    assert list(result["averages"]) == ["sts-dev"]
    assert result["details"]["sentences"] == sum(map(len, bag_of_words.calls))


def test_files_and_suite_need_each_other(files, sts_dir):
    with pytest.raises(SettingsError, match="give --conditional FILE"):
        load_suites(["conditional"])
    with pytest.raises(SettingsError, match="conditional rows to measure are for the suite 'conditional'; add it"):
        load_suites(["sts"], conditional=files)
    named = files[0].with_name("STSB-dev.csv")
    named.write_bytes(files[0].read_bytes())
    with pytest.raises(SettingsError, match="a file of conditional rows is called 'STSB-dev'"):
        load_suites(["sts-dev", "conditional"], data_dir=sts_dir, conditional=[named])


def test_hidden_labels_have_no_score(files, encoder):
    with pytest.raises(InputError, match="labels are hidden"):
        score_conditional(encoder, load_conditional(files[1:])["csts_test"].rows)


def test_bert_reads_a_pair_of_texts(tiny_bert, files):
    model = load(tiny_bert, device="cpu")
    expected = []
    for side in (0, 1):
        pairs = model.tokenizer(
            [row[side] for row in ROWS], [row[2] for row in ROWS], padding=True, return_tensors="pt"
        )
        assert pairs["token_type_ids"].any(dim=1).all()
        expected.append(model.eval()(dict(pairs))["sentence_embedding"].detach().numpy())
    score = score_conditional(as_encoder(model), load_conditional(files[:1])["csts-validation"].rows)
    assert score == pytest.approx(spearman(cosine(*expected), LABELS))


def test_a_decoder_reads_its_prompt(tiny_llama, files):
    from sentsmith.encoders.decoder import make_encoder

    template = "the {condition} is in {sentence} , the"
    encoder = as_encoder(make_encoder(tiny_llama, template=template, both_ways_from=0, device="cpu"))
    rows = load_conditional(files[:1])["csts-validation"].rows
    plain = as_encoder(make_encoder(tiny_llama, template="{sentence} , the", both_ways_from=0, device="cpu"))
    expected = [plain.encode([f"the {row[2]} is in {row[side]}" for row in ROWS]) for side in (0, 1)]
    assert score_conditional(encoder, rows) == pytest.approx(spearman(cosine(*expected), LABELS))
    with pytest.raises(InputError, match=r"has no \{condition\}"):
        score_conditional(plain, rows)


def test_a_model_that_cannot_take_a_suite_s_texts_is_refused_before_any_are_measured(
    tiny_llama, files, sts_dir, tmp_path, monkeypatch
):
    from sentsmith.encoders.decoder import make_encoder

    monkeypatch.setattr("sentsmith.evaluation.suite.measure", lambda *_, **__: pytest.fail("measured"))
    models = {
        name: as_encoder(make_encoder(tiny_llama, template=template, device="cpu"))
        for name, template in (("plain", "a {sentence} ,"), ("conditional", "the {condition} {sentence} ,"))
    }
    for name, suites, message in (
        ("plain", ["sts-dev", "conditional"], r"has no \{condition\}"),
        ("conditional", ["conditional", "sts-dev"], r"wants \(sentence, condition\)"),
        ("conditional", ["dependency"], r"wants \(sentence, condition\)"),
    ):
        given = files[:1] if "conditional" in suites else ()
        with pytest.raises(InputError, match=message):
            evaluate_models(
                [name], models.get, suites=suites, data_dir=sts_dir, output=tmp_path / "out", conditional=given
            )
