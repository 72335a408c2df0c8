"""Retrieved demonstrations: the nearest premises above a threshold, never the sentence itself."""

from __future__ import annotations

import numpy as np
import pytest

from sentsmith.corpus.rows import Triplet
from sentsmith.errors import InputError, SettingsError
from sentsmith.methods.multicsr import demonstrations
from sentsmith.methods.multicsr.demonstrations import Demonstrations, as_exemplars

ANGLES = {"east": 0, "east again": 0, "near east": 10, "north east": 45, "north": 90, "west": 180}


class Encoder:
    """Directions by name, in degrees, of different lengths."""

    def __init__(self):
        self.calls = []

    def encode(self, sentences):
        self.calls.append(list(sentences))
        turned = np.radians([ANGLES[text.lower().rstrip("!")] for text in sentences])
        lengths = 1.0 + np.arange(len(sentences))
        return (np.stack([np.cos(turned), np.sin(turned)], axis=1) * lengths[:, None]).astype(np.float32)


POOL = [Triplet(name, f"{name} is so", f"{name} is not so") for name in ANGLES]


def nearest(sentences, *, pool=POOL, **options):
    options = {"count": 3, "threshold": -1.0} | options
    found = Demonstrations(pool, Encoder(), **options).nearest(sentences)
    return [[row.anchor for row in rows] for rows in found]


def test_the_nearest_come_last():
    assert nearest(["north"]) == [["east", "near east", "north east"]]
    assert nearest(["west"]) == [["near east", "north east", "north"]]


def test_fewer_where_fewer_are_near_enough():
    assert nearest(["north"], threshold=0.7) == [["north east"]]
    assert nearest(["west"], threshold=0.5) == [[]]
    # On the threshold is near enough.
    assert nearest(["east again"], threshold=1.0) == [["east"]]


def test_the_sentence_itself_in_any_dress_is_passed_over():
    assert nearest(["East!"], count=2) == [["near east", "east again"]]
    pool = [Triplet("EAST", "p", "n"), Triplet("east", "other p", "other n"), POOL[2]]
    assert nearest(["east!"], pool=pool) == [["near east"]]


def test_a_premise_counts_once_and_equal_ones_in_the_pools_order():
    pool = [Triplet("east", "first", "n"), Triplet("East", "second", "n"), POOL[1], POOL[3]]
    (rows,) = Demonstrations(pool, Encoder(), count=4, threshold=0.0).nearest(["near east"])
    assert [(row.anchor, row.positive) for row in rows] == [
        ("north east", "north east is so"),
        ("east again", "east again is so"),
        ("east", "first"),
    ]


def test_the_pool_is_embedded_once_and_blocks_change_nothing(monkeypatch):
    whole = nearest(list(ANGLES))
    monkeypatch.setattr(demonstrations, "_LARGEST_BLOCK", 7)
    assert nearest(list(ANGLES)) == whole
    encoder = Encoder()
    pool = Demonstrations(POOL, encoder, count=1, threshold=0.0)
    pool.nearest(["east"])
    pool.nearest(["west"])
    assert [len(call) for call in encoder.calls] == [len(POOL), 1, 1]
    assert pool.nearest([]) == []


def test_by_task():
    shown = as_exemplars(POOL[:1])
    assert [(one.inputs, one.output) for one in shown["entailment"]] == [(("east",), "east is so")]
    assert [(one.inputs, one.output) for one in shown["contradiction"]] == [(("east",), "east is not so")]


def test_what_cannot_be():
    with pytest.raises(InputError, match="pool of demonstrations is empty"):
        nearest(["east"], pool=[])
    for options in ({"count": 0}, {"threshold": 1.5}):
        with pytest.raises(SettingsError, match="at least 1, above a cosine"):
            nearest(["east"], **options)
