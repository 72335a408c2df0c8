"""A distillation run: what it learns, what it leaves and says, and what it refuses."""

from __future__ import annotations

import json

import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from sentsmith import settings
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import with_pooling
from sentsmith.errors import InputError, SettingsError
from sentsmith.files import sha256
from sentsmith.methods.distill import teacher as teachers
from sentsmith.methods.distill.recipe import Recipe
from sentsmith.methods.distill.teacher import DistanceJudge
from sentsmith.methods.jtcse.towers import twin
from sentsmith.training.chunks import CANDIDATES
from sentsmith.training.data import load_rows

MORE = ("training.max_steps=30", "training.eval_steps=15", "data.held_out=0.2", "distill.dropout=0")


@pytest.fixture
def kept_target(monkeypatch):
    """Keep what the student was to learn: a list that gets the matrix of each run."""
    kept = []
    read = teachers.read_teachers

    def spy(*args, **kwargs):
        target = read(*args, **kwargs)
        kept.append(np.load(target.path))
        return target

    monkeypatch.setattr(teachers, "read_teachers", spy)
    return kept


def vectors(folder, texts, pooling=None):
    model = load(folder)
    return as_encoder(model if pooling is None else with_pooling(model, pooling)).encode(texts)


def test_the_student_comes_near_its_teacher(distill_tiny, tmp_path, tiny_bert, noisy_bert, sentences):
    record = distill_tiny(tmp_path / "m", *MORE)
    selection = record["selection"]
    assert selection["metric"] == "negated mean squared error to the teacher"
    assert selection["source"] == "12 held-out training rows"
    scores = {entry["step"]: entry["score"] for entry in selection["history"]}
    assert scores[30] > scores[0] / 2  # both below zero
    wanted = vectors(tiny_bert, sentences)
    before, after = (np.square(vectors(folder, sentences) - wanted).mean() for folder in (noisy_bert, tmp_path / "m"))
    assert after < before / 2
    assert record["loss"][-1]["loss"] < record["loss"][0]["loss"] / 2


def test_the_held_out_error_is_that_of_the_saved_model(distill_tiny, tmp_path, kept_target, sentences):
    record = distill_tiny(tmp_path / "m", "data.held_out=0.2", "training.select=best")
    assert kept_target[0].shape == (60, 32)
    resolved = settings.resolve(Recipe, settings.read_yaml(tmp_path / "m" / "settings.yaml"))
    read = ({"sentence": sentence} for sentence in sentences)
    held = load_rows(resolved.data, lambda _: read, held_out=0.2, seed=42).held_out["sentence"]
    error = np.square(vectors(tmp_path / "m", list(held)) - kept_target[0][48:]).mean()
    assert record["selection"]["best_score"] == pytest.approx(-error, rel=1e-5)


def test_the_folder_and_the_record(distill_tiny, tmp_path, tiny_bert, noisy_bert, sentences):
    record = distill_tiny(
        tmp_path / "m", f"distill.teachers=[{{model: {tiny_bert}, weight: 0.25}}, {noisy_bert}]", "training.max_steps=1"
    )
    assert not (tmp_path / "m" / "work").exists()
    assert not list((tmp_path / "m").rglob("*.npy"))
    assert record == json.loads((tmp_path / "m" / "run.json").read_text())
    first, second = record["distill"]["teachers"]
    assert first == {
        "model": str(tiny_bert),
        "weight": 0.25,
        "sha256": sha256(tiny_bert),
        "settings_sha256": None,
    }
    assert (second["model"], second["weight"]) == (str(noisy_bert), 1.0)
    assert record["distill"]["explained_variance"] is None
    card = (tmp_path / "m" / "README.md").read_text()
    assert f"0.25 × `{tiny_bert}` (sha256 `{sha256(tiny_bert)[:16]}…`), 1 × `{noisy_bert}`" in card
    plain = SentenceTransformer(str(tmp_path / "m"), device="cpu", local_files_only=True)
    np.testing.assert_allclose(plain.encode(sentences[:5]), vectors(tmp_path / "m", sentences[:5]), atol=1e-5)


def test_a_teacher_that_was_trained_here_is_known_by_its_settings(distill_tiny, tmp_path):
    record = distill_tiny(tmp_path / "a", "training.max_steps=1")
    again = distill_tiny(tmp_path / "b", f"distill.teachers={tmp_path / 'a'}", "training.max_steps=1")
    assert again["distill"]["teachers"][0]["settings_sha256"] == record["settings_sha256"]


def test_targets_are_the_weighted_sum(distill_tiny, tmp_path, kept_target, tiny_bert, noisy_bert, sentences):
    distill_tiny(
        tmp_path / "m",
        f"distill.teachers=[{{model: {tiny_bert}, weight: 0.3}}, {{model: {noisy_bert}, weight: 0.7, pooling: cls}}]",
        "training.max_steps=1",
        "training.max_length=64",
    )
    wanted = 0.3 * vectors(tiny_bert, sentences) + 0.7 * vectors(noisy_bert, sentences, "cls")
    np.testing.assert_allclose(kept_target[0], wanted, atol=1e-5)


def test_a_twin_teaches_the_sum_of_its_towers(distill_tiny, tmp_path, kept_target, tiny_bert, noisy_bert):
    twin(load(tiny_bert), load(noisy_bert)).save_pretrained(str(tmp_path / "twin"))
    shared = ("training.max_steps=2", "training.max_length=6")
    distill_tiny(tmp_path / "of-twin", f"distill.teachers={tmp_path / 'twin'}", *shared)
    distill_tiny(tmp_path / "of-both", f"distill.teachers=[{tiny_bert}, {noisy_bert}]", *shared)
    np.testing.assert_allclose(kept_target[0], kept_target[1], atol=1e-5)
    # What is left needs nothing of this package.
    assert SentenceTransformer(str(tmp_path / "of-twin"), device="cpu", local_files_only=True).encode("a").shape == (
        32,
    )


def test_teachers_read_as_many_words_as_the_student(distill_tiny, tmp_path, kept_target, tiny_bert, sentences):
    distill_tiny(tmp_path / "m", "training.max_length=6", "training.max_steps=1")
    model = load(tiny_bert)
    model.max_seq_length = 6
    np.testing.assert_allclose(kept_target[0], as_encoder(model).encode(sentences), atol=1e-5)


@pytest.mark.parametrize("normalized", [False, True])
def test_normalisation(distill_tiny, tmp_path, kept_target, normalized_bert, sentences, normalized):
    distill_tiny(
        tmp_path / "m",
        f"model={normalized_bert}",
        f"distill.teachers={normalized_bert}",
        f"distill.normalized={str(normalized).lower()}",
        "training.max_steps=1",
    )
    for lengths in (kept_target[0], vectors(tmp_path / "m", sentences)):
        unit = np.allclose(np.linalg.norm(lengths, axis=1), 1, atol=1e-5)
        assert unit is normalized


def test_learned_projection_is_gone_from_the_model(distill_tiny, tmp_path, narrow_bert, tiny_bert, sentences):
    record = distill_tiny(tmp_path / "m", *MORE, f"model={narrow_bert}", "distill.projection=learned")
    modules = json.loads((tmp_path / "m" / "modules.json").read_text())
    assert [entry["type"].rpartition(".")[2] for entry in modules] == ["Transformer", "Pooling"]
    assert vectors(tmp_path / "m", sentences).shape == (60, 16)
    assert SentenceTransformer(str(tmp_path / "m"), device="cpu", local_files_only=True).encode("a").shape == (16,)
    scores = [entry["score"] for entry in record["selection"]["history"]]
    assert scores[-1] > scores[0] / 1.5
    assert "a linear map to the teacher's width was trained along" in (tmp_path / "m" / "README.md").read_text()


def test_a_student_that_is_wider_learns_through_the_projection(distill_tiny, tmp_path, narrow_bert, sentences):
    record = distill_tiny(tmp_path / "m", *MORE, f"distill.teachers={narrow_bert}", "distill.projection=learned")
    scores = [entry["score"] for entry in record["selection"]["history"]]
    assert scores[-1] > scores[0] / 1.5
    assert vectors(tmp_path / "m", sentences).shape == (60, 32)


def test_pca(distill_tiny, tmp_path, kept_target, narrow_bert, tiny_bert, sentences):
    record = distill_tiny(
        tmp_path / "m", f"model={narrow_bert}", "distill.projection=pca", "data.held_out=0.2", "training.max_length=64"
    )
    target = kept_target[0]
    assert target.shape == (60, 16)
    assert target.dtype == np.float32
    training = target[:48].astype(np.float64)
    # Fitted on the training rows: those are centred and uncorrelated, in falling order.
    np.testing.assert_allclose(training.mean(axis=0), 0, atol=1e-5)
    covariance = np.cov(training.T)
    np.testing.assert_allclose(covariance, np.diag(np.diag(covariance)), atol=1e-4)
    assert (np.diff(np.diag(covariance)) <= 0).all()
    total = np.linalg.norm(vectors(tiny_bert, sentences) - vectors(tiny_bert, sentences).mean(axis=0))
    share = record["distill"]["explained_variance"]
    assert share == pytest.approx((np.linalg.norm(target) / total) ** 2, abs=0.05)
    assert 0.5 < share < 1
    assert f"it explains {100 * share:.1f} %" in (tmp_path / "m" / "README.md").read_text()
    assert vectors(tmp_path / "m", sentences).shape == (60, 16)


def test_measured_chunks_look_at_the_text_only(distill_tiny, tmp_path):
    record = distill_tiny(tmp_path / "m", "training.chunk_tokens=measure", "training.max_steps=1")
    assert record["chunking"]["tokens"] in CANDIDATES


def test_dev_pairs_choose_when_given(distill_tiny, tmp_path, sentences):
    dev, pairs = tmp_path / "dev.csv", zip(sentences[:9], sentences[9:18], strict=True)
    dev.write_text("".join(f'"{a}","{b}",{i % 6}\n' for i, (a, b) in enumerate(pairs)))
    record = distill_tiny(tmp_path / "m", f"data.dev={dev}", "data.held_out=0.3", "training.max_steps=1")
    assert record["selection"]["metric"] == "spearman"
    assert record["data"]["held_out_rows"] == 0


def test_the_judge_uses_the_projection():
    import torch

    class Encoder:
        def encode(self, texts):
            return np.array([[1.0], [2.0]], dtype=np.float32)

    class Doubled(torch.nn.Module):
        def __init__(self):
            super().__init__()
            self.factor = torch.nn.Parameter(torch.tensor([[2.0, 1.0]]))

        def forward(self, features):
            return {"sentence_embedding": features["sentence_embedding"] @ self.factor}

    judge = DistanceJudge(["a", "b"], np.array([[2.0, 1.0], [4.0, 4.0]], dtype=np.float32), Doubled())
    assert judge.score(Encoder()) == pytest.approx(-1.0)


def refused(distill_tiny, folder, *overrides):
    with pytest.raises(InputError) as caught:
        distill_tiny(folder, *overrides)
    assert not folder.exists(), "something was written before the settings were looked at"
    return str(caught.value)


def test_widths_that_do_not_fit(distill_tiny, tmp_path, tiny_bert, noisy_bert, narrow_bert):
    folder = tmp_path / "m"
    message = refused(distill_tiny, folder, f"model={narrow_bert}")
    assert f"the student {narrow_bert} is 16 wide, the teacher {tiny_bert} 32" in message
    assert "set distill.projection to learned or pca" in message
    narrow = f"distill.teachers={narrow_bert}"
    assert "set distill.projection to learned, or" in refused(distill_tiny, folder, narrow)
    message = refused(distill_tiny, folder, narrow, "distill.projection=pca")
    assert f"the student {noisy_bert} is 32 wide, the teacher {narrow_bert} 16" in message
    assert "pca only makes vectors shorter, use learned" in message
    assert "use none" in refused(distill_tiny, folder, "distill.projection=pca")
    message = refused(distill_tiny, folder, f"distill.teachers=[{tiny_bert}, {narrow_bert}]")
    assert f"need one width, not: {tiny_bert} 32, {narrow_bert} 16" in message


def test_wrong_input_is_found_before_the_teachers_are_read(distill_tiny, tmp_path):
    folder = tmp_path / "m"
    assert "no such folder" in refused(distill_tiny, folder, "distill.teachers=./nowhere")
    assert "fewer than one batch of 512" in refused(distill_tiny, folder, "training.batch_size=512")
    assert "dev.csv" in refused(distill_tiny, folder, "data.dev=dev.csv")


def test_too_few_rows_for_the_pca(distill_tiny, tmp_path, narrow_bert):
    with pytest.raises(InputError, match="10 training rows are too few to fit a PCA of 16 dimensions"):
        distill_tiny(tmp_path / "m", f"model={narrow_bert}", "distill.projection=pca", "data.limit=10")


def test_a_teacher_inside_the_output_is_not_overwritten(distill_tiny, tmp_path):
    distill_tiny(tmp_path / "m", "training.max_steps=1")
    with pytest.raises(InputError, match="which the run needs; --overwrite will not delete it"):
        distill_tiny(tmp_path / "m", f"distill.teachers={tmp_path / 'm'}", overwrite=True)
    assert (tmp_path / "m" / "run.json").exists()


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("distill.teachers=[]", "distill.teachers is empty; name at least one model to learn from"),
        ("distill.teachers=null", "setting 'distill.teachers'"),
        ("distill.teachers=[{weight: 2}]", "setting 'distill.teachers': Field required"),
        ("distill.teachers=[{model: a, weigth: 2}]", "unknown setting 'distill.teachers.0.weigth'"),
        ("distill.teachers={model: a, weight: 0}", "greater than 0"),
        ("distill.teachers={model: a, weight: .inf}", "finite"),
        ("distill.teachers={model: a, pooling: max}", "'cls', 'mean', 'last' or 'first_last'"),
        ("distill.teachers=3", "setting 'distill.teachers': Input should be a valid tuple"),
        ("distill.projection=linear", "'none', 'learned' or 'pca'"),
        ("distill.dropout=1", "less than 1"),
    ],
)
def test_settings_that_are_refused(distill_settings, override, message):
    with pytest.raises(SettingsError) as caught:
        settings.resolve(Recipe, distill_settings, [override])
    assert message in str(caught.value)


def test_teachers_may_be_named_in_several_ways(distill_settings, tmp_path):
    wanted = None
    for given in ("x", "[x]", "{model: x}", "[{model: x, weight: 1}]"):
        resolved = settings.resolve(Recipe, distill_settings, [f"distill.teachers={given}"])
        assert wanted in (None, resolved)
        wanted = resolved
    settings.save(wanted, tmp_path / "settings.yaml")
    assert settings.resolve(Recipe, settings.read_yaml(tmp_path / "settings.yaml")) == wanted
    assert wanted.reads()[-1] == "x"
