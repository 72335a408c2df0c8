"""The hub: what a dataset of it becomes, and what is said where it cannot be reached."""

import datasets
import mteb
import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation import hub
from sentsmith.evaluation.embedded import Embedded
from sentsmith.evaluation.suite import load_suites

ROWS = {"sentence1": ["a dog", "red car"], "sentence2": ["a dog runs", "blue  sky"], "score": [4.5, 0.0]}


class Task:
    """What ``mteb.get_task`` gives, with a dataset built here."""

    min_score, max_score = 0, 5

    def __init__(self, name):
        self.name = name

    def load_data(self):
        self.dataset = datasets.DatasetDict({"test": datasets.Dataset.from_dict(ROWS)})


@pytest.fixture
def no_network(monkeypatch):
    """Nothing listens there, on any machine."""
    monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)


def test_without_a_hub_the_error_says_what_to_do(no_network):
    with pytest.raises(InputError, match=r"http://127.0.0.1:9 cannot be reached .*; give --data-dir"):
        load_suites(["sts"])


def test_offline_and_not_in_the_cache_says_the_same(monkeypatch, tmp_path):
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_HUB_OFFLINE", True)
    monkeypatch.setattr("datasets.config.HF_DATASETS_CACHE", tmp_path)
    with pytest.raises(InputError, match=r"STS12 could not be loaded from the hub .*give --data-dir"):
        hub.load_sts_from_hub()


def test_tasks_of_the_hub_are_scored_by_our_protocol(monkeypatch, bag_of_words):
    asked = []
    monkeypatch.setattr(mteb, "get_task", lambda name: asked.append(name) or Task(name))
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    tasks = hub.load_sts_from_hub()
    assert asked == ["STS12", "STS13", "STS14", "STS15", "STS16", "STSBenchmark", "SICK-R"]
    assert list(tasks) == ["STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR-all"]
    assert (tasks["STSB"].part, tasks["SICKR-all"].part) == ("test", "all")
    pairs = tasks["STS12"].subsets[0].pairs
    assert pairs.sentences2 == ("a dog runs", "blue sky")
    assert tasks["STS12"].score(Embedded(pairs.texts(), bag_of_words))["score"] == pytest.approx(100)


def test_the_names_are_tasks_that_mteb_has():
    for name in hub.HUB_TASKS.values():
        task = mteb.get_task(name)
        assert task.metadata.eval_splits == ["test"]
        assert tuple(task.column_names) == ("sentence1", "sentence2")
        assert (task.min_score, task.max_score) == (0, 5)


@pytest.mark.parametrize(
    ("rows", "message"),
    [
        ([{"sentence1": "a", "sentence2": "b", "score": 6.0}], "hub's STS12, row 1: gold score '6.0'"),
        ([{"sentence1": "a", "label": 1.0}], "hub's STS12 has no column sentence2, score"),
        ([], "hub's STS12 has no rows"),
    ],
)
def test_wrong_rows_are_errors(rows, message):
    with pytest.raises(InputError, match=message):
        hub.task_from_rows("STS12", rows, low=0, high=5)
