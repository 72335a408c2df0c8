"""Each setting changes the trained weights, what the run record says, or is refused; none is silently ignored.

Those of BeLLM have a file of their own, bellm/test_every_bellm_setting.py.
"""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from sentence_transformers.base.modules import Normalize

from sentsmith import settings
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import rebuilt
from sentsmith.errors import SettingsError
from sentsmith.methods.distill import recipe as distill
from sentsmith.methods.multicsr import recipe as multicsr
from sentsmith.methods.ranking import recipe as ranking
from sentsmith.methods.simcse.recipe import Recipe as SimcseRecipe
from sentsmith.methods.whitening import recipe as whitening
from sentsmith.training.trainer import Trainer


@pytest.fixture(scope="session")
def files(tmp_path_factory, sentences, tiny_bert, tiny_llama, sentence_file):
    """Return what the overrides below name in braces."""
    folder = tmp_path_factory.mktemp("files")
    model = load(tiny_bert)
    rebuilt(model, [*model, Normalize()]).save_pretrained(str(folder / "normalized"))

    def table(name, header, rows):
        with (folder / name).open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([header, *rows])
        return str(folder / name)

    def lists(name, texts):
        rows = [json.dumps({"sentences": texts[i : i + 2 + i % 4]}) for i in range(20)]
        (folder / name).write_text("\n".join(rows) + "\n", encoding="utf-8")
        return str(folder / name)

    (folder / "other.txt").write_text("\n".join(sentences[::-1]), encoding="utf-8")
    (folder / "repeated.txt").write_text("\n".join(sentences[:10] * 6), encoding="utf-8")
    thirds = list(zip(sentences[:20], sentences[20:40], sentences[40:], strict=True))
    names = ["anchor", "positive", "negative"]
    return {
        "sentences": str(sentence_file),
        "other": str(folder / "other.txt"),
        "repeated": str(folder / "repeated.txt"),
        "columns": table("columns.csv", ["first", "second"], zip(sentences[:30], sentences[30:], strict=True)),
        "triplets": table("triplets.csv", names, thirds),
        "more_triplets": table("more.csv", names, [row[::-1] for row in thirds]),
        "repeated_triplets": table("repeated.csv", names, thirds[:6] * 4),
        "lists": lists("lists.jsonl", sentences),
        "other_lists": lists("other.jsonl", sentences[::-1]),
        "cache": str(folder / "cache"),
        "list_cache": str(folder / "list_cache"),
        "dev": table(
            "dev.csv", ["sentence1", "sentence2", "score"], [(*row[:2], i % 6) for i, row in enumerate(thirds)]
        ),
        "bert": str(tiny_bert),
        "llama": str(tiny_llama),
        "normalized": str(folder / "normalized"),
    }


def weights(folder):
    files = sorted(Path(folder).rglob("*.safetensors"))
    return {(str(file.relative_to(folder)), name): value for file in files for name, value in load_file(file).items()}


def differ(first, second):
    """Whether two results have other weights (or other modules)."""
    one, two = weights(first[1]), weights(second[1])
    return one.keys() != two.keys() or any(not np.array_equal(one[name], two[name]) for name in one)


def record_differs(*path):
    def look(first, second):
        values = []
        for record, _ in (first, second):
            value = record
            for key in path:
                value = value[key]
            values.append(value)
        return values[0] != values[1]

    return look


def left_in(name):
    """Whether the second run alone left something in a folder of the files."""

    def look(first, second):
        folders = [record["settings"][record["method"]][name] for record, _ in (first, second)]
        return folders[0] is None and any(Path(folders[1]).iterdir())

    return look


# setting → (what both runs share, the change, what has to differ)
SHARED = {
    "model": ((), "model={llama}", differ),
    "data.train": ((), "data.train={other}", differ),
    "data.column": (("data.train={columns}", "data.column=first"), "data.column=second", differ),
    "data.limit": ((), "data.limit=20", differ),
    "data.dev": (("training.select=last",), "data.dev={dev}", record_differs("selection")),
    "data.held_out": ((), "data.held_out=0.2", record_differs("data", "held_out_rows")),
    "training.batch_size": ((), "training.batch_size=6", differ),
    "training.learning_rate": ((), "training.learning_rate=1e-3", differ),
    "training.epochs": (("training.max_steps=null",), "training.epochs=0.5", record_differs("speed", "steps")),
    "training.max_steps": ((), "training.max_steps=3", record_differs("speed", "steps")),
    "training.seed": ((), "training.seed=1", differ),
    "training.max_length": ((), "training.max_length=5", differ),
    "training.weight_decay": ((), "training.weight_decay=0.5", differ),
    "training.warmup": ((), "training.warmup=0.6", differ),
    "training.schedule": ((), "training.schedule=constant", differ),
    "training.max_grad_norm": ((), "training.max_grad_norm=1e-9", differ),
    "training.precision": ((), "training.precision=bf16", differ),
    "training.select": (("data.dev={dev}",), "training.select=last", record_differs("selection", "select")),
    "training.eval_steps": (("data.held_out=0.2",), "training.eval_steps=1", record_differs("selection", "history")),
    "training.patience": (
        ("data.dev={dev}", "training.eval_steps=1", "training.max_steps=9"),
        "training.patience=1",
        record_differs("selection", "stopped_early"),
    ),
    "training.blend": ((), "training.blend=0.5", differ),
    "training.chunk_tokens": ((), "training.chunk_tokens=40", record_differs("chunking", "tokens")),
    "training.recompute": ((), "training.recompute=true", record_differs("chunking", "recompute")),
}
TRIPLETS = ("simcse.rows=triplets", "data.train={triplets}")
SIMCSE = SHARED | {
    "simcse.rows": (("data.train={triplets}",), "simcse.rows=triplets", differ),
    "simcse.temperature": ((), "simcse.temperature=0.5", differ),
    "simcse.head": (("simcse.head=training",), "simcse.head=kept", differ),
    "simcse.pooling": ((), "simcse.pooling=cls", differ),
    "simcse.dropout": ((), "simcse.dropout=0.0", differ),
    "simcse.hard_negative_log_weight": (TRIPLETS, "simcse.hard_negative_log_weight=2", differ),
    "simcse.mask_duplicates": (("data.train={repeated}",), "simcse.mask_duplicates=false", differ),
}
DISTILL = SHARED | {
    "distill.teachers": ((), "distill.teachers={bert}", differ),
    "distill.normalized": (("model={normalized}",), "distill.normalized=true", differ),
    "distill.projection": ((), "distill.projection=learned", differ),
    "distill.pooling": ((), "distill.pooling=cls", differ),
    "distill.dropout": ((), "distill.dropout=0.0", differ),
}
# The keys of a teacher; a tuple's members are no keys of their own.
DISTILL_TEACHERS = {
    "model": "{{model: {bert}}}",
    "weight": "{{model: {llama}, weight: 2}}",
    "pooling": "{{model: {llama}, pooling: last}}",
}
# What MultiCSR takes from SHARED goes the way that SIMCSE's goes; its rows it reads itself.
MULTICSR = {
    "data.train": ((), "data.train={repeated_triplets}", differ),
    "data.limit": ((), "data.limit=12", differ),
    "data.held_out": ((), "data.held_out=0.2", record_differs("data", "held_out_rows")),
    "multicsr.mask": ((), "multicsr.mask=false", differ),
    "multicsr.threshold": ((), "multicsr.threshold=0.3", differ),
    "multicsr.masker": ((), "multicsr.masker={bert}", differ),
    "multicsr.masker_pooling": ((), "multicsr.masker_pooling=last", differ),
    "multicsr.cache": ((), "multicsr.cache={cache}", left_in("cache")),
    "multicsr.eta_dropout": (("multicsr.masker={bert}",), "multicsr.eta_dropout=true", differ),
    "multicsr.bce_logit_zero": ((), "multicsr.bce_logit_zero=true", differ),
    "multicsr.mask_duplicates": (
        ("data.train={repeated_triplets}", "multicsr.mask=false"),
        "multicsr.mask_duplicates=false",
        differ,
    ),
    "multicsr.gold": ((), "multicsr.gold={more_triplets}", differ),
    "multicsr.temperature": ((), "multicsr.temperature=0.5", differ),
    "multicsr.hard_negative_log_weight": ((), "multicsr.hard_negative_log_weight=2", differ),
    "multicsr.head": (("multicsr.head=training",), "multicsr.head=kept", differ),
    "multicsr.pooling": ((), "multicsr.pooling=cls", differ),
    "multicsr.dropout": ((), "multicsr.dropout=0.0", differ),
}
# The same holds of ranking.
RANKING = {
    "data.train": ((), "data.train={other_lists}", differ),
    "data.limit": ((), "data.limit=8", differ),
    "data.held_out": ((), "data.held_out=0.2", record_differs("data", "held_out_rows")),
    "training.batch_size": ((), "training.batch_size=1", differ),
    "training.precision": ((), "training.precision=bf16", record_differs("precision")),
    "training.max_length": ((), "training.max_length=5", differ),
    "ranking.target": (("ranking.teacher=null",), "ranking.target=list", differ),
    "ranking.omega": ((), "ranking.omega=3", differ),
    "ranking.teacher": ((), "ranking.teacher=null", differ),
    "ranking.teacher_pooling": ((), "ranking.teacher_pooling=last", differ),
    "ranking.cache": ((), "ranking.cache={list_cache}", left_in("cache")),
    "ranking.temperature": ((), "ranking.temperature=0.5", differ),
    "ranking.first_row_only": ((), "ranking.first_row_only=true", differ),
    "ranking.share": ((), "ranking.share=0.5", differ),
    "ranking.shuffle": ((), "ranking.shuffle=true", differ),
    "ranking.triplets": ((), "ranking.triplets={triplets}", differ),
    "ranking.triplets_per_list": (("ranking.triplets={triplets}",), "ranking.triplets_per_list=1", differ),
    "ranking.triplet_weight": (("ranking.triplets={triplets}",), "ranking.triplet_weight=5", differ),
    "ranking.phi_scale": (("ranking.omega=3",), "ranking.phi_scale=20", differ),
    "ranking.absolute_column_sign": (("ranking.omega=3",), "ranking.absolute_column_sign=true", differ),
    "ranking.log_epsilon": ((), "ranking.log_epsilon=0.1", differ),
}
# A search reads `tune`, and nothing else does: ../training/test_tuning.py.
OTHERS = {"method", "training.save_steps", "tune"}
WHITENING = {
    "model": ((), "model={llama}", differ),
    "data.train": ((), "data.train={repeated}", differ),
    "data.column": (("data.train={columns}", "data.column=first"), "data.column=second", differ),
    "data.limit": ((), "data.limit=40", differ),
    "whitening.dimension": ((), "whitening.dimension=5", differ),
    "whitening.pooling": ((), "whitening.pooling=cls", differ),
}


@pytest.fixture(scope="module")
def simcse_run(tmp_path_factory, train_tiny, files):
    """Return a function from overrides to (record, folder); equal runs are done once."""
    done = {}

    def run(*overrides):
        if overrides not in done:
            folder = tmp_path_factory.mktemp("run") / "model"
            done[overrides] = train_tiny(folder, *(text.format(**files) for text in overrides)), folder
        return done[overrides]

    return run


@pytest.fixture(scope="module")
def distill_run(tmp_path_factory, tiny_settings, files):
    """Return a function from overrides to (record, folder) of distillation; equal runs are done once."""
    base = {**tiny_settings, "method": "distill", "distill": {"teachers": files["llama"]}}
    done = {}

    def run(*overrides):
        if overrides not in done:
            folder = tmp_path_factory.mktemp("run") / "model"
            recipe = settings.resolve(distill.Recipe, base, [text.format(**files) for text in overrides])
            done[overrides] = distill.run(recipe, folder), folder
        return done[overrides]

    return run


@pytest.fixture(scope="module")
def multicsr_run(tmp_path_factory, tiny_settings, files):
    """Return a function from overrides to (record, folder) of MultiCSR's training; equal runs are done once."""
    mask = {"masker": files["llama"], "threshold": 0.6}
    data = {"train": files["triplets"], "held_out": 0.0}
    steps = {**tiny_settings["training"], "max_steps": 2}
    base = {**tiny_settings, "method": "multicsr", "data": data, "multicsr": mask, "training": steps}
    done = {}

    def run(*overrides):
        if overrides not in done:
            folder = tmp_path_factory.mktemp("run") / "model"
            recipe = settings.resolve(multicsr.Recipe, base, [text.format(**files) for text in overrides])
            done[overrides] = multicsr.run(recipe, folder), folder
        return done[overrides]

    return run


@pytest.fixture(scope="module")
def ranking_run(tmp_path_factory, tiny_settings, files):
    """Return a function from overrides to (record, folder) of ranking; equal runs are done once."""
    data = {"train": files["lists"], "held_out": 0.0}
    steps = {**tiny_settings["training"], "max_steps": 2, "precision": "fp32"}
    taught = {"teacher": files["llama"]}
    base = {**tiny_settings, "method": "ranking", "data": data, "ranking": taught, "training": steps}
    done = {}

    def run(*overrides):
        if overrides not in done:
            folder = tmp_path_factory.mktemp("run") / "model"
            recipe = settings.resolve(ranking.Recipe, base, [text.format(**files) for text in overrides])
            done[overrides] = ranking.run(recipe, folder), folder
        return done[overrides]

    return run


@pytest.fixture(scope="module")
def whitening_run(tmp_path_factory, tiny_bert, files):
    """Return a function from overrides to (record, folder) of whitening."""
    base = {"method": "whitening", "model": str(tiny_bert), "data": {"train": files["sentences"]}}

    def run(*overrides):
        folder = tmp_path_factory.mktemp("run") / "model"
        recipe = settings.resolve(whitening.Recipe, base, [text.format(**files) for text in overrides])
        return whitening.run(recipe, folder), folder

    return run


@pytest.mark.parametrize("setting", SIMCSE)
def test_simcse(simcse_run, setting):
    shared, change, differs = SIMCSE[setting]
    assert differs(simcse_run(*shared), simcse_run(*shared, change))


# The shared settings go the way that SimCSE's go.
@pytest.mark.parametrize(
    "setting", [pytest.param(name, marks=pytest.mark.slow) if name in SHARED else name for name in DISTILL]
)
def test_distill(distill_run, setting):
    shared, change, differs = DISTILL[setting]
    assert differs(distill_run(*shared), distill_run(*shared, change))


@pytest.mark.parametrize("key", DISTILL_TEACHERS)
def test_distill_teachers(distill_run, key):
    assert differ(distill_run(), distill_run(f"distill.teachers={DISTILL_TEACHERS[key]}"))


@pytest.mark.parametrize("setting", MULTICSR)
def test_multicsr(multicsr_run, setting):
    shared, change, differs = MULTICSR[setting]
    assert differs(multicsr_run(*shared), multicsr_run(*shared, change))


@pytest.mark.parametrize("setting", RANKING)
def test_ranking(ranking_run, setting):
    shared, change, differs = RANKING[setting]
    assert differs(ranking_run(*shared), ranking_run(*shared, change))


@pytest.mark.parametrize("setting", WHITENING)
def test_whitening(whitening_run, setting):
    shared, change, differs = WHITENING[setting]
    assert differs(whitening_run(*shared), whitening_run(*shared, change))


def test_no_setting_is_without_a_case():
    assert set(settings.keys_of(SimcseRecipe)) == set(SIMCSE) | OTHERS
    assert set(settings.keys_of(distill.Recipe)) == set(DISTILL) | OTHERS
    assert set(settings.keys_of(distill.TeacherSettings)) == set(DISTILL_TEACHERS)
    assert set(settings.keys_of(multicsr.Recipe)) == set(MULTICSR) | set(SHARED) | OTHERS
    assert set(settings.keys_of(ranking.Recipe)) == set(RANKING) | set(SHARED) | OTHERS
    assert set(settings.keys_of(whitening.Recipe)) == set(WHITENING) | {"method"}


def test_a_run_repeats_itself(simcse_run, train_tiny, tmp_path):
    first = simcse_run()
    assert not differ(first, (train_tiny(tmp_path / "again"), tmp_path / "again"))


def test_save_steps(train_tiny, tmp_path, monkeypatch):
    saved = []
    monkeypatch.setattr(Trainer, "_save_checkpoint", lambda self, *_: saved.append(self.state.global_step))
    train_tiny(tmp_path / "a", "training.save_steps=2")
    assert saved == [2, 4]
    train_tiny(tmp_path / "b", "training.save_steps=3")
    assert saved[2:4] == [3, 4]


@pytest.mark.parametrize(
    ("override", "message"),
    [
        (("method=whitening",), "setting 'method': Input should be 'simcse'"),
        (("simcse.hard_negative_log_weight=1",), "needs simcse.rows triplets"),
        (("simcse.rows=triplets", "data.column=a"), "data.column is for simcse.rows sentences"),
        (("training.batch_size=1",), "greater than or equal to 2"),
        (("training.chunk_tokens=0",), "must be at least 1, 'measure' or null"),
        (("training.blend=0",), "greater than 0"),
        (("data.held_out=0.5",), "less than 0.5"),
        (("data.limit=1",), "greater than or equal to 2"),
        (("simcse.temperature=0",), "greater than 0"),
        (("simcse.dropout=1",), "less than 1"),
        (("simcse.pooling=max",), "'cls', 'mean', 'last' or 'first_last'"),
    ],
)
def test_refused(tiny_settings, override, message):
    with pytest.raises(SettingsError) as caught:
        settings.resolve(SimcseRecipe, tiny_settings, override)
    assert message in str(caught.value)


@pytest.mark.parametrize("key", ["training.seed", "data.dev", "data.held_out"])
def test_whitening_has_no_settings_that_it_does_not_read(key):
    with pytest.raises(SettingsError, match=f"unknown setting '{key.split('.')[0]}"):
        settings.resolve(whitening.Recipe, {"data": {"train": "x"}}, [f"{key}=1"])
