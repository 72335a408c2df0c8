"""A small version of ``benchmarks/audit_planted.py``, on the sample that the package carries."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import pytest

import sentsmith
from sentsmith.corpus.reading import read_sentences

SCRIPT = Path(__file__).parents[2] / "benchmarks" / "audit_planted.py"
SAMPLE = Path(sentsmith.__file__).parent / "sample" / "rankings-train.jsonl"


@pytest.fixture(scope="module")
def planted():
    spec = importlib.util.spec_from_file_location("audit_planted", SCRIPT)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_planted_copies_are_found_and_little_else(planted):
    sentences = list(read_sentences(SAMPLE, column="sentences"))
    result = planted.measure(sentences[:1500], sentences[1500:6000], planted=300, seed=1)
    assert result["planted"] == result["decoys"] == 300
    assert result["recall"] >= 0.95
    assert min(result["recall_by_kind"].values()) >= 0.9
    assert result["precision"] >= 0.9
    assert result["flagged_decoys"] <= 3


def test_the_judge_is_no_yes_man(planted):
    judge = planted.Judge(["A man is playing a guitar in the park."])
    assert judge.ratio("a man is playing a guitar in the park") == 1
    assert judge.ratio("In the park, a man is playing a guitar.") == 1
    assert planted.JUDGED_NEAR <= judge.ratio("A man is playing a flute in the park.") < 1
    assert judge.ratio("Two dogs are playing in the snow.") < planted.JUDGED_NEAR
    assert judge.ratio("") == 0
