"""Training on C-STS: rows that stay together, their collator, the loss, and what chooses the checkpoint."""

from __future__ import annotations

import csv

import pytest
import torch

from sentsmith.encoders.chunked import Chunking
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.errors import InputError
from sentsmith.evaluation.similarity import spearman
from sentsmith.methods.bellm.conditional import ConditionalCollator, ConditionalLoss
from sentsmith.methods.bellm.objective import conditional_parts
from sentsmith.training import chunks
from sentsmith.training.data import conditional_rows, load_rows
from sentsmith.training.selection import ConditionalJudge
from sentsmith.training.settings import SourceSettings

HEADER = ("", "sentence1", "sentence2", "condition", "label")


@pytest.fixture
def table(tmp_path):
    def write(rows, name="csts.csv"):
        path = tmp_path / name
        with path.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([HEADER, *([number, *row] for number, row in enumerate(rows))])
        return str(path)

    return write


@pytest.fixture
def rows(sentences):
    """Twenty pairs of sentences under two conditions each, the second ones after all first ones; one under one."""
    pairs = list(zip(sentences[:20], sentences[20:40], strict=True))
    early = [(*pair, "the animal", float(1 + i % 5)) for i, pair in enumerate(pairs)]
    late = [(*pair, "the song .", float(5 - i % 5)) for i, pair in enumerate(pairs)]
    return [*early, (sentences[40], sentences[41], "the man", 2.5), *late]


@pytest.fixture
def model(tiny_bert):
    return load(tiny_bert, device="cpu").eval()


def test_conditions_of_a_pair_are_one_row(table, rows):
    found = list(conditional_rows(table(rows)))
    assert len(found) == 21
    assert found[3] == {
        "sentence1": rows[3][0],
        "sentence2": rows[3][1],
        "conditions": ["the animal", "the song ."],
        "labels": [4.0, 2.0],
    }
    assert found[20]["conditions"] == ["the man"]
    # Swapped, the sentences are another pair.
    assert len(list(conditional_rows(table([("a", "b", "c", 1), ("b", "a", "c", 2)])))) == 2


def test_no_pair_is_both_trained_on_and_held_out(table, rows):
    data = load_rows(SourceSettings(train=table(rows)), conditional_rows, held_out=0.3, seed=1)
    kept, apart = ({(row["sentence1"], row["sentence2"]) for row in part} for part in (data.train, data.held_out))
    assert (len(kept), len(apart)) == (15, 6)
    assert not kept & apart
    both = [row for part in (data.train, data.held_out) for row in part]
    assert sorted(map(len, (row["labels"] for row in both))) == [1] + 20 * [2]


def test_hidden_labels_are_not_trained_on(table):
    path = table([("a", "b", "c", -1)], name="test.csv")
    with pytest.raises(InputError, match=r"test\.csv: holds hidden labels \(-1\), and training needs known ones"):
        list(conditional_rows(path))
    with pytest.raises(InputError, match=r"test\.csv: the labels are hidden"):
        ConditionalJudge.of_files([path])


def test_a_batch_holds_each_sentence_under_each_condition(model, table, rows):
    batch = ConditionalCollator(model.preprocess)(list(conditional_rows(table(rows)))[18:])
    assert batch["label"].tolist() == [[4.0, 2.0], [5.0, 1.0], [2.5, -1.0]]
    assert batch["label"].dtype == torch.float32
    decoded = model.tokenizer.batch_decode(batch["sentence2_input_ids"])
    wanted = [(18, "the animal"), (18, "the song."), (19, "the animal"), (19, "the song."), (20, "the man")]
    for text, (row, condition) in zip(decoded, wanted, strict=True):
        # A text pair: the condition is the second segment.
        assert text.split("[SEP]")[1].strip() == condition
        assert model.tokenizer(rows[row][1])["input_ids"] == model.tokenizer(text.split("[SEP]")[0][6:])["input_ids"]
    assert batch["sentence1_token_type_ids"].any(dim=1).all()


@pytest.mark.parametrize("recompute", [False, True])
def test_the_loss_is_that_of_the_vectors_whatever_the_chunks(model, table, rows, recompute):
    given = list(conditional_rows(table(rows)))[15:]
    batch = ConditionalCollator(model.preprocess)(given)
    columns = [
        {key.removeprefix(f"{name}_"): value for key, value in batch.items() if key.startswith(name)}
        for name in ("sentence1", "sentence2")
    ]
    loss = ConditionalLoss(model, hinge_weight=0.5, chunking=Chunking(60, 2, recompute))
    found = loss(columns, batch["label"])
    texts = [(row, condition) for row in given for condition in row["conditions"]]
    first, second = (
        torch.from_numpy(as_encoder(model).encode([(row[name], condition) for row, condition in texts]))
        for name in ("sentence1", "sentence2")
    )
    scores = torch.tensor([label for row in given for label in row["labels"]])
    pairs = torch.tensor([place for place, row in enumerate(given) for _ in row["labels"]])
    expected = sum(conditional_parts(first, second, scores, hinge_weight=0.5, pairs=pairs).values())
    assert sum(found.values()).item() == pytest.approx(expected.item(), abs=1e-5)
    assert found["hinge"].item() > 0
    assert loss.get_config_dict() == {"hinge_weight": 0.5}


def test_chunks_are_measured_over_the_batch_that_is_trained_on(tiny_llama, table, rows, tmp_path, monkeypatch):
    from sentsmith.encoders.decoder import make_encoder

    model = make_encoder(tiny_llama, template="the {condition} is in {sentence} , the", device="cpu")
    times, seen = {64: 0.2, 128: 0.1}, []

    def time(model, features, chunking, half):
        seen.append(features)
        return times[chunking.tokens]

    monkeypatch.setattr(chunks, "_time", time)
    given, collator = list(conditional_rows(table(rows)))[:4], ConditionalCollator(model.preprocess)
    options = {"precision": "fp32", "min_rows": 2, "candidates": tuple(times), "collate": collator}
    assert chunks.measured(model, given, tmp_path / "c.json", **options) == 128
    # Both sentences of four rows under two conditions; nothing of the labels.
    assert {key: len(value) for key, value in seen[0].items()} == {
        "input_ids": 16, "attention_mask": 16, "sentence_mask": 16,
    }  # fmt: skip


class Watched(ConditionalCollator):
    """Notes how many conditions each row of a batch has."""

    seen: list

    def __call__(self, features):
        batch = super().__call__(features)
        self.seen += [row["conditions"] for row in features]
        return batch


def test_a_model_learns_and_no_quadruplet_is_split(model, table, rows, tmp_path):
    from sentence_transformers import SentenceTransformerTrainer, SentenceTransformerTrainingArguments

    path = table([row for row in rows if row[2] != "the man"])
    data = load_rows(SourceSettings(train=path), conditional_rows)
    judge = ConditionalJudge.of_rows(data.train)
    before = judge.score(as_encoder(model))
    collator = Watched(model.preprocess)
    collator.seen = []
    arguments = SentenceTransformerTrainingArguments(
        output_dir=str(tmp_path / "out"), per_device_train_batch_size=5, num_train_epochs=8, learning_rate=5e-3,
        use_cpu=True, report_to="none", save_strategy="no", disable_tqdm=True, logging_steps=4,
    )  # fmt: skip
    trainer = SentenceTransformerTrainer(
        model=model, args=arguments, train_dataset=data.train, data_collator=collator, loss=ConditionalLoss(model)
    )
    trainer.train()
    assert len(collator.seen) >= 8 * 20
    assert all(conditions == ["the animal", "the song ."] for conditions in collator.seen)
    losses = [entry for entry in trainer.state.log_history if "loss" in entry]
    assert {"mse", "hinge"} <= losses[0].keys()
    assert losses[-1]["loss"] < 0.7 * losses[0]["loss"]
    assert judge.score(as_encoder(model)) > before + 20


def test_the_judge_is_spearman_over_all_rows(model, table, rows):
    path = table(rows)
    judge, held_out = ConditionalJudge.of_files([path]), ConditionalJudge.of_rows(conditional_rows(path))
    encoder = as_encoder(model)
    first, second = (encoder.encode([(row[side], row[2]) for row in rows]) for side in (0, 1))
    cosines = torch.nn.functional.cosine_similarity(torch.from_numpy(first), torch.from_numpy(second))
    expected = 100 * spearman(cosines, [row[3] for row in rows])
    assert judge.score(encoder) == pytest.approx(expected, abs=1e-9)
    assert held_out.score(encoder) == pytest.approx(expected, abs=1e-9)
    assert (judge.source, held_out.source) == (path, "21 held-out training rows")
    # Of several files, each counts the same.
    half = table(rows[:7], name="half.csv")
    both = ConditionalJudge.of_files([path, half]).score(encoder)
    assert both == pytest.approx((expected + ConditionalJudge.of_files([half]).score(encoder)) / 2)
