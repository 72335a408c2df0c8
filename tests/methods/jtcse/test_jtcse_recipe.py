"""A JTCSE run: its two stages, what it leaves and says, and what it refuses before it begins."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest
import yaml
from safetensors.numpy import load_file
from transformers import BertModel, T5EncoderModel

from sentsmith import settings
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import with_pooling
from sentsmith.errors import SettingsError
from sentsmith.methods.jtcse.recipe import Recipe, prepare
from sentsmith.methods.jtcse.stages import own_rows
from sentsmith.methods.jtcse.towers import tower_pair
from sentsmith.methods.simcse import recipe as simcse
from sentsmith.training.data import load_rows

SUM = ("jtcse.nce=false", "jtcse.icnce=false", "jtcse.ictm=false")
JOINT_ONLY = ("jtcse.simcse.enabled=false", "training.max_steps=1")


def vectors(folder, texts):
    return as_encoder(load(folder, device="cpu")).encode(texts)


def weights(folder):
    return {
        (str(file.relative_to(folder)), name): value
        for file in sorted(Path(folder).rglob("*.safetensors"))
        for name, value in load_file(file).items()
    }


def of_tower(folder, number):
    return load_file(Path(folder) / f"tower_{number}" / "model.safetensors")


def same(one, two):
    return one.keys() == two.keys() and all(np.array_equal(one[name], two[name]) for name in one)


@pytest.fixture(scope="module")
def echoes(tmp_path_factory, sentences):
    """Return a file of translations: the first ten sentences, each with its echo."""
    file = tmp_path_factory.mktemp("echoes") / "echoes.csv"
    with file.open("w", encoding="utf-8", newline="") as stream:
        csv.writer(stream).writerows([("sentence", "echo"), *((text, f"so: {text}") for text in sentences[:10])])
    return file


@pytest.fixture(scope="module")
def both(tmp_path_factory, jtcse_tiny):
    """Return folder and record of a run of both stages."""
    folder = tmp_path_factory.mktemp("both") / "model"
    return folder, jtcse_tiny(folder, "data.held_out=0.2")


@pytest.fixture(scope="module")
def summed(tmp_path_factory, jtcse_tiny):
    """Return folder and record of a run without joint training."""
    folder = tmp_path_factory.mktemp("summed") / "model"
    return folder, jtcse_tiny(folder, *SUM)


# What comes of it ---------------------------------------------------------------------------------------------------


def test_the_folder_and_the_record(both, tiny_bert):
    folder, record = both
    assert record == json.loads((folder / "run.json").read_text())
    assert not (folder / "work").exists()
    assert sorted(path.name for path in folder.iterdir() if path.is_dir()) == ["tower_1", "tower_2"]
    assert (record["method"], record["speed"]["steps"]) == ("jtcse", 3)
    first, second = record["jtcse"]["towers"]
    assert (first["settings"]["training"]["seed"], second["settings"]["training"]["seed"]) == (42, 43)
    for tower in (first, second):
        assert tower["settings"]["method"] == "simcse"
        assert tower["settings"]["model"] == str(tiny_bert)
        assert not tower["settings"]["simcse"]["mask_duplicates"]
        assert (tower["speed"]["steps"], tower["data"]["rows"]) == (2, 48)
        assert tower["selection"]["metric"] == "negated contrastive loss"
        assert len(tower["loss"]) == 2
    assert {"loss", "nce_1", "nce_2", "icnce", "ictm"} <= set(record["loss"][0])
    assert [entry["step"] for entry in record["selection"]["history"]] == [0, 2, 3]
    card = (folder / "README.md").read_text()
    assert "JTCSE: two towers trained jointly, attention crosses at layers 2 (last), in training only" in card
    assert "sentsmith.load(" in card
    assert set(record["seconds"]) == {"train", "tower_1", "tower_2"}
    assert f"- cost: {sum(record['seconds'].values()):.0f} s on" in card


def test_the_model_is_the_sum_of_its_towers(both, sentences):
    folder, _ = both
    parts = sum(vectors(folder / name, sentences) for name in ("tower_1", "tower_2"))
    np.testing.assert_allclose(vectors(folder, sentences), parts, atol=1e-5)
    assert not same(of_tower(folder, 1), of_tower(folder, 2))


def test_the_joint_stage_goes_on_from_the_towers(both, tmp_path, jtcse_tiny):
    folder, record = both
    jtcse_tiny(tmp_path / "sum", *SUM, "data.held_out=0.2")
    # Step 0 of the joint training is the sum of the towers.
    start = as_encoder(load(tmp_path / "sum", device="cpu"))
    from sentsmith.training.selection import HeldOutJudge

    rows = rows_of(settings.resolve(Recipe, settings.read_yaml(folder / "settings.yaml")), held_out=0.2)
    judge = HeldOutJudge([[text] for text in rows.held_out["sentence"]], temperature=0.05, seed=42)
    assert judge.score(start) == pytest.approx(record["selection"]["history"][0]["score"], abs=1e-5)


def test_all_parts_off_is_the_sum_of_the_towers(summed, tmp_path, tiny_settings, sentences):
    folder, record = summed
    assert "speed" not in record
    assert len(record["jtcse"]["towers"]) == 2
    card = (folder / "README.md").read_text()
    assert "two towers, each trained alone by SimCSE, summed" in card
    assert "checkpoint" not in card
    parts = sum(vectors(folder / name, sentences) for name in ("tower_1", "tower_2"))
    np.testing.assert_allclose(vectors(folder, sentences), parts, atol=1e-5)
    for number, seed in ((1, 42), (2, 43)):
        changes = [
            f"training.seed={seed}",
            "training.max_steps=2",
            "simcse.mask_duplicates=false",
            "simcse.pooling=cls",
        ]
        alone = settings.resolve(simcse.Recipe, tiny_settings, changes)
        simcse.run(alone, tmp_path / str(number))
        assert same(of_tower(folder, number), load_file(tmp_path / str(number) / "model.safetensors"))


def test_neither_stage_is_the_sum_of_the_starts(tmp_path, jtcse_tiny, tiny_bert, other_bert, sentences):
    record = jtcse_tiny(tmp_path / "m", *SUM, *JOINT_ONLY, f"jtcse.second.model={other_bert}")
    assert record["jtcse"]["towers"] == []
    # A plain encoder names no pooling: the towers read its first token.
    expected = sum(
        as_encoder(with_pooling(load(name, device="cpu"), "cls")).encode(sentences) for name in (tiny_bert, other_bert)
    )
    np.testing.assert_allclose(vectors(tmp_path / "m", sentences), expected, atol=1e-5)


def test_a_run_repeats_itself(summed, tmp_path, jtcse_tiny):
    folder, _ = summed
    jtcse_tiny(tmp_path / "again", *SUM)
    assert same(weights(folder), weights(tmp_path / "again"))


def test_the_head_of_the_first_stage_stays_there(tmp_path, jtcse_tiny):
    jtcse_tiny(tmp_path / "m", *SUM, "jtcse.simcse.head=training")
    names = json.loads((tmp_path / "m" / "tower_1" / "modules.json").read_text())
    assert [entry["type"].rpartition(".")[2] for entry in names] == ["Transformer", "Pooling"]


# What each tower reads ----------------------------------------------------------------------------------------------


def rows_of(recipe, held_out=0.0):
    def read(path):
        return ({"sentence": line} for line in Path(path).read_text(encoding="utf-8").splitlines())

    return load_rows(recipe.data, read, held_out=held_out, seed=recipe.training.seed)


@pytest.fixture
def own(jtcse_settings):
    """Return a function from overrides to the sentences that each tower learns alone."""

    def read(*overrides, held_out=0.0):
        recipe = settings.resolve(Recipe, jtcse_settings, overrides)
        return [list(part.train["sentence"]) for part in own_rows(recipe, rows_of(recipe, held_out))]

    return read


def test_halves_share_no_sentence(own, sentences, tmp_path, jtcse_tiny):
    first, second = own("jtcse.simcse.halves=true")
    assert len(first) == len(second) == 30
    assert set(first) | set(second) == set(sentences)
    assert not set(first) & set(second)
    assert own("jtcse.simcse.halves=true") == [first, second]
    assert own("jtcse.simcse.halves=true", "training.seed=1")[0] != first
    assert own() == [sentences, sentences]
    record = jtcse_tiny(tmp_path / "m", *SUM, "jtcse.simcse.halves=true")
    assert [tower["data"]["rows"] for tower in record["jtcse"]["towers"]] == [30, 30]


def test_echoes_join_the_sentences_of_their_tower(own, echoes, sentences, tmp_path, jtcse_tiny):
    override = f"jtcse.second.translations={echoes}"
    first, second = own(override)
    assert first == sentences
    assert second == [*sentences, *(f"so: {text}" for text in sentences[:10])]
    record = jtcse_tiny(tmp_path / "m", *SUM, override)
    assert [tower["data"]["rows"] for tower in record["jtcse"]["towers"]] == [60, 70]
    one, two = (tower["data"]["sha256"] for tower in record["jtcse"]["towers"])
    assert two.startswith(f"{one}+")
    assert record["data"]["rows"] == 60


def test_a_tower_with_half_the_sentences_learns_the_echoes_of_that_half(own, echoes, sentences):
    halves = own("jtcse.simcse.halves=true", f"jtcse.first.translations={echoes}")
    first, second = own("jtcse.simcse.halves=true")
    assert halves == [[*first, *(f"so: {text}" for text in sentences[:10] if text in first)], second]
    assert len(own(f"jtcse.first.translations={echoes}", "data.limit=20")[0]) == 30


def test_translations_that_were_not_audited_are_warned_of(jtcse_settings, echoes):
    recipe = settings.resolve(Recipe, jtcse_settings, [f"jtcse.first.translations={echoes}"])
    rows = rows_of(recipe)
    own_rows(recipe, rows)
    assert any(f"{echoes.name} was not audited" in warning for warning in rows.warnings)


def test_the_echo_of_a_held_out_sentence_is_not_learned(jtcse_settings, echoes, sentences):
    recipe = settings.resolve(Recipe, jtcse_settings, [f"jtcse.first.translations={echoes}"])
    rows = rows_of(recipe, held_out=0.4)
    echoed = set(sentences[:10])
    held = echoed & set(rows.held_out["sentence"])
    assert 0 < len(held) < 10
    learned = own_rows(recipe, rows)[0].train["sentence"]
    assert {text for text in learned if text.startswith("so: ")} == {f"so: {text}" for text in echoed - held}
    assert len(learned) == 36 + 10 - len(held)


def test_a_stage_that_is_left_out_reads_nothing(own):
    assert own("jtcse.simcse.enabled=false") == []


# The model of the joint stage ---------------------------------------------------------------------------------------


@pytest.fixture
def prepared(jtcse_settings):
    """Return a function from overrides to the model of both towers and its plan."""

    def make(*overrides):
        recipe = settings.resolve(Recipe, jtcse_settings, overrides)
        starts = [recipe.tower(index).model for index in (0, 1)]
        return prepare(recipe, starts, starts)

    return make


def test_where_attention_crosses(prepared):
    assert prepared()[1].layers == (1,)
    assert prepared("jtcse.cross_layers=2", "jtcse.cross=carry")[1].layers == (0, 1)
    assert prepared("jtcse.cross_layers=2", "jtcse.cross=carry")[1].mode == "carry"
    assert prepared("jtcse.cross_layers=0")[1] is None
    assert prepared("jtcse.icnce=false")[1] is None


def test_pooling_and_dropout_of_the_joint_stage(prepared):
    model, _ = prepared("jtcse.pooling=mean", "jtcse.dropout=0.25")
    for tower in tower_pair(model).pair:
        assert tower[1].pooling_mode == "mean"
        assert tower[0].model.config.attention_probs_dropout_prob == 0.25
        assert {module.p for module in tower.modules() if type(module).__name__ == "Dropout"} == {0.25}
    model, _ = prepared("jtcse.simcse.dropout=0.2")
    assert tower_pair(model).pair[1][0].model.config.hidden_dropout_prob == 0.2


def test_readout_is_the_start_models_own(prepared, tiny_bert, tmp_path):
    assert [tower[1].pooling_mode for tower in tower_pair(prepared()[0]).pair] == ["cls", "cls"]
    load(tiny_bert).save_pretrained(str(tmp_path / "mean"))
    with pytest.raises(SettingsError, match=r"read their vectors out differently \(Pooling cls; Pooling mean\)"):
        prepared(f"jtcse.second.model={tmp_path / 'mean'}")
    model, _ = prepared(f"model={tmp_path / 'mean'}")
    assert [tower[1].pooling_mode for tower in tower_pair(model).pair] == ["mean", "mean"]


def test_a_model_whose_pooler_was_never_trained(prepared, save_tiny, tiny_bert, tmp_path):
    """The library would draw random numbers for it and say nothing."""
    from transformers import AutoTokenizer

    BertModel.from_pretrained(tiny_bert, add_pooling_layer=False).save_pretrained(tmp_path / "m")
    AutoTokenizer.from_pretrained(tiny_bert).save_pretrained(tmp_path / "m")
    override = f"jtcse.second.model={tmp_path / 'm'}"
    with pytest.raises(SettingsError, match=r"m' has no pooler, .* jtcse\.pooler fresh, or switch jtcse\.ictm off"):
        prepared(override)
    prepared(override, "jtcse.ictm=false")
    model, _ = prepared(override, "jtcse.pooler=fresh")
    assert not len(tower_pair(model).poolers)


def test_towers_without_a_place_for_poolers(tmp_path, jtcse_tiny, tiny_distilbert, sentences):
    shared = (f"model={tiny_distilbert}", "jtcse.cross_layers=0")
    with pytest.raises(SettingsError, match=r"has no pooler, .* jtcse\.pooler fresh"):
        jtcse_tiny(tmp_path / "m", *shared)
    with pytest.raises(SettingsError, match="attention cannot cross between towers of DistilBertModel"):
        jtcse_tiny(tmp_path / "m", f"model={tiny_distilbert}", "jtcse.pooler=fresh")
    assert not (tmp_path / "m").exists()
    record = jtcse_tiny(tmp_path / "m", *shared, *JOINT_ONLY, "jtcse.pooler=fresh")
    assert "ictm" in record["loss"][0]
    assert (tmp_path / "m" / "poolers.safetensors").is_file()
    parts = sum(vectors(tmp_path / "m" / name, sentences) for name in ("tower_1", "tower_2"))
    np.testing.assert_allclose(vectors(tmp_path / "m", sentences), parts, atol=1e-5)


# Bad input ----------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def files(tmp_path_factory, save_tiny, tiny_llama, sentence_file):
    folder = tmp_path_factory.mktemp("bad")
    (folder / "dev.csv").write_text("one\ntwo\n", encoding="utf-8")
    (folder / "echoes.csv").write_text("sentence,translation\na,b\n", encoding="utf-8")
    return {
        "narrow": save_tiny(BertModel, hidden_size=16),
        "deep": save_tiny(BertModel, num_hidden_layers=3),
        "llama": tiny_llama,
        "t5": save_tiny(T5EncoderModel, d_model=32, d_kv=8, d_ff=64, num_layers=2, num_heads=4),
        "dev": folder / "dev.csv",
        "echoes": folder / "echoes.csv",
    }


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("jtcse.cross_layers=3", "jtcse.cross_layers 3 does not divide the 2 layers of the towers; use one of 0, 1, 2"),
        ("model={llama}", "LlamaModel is a decoder; the towers are encoders, such as BERT or RoBERTa"),
        ("jtcse.second.model={llama}", "LlamaModel is a decoder; the towers are encoders, such as BERT or RoBERTa"),
        ("jtcse.second.model={narrow}", "the towers differ in width: 32 and 16; both need the same"),
        ("jtcse.second.model={deep}", "the towers differ in number of layers: 2 and 3; both need the same"),
        ("jtcse.second.model={t5}", "the towers differ in architecture: bert and t5; both need the same"),
        ("jtcse.first.model=./nothing", "nothing: no such folder"),
        ("jtcse.second.translations=./nothing.csv", "nothing.csv"),
        (
            "jtcse.second.translations={echoes}",
            "echoes.csv: needs the columns sentence, echo; it has: sentence, transl",
        ),
        ("data.dev={dev}", "dev.csv, row 1: is no file of scored pairs"),
        ("training.batch_size=61", "holds 60 rows to train on, fewer than one batch of 61"),
        (
            "jtcse.simcse.batch_size=61",
            "leaves tower 1 60 rows to learn alone, fewer than one batch of 61; lower jtcse",
        ),
        ("training.precision=fp16", "training.precision fp16 needs a GPU"),
        ("jtcse.simcse={{halves: true, batch_size: 31}}", "leaves tower 1 30 rows to learn alone, fewer than one"),
        ("jtcse.ictm=false jtcse.half_tmc=true", "jtcse.half_tmc halves the modulus constraint"),
        ("jtcse.ictm=false jtcse.pooler=fresh", "jtcse.pooler fresh is for the modulus constraint"),
        ("jtcse.icnce=false jtcse.cross_layers=1", "jtcse.cross_layers is read by jtcse.icnce alone, which is off"),
        ("jtcse.cross_layers=0 jtcse.cross=carry", "jtcse.cross carry needs layers that cross"),
        ("jtcse.simcse.enabled=false jtcse.second.seed=7", "jtcse.second has settings of the towers' own training"),
        ("jtcse.cross_layers=-1", "setting 'jtcse.cross_layers': Input should be greater than or equal to 0"),
        ("jtcse.crosslayers=1", "unknown setting 'jtcse.crosslayers'; did you mean 'jtcse.cross_layers'?"),
        ("jtcse.temperature=0", "greater than 0"),
        ("jtcse.views=both", "'interleaved' or 'literal'"),
    ],
)
def test_refused_in_one_line(command, tmp_path, monkeypatch, jtcse_settings, files, override, message):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "r.yaml").write_text(yaml.safe_dump(jtcse_settings), encoding="utf-8")
    sets = [part for text in override.split(" jtcse.") for part in ("--set", text.format(**files))]
    sets = [f"jtcse.{part}" if index > 1 and part != "--set" else part for index, part in enumerate(sets)]
    code, out, err = command("train", "r.yaml", "--output", "out", "--quiet", *sets)
    assert (code, out) == (2, "")
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if line.startswith("sentsmith: error: ")]
    assert len(lines) == 1, err
    assert err.endswith(lines[0] + "\n")
    assert message in lines[0]
    assert not (tmp_path / "out").exists()
