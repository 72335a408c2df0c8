"""A tiny MultiCSR run: a tiny BERT learns from triplets, and a tiny LLaMA masks."""

from __future__ import annotations

import csv

import pytest


@pytest.fixture(scope="session")
def triplets(sentences):
    """Return 24 triplets; anchors recur with other positives, as where written and gold triplets are joined."""
    return [(sentences[i % 12], sentences[i + 12], sentences[i + 36]) for i in range(24)]


@pytest.fixture(scope="session")
def save_triplets(tmp_path_factory):
    """Return a function that saves triplets as csv, with the columns of scores that a curation leaves."""

    def save(rows, name="triplets.csv"):
        file = tmp_path_factory.mktemp("triplets") / name
        header = ["anchor", "positive", "negative", "positive_score", "negative_score"]
        with file.open("w", encoding="utf-8", newline="") as stream:
            csv.writer(stream).writerows([header, *((*row, 4.5, 0.5) for row in rows)])
        return file

    return save


@pytest.fixture(scope="session")
def triplet_file(save_triplets, triplets):
    """Return a file of the triplets."""
    return save_triplets(triplets)


@pytest.fixture(scope="session")
def multicsr_settings(tiny_bert, tiny_llama, triplet_file) -> dict:
    """Return the settings of a run that takes part of a second, and whose mask removes part of the candidates."""
    return {
        "method": "multicsr",
        "model": str(tiny_bert),
        "data": {"train": str(triplet_file), "held_out": 0.0},
        "training": {
            "batch_size": 8,
            "learning_rate": 5e-3,
            "max_steps": 4,
            "precision": "fp32",
            "max_length": 32,
            "eval_steps": 2,
        },
        "multicsr": {"masker": str(tiny_llama), "threshold": 0.5, "mask_duplicates": False},
    }


@pytest.fixture(scope="session")
def multicsr_tiny(trains, multicsr_settings):
    """Return a function that trains by these settings, with overrides, into a folder; returns the run record."""
    return trains("multicsr", multicsr_settings)
