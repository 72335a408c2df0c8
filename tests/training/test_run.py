"""A training run: what it leaves, what it refuses, and that it repeats itself."""

from __future__ import annotations

import csv
import json
import re

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer
from transformers import DefaultFlowCallback

from sentsmith import settings
from sentsmith.corpus.audit import audit
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, SentsmithError, SettingsError
from sentsmith.files import sha256
from sentsmith.methods.simcse.recipe import Recipe
from sentsmith.training import chunks, precision
from sentsmith.training.chunks import CANDIDATES, measured
from sentsmith.training.output import Output
from sentsmith.training.selection import ScoredPairsJudge


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(first, second):
    one, two = weights(first), weights(second)
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


def write_dev(path, pairs, scores):
    with path.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows(
            [("sentence1", "sentence2", "score"), *((*pair, score) for pair, score in zip(pairs, scores, strict=True))]
        )
    return path


@pytest.fixture(scope="module")
def dev_by(sentences, tmp_path_factory):
    """Return a function that writes a dev file whose gold scores are the cosines of a model: it alone is perfect."""

    def write(folder):
        first, second = sentences[:30], sentences[30:]
        model = SentenceTransformer(str(folder), device="cpu", local_files_only=True)
        units = model.encode([*first, *second], normalize_embeddings=True).astype(np.float64)
        scores = [2.5 + 2.5 * float(a @ b) for a, b in zip(units[:30], units[30:], strict=True)]
        return write_dev(
            tmp_path_factory.mktemp("dev") / "dev.csv", list(zip(first, second, strict=True)), np.clip(scores, 0, 5)
        )

    return write


@pytest.fixture(scope="module")
def run(tmp_path_factory, train_tiny):
    """Return (record, folder) of one run, with held-out rows."""
    folder = tmp_path_factory.mktemp("run") / "model"
    return train_tiny(folder, "data.held_out=0.1", "training.select=last"), folder


def test_the_folder(run):
    record, folder = run
    names = {path.name for path in folder.iterdir()}
    assert {"run.json", "settings.yaml", "README.md", "model.safetensors", "modules.json", "1_Pooling"} <= names
    assert "work" not in names
    assert not list(folder.rglob("*.bin")) + list(folder.rglob("*.pt"))
    assert json.loads((folder / "run.json").read_text()) == record


def test_the_record(run, tiny_settings, sentence_file):
    record, folder = run
    assert (record["kind"], record["method"], record["status"]) == ("training", "simcse", "finished")
    assert record["data"] == {
        "path": str(sentence_file),
        "sha256": sha256(sentence_file),
        "rows": 54,
        "held_out_rows": 6,
        "columns": ["sentence"],
        "audit": None,
    }
    resolved = settings.resolve(Recipe, settings.read_yaml(folder / "settings.yaml"))
    assert resolved.model_dump(mode="json") == record["settings"]
    assert record["settings"]["training"]["seed"] == 42
    assert record["speed"]["steps"] == 4
    assert record["speed"]["rows_per_second"] > 0
    assert record["seconds"]["train"] >= 0
    assert record["precision"] == "fp32"
    assert record["chunking"] == {"tokens": 512, "min_rows": 8, "recompute": False}
    assert [point["step"] for point in record["loss"]] == [1, 2, 3, 4]
    assert record["hardware"]["cores"] >= 1
    assert {"python", "torch", "sentence-transformers", "sentsmith"} <= set(record["versions"])
    assert record["commit"] is None or re.fullmatch(r"[0-9a-f]{40}(\+changes)?", record["commit"])
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\+00:00", record["created"])


def test_the_held_out_judge(run):
    selection = run[0]["selection"]
    assert selection["source"] == "6 held-out training rows"
    assert selection["metric"] == "negated contrastive loss"
    assert [entry["step"] for entry in selection["history"]] == [0, 2, 4]
    assert all(entry["score"] < 0 for entry in selection["history"])


def test_the_card(run, tiny_bert):
    card = (run[1] / "README.md").read_text(encoding="utf-8")
    assert card.startswith("---\nlibrary_name: sentence-transformers\n")
    assert f"Started from `{tiny_bert}`" in card
    assert "on 54 rows (sentence)" in card
    assert "Method: unsupervised SimCSE" in card
    assert "not audited for overlap" in card
    assert "- seed: 42" in card
    assert "- checkpoint: the last one, by choice" in card
    assert "sentsmith audit" in card.partition("## Warnings")[2]


def test_it_loads_plainly_and_gives_the_same_vectors(run, sentences, tiny_bert):
    plain = SentenceTransformer(str(run[1]), device="cpu", local_files_only=True)
    vectors = plain.encode(sentences)
    assert (vectors == load(run[1], device="cpu").encode(sentences)).all()
    assert abs(vectors - load(tiny_bert, device="cpu").encode(sentences)).max() > 1e-2
    # Sentences were cut to 32 tokens in training only.
    assert plain.max_seq_length == 64


def test_the_training_fits_the_rows(train_tiny, tmp_path):
    record = train_tiny(tmp_path / "m", "training.max_steps=20", "training.learning_rate=1e-3", "simcse.dropout=0")
    losses = [point["loss"] for point in record["loss"]]
    assert np.mean(losses[-5:]) < 0.2 * np.mean(losses[:5])


def test_a_seed_fixes_everything(run, train_tiny, tmp_path):
    shared = ("data.held_out=0.1", "training.select=last")
    again = train_tiny(tmp_path / "again", *shared)
    assert same(run[1], tmp_path / "again")
    for key in ("loss", "selection", "data", "settings_sha256"):
        assert again[key] == run[0][key]
    train_tiny(tmp_path / "other", *shared, "training.seed=43")
    assert not same(run[1], tmp_path / "other")


# -- the folder ---------------------------------------------------------------------------------------------------


def test_a_finished_run_is_kept_unless_told(train_tiny, tmp_path):
    folder = tmp_path / "m"
    train_tiny(folder, "training.max_steps=1")
    (folder / "results.json").write_text("{}")
    before = sha256(folder)
    for resume in (False, True):
        with pytest.raises(InputError, match="holds a finished run; give another folder, or --overwrite"):
            train_tiny(folder, "training.max_steps=1", resume=resume)
    assert sha256(folder) == before
    record = train_tiny(folder, "training.max_steps=2", overwrite=True)
    assert record["speed"]["steps"] == 2
    assert not (folder / "results.json").exists()


@pytest.mark.parametrize(
    "override", ["data.train=none.txt", "data.dev=none.csv", "model=./none", "training.batch_size=61"]
)
def test_wrong_input_leaves_no_trace_and_no_loss(train_tiny, tmp_path, override):
    with pytest.raises(InputError):
        train_tiny(tmp_path / "new", override)
    assert not (tmp_path / "new").exists()
    train_tiny(tmp_path / "m", "training.max_steps=1")
    before = sha256(tmp_path / "m")
    with pytest.raises(InputError):
        train_tiny(tmp_path / "m", override, overwrite=True)
    assert sha256(tmp_path / "m") == before


def test_too_few_rows(train_tiny, tmp_path):
    with pytest.raises(
        InputError, match=r"holds 60 rows to train on, fewer than one batch of 61; lower training\.batch"
    ):
        train_tiny(tmp_path / "m", "training.batch_size=61")


def test_what_is_no_run_is_never_deleted(train_tiny, tmp_path, sentence_file, monkeypatch):
    file, folder = tmp_path / "file", tmp_path / "folder"
    file.write_text("x")
    with pytest.raises(InputError, match="is a file; give a folder for the model"):
        train_tiny(file, overwrite=True)
    # A folder that somebody calls work is no run.
    (folder / "work").mkdir(parents=True)
    (folder / "thesis.txt").write_text("x")
    with pytest.raises(InputError, match="holds something that is no run of sentsmith"):
        train_tiny(folder, overwrite=True)
    (folder / "work").rmdir()
    with pytest.raises(InputError, match="is not empty; give another folder"):
        train_tiny(folder)
    run = tmp_path / "run"
    train_tiny(run, "training.max_steps=1")
    (run / "more.txt").write_text(sentence_file.read_text())
    for override in (f"data.train={run / 'more.txt'}", f"model={run}", f"data.dev={run / 'dev.csv'}"):
        with pytest.raises(InputError, match="which the run needs; --overwrite will not delete it"):
            train_tiny(run, override, overwrite=True)
    monkeypatch.chdir(run)
    with pytest.raises(InputError, match="which the run needs"):
        train_tiny(run, overwrite=True)
    assert (run / "run.json").exists()


@pytest.mark.parametrize("there", [False, True])
def test_nothing_to_resume_is_a_start(train_tiny, tmp_path, caplog, there):
    if there:
        (tmp_path / "m").mkdir()
    caplog.set_level("INFO", logger="sentsmith")
    train_tiny(tmp_path / "m", "training.max_steps=1", resume=True)
    assert caplog.text.count("m: nothing to resume; starting") == 1
    assert (tmp_path / "m" / "run.json").exists()


def test_what_resume_refuses(train_tiny, tmp_path):
    (tmp_path / "m").mkdir()
    (tmp_path / "m" / "mine.txt").touch()
    with pytest.raises(InputError, match="is not empty; give another folder"):
        train_tiny(tmp_path / "m", resume=True)
    with pytest.raises(InputError, match="exclude each other"):
        train_tiny(tmp_path / "m", resume=True, overwrite=True)


def test_a_kill_while_the_old_run_is_deleted(tiny_settings, tmp_path, monkeypatch):
    recipe = settings.resolve(Recipe, tiny_settings)
    folder = tmp_path / "m"
    Output(folder).open(recipe, "data")
    (folder / "run.json").touch()
    monkeypatch.setattr("sentsmith.training.output.shutil.rmtree", lambda _: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        Output(folder, overwrite=True).open(recipe, "other data")
    monkeypatch.undo()
    # Nothing is half deleted: the old run lies aside as it was, and the folder can be written with or without a word.
    assert len(list(tmp_path.glob(".m.*.old/m/run.json"))) == 1
    for overwrite in (False, True):
        Output(folder, overwrite=overwrite).check(recipe)
    work = Output(folder, overwrite=True).open(recipe, "other data")
    assert sorted(path.name for path in work.iterdir()) == ["data.sha256", "processes", "settings.yaml"]


def test_overwrite_leaves_nothing_aside(tiny_settings, tmp_path):
    recipe = settings.resolve(Recipe, tiny_settings)
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    for _ in range(2):
        Output(tmp_path / "link", overwrite=True).open(recipe, "data")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "real"]


# -- the choice of the checkpoint ---------------------------------------------------------------------------------


def test_the_start_is_a_candidate(train_tiny, tmp_path, tiny_bert, dev_by):
    record = train_tiny(tmp_path / "m", f"data.dev={dev_by(tiny_bert)}")
    selection = record["selection"]
    assert (selection["best_step"], selection["metric"]) == (0, "spearman")
    assert selection["best_score"] == pytest.approx(100)
    assert selection["best_later_step"] in (2, 4)
    assert selection["best_later_score"] < 99.9
    start = load_file(tiny_bert / "model.safetensors")
    assert all(np.array_equal(value, start[name]) for name, value in weights(tmp_path / "m").items())
    assert "- checkpoint: step 0, the best by spearman on" in (tmp_path / "m" / "README.md").read_text()


def test_the_judge_reads_whole_sentences(train_tiny, tmp_path, tiny_bert, dev_by):
    """The dev file holds the start model's own scores of sentences that training cuts."""
    record = train_tiny(tmp_path / "m", f"data.dev={dev_by(tiny_bert)}", "training.max_length=5")
    assert record["selection"]["history"][0]["score"] == pytest.approx(100)


def test_the_last_step_is_judged_once_whatever_the_library_does(train_tiny, tmp_path, dev_by, tiny_bert, monkeypatch):
    dev = dev_by(tiny_bert)
    calls = []
    monkeypatch.setattr(ScoredPairsJudge, "score", lambda *_: calls.append(1) or 0.0)
    ours = DefaultFlowCallback.on_step_end

    def without_the_last(self, args, state, control, **kwargs):
        ours(self, args, state, control, **kwargs)
        control.should_evaluate = state.global_step % state.eval_steps == 0

    for name in ("now", "without"):
        record = train_tiny(tmp_path / name, f"data.dev={dev}", "training.max_steps=3")
        assert [entry["step"] for entry in record["selection"]["history"]] == [0, 2, 3]
        assert len(calls) == 3
        calls.clear()
        monkeypatch.setattr(DefaultFlowCallback, "on_step_end", without_the_last)


@pytest.fixture(scope="module")
def middle(tmp_path_factory, train_tiny, dev_by):
    """Return the folder that a constant rate reaches after two steps, and a dev file that likes it best."""
    folder = tmp_path_factory.mktemp("middle") / "model"
    train_tiny(folder, "training.schedule=constant", "training.max_steps=2")
    return folder, dev_by(folder)


@pytest.mark.parametrize("select", ["best", "last"])
def test_a_step_in_the_middle_is_found(train_tiny, tmp_path, middle, select):
    folder, dev = middle
    record = train_tiny(
        tmp_path / "m",
        f"data.dev={dev}",
        "training.schedule=constant",
        "training.max_steps=6",
        f"training.select={select}",
    )
    selection = record["selection"]
    assert [entry["step"] for entry in selection["history"]] == [0, 2, 4, 6]
    assert (selection["best_step"], selection["select"]) == (2, select)
    assert selection["best_score"] == pytest.approx(100)
    assert same(tmp_path / "m", folder) == (select == "best")


def test_looking_at_the_model_does_not_change_it(train_tiny, tmp_path, middle):
    for name, overrides in (("without", ()), ("with", (f"data.dev={middle[1]}", "training.eval_steps=1"))):
        train_tiny(tmp_path / name, "training.select=last", *overrides)
    assert same(tmp_path / "without", tmp_path / "with")


def test_several_dev_files_count_alike(train_tiny, tmp_path, middle, dev_by, tiny_bert):
    files = [middle[1], dev_by(tiny_bert)]
    scores = []
    for given in (files[:1], files[1:], files):
        text = ", ".join(map(str, given))
        record = train_tiny(tmp_path / str(len(scores)), f"data.dev=[{text}]", "training.max_steps=2")
        assert record["selection"]["source"] == text
        assert record["data"]["held_out_rows"] == 0
        scores.append([entry["score"] for entry in record["selection"]["history"]])
    assert np.mean(scores[:2], axis=0) == pytest.approx(scores[2])


def test_nothing_held_out(train_tiny, tmp_path):
    # 3 % of 60 rows is one row, by which nothing can be chosen: it trains.
    record = train_tiny(tmp_path / "m", "data.held_out=0.03", "training.max_steps=1")
    assert record["selection"] is None
    assert (record["data"]["rows"], record["data"]["held_out_rows"]) == (60, 0)
    assert "the last one; nothing was held out" in (tmp_path / "m" / "README.md").read_text()


def test_gold_scores_out_of_range(train_tiny, tmp_path):
    dev = write_dev(tmp_path / "dev.csv", [("a", "b"), ("c", "d")], [1, 7])
    with pytest.raises(InputError, match=r"dev\.csv, row 3: gold score '7' is no number from 0 to 5"):
        train_tiny(tmp_path / "m", f"data.dev={dev}")


# -- heads --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("head", "kept"), [("none", False), ("training", False), ("kept", True)])
def test_heads(train_tiny, tmp_path, sentences, head, kept):
    train_tiny(tmp_path / "m", f"simcse.head={head}", "simcse.pooling=cls")
    plain = SentenceTransformer(str(tmp_path / "m"), device="cpu", local_files_only=True)
    names = [type(module).__name__ for module in plain]
    assert names == ["Transformer", "Pooling", *["Dense"] * kept]
    assert plain[1].pooling_mode == "cls"
    vectors = plain.encode(sentences)
    assert (abs(vectors).max() <= 1) == kept  # tanh
    if kept:
        assert type(plain[2].activation_function).__name__ == "Tanh"


def test_a_training_head_shapes_the_weights(train_tiny, tmp_path):
    for head in ("none", "training"):
        train_tiny(tmp_path / head, f"simcse.head={head}")
    assert not same(tmp_path / "none", tmp_path / "training")


def test_a_head_stands_before_a_closing_normalisation(train_tiny, tmp_path, tiny_bert):
    from sentence_transformers.base.modules import Normalize

    start = SentenceTransformer(modules=[*load(tiny_bert, device="cpu"), Normalize()], device="cpu")
    start.prompts = {"query": "find "}
    start.save_pretrained(str(tmp_path / "start"))
    for head, modules in (("kept", ["Dense", "Normalize"]), ("training", ["Normalize"])):
        train_tiny(tmp_path / head, f"model={tmp_path / 'start'}", f"simcse.head={head}", "training.max_steps=1")
        model = SentenceTransformer(str(tmp_path / head), device="cpu", local_files_only=True)
        assert [type(module).__name__ for module in model] == ["Transformer", "Pooling", *modules]
        assert model.prompts["query"] == "find "


@pytest.mark.parametrize("kind", ["tiny_bert", "tiny_llama"])
def test_dropout_reaches_every_kind_of_layer(request, sentences, kind):
    import torch

    from sentsmith.methods.simcse.recipe import SimcseSettings, prepare

    def spread(rate):
        model = prepare(load(request.getfixturevalue(kind), device="cpu"), SimcseSettings(dropout=rate)).train()
        torch.manual_seed(0)
        first, second = (model(dict(model.preprocess(sentences[:8])))["sentence_embedding"] for _ in range(2))
        return float((first - second).detach().abs().max())

    assert spread(0.0) < 1e-6
    assert spread(0.5) > 1e-2


# -- numbers ------------------------------------------------------------------------------------------------------


def test_a_loss_that_is_no_number_ends_the_run(train_tiny, tmp_path):
    with pytest.raises(SentsmithError, match=r"became nan; begin again .* lower training\.learning_rate") as caught:
        train_tiny(tmp_path / "m", "training.learning_rate=1e30", "training.max_steps=200")
    assert caught.value.exit_code == 1
    assert not (tmp_path / "m" / "run.json").exists()


def test_the_last_update_is_looked_at_too(train_tiny, tmp_path):
    with pytest.raises(SentsmithError, match=r"the weights .* became"):
        train_tiny(tmp_path / "m", "training.learning_rate=1e39", "training.max_steps=1")
    assert not (tmp_path / "m" / "run.json").exists()


def test_a_dev_score_that_is_no_number_ends_the_run(train_tiny, tmp_path, monkeypatch):
    from sentsmith.training.selection import HeldOutJudge

    monkeypatch.setattr(HeldOutJudge, "score", lambda *_: float("nan"))
    with pytest.raises(SentsmithError, match="the negated contrastive loss on 6 held-out training rows, at step 0"):
        train_tiny(tmp_path / "m", "data.held_out=0.1")


def test_gradient_caching_gives_the_same_weights(train_tiny, tmp_path):
    shared = ("simcse.dropout=0.0", "training.chunk_tokens=40", "training.batch_size=20", "training.max_steps=3")
    for recompute in ("true", "false"):
        train_tiny(tmp_path / recompute, *shared, f"training.recompute={recompute}")
    one, two = weights(tmp_path / "true"), weights(tmp_path / "false")
    assert all(np.abs(one[name] - two[name]).max() < 1e-6 for name in one)


def test_blending_meets_in_the_middle(train_tiny, tmp_path, tiny_bert):
    for share in ("1.0", "0.25"):
        train_tiny(tmp_path / share, f"training.blend={share}")
    start, whole, part = (
        load_file(tiny_bert / "model.safetensors"),
        weights(tmp_path / "1.0"),
        weights(tmp_path / "0.25"),
    )
    for name, value in part.items():
        np.testing.assert_allclose(value, 0.75 * start[name] + 0.25 * whole[name], atol=1e-6)


@pytest.mark.parametrize(
    ("wanted", "device", "native", "found"),
    [
        ("auto", "cpu", True, "bf16"),
        ("auto", "cpu", False, "fp32"),
        ("auto", "cuda", True, "bf16"),
        ("fp32", "cpu", True, "fp32"),
        ("bf16", "cpu", False, "bf16"),
        ("fp16", "cuda", True, "fp16"),
    ],
)
def test_precision(monkeypatch, caplog, wanted, device, native, found):
    monkeypatch.setattr(precision, "has_native_bf16", lambda _: native)
    assert precision.resolve_precision(wanted, device) == found
    assert ("slower than fp32" in caplog.text) == (wanted == "bf16")


def test_fp16_needs_a_gpu():
    with pytest.raises(SettingsError, match="fp16 needs a GPU; use fp32, bf16 or auto"):
        precision.resolve_precision("fp16", "cpu")
    assert not precision.has_native_bf16("mps")


def test_measured_chunks_are_recorded(train_tiny, tmp_path):
    record = train_tiny(tmp_path / "m", "training.chunk_tokens=measure", "training.max_steps=1")
    assert record["chunking"]["tokens"] in CANDIDATES


def test_the_fastest_chunk_is_taken_and_kept(tiny_bert, sentences, tmp_path, monkeypatch):
    import torch

    times = {256: 0.3, 512: 0.1, 1024: 0.2}
    monkeypatch.setattr(chunks, "_time", lambda model, features, chunking, half: times[chunking.tokens])
    model, rows = load(tiny_bert, device="cpu"), [{"sentence": text} for text in sentences[:8]]
    state = torch.get_rng_state()

    def choose():
        return measured(model, rows, tmp_path / "c.json", precision="fp32", min_rows=8, candidates=tuple(times))

    assert choose() == 512
    times[256] = 0.0
    assert choose() == 512
    assert json.loads((tmp_path / "c.json").read_text())["seconds"] == {"256": 0.3, "512": 0.1, "1024": 0.2}
    assert torch.equal(torch.get_rng_state(), state)


def test_measuring_leaves_no_gradient(tiny_bert, sentences, tmp_path):
    model, rows = load(tiny_bert, device="cpu"), [{"sentence": text} for text in sentences[:8]]
    found = measured(model, rows, tmp_path / "c.json", precision="bf16", min_rows=2, candidates=(64, 128))
    assert found in (64, 128)
    assert all(parameter.grad is None for parameter in model.parameters())
    assert all(value > 0 for value in json.loads((tmp_path / "c.json").read_text())["seconds"].values())


# -- the audit ----------------------------------------------------------------------------------------------------


def test_the_warning_goes_with_an_audit(train_tiny, tmp_path, sentences):
    data, tests = tmp_path / "data.txt", tmp_path / "tests"
    data.write_text("\n".join(sentences), encoding="utf-8")
    tests.mkdir()
    (tests / "t.txt").write_text("Something else entirely is written here.\n")
    shared = (f"data.train={data}", "training.max_steps=1")
    record = train_tiny(tmp_path / "none", *shared)
    assert [re.sub(r" /.*? ", " PATH ", line) for line in record["warnings"]] == [
        "data.txt was not audited for overlap with test sets; run: sentsmith audit PATH --against DIR"
    ]
    audit(data, tests)
    record = train_tiny(tmp_path / "clean", *shared)
    assert record["warnings"] == []
    assert record["data"]["audit"]["affected"] == 0
    assert "audited for overlap with test sets" in (tmp_path / "clean" / "README.md").read_text()
    (tests / "t.txt").write_text(sentences[3] + "\n")
    audit(data, tests)
    record = train_tiny(tmp_path / "dirty", *shared)
    assert len(record["warnings"]) == 1
    assert re.match(r"\d+ training rows overlap with test sets by their audit; train on", record["warnings"][0])
    data.write_text("\n".join(sentences[::-1]), encoding="utf-8")
    record = train_tiny(tmp_path / "changed", *shared)
    assert "was not audited" in record["warnings"][0]
