"""FREEZE as a run: from the store or with the model running, gone on with, chosen on dev, saved as one vector."""

import json
import mmap
from types import SimpleNamespace

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentence_transformers import SentenceTransformer

import sentsmith
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.vectorfile import embed_path
from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.pairs import ScoredPairs, read_scored_pairs
from sentsmith.evaluation.sts import score_pairs
from sentsmith.methods.freeze.recipe import Recipe
from sentsmith.methods.freeze.store import shared_sentences
from sentsmith.search.compare import check_searchable
from sentsmith.settings import resolve


@pytest.fixture(scope="module")
def trained(tmp_path_factory, train_freeze):
    """Return the folder of a run, its record, and the folder of its store."""
    folder = tmp_path_factory.mktemp("freeze")
    record = train_freeze(folder / "model", f"freeze.store={folder / 'store'}")
    return folder / "model", record, folder / "store"


def codes(folder):
    """Return the trained weights of a run."""
    return load_file(next(folder.glob("1_*")) / "model.safetensors")


def test_a_run_learns_and_its_record_says_what_was_done(trained):
    folder, record, store = trained
    assert record["selection"]["best_step"] > 0
    assert record["selection"]["best_score"] > record["selection"]["history"][0]["score"]
    found = record["freeze"]
    assert (found["layers"], found["head"], found["start"]) == (2, "nonnegative", "autoencoder")
    assert min(found["weights"]) > 0
    assert len(found["reconstruction"]["loss"]) == 2
    assert found["reconstruction"]["bottlenecks"] == [8, 8]
    assert {name: part["found"] for name, part in found["store"].items()} == {
        # No raw sentences were given: they are those of the pairs.
        "sentences": False,
        "pairs": True,
        "dev": False,
    }
    assert "cosine of two vectors ranks pairs" in (folder / "README.md").read_text()
    assert len(list(store.glob("*.npy"))) == 2


def test_the_model_loads_searches_and_says_what_was_judged(trained, pair_files, sentences, tmp_path):
    folder, record, _ = trained
    model = sentsmith.load(folder)
    encoder = as_encoder(model)
    score = 100 * score_pairs(encoder, read_scored_pairs(pair_files["dev"]))
    assert score == pytest.approx(record["selection"]["best_score"], abs=1e-4)
    vectors = encoder.encode(sentences)
    np.testing.assert_allclose(np.linalg.norm(vectors, axis=1), 1, rtol=1e-5)
    # As any other model: plain loading is refused, a trusted one is the same, an index finds a sentence itself.
    with pytest.raises((ValueError, ImportError), match="trust_remote_code"):
        SentenceTransformer(str(folder))
    again = SentenceTransformer(str(folder), trust_remote_code=True).encode(sentences)
    np.testing.assert_allclose(again, vectors, atol=1e-5)
    assert model.max_seq_length == 64


def test_looked_up_or_run_in_every_step_is_the_same_training(trained, train_freeze, tmp_path):
    folder, record, store = trained
    live = train_freeze(tmp_path / "live", f"freeze.store={store}", "freeze.look_up=false")
    losses = [[entry["loss"] for entry in each["loss"]] for each in (record, live)]
    np.testing.assert_allclose(losses[1], losses[0], atol=1e-3)
    for name, value in codes(folder).items():
        np.testing.assert_allclose(codes(tmp_path / "live")[name], value, atol=5e-3)


def test_a_store_serves_later_runs_and_another_readout_has_its_own(trained, train_freeze, tmp_path):
    _, _, store = trained
    later = train_freeze(tmp_path / "later", f"freeze.store={store}", "freeze.loss=mse", "training.max_steps=2")
    assert all(part["found"] for part in later["freeze"]["store"].values())
    assert later["freeze"]["reconstruction"] is not None
    before = set(store.glob("*.npy"))
    other = ("freeze.store_dtype=float16", "freeze.start=scratch", "training.max_steps=1")
    half = train_freeze(tmp_path / "half", f"freeze.store={store}", *other)
    assert not half["freeze"]["store"]["pairs"]["found"]
    made = set(store.glob("*.npy")) - before
    assert {np.load(file, mmap_mode="r").dtype for file in made} == {np.dtype("float16")}
    assert half["freeze"]["store"]["pairs"]["bytes"] * 2 == later["freeze"]["store"]["pairs"]["bytes"]


def test_a_free_head_is_not_searched_with_and_says_its_own_similarity(
    trained, train_freeze, pair_files, sentence_file, tmp_path, caplog
):
    record = train_freeze(tmp_path / "free", "freeze.head=linear", "freeze.start=pca", "training.max_steps=3")
    encoder = as_encoder(sentsmith.load(tmp_path / "free"))
    score = 100 * score_pairs(encoder, read_scored_pairs(pair_files["dev"]))
    assert score == pytest.approx(record["selection"]["best_score"], abs=1e-4)
    with pytest.raises(InputError, match=r"freeze\.head nonnegative"):
        check_searchable(encoder)
    for model in (trained[0], tmp_path / "free"):
        assert "the cosine of these vectors is not the model's own similarity" not in caplog.text
        embed_path(sentence_file, tmp_path / f"{model.name}.npy", model)
    assert f"{tmp_path / 'free'}: the cosine of these vectors is not the model's own similarity" in caplog.text


def test_an_attention_learns_its_queries_and_is_saved_with_them(train_freeze, pair_files, tmp_path):
    overrides = ("freeze.readout=attention", "freeze.start=cosines", "training.max_steps=4", "training.select=last")
    record = train_freeze(tmp_path / "model", *overrides)
    model = sentsmith.load(tmp_path / "model")
    assert "store" not in record["freeze"]
    assert model[0].query.abs().max() > 0
    score = 100 * score_pairs(as_encoder(model), read_scored_pairs(pair_files["dev"]))
    assert score == pytest.approx(record["selection"]["history"][-1]["score"], abs=1e-3)


def test_going_on_with_a_trained_model(trained, train_freeze, tmp_path):
    folder, record, store = trained
    later = train_freeze(tmp_path / "later", f"model={folder}", f"freeze.store={store}", "training.max_steps=1")
    first = later["selection"]["history"][0]["score"]
    assert first == pytest.approx(record["selection"]["best_score"], abs=1e-4)
    with pytest.raises(SettingsError, match=r"freeze\.head is 'mlp', and the FREEZE model to go on with has"):
        train_freeze(tmp_path / "other", f"model={folder}", "freeze.head=mlp")
    with pytest.raises(SettingsError, match=r"freeze\.leave_out is not that of the FREEZE model"):
        train_freeze(tmp_path / "other", f"model={folder}", "freeze.leave_out=[1]")


def test_what_is_gone_on_with_is_the_models_own(train_freeze, trains, freeze_settings, pair_files, tmp_path):
    """Its readout, start and head, where the recipe says nothing of them."""
    short = ("training.max_steps=2", "training.select=last")
    train_freeze(tmp_path / "first", "freeze.readout=attention", "freeze.start=cosines", *short)
    silent = {**freeze_settings, "freeze": {}, "model": str(tmp_path / "first")}
    record = trains("freeze", silent)(tmp_path / "second", *short)
    assert (record["freeze"]["start"], record["freeze"]["head"]) == ("cosines", "nonnegative")
    queries = [sentsmith.load(tmp_path / name)[0].query for name in ("first", "second")]
    assert not np.allclose(queries[0].detach(), queries[1].detach())
    card = (tmp_path / "second" / "README.md").read_text()
    assert "Readout: attention" in card
    assert "cosine of two vectors ranks pairs" in card


def test_leaving_layers_out_takes_the_same_autoencoders(trained, train_freeze, tmp_path):
    _, _, store = trained
    record = train_freeze(tmp_path / "out", f"freeze.store={store}", "freeze.leave_out=[1]", "training.max_steps=1")
    assert len(record["freeze"]["weights"]) == 1
    assert all(part["found"] for part in record["freeze"]["store"].values())
    assert len(list(store.glob("autoencoders-*"))) == 1
    assert sentsmith.load(tmp_path / "out").get_embedding_dimension() == 8


def test_held_out_pairs_choose_where_there_is_no_dev_and_shared_sentences_are_warned_of(train_freeze, tmp_path):
    record = train_freeze(
        tmp_path / "model", "data.dev=[]", "data.held_out=0.2", "freeze.start=scratch", "training.max_steps=3"
    )
    assert record["selection"]["source"] == "12 held-out training rows"
    assert any("sentences of the pairs that choose the checkpoint are trained on too" in w for w in record["warnings"])


@pytest.mark.slow
def test_killed_in_training_and_gone_on_with(
    tmp_path_factory, freeze_settings, train_freeze, killed_training, blocked_at, assert_same_run
):
    place = tmp_path_factory.mktemp("killed")
    train_freeze(place / "whole")
    folder = killed_training(place / "here", freeze_settings, (), blocked_at(8))
    train_freeze(folder, resume=True)
    one, two = assert_same_run(place / "whole", folder)
    assert one["freeze"]["weights"] == two["freeze"]["weights"]
    assert two["freeze"]["store"]["pairs"]["found"]


@pytest.mark.slow
def test_killed_while_the_store_is_written(
    tmp_path_factory, freeze_settings, train_freeze, killed_training, assert_same_run, small_blocks
):
    place = tmp_path_factory.mktemp("store")
    train_freeze(place / "whole")
    blocked = f"""{small_blocks}
            import pathlib, signal
            from sentsmith.encoders.embedding import ModelEncoder
            encode, calls = ModelEncoder.encode, []
            def slowly(self, sentences):
                calls.append(1)
                if len(calls) == 3:
                    pathlib.Path("blocked").touch()
                    signal.pause()
                return encode(self, sentences)
            ModelEncoder.encode = slowly
"""
    folder = killed_training(place / "here", freeze_settings, (), blocked)
    (state,) = folder.rglob("*.part.json")
    assert json.loads(state.read_text())["rows"] == 32
    train_freeze(folder, resume=True)
    assert_same_run(place / "whole", folder)


def test_a_store_larger_than_memory_trains(tmp_path, train_freeze, monkeypatch):
    """The rows of a batch are read, and no more: here of a file of 64 GiB with holes, which no machine here holds."""
    from sentsmith.methods.freeze import store
    from sentsmith.training.text_vectors import TextVectors

    whole = store.text_vectors

    def enormous(teacher, texts, folder, **options):
        found = whole(teacher, texts, folder, **options)
        rows, wide = 2**28, found.vectors.shape[1]
        big = np.memmap(tmp_path / f"big-{found.path.name}", dtype=np.float32, mode="w+", shape=(rows, wide))
        assert big.nbytes == 64 * 2**30
        big._mmap.madvise(mmap.MADV_RANDOM)  # or the machine spends a second on the holes around each row
        places = {text: (place + 1) * (rows // 1000) for text, place in found.places.items()}
        for text, place in found.places.items():
            big[places[text]] = found.vectors[place]
        return TextVectors(found.path, big, places, 0.0, found=True)

    settings = ("freeze.start=scratch", "training.max_steps=6")
    plain = train_freeze(tmp_path / "plain", *settings)
    monkeypatch.setattr(store, "text_vectors", enormous)
    train_freeze(tmp_path / "model", *settings)
    assert plain["selection"]["best_score"] is not None
    for name, value in codes(tmp_path / "plain").items():
        np.testing.assert_array_equal(codes(tmp_path / "model")[name], value)


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.column=x",), "data.column is for sentences"),
        (("freeze.start=pca", "freeze.depth=2"), "freeze.depth is that of encoders with hidden layers"),
        (("freeze.bottleneck=[4, 4]", "freeze.late_bottleneck=8"), "freeze.late_bottleneck is for one"),
        (("freeze.bottleneck=0",), "must be at least 1"),
        (("freeze.start=scratch", "freeze.combine=summed", "freeze.head=linear"), "freeze.head nonnegative"),
        (("freeze.combine=summed", "freeze.leave_out=[1]"), "needs all layers"),
        (("freeze.hidden=3",), "freeze.hidden is for freeze.head mlp"),
        (("freeze.readout=attention", "freeze.look_up=false"), "nothing can be stored"),
        (("training.chunk_tokens=measure",), "stored vectors are looked up"),
        (("training.blend=0.5",), "training.blend averages with the start model"),
    ],
)
def test_settings_that_do_not_go_together(freeze_settings, overrides, message):
    with pytest.raises(SettingsError, match=message):
        resolve(Recipe, freeze_settings, overrides)


@pytest.mark.parametrize(
    ("overrides", "error", "message"),
    [
        (("freeze.leave_out=[3]",), SettingsError, "names layer 3; the model has layers 1 to 2"),
        (("freeze.leave_out=[1, 2]",), SettingsError, "names every layer"),
        (("freeze.bottleneck=[4, 4, 4]",), SettingsError, "lists 3 widths; the model has 2 layers"),
        (("freeze.start=pca", "freeze.bottleneck=64"), SettingsError, "at most 32"),
        (("data.train={raw}",), InputError, "raw.txt"),
        (("freeze.scale=0.5",), InputError, "row 2.*out of range"),
        (("freeze.autoencoder.sentences=none.txt",), InputError, "none.txt"),
        (("model=none/none/none",), InputError, "no such folder"),
    ],
)
def test_bad_input_is_a_line_and_leaves_nothing(train_freeze, pair_files, tmp_path, overrides, error, message):
    with pytest.raises(error, match=message):
        train_freeze(tmp_path / "model", *(text.format(**pair_files) for text in overrides))
    assert not list(tmp_path.iterdir())


def test_a_finished_run_survives_wrong_settings_for_the_next(trained, train_freeze):
    folder, _, store = trained
    before = sorted(folder.rglob("*"))
    for wrong in ("freeze.leave_out=[9]", "freeze.autoencoder.sentences=none.txt"):
        with pytest.raises((InputError, SettingsError)):
            train_freeze(folder, f"freeze.store={store}", wrong, overwrite=True)
    assert sorted(folder.rglob("*")) == before


def test_dev_sentences_are_read_whole_whatever_the_training_cuts(train_freeze, pair_files, tmp_path):
    record = train_freeze(tmp_path / "model", "training.max_length=6", "freeze.start=scratch", "training.max_steps=3")
    score = 100 * score_pairs(as_encoder(sentsmith.load(tmp_path / "model")), read_scored_pairs(pair_files["dev"]))
    assert score == pytest.approx(record["selection"]["best_score"], abs=1e-4)
    assert {"pairs", "dev"} <= record["freeze"]["store"].keys()


def test_every_seed_draws_its_own_encoders(train_freeze, tmp_path):
    for seed in (1, 2):
        train_freeze(tmp_path / str(seed), "freeze.start=scratch", f"training.seed={seed}", "training.max_steps=1")
    first, second = (codes(tmp_path / str(seed)) for seed in (1, 2))
    assert any(not np.array_equal(first[name], second[name]) for name in first)


def test_shared_sentences_are_those_of_any_dev_file():
    rows = SimpleNamespace(train={"sentence1": ["a", "b"], "sentence2": ["c", "d"]})
    files = [ScoredPairs(("a",), ("x",), np.zeros(1)), ScoredPairs(("y",), ("d",), np.zeros(1))]
    assert shared_sentences(rows, files) == 2
    assert shared_sentences(rows, []) == 0
