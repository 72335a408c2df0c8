"""The judge of natural-language inference: it learns, is saved and loaded, and is measured on what it has not seen."""

from __future__ import annotations

import json
import random

import pytest

from sentsmith.errors import InputError

SUBJECTS = ("a man", "a woman", "the child", "the old man", "a young woman", "the small child")
ACTS = ("plays", "eats", "reads", "sings", "runs", "sleeps")


@pytest.fixture(scope="module")
def study(study_of):
    """Return the module of the study."""
    return study_of("nli_judge")


@pytest.fixture(scope="module")
def pairs_file(tmp_path_factory):
    """Return pairs whose label the hypothesis alone tells, in the columns of the real file."""
    dice = random.Random(0)
    rows = ["premise\thypothesis\tlabel\tsource\tsplit"]
    parts = [("cad", "train", 160), ("snli", "dev", 20), ("snli", "test", 20), ("mnli-20k", "dev", 20)]
    for source, split, count in parts:
        for number in range(count):
            subject, act = dice.choice(SUBJECTS), dice.choice(ACTS)
            words = {
                "entailment": f"{subject} {act} .",
                "contradiction": f"nobody {act} never again , nobody and not someone .",
                "neutral": f"{subject} {act} slowly in the park near the house with a large red book .",
            }
            label = ("entailment", "contradiction", "neutral")[number % 3]
            premise = f"{subject} {act} {len(rows)} ."  # no two alike to us; the tokenizer knows no digits
            rows.append(f"{premise}\t{words[label]}\t{label}\t{source}\t{split}")
    rows += ["a dog runs .\ta dog runs .\tneither\tcad\ttrain", "a dog runs .\ta cat runs .\tneutral\thelp\ttrain"]
    # A premise of the training part: its pair is not measured.
    rows.append("\t".join([rows[1].split("\t")[0], "nobody reads never again .", "contradiction", "snli", "dev"]))
    file = tmp_path_factory.mktemp("nli") / "pairs.tsv"
    file.write_text("\n".join(rows) + "\n")
    return file


@pytest.fixture(scope="module")
def trained(study, pairs_file, tiny_bert, tmp_path_factory):
    """Return the folder of a judge trained on them, and what it printed."""
    folder = tmp_path_factory.mktemp("judge") / "judge"
    study.main([str(pairs_file), str(folder), "--start", str(tiny_bert), "--epochs", "8", "--learning-rate", "5e-3"])
    return folder


def test_it_learns_and_says_how_well(trained):
    found = json.loads((trained / "accuracy.json").read_text())
    assert list(found) == ["snli/dev", "snli/test", "mnli/dev"]
    assert {name: (part["pairs"], part["left_out"]) for name, part in found.items()} == {
        "snli/dev": (20, 1),
        "snli/test": (20, 0),
        "mnli/dev": (20, 0),
    }
    for part in found.values():
        assert part["accuracy"] >= 0.9
        assert part["accuracy"] == sum(part["called"][label][label] for label in part["called"]) / 20


def test_a_loaded_judge_answers_in_order_and_in_words(study, trained):
    judge = study.Judge.load(trained)
    pairs = [
        ("a man reads 999 .", "nobody reads never again , nobody and not someone ."),
        ("a man reads 999 .", "a man reads ."),
        ("a man reads 999 .", "a man reads slowly in the park near the house with a large red book ."),
    ]
    assert judge.labels(pairs) == ["contradiction", "entailment", "neutral"]
    assert judge.labels(pairs[::-1], batch_size=1) == ["neutral", "entailment", "contradiction"]
    assert judge.labels([]) == []


def test_the_same_seed_trains_the_same_judge(study, pairs_file, tiny_bert):
    import torch

    pairs = list(study.read(pairs_file, sources=study.TRAINED_ON, split="train"))
    assert len(pairs) == 160
    first, again, other = (
        study.Trainer(limit=32, seed=seed).train(pairs, str(tiny_bert)).model.classifier.weight for seed in (1, 1, 2)
    )
    assert torch.equal(first, again)
    assert not torch.equal(first, other)


def test_every_batch_holds_pairs_of_like_length_and_no_pair_is_lost(study):
    pairs = [study.Labelled("a" * n, "b", "neutral") for n in range(200)]
    batches = study.Trainer(batch_size=8)._batches(list(pairs), random.Random(0))
    assert sorted((pair for batch in batches for pair in batch), key=lambda pair: len(pair.premise)) == pairs
    assert {len(batch) for batch in batches} == {8}
    assert all(max(len(p.premise) for p in batch) - min(len(p.premise) for p in batch) < 8 for batch in batches)


def test_what_is_no_judge_is_refused(study, tiny_bert, tmp_path, pairs_file):
    with pytest.raises(InputError, match="no such folder; train a judge"):
        study.Judge.load(tmp_path / "nothing")
    with pytest.raises(InputError, match="is no judge"):
        study.Judge.load(tiny_bert)
    file = tmp_path / "pairs.tsv"
    file.write_text("premise\thypothesis\tlabel\tsource\tsplit\na\tb\tneutral\thelp\ttrain\n")
    with pytest.raises(InputError, match="holds no pair of snli-cat"):
        study.main([str(file), str(tmp_path / "judge")])
