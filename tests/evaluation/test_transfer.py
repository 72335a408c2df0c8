"""The seven transfer tasks: their readers, their mistakes, their scores."""

import logging

import numpy as np
import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.softmax import ProbeSettings
from sentsmith.evaluation.transfer import TREC_CLASSES, Labelled, f1, load_transfer

QUICK = ProbeSettings(folds=3, batch_size=16, epoch_size=8, max_epochs=24, learning_rate=0.05)


def test_all_seven_tasks_are_read(transfer_dir):
    tasks = load_transfer(transfer_dir)
    assert list(tasks) == ["MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC"]
    assert {name: {part: len(rows) for part, rows in task.parts.items()} for name, task in tasks.items()} == {
        **{name: {"all": 80} for name in ("MR", "CR", "SUBJ", "MPQA")},
        "SST2": {"train": 80, "dev": 80, "test": 80},
        "TREC": {"train": 72, "test": 72},
        "MRPC": {"train": 40, "test": 40},
    }
    trec = tasks["TREC"].parts["test"]
    assert tasks["TREC"].classes == 6
    assert {
        text.split()[1].upper(): TREC_CLASSES[label] for text, label in zip(trec.sentences, trec.labels, strict=True)
    } == {name: name for name in TREC_CLASSES}
    mrpc = tasks["MRPC"].parts["train"]
    assert {text.endswith("home"): int(label) for text, label in zip(mrpc.others, mrpc.labels, strict=True)} == {
        True: 1,
        False: 0,
    }


def test_rows_are_sorted_by_words_then_label(transfer_dir):
    root = transfer_dir / "transfer" / "CR"
    (root / "custrev.pos").write_text("b b b\nz\na a\n")
    (root / "custrev.neg").write_text("c c c\ny\n")
    part = load_transfer(transfer_dir)["CR"].parts["all"]
    assert part.sentences == ("y", "z", "a a", "c c c", "b b b")
    assert part.labels.tolist() == [0, 1, 1, 0, 1]


def test_every_task_is_learned_and_says_how(transfer_dir, bag_of_words):
    for name, task in load_transfer(transfer_dir, QUICK).items():
        result = task.score(Embedded(task.texts(), bag_of_words))
        assert result["score"] > 75, name
        assert result["classifier"] == QUICK.describe()
        assert ("f1" in result) == (name == "MRPC")


def test_a_constant_encoder_gets_the_share_of_the_larger_class(transfer_dir, constant):
    root = transfer_dir / "transfer" / "CR"
    (root / "custrev.pos").write_text("good\n" * 60)
    task = load_transfer(transfer_dir, QUICK)["CR"]
    assert task.score(Embedded(task.texts(), constant))["score"] == pytest.approx(60, abs=1)


def test_pair_features_are_difference_and_product(bag_of_words):
    part = Labelled(("a", "b"), np.array([0, 1]), ("c", "b"))
    embedded = Embedded(["a", "b", "c"], bag_of_words)
    u, v = embedded.rows(["a", "b"]), embedded.rows(["c", "b"])
    np.testing.assert_array_equal(part.features(embedded), np.hstack([abs(u - v), u * v]))


def test_f1_is_of_class_one():
    from sklearn.metrics import f1_score

    predicted, gold = np.array([1, 1, 0, 0, 1]), np.array([1, 0, 1, 0, 1])
    assert f1(predicted, gold) == pytest.approx(f1_score(gold, predicted))
    assert f1(np.zeros(3, dtype=np.int64), np.zeros(3, dtype=np.int64)) == 0


def test_bytes_that_are_not_utf8_are_latin_1_and_said(transfer_dir, bag_of_words, caplog):
    file = transfer_dir / "transfer" / "TREC" / "train_5500.label"
    file.write_bytes(file.read_bytes() + b"LOC:city Where is M\xe9rida ?\n")
    with caplog.at_level(logging.INFO):
        task = load_transfer(transfer_dir, QUICK)["TREC"]
    assert "Where is Mérida ?" in set(task.texts())
    assert "read as Latin-1" in caplog.text
    assert task.score(Embedded(task.texts(), bag_of_words))["encodings"] == {"TREC/train_5500.label": "latin-1"}


def test_empty_sentences_are_kept_and_counted(transfer_dir, bag_of_words):
    file = transfer_dir / "transfer" / "MR" / "rt-polarity.neg"
    file.write_text(file.read_text() + "\n  \n")
    task = load_transfer(transfer_dir, QUICK)["MR"]
    result = task.score(Embedded(task.texts(), bag_of_words))
    assert (result["rows"], result["empty_sentences"]) == ({"all": 82}, 2)


@pytest.mark.parametrize(
    ("file", "text", "message"),
    [
        (
            "SST/binary/sentiment-dev",
            "fine film\t1\nbad film\n",
            "sentiment-dev, row 2: is no sentence, tab, 0 or 1",
        ),
        ("SST/binary/sentiment-dev", "fine film\t4\n", "row 1: is no sentence"),
        ("SST/binary/sentiment-dev", "", "sentiment-dev: has no rows"),
        ("TREC/TREC_10.label", "LOC:city Where ?\nWHO:x Who ?\n", "row 2: begins with 'WHO:x'"),
        ("MRPC/msr_paraphrase_test.txt", "Quality\t1\t2\ta\tb\n1\t2\t3\ta\n", "row 2: is no 0 or 1, two ids"),
        ("MPQA/mpqa.neg", "", "mpqa.neg: is empty"),
        ("MPQA/mpqa.neg", "a\0b\n", "is a binary file"),
    ],
)
def test_mistakes_name_file_and_row(transfer_dir, file, text, message):
    (transfer_dir / "transfer" / file).write_text(text)
    with pytest.raises(InputError, match=message):
        load_transfer(transfer_dir)


def test_missing_files_are_all_named(transfer_dir):
    (transfer_dir / "transfer" / "MR" / "rt-polarity.neg").unlink()
    (transfer_dir / "transfer" / "SST" / "binary" / "sentiment-dev").unlink()
    with pytest.raises(InputError, match=r"missing MR/rt-polarity.neg, SST/binary/sentiment-dev; --data-dir must"):
        load_transfer(transfer_dir)


def test_too_few_rows_for_the_folds_are_an_error(transfer_dir, bag_of_words):
    (transfer_dir / "transfer" / "MR" / "rt-polarity.neg").write_text("bad\n" * 5)
    task = load_transfer(transfer_dir)["MR"]
    with pytest.raises(InputError, match="class 0 has 5 rows, too few for nested 10-fold"):
        task.score(Embedded(task.texts(), bag_of_words))
