"""What the tests of FREEZE share: scored pairs, and a run of a tiny model that takes part of a second."""

from __future__ import annotations

import csv

import pytest


def _overlap(one, two):
    """Return a score from 0 to 5 that a model can learn: the share of words that two sentences have in common."""
    first, second = set(one.split()), set(two.split())
    return round(5 * len(first & second) / len(first | second), 2)


@pytest.fixture(scope="session")
def pair_files(tmp_path_factory, sentences):
    """Return the files of scored pairs by name: train (60 pairs), dev, other, halves (scores in [0, 1]), raw text."""
    folder = tmp_path_factory.mktemp("pairs")

    def table(name, pairs, top=5.0):
        with (folder / name).open("w", encoding="utf-8", newline="") as stream:
            rows = [(one, two, _overlap(one, two) * top / 5) for one, two in pairs]
            csv.writer(stream).writerows([("sentence1", "sentence2", "score"), *rows])
        return str(folder / name)

    train = [(sentences[i], sentences[(i * 7 + k) % 40]) for k in (1, 2) for i in range(30)]
    dev = [(sentences[i], sentences[40 + (i + 3) % 20]) for i in range(40, 60)]
    raw = folder / "raw.txt"
    raw.write_text("\n".join(sentences[::-1]) + "\n", encoding="utf-8")
    return {
        "train": table("train.csv", train),
        "other": table("other.csv", train[::-1]),
        "halves": table("halves.csv", train, 1.0),
        "dev": table("dev.csv", dev),
        "raw": str(raw),
    }


@pytest.fixture(scope="session")
def freeze_settings(tiny_bert, pair_files):
    """Return the settings of a FREEZE run of the tiny BERT."""
    return {
        "method": "freeze",
        "model": str(tiny_bert),
        "data": {"train": pair_files["train"], "dev": pair_files["dev"]},
        "training": {
            "batch_size": 10,
            "learning_rate": 0.05,
            "max_steps": 12,
            "eval_steps": 3,
            "save_steps": 3,
            "schedule": "constant",
            "precision": "fp32",
            "max_length": 32,
        },
        "freeze": {
            "readout": "mean",
            "bottleneck": 8,
            "head": "nonnegative",
            "encoder_learning_rate": 1e-2,
            "autoencoder": {"epochs": 2, "batch_size": 16},
        },
    }


@pytest.fixture(scope="session")
def train_freeze(trains, freeze_settings):
    """Return a function that trains by these settings, with overrides, into a folder; returns the run record."""
    return trains("freeze", freeze_settings)
