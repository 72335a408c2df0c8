"""A tiny ranking run: a tiny BERT learns the order of short lists, and a tiny LLaMA teaches."""

from __future__ import annotations

import json

import pytest


@pytest.fixture(scope="session")
def lists(sentences):
    """Return 16 lists of 2 to 5 sentences; sentences recur in several."""
    return [[sentences[(5 * i + j) % 30] for j in range(2 + i % 4)] for i in range(16)]


@pytest.fixture(scope="session")
def save_lists(tmp_path_factory):
    """Return a function that saves lists as jsonl."""

    def save(rows, name="lists.jsonl"):
        file = tmp_path_factory.mktemp("lists") / name
        file.write_text("".join(json.dumps({"sentences": row}) + "\n" for row in rows), encoding="utf-8")
        return file

    return save


@pytest.fixture(scope="session")
def list_file(save_lists, lists):
    """Return a file of the lists."""
    return save_lists(lists)


@pytest.fixture(scope="session")
def ranking_settings(tiny_bert, tiny_llama, list_file) -> dict:
    """Return the settings of a run that takes part of a second."""
    return {
        "method": "ranking",
        "model": str(tiny_bert),
        "data": {"train": str(list_file), "held_out": 0.0},
        "training": {"batch_size": 4, "learning_rate": 5e-3, "max_steps": 4, "eval_steps": 2},
        "ranking": {"teacher": str(tiny_llama)},
    }


@pytest.fixture(scope="session")
def ranking_tiny(trains, ranking_settings):
    """Return a function that trains by these settings, with overrides, into a folder; returns the run record."""
    return trains("ranking", ranking_settings)


@pytest.fixture
def here(tmp_path, monkeypatch):
    """Return a folder, the current one, with seven seeds."""
    (tmp_path / "s.txt").write_text("\n".join(f"Row {number} stands." for number in range(7)))
    monkeypatch.chdir(tmp_path)
    return tmp_path
