from __future__ import annotations

import random
from collections import Counter

import pytest

from sentsmith.corpus.neighbours import LONGEST, NeighbourIndex, allowed_changes, is_near

WORDS = [f"w{i}" for i in range(40)]
TAIL = "in the park near old trees"


@pytest.mark.parametrize(
    ("words", "allowed"), [(4, 0), (5, 1), (11, 1), (12, 2), (LONGEST, 2), (33, 3), (40, 4), (100, 10)]
)
def test_allowed_changes(words, allowed):
    assert allowed_changes(words) == allowed


@pytest.mark.parametrize(
    ("first", "second", "near"),
    [
        ("a man plays the guitar", "a man plays the flute", True),
        ("a man plays the guitar", "the guitar a man plays", True),
        ("a man plays the guitar", "a man plays guitar", True),
        ("a man plays guitar", "a man plays flute", False),
        ("a man plays the guitar", "a dog plays the flute", False),
        (f"a man plays the guitar {TAIL} today", f"a boy plays the flute {TAIL} today", True),
        (f"a man plays the guitar {TAIL}", f"a boy plays the flute {TAIL}", False),
        ("the the the the the", "the", False),
    ],
)
def test_is_near(first, second, near):
    assert is_near(first.split(), second.split()) is near
    assert is_near(second.split(), first.split()) is near
    assert bool(list(NeighbourIndex([first]).find([second]))) is near


def changed(words, changes, draw):
    words = list(words)
    for _ in range(changes):
        way = draw.randrange(3)
        place = draw.randrange(len(words))
        if way == 0:
            words[place] = draw.choice(WORDS)
        elif way == 1:
            words.insert(place, draw.choice(WORDS))
        elif len(words) > 1:
            del words[place]
    if draw.random() < 0.3:
        draw.shuffle(words)
    return words


@pytest.mark.parametrize("longest", [14, LONGEST])
@pytest.mark.parametrize("size", [40, pytest.param(150, marks=pytest.mark.slow)])
def test_the_index_finds_exactly_what_brute_force_finds(longest, size):
    draw = random.Random(longest)
    texts = {" ".join(draw.choices(WORDS, k=draw.randint(1, longest - 2))) for _ in range(size)}
    texts |= {" ".join(changed(text.split(), 1, draw)) for text in texts}
    tests = sorted(texts)
    chosen = draw.choices(tests, k=3 * size)
    queries = [" ".join(changed(text.split(), draw.randint(0, 3), draw)[:longest]) for text in chosen]
    tests = [text for text in tests if len(text.split()) <= longest]

    def bags_differ(one, other):
        first, second = Counter(one.split()), Counter(other.split())
        return max((first - second).total(), (second - first).total())

    wanted = {
        (i, j)
        for i, query in enumerate(queries)
        for j, test in enumerate(tests)
        if bags_differ(query, test) <= allowed_changes(max(len(query.split()), len(test.split())))
        and max(len(query.split()), len(test.split())) >= 5
    }
    found = list(NeighbourIndex(tests).find(queries))
    assert len(found) == len(set(found))
    assert set(found) == wanted
    assert len(wanted) > size


def test_long_texts_are_found_by_their_sketch():
    draw = random.Random(0)
    vocabulary = [f"w{i}" for i in range(3000)]
    tests = [" ".join(draw.choices(vocabulary, k=draw.randint(33, 300))) for _ in range(200)]
    queries = []
    for text in tests:
        words = text.split()
        for place in draw.sample(range(len(words)), len(words) // 20):
            words[place] = draw.choice(vocabulary)
        cut = len(words) // 3
        queries.append(" ".join(words[cut:] + words[:cut]))
    strangers = [" ".join(draw.choices(vocabulary, k=60)) for _ in range(200)]
    found = set(NeighbourIndex(tests).find(queries + strangers))
    assert found <= {(i, i) for i in range(200)}
    assert len(found) >= 198


def test_the_border_between_enumerated_and_sketched_texts():
    words = [f"w{i}" for i in range(33)]
    for left_out in (1, 2, 3):
        short = " ".join(words[left_out:])
        assert list(NeighbourIndex([" ".join(words)]).find([short])) == [(0, 0)]
        assert list(NeighbourIndex([short]).find([" ".join(words)])) == [(0, 0)]


def test_a_popular_sentence_plan_does_not_lose_pairs():
    tests = [f"a man is playing thing{i}" for i in range(300)]
    assert len(list(NeighbourIndex(tests).find(["a man is playing chess"] * 5))) == 1500


def test_nothing_to_find():
    assert not list(NeighbourIndex([]).find(["a man plays the guitar"]))
    assert not list(NeighbourIndex(["a man plays the guitar"]).find([]))
    assert not list(NeighbourIndex(["", "a"]).find(["", "a"]))
