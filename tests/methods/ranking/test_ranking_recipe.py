"""Post-training on ranked lists as a run: the teacher, the ablations, the record, resuming, what is refused."""

from __future__ import annotations

import json
import shutil
from collections import Counter

import pytest
import torch
from safetensors.torch import load_file

from sentsmith import settings
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError, SettingsError
from sentsmith.evaluation.ordering import ranking_correlation
from sentsmith.files import sha256
from sentsmith.methods.ranking import recipe
from sentsmith.methods.ranking.lists import dealt, load_lists
from sentsmith.methods.ranking.loss import RankingLoss
from sentsmith.methods.ranking.objective import refine_similarities
from sentsmith.methods.registry import load_recipe
from sentsmith.training import text_vectors


@pytest.fixture(scope="module")
def plain(ranking_tiny, tmp_path_factory):
    """Return the record and the folder of a run by the settings as they are."""
    folder = tmp_path_factory.mktemp("plain") / "m"
    return ranking_tiny(folder), folder


@pytest.fixture
def seen(monkeypatch):
    """Return the (labels, sizes, targets) of every step from here on."""
    found = []
    rank = RankingLoss.rank

    def noted(self, vectors, labels, sizes):
        found.append((labels, sizes, self.targets(labels, sizes)))
        return rank(self, vectors, labels, sizes)

    monkeypatch.setattr(RankingLoss, "rank", noted)
    return found


@pytest.fixture(scope="module")
def triplet_file(tmp_path_factory, sentences):
    file = tmp_path_factory.mktemp("triplets") / "triplets.csv"
    rows = [",".join(f'"{text}"' for text in sentences[3 * i : 3 * i + 3]) for i in range(6)]
    file.write_text("anchor,positive,negative\n" + "\n".join(rows) + "\n", encoding="utf-8")
    return file


def loaded(values, *overrides):
    """Return what a run by these settings trains on."""
    return load_lists(settings.resolve(recipe.Recipe, values, overrides))


def same(first, second):
    one, two = (load_file(folder / "model.safetensors") for folder in (first, second))
    return all(torch.equal(one[name], two[name]) for name in one)


def test_what_the_record_and_the_card_say(plain, lists, tiny_llama, tiny_bert):
    record, folder = plain
    facts = record["ranking"]
    sentences = {text for row in lists for text in row}
    teacher = {key: facts["teacher"][key] for key in ("model", "sha256", "pooling", "texts", "found")}
    known = {"model": str(tiny_llama), "sha256": sha256(tiny_llama), "pooling": None}
    assert teacher == {**known, "texts": len(sentences), "found": False}
    assert (facts["lists"], facts["sentences"], facts["triplets"]) == (16, sum(map(len, lists)), None)
    assert record["precision"] == "fp32"
    assert [set(entry) for entry in record["loss"]] == [{"loss", "ranking", "step"}] * len(record["loss"])
    card = (folder / "README.md").read_text(encoding="utf-8")
    assert f"the order by `{tiny_llama}`, moved towards their own (ω 0.5)" in card
    assert not list(folder.glob("*.npy"))
    # Its pooling and its modules are those of the start.
    kinds = [[type(module) for module in load(model)] for model in (folder, tiny_bert)]
    assert kinds[0] == kinds[1]


def test_the_targets_are_those_of_the_frozen_teacher(ranking_tiny, tmp_path, seen, lists, tiny_llama):
    ranking_tiny(tmp_path / "m", "ranking.omega=0.7")
    teacher = load(tiny_llama)
    teacher.max_seq_length = 32
    distinct = sorted({text for row in lists for text in row})
    # One epoch: every list once.
    met = Counter()
    for labels, sizes, targets in seen:
        for places, size, target in zip(labels, sizes.tolist(), targets, strict=True):
            texts = [distinct[place] for place in places[:size].tolist()]
            met[tuple(texts)] += 1
            assert places[size:].tolist() == [-1] * (len(places) - size)
            units = torch.nn.functional.normalize(torch.from_numpy(as_encoder(teacher).encode(texts)), dim=1)
            wanted = refine_similarities(units @ units.T, omega=0.7)
            torch.testing.assert_close(target[:size, :size], wanted, atol=1e-5, rtol=0)
    assert met == Counter(map(tuple, lists))


def test_by_default_the_start_model_teaches(ranking_tiny, tmp_path, tiny_bert):
    record = ranking_tiny(tmp_path / "m", "ranking.teacher=null", "training.max_steps=1")
    assert record["ranking"]["teacher"]["model"] == str(tiny_bert)


def test_rank_only_reads_no_teacher(ranking_tiny, tmp_path, seen, monkeypatch):
    monkeypatch.setattr("sentsmith.training.teachers.load_teacher", lambda *_, **__: 1 / 0)
    record = ranking_tiny(tmp_path / "m", "ranking.target=list", "ranking.teacher=null", "training.max_steps=1")
    assert record["ranking"]["teacher"] is None
    assert "teacher" not in record["seconds"]
    _, sizes, targets = seen[0]
    n = int(sizes[0])
    place = torch.arange(n)
    assert torch.equal(targets[0, :n, :n], -(place[:, None] - place).abs().float())


def test_shuffled_lists_hold_the_same_sentences(ranking_settings, lists):
    rows = loaded(ranking_settings, "ranking.shuffle=true").rows
    assert [sorted(row) for row in rows.train["sentences"]] == [sorted(row) for row in lists]
    assert list(rows.train["sentences"]) != lists
    again = loaded(ranking_settings, "ranking.shuffle=true").rows
    assert list(again.train["sentences"]) == list(rows.train["sentences"])


@pytest.mark.parametrize(("share", "count"), [(0.05, 1), (0.5, 8), (1.0, 16)])
def test_a_share_of_the_lists(ranking_settings, lists, share, count):
    found = loaded(ranking_settings, f"ranking.share={share}")
    assert found.facts["lists"] == len(found.rows.train) == count
    assert all(row in lists for row in found.rows.train["sentences"])


def test_triplets_are_dealt_out(ranking_tiny, tmp_path, triplet_file):
    rows = [{"anchor": f"a{i}", "positive": f"p{i}", "negative": f"n{i}"} for i in range(3)]
    columns = dealt(rows, hands=2, each=2)
    assert columns["anchor"] == [["a0", "a1"], ["a2", "a0"]]
    assert columns["negative"] == [["n0", "n1"], ["n2", "n0"]]
    record = ranking_tiny(tmp_path / "m", f"ranking.triplets={triplet_file}", "ranking.triplets_per_list=2")
    assert record["ranking"]["triplets"]["rows"] == 6
    assert {"ranking", "contrastive"} <= set(record["loss"][-1])
    assert sum("was not audited" in warning for warning in record["warnings"]) == 2
    assert f"Trained on the triplets of `{triplet_file}` too" in (tmp_path / "m" / "README.md").read_text("utf-8")


def test_triplets_that_changed_since_are_noticed(ranking_settings, triplet_file, tmp_path):
    copy = tmp_path / "triplets.csv"
    shutil.copy(triplet_file, copy)
    before = loaded(ranking_settings, f"ranking.triplets={copy}").rows.sha256
    copy.write_text(copy.read_text(encoding="utf-8") + "a,b,c\n", encoding="utf-8")
    assert loaded(ranking_settings, f"ranking.triplets={copy}").rows.sha256 != before


def test_triplets_that_no_list_carries_are_told(ranking_settings, triplet_file, save_lists, sentences):
    few = save_lists([sentences[:3], sentences[3:6]])
    found = loaded(
        ranking_settings, f"data.train={few}", f"ranking.triplets={triplet_file}", "ranking.triplets_per_list=2"
    )
    assert (found.facts["triplets"]["rows"], found.facts["triplets"]["used"]) == (6, 4)
    assert any("only 4 of 6 triplets are trained on" in warning for warning in found.rows.warnings)


def test_a_second_run_finds_the_vectors(ranking_tiny, tmp_path, monkeypatch):
    shared = (f"ranking.cache={tmp_path / 'cache'}", "training.max_steps=2")
    ranking_tiny(tmp_path / "one", *shared)
    monkeypatch.setattr(text_vectors, "read_once", lambda *_, **__: 1 / 0)
    second = ranking_tiny(tmp_path / "two", *shared)
    assert second["ranking"]["teacher"]["found"]
    assert same(tmp_path / "one", tmp_path / "two")
    # Other seeds hold other lists out and draw others: the vectors are the same.
    others = ("training.seed=7", "ranking.share=0.5", "training.batch_size=2", "training.max_steps=1")
    assert ranking_tiny(tmp_path / "three", *shared, "data.held_out=0.2", *others)["ranking"]["teacher"]["found"]


def test_held_out_lists_choose_where_no_dev_file_does(ranking_tiny, tmp_path, save_lists, sentences):
    long = save_lists([sentences[i : i + 4] for i in range(0, 40, 2)])
    record = ranking_tiny(tmp_path / "m", f"data.train={long}", "data.held_out=0.2", "training.select=last")
    chosen = record["selection"]
    assert chosen["metric"] == "rank correlation (Spearman) of lists"
    assert chosen["source"] == "4 held-out training rows"
    assert [entry["step"] for entry in chosen["history"]] == [0, 2, 4]
    assert record["data"]["held_out_rows"] == 4
    resolved, _ = load_recipe("ranking-small", [f"data.train={long}", "data.held_out=0.2"])
    held_out = load_lists(resolved).rows.held_out["sentences"]
    value = 100 * ranking_correlation(as_encoder(load(tmp_path / "m")), [list(row) for row in held_out]).mean()
    assert chosen["history"][-1]["score"] == pytest.approx(value, abs=1e-3)


def test_lists_of_two_choose_nothing(ranking_tiny, tmp_path, save_lists, sentences):
    pairs = save_lists([sentences[i : i + 2] for i in range(0, 40, 2)])
    record = ranking_tiny(tmp_path / "m", f"data.train={pairs}", "data.held_out=0.2", "training.max_steps=1")
    assert record["selection"] is None
    assert any("chosen by 0 held-out lists" in warning for warning in record["warnings"])


def test_a_run_that_kept_its_start_says_its_best_later_step(ranking_tiny, tmp_path, sentences, tiny_bert):
    """Step 0 is a candidate; gold that is the start's own ranking cannot be bettered."""
    pairs = list(zip(sentences[:20], sentences[20:40], strict=True))
    encoder = as_encoder(load(tiny_bert))
    first, second = (encoder.encode([pair[side] for pair in pairs]) for side in (0, 1))
    cosines = torch.nn.functional.cosine_similarity(torch.from_numpy(first), torch.from_numpy(second))
    order = cosines.argsort().argsort()
    dev = tmp_path / "dev.csv"
    lines = (f'"{a}","{b}",{float(place) / 5:.2f}' for (a, b), place in zip(pairs, order, strict=True))
    dev.write_text("sentence1,sentence2,score\n" + "\n".join(lines) + "\n", encoding="utf-8")
    record = ranking_tiny(tmp_path / "m", f"data.dev={dev}")
    chosen = record["selection"]
    assert (chosen["best_step"], chosen["best_score"]) == (0, pytest.approx(100.0))
    assert chosen["best_later_step"] in (2, 4)
    assert chosen["best_later_score"] < 100.0
    kept, start = load_file(tmp_path / "m" / "model.safetensors"), load(tiny_bert).state_dict()
    assert all(torch.equal(value, start[f"0.model.{name}"]) for name, value in kept.items())


@pytest.mark.slow
def test_a_killed_run_goes_on(
    ranking_tiny, ranking_settings, plain, tmp_path, killed_training, blocked_at, assert_same_run
):
    overrides = ("training.save_steps=2", "data.held_out=0.0")
    ranking_tiny(tmp_path / "whole", *overrides)
    folder = killed_training(tmp_path / "here", ranking_settings, overrides, blocked_at(3))
    assert (folder / "work" / "checkpoint-2").is_dir()
    ranking_tiny(folder, *overrides, resume=True)
    assert_same_run(tmp_path / "whole", folder, "data", "settings_sha256")


def test_a_teacher_that_changed_since_is_noticed(ranking_tiny, tmp_path, tiny_llama, monkeypatch):
    teacher = tmp_path / "teacher"
    shutil.copytree(tiny_llama, teacher)
    with monkeypatch.context() as patch:
        patch.setattr("sentsmith.training.run._fit", lambda *_: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            ranking_tiny(tmp_path / "m", f"ranking.teacher={teacher}")
    config = json.loads((teacher / "config.json").read_text(encoding="utf-8"))
    (teacher / "config.json").write_text(json.dumps({**config, "note": 1}), encoding="utf-8")
    with pytest.raises(InputError, match="has changed since the run was begun"):
        ranking_tiny(tmp_path / "m", f"ranking.teacher={teacher}", resume=True)


def test_a_twin_can_be_post_trained(ranking_tiny, trains, tiny_settings, tmp_path):
    twin = {**tiny_settings, "method": "jtcse", "jtcse": {"simcse": {"enabled": False}, "cross_layers": 1}}
    trains("jtcse", twin)(tmp_path / "twin", "training.max_steps=1")
    record = ranking_tiny(tmp_path / "m", f"model={tmp_path / 'twin'}", "training.max_steps=2")
    assert record["speed"]["steps"] == 2
    assert [type(module).__name__ for module in load(tmp_path / "m")] == [
        type(module).__name__ for module in load(tmp_path / "twin")
    ]


@pytest.mark.parametrize(
    ("overrides", "message"),
    [
        (("data.column=a",), "ranked lists are found by their column's name"),
        (("ranking.target=list",), "ranking.teacher does nothing without ranking.target refined"),
        (("ranking.target=list", "ranking.teacher=null", "ranking.omega=0.7"), "ranking.omega does nothing"),
        (("ranking.omega=0", "ranking.phi_scale=20"), "ranking.phi_scale does nothing without ranking.omega above 0"),
        (("ranking.triplet_weight=2",), "ranking.triplet_weight does nothing without ranking.triplets"),
        (("ranking.omega=-1",), "greater than or equal to 0"),
        (("ranking.share=0",), "greater than 0"),
        (("ranking.target=both",), "'refined' or 'list'"),
        (("training.batch_size=0",), "greater than or equal to 1"),
        (("ranking.lambda=1",), "unknown setting 'ranking.lambda'"),
    ],
)
def test_settings_that_are_refused(ranking_settings, overrides, message):
    with pytest.raises(SettingsError) as caught:
        settings.resolve(recipe.Recipe, ranking_settings, overrides)
    assert message in str(caught.value)


def test_wrong_input_is_found_before_the_teacher_is_read(ranking_tiny, tmp_path, sentence_file, save_lists):
    def refused(*overrides):
        with pytest.raises(InputError) as caught:
            ranking_tiny(tmp_path / "m", *overrides)
        assert not (tmp_path / "m").exists()
        return str(caught.value)

    assert "needs the columns sentences" in refused(f"data.train={sentence_file}")
    one = save_lists([["alone"]])
    assert "row 1: sentences holds 1 text(s)" in refused(f"data.train={one}")
    assert "no such folder" in refused("ranking.teacher=./nowhere")
    assert "fewer than one batch of 512" in refused("training.batch_size=512")
    assert "dev.csv" in refused("data.dev=dev.csv")
    assert "triplets.csv" in refused("ranking.triplets=triplets.csv")


def test_the_papers_settings():
    """METHODS.md §6: lr 3e-6, one list per step, 32 tokens, one epoch, dev every 25 steps, full precision."""
    resolved = settings.resolve(recipe.Recipe, {"method": "ranking", "data": {"train": "x"}})
    training = resolved.training
    assert (training.learning_rate, training.batch_size, training.max_length, training.epochs) == (3e-6, 1, 32, 1)
    assert (training.eval_steps, training.precision, training.weight_decay) == (25, "fp32", 0.0)
    assert (resolved.ranking.omega, resolved.ranking.temperature, resolved.ranking.phi_scale) == (0.5, 0.05, 1.0)
