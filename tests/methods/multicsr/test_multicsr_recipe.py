"""A MultiCSR run: what the mask is made of, what the record says, the cache, gold triplets, and what is refused."""

from __future__ import annotations

import json
import multiprocessing
import shutil
import sys
import time

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file

from sentsmith import settings
from sentsmith.corpus.datasets import data_hash
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import with_pooling
from sentsmith.errors import InputError, SettingsError
from sentsmith.files import alone, sha256
from sentsmith.methods.multicsr import masking, recipe
from sentsmith.methods.multicsr.objective import MultiCSRLoss, false_negative_keep
from sentsmith.training import run as training_run
from sentsmith.training import text_vectors
from sentsmith.training.data import load_rows, triplet_rows
from sentsmith.training.settings import DataSettings
from sentsmith.training.teachers import load_teacher


@pytest.fixture
def kept(monkeypatch):
    """Keep what each run's loss looks up: the list of the (labels, mask) of its steps."""
    seen = []
    look = MultiCSRLoss.kept

    def spy(self, columns, features, labels):
        keep = look(self, columns, features, labels)
        seen.append((labels, keep))
        return keep

    monkeypatch.setattr(MultiCSRLoss, "kept", spy)
    return seen


def frozen_vectors(folder, triplets, *, pooling=None, length=32):
    model = load(folder)
    model = model if pooling is None else with_pooling(model, pooling)
    model.max_seq_length = length
    return torch.from_numpy(np.stack([as_encoder(model).encode(list(c)) for c in zip(*triplets, strict=True)], axis=1))


def weights(folder):
    return load_file(folder / "model.safetensors")


def same(one, two):
    return all(np.array_equal(value, weights(two)[name]) for name, value in weights(one).items())


@pytest.fixture(scope="module")
def plain(multicsr_tiny, tmp_path_factory):
    """Return the record and the folder of a run by the settings as they are."""
    folder = tmp_path_factory.mktemp("plain") / "m"
    return multicsr_tiny(folder), folder


def cached(values, folder, *overrides):
    """Make or find the masker's vectors in a folder, as a run by these settings does before it trains."""
    resolved = settings.resolve(recipe.Recipe, values, overrides)
    rows, _ = recipe._rows(resolved)
    return masking.cached_masker(recipe._teacher(resolved, None, rows), rows, folder).texts


def test_what_the_record_and_the_card_say(plain, tiny_llama, triplets):
    record, folder = plain
    facts = record["multicsr"]
    assert facts["rows"] == {"written": 24, "gold": 0}
    described = {key: facts["masker"][key] for key in ("model", "sha256", "pooling", "texts", "found")}
    texts = len({text for row in triplets for text in row})
    assert described == {
        "model": str(tiny_llama), "sha256": sha256(tiny_llama), "pooling": None, "texts": texts, "found": False,
    }  # fmt: skip
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"candidates whose cosine by `{tiny_llama}` reaches 0.5 are no negatives" in card
    assert sorted(path.name for path in folder.iterdir() if path.suffix == ".npy") == []


def test_the_mask_is_that_of_the_frozen_model(multicsr_tiny, tmp_path, kept, tiny_llama, triplets):
    changes = ("multicsr.masker_pooling=last", "training.max_length=5", "training.max_steps=3")
    record = multicsr_tiny(tmp_path / "m", *changes)
    vectors = frozen_vectors(tiny_llama, triplets, pooling="last", length=5)
    assert len(kept) == 3
    # One epoch: every row once, in the order of the trainer.
    assert sorted(torch.cat([labels for labels, _ in kept]).tolist()) == list(range(24))
    masked = 0
    for labels, keep in kept:
        wanted = false_negative_keep(*vectors[labels].unbind(1), threshold=0.5)
        assert torch.equal(keep, wanted)
        masked += int((~keep).sum())
    # What the record says is measured on other batches of the same rows.
    assert record["multicsr"]["masked_share"] == pytest.approx(masked / (3 * 8 * 14), abs=0.1)
    assert 0.05 < record["multicsr"]["masked_share"] < 0.95


def test_the_share_is_counted_as_by_hand(tiny_llama, triplets, tmp_path, triplet_file):
    rows = load_rows(DataSettings(train=str(triplet_file)), triplet_rows)
    teacher = load_teacher(str(tiny_llama), max_length=32, depends={})
    masker = masking.cached_masker(teacher, rows, tmp_path)
    vectors = frozen_vectors(tiny_llama, triplets)
    # All rows are one batch: there is nothing to draw.
    keep = false_negative_keep(*vectors.unbind(1), threshold=0.5)
    found = masking.masked_share(masker, threshold=0.5, batch_size=24, seed=3)
    assert found == pytest.approx(float((~keep).sum()) / (24 * 46), abs=1e-9)
    assert masking.masked_share(masker, threshold=1.01, batch_size=8, seed=3) == 0
    assert masking.masked_share(masker, threshold=-1.01, batch_size=8, seed=3) == 1
    # The authors' rule may take the own hard negative too.
    assert masking.masked_share(masker, threshold=-1.01, batch_size=8, seed=3, released=True) > 1


def test_without_a_mask_no_masker_is_loaded(multicsr_tiny, tmp_path, kept, monkeypatch):
    monkeypatch.setattr("sentsmith.training.teachers.load_teacher", lambda *_, **__: 1 / 0)
    record = multicsr_tiny(tmp_path / "m", "multicsr.mask=false", "multicsr.masker=./nowhere", "training.max_steps=1")
    assert record["multicsr"] == {"rows": {"written": 24, "gold": 0}, "masker": None, "masked_share": None}
    assert "masker" not in record["seconds"]
    assert record["data"]["columns"] == ["anchor", "positive", "negative"]
    assert kept == [(None, None)]
    assert "MultiCSR without its mask, SynCSE" in (tmp_path / "m" / "README.md").read_text(encoding="utf-8")


def test_a_threshold_above_one_trains_as_without_a_mask(multicsr_tiny, tmp_path, plain):
    record = multicsr_tiny(tmp_path / "above", "multicsr.threshold=1.01")
    multicsr_tiny(tmp_path / "none", "multicsr.mask=false")
    assert record["multicsr"]["masked_share"] == 0
    assert same(tmp_path / "above", tmp_path / "none")
    assert not same(plain[1], tmp_path / "none")


# The cache ----------------------------------------------------------------------------------------------------------


def test_a_second_run_finds_the_vectors(multicsr_settings, multicsr_tiny, tmp_path, monkeypatch, caplog):
    shared = (f"multicsr.cache={tmp_path / 'cache'}", "data.held_out=0.1", "training.max_steps=2")
    read = text_vectors.read_once
    monkeypatch.setattr(text_vectors, "read_once", lambda *args, **kwargs: time.sleep(0.3) or read(*args, **kwargs))
    first = multicsr_tiny(tmp_path / "one", *shared)
    assert sorted(path.suffix for path in (tmp_path / "cache").iterdir()) == [".json", ".npy"]
    assert first["seconds"]["masker"] >= 0.3
    monkeypatch.setattr(text_vectors, "read_once", lambda *_, **__: 1 / 0)
    caplog.set_level("INFO", logger="sentsmith")
    second = multicsr_tiny(tmp_path / "two", *shared)
    assert "holds the vectors of" in caplog.text
    assert (first["multicsr"]["masker"]["found"], second["multicsr"]["masker"]["found"]) == (False, True)
    # What the pass took is known to later runs, whatever they spend on it themselves.
    assert second["multicsr"]["masker"]["seconds"] == first["multicsr"]["masker"]["seconds"] >= 0.3
    assert same(tmp_path / "one", tmp_path / "two")
    # Another seed holds other rows out, and another σ masks others: the vectors are the same.
    other = ("data.held_out=0.1", "training.seed=7", "multicsr.threshold=0.6")
    assert cached(multicsr_settings, tmp_path / "cache", *other).found


@pytest.mark.parametrize(
    "change",
    ["multicsr.masker_pooling=last", "training.max_length=6", "multicsr.masker={bert}", "data.limit=20"],
)
def test_other_vectors_are_not_mistaken_for_these(multicsr_settings, tmp_path, tiny_bert, change):
    first = cached(multicsr_settings, tmp_path)
    second = cached(multicsr_settings, tmp_path, change.format(bert=tiny_bert))
    assert not second.found
    assert len(list(tmp_path.glob("*.npy"))) == 2
    assert second.vectors.shape != first.vectors.shape or not np.allclose(second.vectors, first.vectors)


def test_each_text_is_embedded_once_in_the_right_place(tiny_llama, triplets, tmp_path, triplet_file):
    settings_ = DataSettings(train=str(triplet_file), held_out=0.2)
    rows = load_rows(settings_, triplet_rows, held_out=0.2, seed=1)
    assert len(rows.held_out) == 4
    teacher = load_teacher(str(tiny_llama), max_length=32, depends={})
    masker = masking.cached_masker(teacher, rows, tmp_path)
    assert masker.texts.vectors.dtype == np.float32
    assert masker.texts.vectors.shape == (len({text for row in triplets for text in row}), 32)
    labels = torch.tensor([5, 0, 19])
    wanted = frozen_vectors(tiny_llama, [tuple(rows.train[int(label)].values()) for label in labels])
    features = {"input_ids": torch.zeros(1)}
    torch.testing.assert_close(masker(features, labels), wanted, atol=1e-5, rtol=1e-5)
    with pytest.raises(ValueError, match="need it as their label"):
        masker(features, None)


def test_texts_that_could_run_together():
    assert text_vectors._hash(["ab", "c"]) != text_vectors._hash(["a", "bc"])
    assert text_vectors._hash(["a 1 b"]) != text_vectors._hash(["a", "b"])


@pytest.mark.parametrize("damage", ["cut", "no vectors", "other rows"])
def test_a_damaged_cache_is_said(multicsr_settings, tmp_path, damage):
    file = cached(multicsr_settings, tmp_path).path
    if damage == "cut":
        file.write_bytes(file.read_bytes()[:-400])
    elif damage == "no vectors":
        file.write_bytes(b"hello")
    else:
        np.save(file, np.zeros((3, 32), dtype=np.float32))
    with pytest.raises(InputError, match="delete it") as caught:
        cached(multicsr_settings, tmp_path)
    assert str(file) in str(caught.value)


def test_where_files_cannot_be_locked_the_vectors_are_made_without(multicsr_settings, tmp_path, monkeypatch):
    """As on Windows."""
    monkeypatch.setitem(sys.modules, "fcntl", None)
    made = cached(multicsr_settings, tmp_path)
    assert (made.found, cached(multicsr_settings, tmp_path).found) == (False, True)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".json", ".npy"]


def test_a_second_run_waits_for_the_one_that_embeds(tmp_path, tiny_llama, triplet_file, monkeypatch):
    """Two runs at once over the same data: one embeds, the other finds."""
    rows = load_rows(DataSettings(train=str(triplet_file)), triplet_rows)
    teacher = load_teacher(str(tiny_llama), max_length=32, depends={})
    read, others = text_vectors.read_once, []

    def slow(*args, **kwargs):
        # While this one holds the lock, another process asks for it, and gets it when this one is done.
        other = multiprocessing.get_context("fork").Process(target=take, args=(tmp_path,), daemon=True)
        other.start()
        others.append(other)
        other.join(0.3)
        assert other.is_alive()
        read(*args, **kwargs)

    monkeypatch.setattr(text_vectors, "read_once", slow)
    masking.cached_masker(teacher, rows, tmp_path)
    others[0].join(10)
    assert others[0].exitcode == 0
    assert not list(tmp_path.glob("*.lock"))


def take(folder):
    (lock,) = folder.glob("*.lock")
    with alone(lock.with_suffix(".npy")):
        pass


# Gold triplets ------------------------------------------------------------------------------------------------------


def test_gold_triplets_join_the_written_ones(multicsr_tiny, tmp_path, save_triplets, triplet_file, triplets, sentences):
    gold = save_triplets([(row[0], sentences[0], row[1]) for row in triplets[:10]], "gold.csv")
    record = multicsr_tiny(
        tmp_path / "m", f"multicsr.gold={gold}", "data.limit=14", "data.held_out=0.1", "training.max_steps=1"
    )
    facts = record["multicsr"]["rows"]
    assert facts == {
        "written": 14, "gold": 10, "gold_path": str(gold), "gold_sha256": data_hash(gold), "gold_audit": None,
    }  # fmt: skip
    assert (record["data"]["rows"], record["data"]["held_out_rows"]) == (22, 2)
    assert record["data"]["sha256"] not in (data_hash(triplet_file), data_hash(gold))
    # Neither was audited, and both are named.
    assert sum("was not audited" in warning for warning in record["warnings"]) == 2
    assert f"the triplets of `{gold}` too" in (tmp_path / "m" / "README.md").read_text(encoding="utf-8")


def test_a_data_set_counts_as_audited_only_with_its_gold(multicsr_settings, save_triplets, triplets):
    from sentsmith.corpus.audit import record_path

    written, gold = save_triplets(triplets), save_triplets(triplets[:8], "gold.csv")
    audit = {"data_sha256": data_hash(written), "affected": 0}
    record_path(written).write_text(json.dumps(audit), encoding="utf-8")

    def audit_of(*overrides):
        changes = [f"data.train={written}", *overrides]
        rows, _ = recipe._rows(settings.resolve(recipe.Recipe, multicsr_settings, changes))
        return rows.describe()["audit"]

    assert audit_of() == audit
    assert audit_of(f"multicsr.gold={gold}") is None


def test_gold_triplets_that_changed_since_are_noticed(multicsr_tiny, tmp_path, save_triplets, triplets, monkeypatch):
    gold = save_triplets(triplets[:8], "gold.csv")
    shared = (f"multicsr.gold={gold}", "training.max_steps=1")
    with monkeypatch.context() as patch:
        patch.setattr(training_run, "_fit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            multicsr_tiny(tmp_path / "m", *shared)
    gold.write_text(gold.read_text(encoding="utf-8") + "a,b,c,1,2\n", encoding="utf-8")
    with pytest.raises(InputError, match="has changed since the run was begun"):
        multicsr_tiny(tmp_path / "m", *shared, resume=True)


# The authors' code --------------------------------------------------------------------------------------------------


def test_a_masker_with_dropout_sees_the_batch(multicsr_tiny, tmp_path, kept, tiny_bert):
    shared = (f"multicsr.masker={tiny_bert}", "training.epochs=2", "training.max_steps=null", "training.batch_size=24")
    record = multicsr_tiny(tmp_path / "m", "multicsr.eta_dropout=true", *shared)
    # Two epochs of one batch: without dropout, the mask would be the same but for the order of the rows.
    assert len(kept) == 2
    assert int(kept[0][1].sum()) != int(kept[1][1].sum())
    assert kept[0][0] is None
    assert record["multicsr"]["masked_share"] is None
    assert set(record["multicsr"]["masker"]) == {"model", "sha256", "pooling"}
    assert "As in the authors' code, not in the paper: eta_dropout." in (tmp_path / "m" / "README.md").read_text()
    assert not (tmp_path / "m" / "work").exists()
    kept.clear()
    multicsr_tiny(tmp_path / "calm", *shared)
    assert int(kept[0][1].sum()) == int(kept[1][1].sum())


@pytest.mark.parametrize("difference", ["vocabulary", "lowercase"])
def test_a_masker_with_another_tokenizer_cannot_read_the_batch(
    multicsr_settings, multicsr_tiny, tmp_path, tiny_bert, save_triplets, triplets, difference
):
    other = tmp_path / "other"
    shutil.copytree(tiny_bert, other)
    if difference == "vocabulary":
        text = (other / "tokenizer.json").read_text(encoding="utf-8")
        assert '"guitar"' in text
        (other / "tokenizer.json").write_text(text.replace('"guitar"', '"violin"'), encoding="utf-8")
    else:
        config = json.loads((other / "tokenizer_config.json").read_text(encoding="utf-8"))
        (other / "tokenizer_config.json").write_text(json.dumps({**config, "do_lower_case": False}), encoding="utf-8")
    shouted = save_triplets([tuple(text.upper() for text in row) for row in triplets])
    overrides = (f"multicsr.masker={other}", "multicsr.eta_dropout=true", f"data.train={shouted}")
    with pytest.raises(SettingsError, match="use a masker with the same tokenizer, or set"):
        multicsr_tiny(tmp_path / "m", *overrides)
    assert not (tmp_path / "m").exists()
    # Looking its vectors up is another matter.
    assert not cached(multicsr_settings, tmp_path / "cache", *overrides, "multicsr.eta_dropout=false").found


# What is refused ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.column=a",), "data.column is for sentences; triplets are found by their columns' names"),
        (("multicsr.eta_dropout=true", "multicsr.mask=false"), "multicsr.mask false leaves out"),
        (("multicsr.eta_dropout=true", "multicsr.cache=x"), "multicsr.cache keeps vectors"),
        (
            ("multicsr.bce_logit_zero=true", "multicsr.hard_negative_log_weight=1"),
            "not in the loss of multicsr.bce_logit_zero",
        ),
        (("multicsr.threshold=.nan",), "finite"),
        (("multicsr.temperature=0",), "greater than 0"),
        (("multicsr.masker=''",), "at least 1 character"),
        (("multicsr.masker_pooling=max",), "'cls', 'mean', 'last' or 'first_last'"),
        (("multicsr.head=both",), "'none', 'training' or 'kept'"),
        (("multicsr.sigma=0.9",), "unknown setting 'multicsr.sigma'"),
    ],
)
def test_settings_that_are_refused(multicsr_settings, overrides, message):
    with pytest.raises(SettingsError) as caught:
        settings.resolve(recipe.Recipe, multicsr_settings, overrides)
    assert message in str(caught.value)


def test_wrong_input_is_found_before_the_masker_is_read(multicsr_tiny, tmp_path, sentence_file, save_triplets):
    def refused(*overrides):
        with pytest.raises(InputError) as caught:
            multicsr_tiny(tmp_path / "m", *overrides)
        assert not (tmp_path / "m").exists()
        return str(caught.value)

    assert "needs the columns anchor, positive, negative" in refused(f"data.train={sentence_file}")
    assert "no such folder" in refused("multicsr.masker=./nowhere")
    assert "fewer than one batch of 512" in refused("training.batch_size=512")
    assert "dev.csv" in refused("data.dev=dev.csv")
    assert "gold.csv" in refused("multicsr.gold=gold.csv")
    empty = save_triplets([], "gold.csv")
    assert f"{empty}: holds a header and no rows" in refused(f"multicsr.gold={empty}")


def test_what_the_run_reads_is_not_overwritten(multicsr_settings, multicsr_tiny, plain):
    changes = ["multicsr.gold=g", "multicsr.cache=c", "multicsr.masker=m"]
    resolved = settings.resolve(recipe.Recipe, multicsr_settings, changes)
    assert resolved.reads()[2:] == ("g", "m", "c")
    resolved = settings.resolve(recipe.Recipe, multicsr_settings, [*changes, "multicsr.mask=false"])
    assert resolved.reads()[2:] == ("g",)
    assert resolved.starts() == (multicsr_settings["model"],)
    _, folder = plain
    with pytest.raises(InputError, match="which the run needs; --overwrite will not delete it"):
        multicsr_tiny(folder, f"multicsr.masker={folder}", overwrite=True)
