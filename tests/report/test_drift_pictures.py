"""Pictures of ranked lists."""

import re
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from sentsmith.report.drift import FIRST_ROW, draw, first_rows, positions_map


def falling(size, floor):
    """Positions whose similarity falls from 1 to ``floor``."""
    away = np.abs(np.subtract.outer(np.arange(size), np.arange(size))) / (size - 1)
    return 1 - (1 - floor) * away


def details(size, floor, chance=0.1):
    random = np.full((size, size), chance) + (1 - chance) * np.eye(size)
    return {"positions": falling(size, floor).tolist(), "random": {"positions": random.tolist()}}


def result(**tasks):
    scores = dict.fromkeys(tasks, 50.0)
    return {"model": "m", "scores": scores, "details": {"tasks": {"STSB": {"rows": 3}, **tasks}}}


def texts(svg):
    return ["".join(element.itertext()) for element in ET.fromstring(svg).iter() if element.tag.endswith("}text")]


def description(svg):
    return next(element.text for element in ET.fromstring(svg).iter() if element.tag.endswith("}desc"))


def cells(svg):
    """The opacity of every cell; a shape may hold several of one opacity."""
    found = []
    for element in ET.fromstring(svg).iter():
        if match := re.search(
            r"fill: var\(--(?:after|loss)[^;]*; (?:fill-)?opacity: ([\d.]+)", element.get("style", "")
        ):
            found += [float(match.group(1))] * element.get("d").count("M")
    return found


NAMES = ["one.positions.svg", "one.random.positions.svg", "other.positions.svg", "other.random.positions.svg"]


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    """The pictures of two files of lists: name → text, in the order in which they were returned."""
    folder = tmp_path_factory.mktemp("pictures")
    files = draw(result(one=details(5, 0.3), other=details(4, 0.2)), folder)
    assert sorted(files) == sorted(folder.iterdir())
    return {file.name: file.read_text() for file in files}


def test_every_file_gets_two_maps_and_all_one_curve(drawn):
    assert list(drawn) == [*NAMES, FIRST_ROW]
    for svg in drawn.values():
        ET.fromstring(svg)
    assert "Mean similarity of list positions: other, random sentences" in texts(drawn[NAMES[3]])


def test_all_maps_are_on_one_scale(drawn):
    one, one_random, other, other_random = (drawn[name] for name in NAMES)
    for svg in (one, one_random, other, other_random):
        assert "position, mean cosine (faintest 0.10, strongest 1.00)" in texts(svg)
        # The diagonal is 1 everywhere: the strongest shade, whatever else a map holds.
        assert max(cells(svg)) == 0.65
    assert min(cells(one_random)) == min(cells(other_random)) == 0.05
    assert min(cells(one)) > min(cells(other)) > 0.05


def test_a_large_map_has_fewer_labels_and_no_numbers():
    svg = positions_map(falling(33, 0.0), name="n", limits=(0.0, 1.0))
    assert len(cells(svg)) == 33 * 33
    numbers = [text for text in texts(svg) if text.isdigit()]
    assert numbers == [str(position) for position in range(1, 34, 2)] * 2
    assert not [text for text in texts(svg) if re.fullmatch(r"\d\.\d\d", text)]


def test_a_map_of_very_long_lists_says_what_it_shows():
    svg = positions_map(falling(70, 0.0), name="n", limits=(0.0, 1.0))
    assert "Mean similarity of list positions: n (the first 64 of 70 positions)" in texts(svg)
    assert len(cells(svg)) == 64 * 64


def test_a_small_map_stands_beside_another():
    svg = positions_map(falling(20, 0.0), name="n", limits=(0.0, 1.0), small=True)
    assert "n" in texts(svg)
    assert [text for text in texts(svg) if text.isdigit()] == [str(position) for position in range(1, 21, 3)] * 2
    assert float(ET.fromstring(svg).get("viewBox").split()[2]) < 4.5 * 72


def test_the_curves_begin_at_the_second_position_and_chance_is_one():
    maps = {"one": falling(3, 0.4), "other": falling(5, 0.2)}
    chance = {"one": falling(3, 0.0), "other": np.full((5, 5), 0.25)}
    told = description(first_rows(maps, chance))
    assert "one: 2 points, 0.7 at 2, 0.4 at 3" in told
    assert "other: 4 points, 0.8 at 2, 0.2 at 5" in told
    # At 2: the mean of 0.5 and 0.25; at 5 only the longer lists are left.
    assert "random sentences (mean): 4 points, 0.375 at 2, 0.25 at 5" in told
    assert "random sentences: 2 points" in description(first_rows({"one": maps["one"]}, {"one": chance["one"]}))
