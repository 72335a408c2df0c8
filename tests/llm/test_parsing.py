"""Which answers are read, as what, and why the others are not."""

from __future__ import annotations

import pytest

from sentsmith.llm.parsing import LengthBounds, read_line, read_list, read_score, read_sentence
from sentsmith.llm.questions import Unreadable

DOG = "Two dogs run over the wet grass."


@pytest.mark.parametrize(
    ("answer", "sentence"),
    [
        (" Dogs are outside.\n", "Dogs are outside."),
        ('"Dogs are outside."', "Dogs are outside."),
        ("`Dogs are outside.`", "Dogs are outside."),
        ("“Dogs are outside.”", "Dogs are outside."),
        ('"Dogs" are outside.', '"Dogs" are outside.'),
        ("\"'Dogs are outside.'\"", "'Dogs are outside.'"),
        ("Dogs\tare  outside.", "Dogs are outside."),
    ],
)
def test_sentences_that_are_read(answer, sentence):
    assert read_sentence(answer, DOG, LengthBounds()) == sentence


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "empty"),
        (" \n ", "empty"),
        ('""', "empty"),
        ("...", "empty"),
        ("Dogs are outside.\nThey run.", "newline"),
        ("Dogs are outside.\u2028They run.", "newline"),
        ("Dogs\rrun", "newline"),
        (DOG, "copy"),
        ("two dogs run over the wet grass", "copy"),
        (f'"{DOG}"', "copy"),
        ("No", "too short"),
        ("Dogs" * 41, "too long"),
        ("Dogs \x00 are outside", "control character"),
        ("Dogs \ud800 are outside", "control character"),
    ],
)
def test_sentences_that_are_not_read(answer, reason):
    with pytest.raises(Unreadable, match=f"^{reason}$"):
        read_sentence(answer, DOG, LengthBounds())


def test_bounds():
    bounds = LengthBounds(min_characters=5, max_characters=40, min_ratio=0.5, max_ratio=2.0)
    for given_, answer, reason in (
        ("x" * 30, "a" * 14, "too short"),
        ("x" * 30, "a" * 15, None),
        ("x" * 30, "a" * 41, "too long"),
        ("x" * 10, "a" * 21, "too long"),
        ("x" * 10, "a" * 20, None),
        ("x" * 2, "a" * 4, "too short"),
    ):
        if reason is None:
            assert read_sentence(answer, given_, bounds) == answer
        else:
            with pytest.raises(Unreadable, match=reason):
                read_sentence(answer, given_, bounds)
    with pytest.raises(ValueError, match="min_characters 9 is above max_characters 8"):
        LengthBounds(min_characters=9, max_characters=8)
    with pytest.raises(ValueError, match="min_ratio"):
        LengthBounds(min_ratio=3, max_ratio=2)


@pytest.mark.parametrize("answer", ["0", "5", "5.0", "0.0", " 3.2\n", "4.9"])
def test_scores_that_are_read(answer):
    assert read_score(answer) == float(answer)


@pytest.mark.parametrize(
    "answer",
    ["", "4.50", "4.", ".5", "-1", "+1", "1e0", "4,5", "4.5/5", "Score: 4", "four", "4 5", "٣", "³", "10", "nan"],
)
def test_scores_that_are_not_read(answer):
    with pytest.raises(Unreadable, match="no score"):
        read_score(answer)


@pytest.mark.parametrize("answer", ["5.1", "5.9", "6", "9.9"])
def test_scores_above_five(answer):
    with pytest.raises(Unreadable, match="score above 5"):
        read_score(answer)


@pytest.mark.parametrize(
    ("answer", "line"),
    [
        ("  A dog.\n", "A dog."),
        ("```\nA dog.\n```", "A dog."),
        ("`A dog.`", "A dog."),
        ("```\n    A\tdog.\n    ```\n", "A dog."),
        ('"A dog."', "A dog."),
        ("x" * 600, "x" * 600),
    ],
)
def test_lines_that_are_read(answer, line):
    assert read_line(answer, LengthBounds(min_ratio=0.9, max_ratio=1.1)) == line


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "empty"),
        ("``` ```", "empty"),
        ("...", "empty"),
        ("One.\nTwo.", "newline"),
        ("```\nOne.\n\nTwo.\n```", "newline"),
        ("ab", "too short"),
        ("x" * 601, "too long"),
        ("a\x00bc", "control character"),
    ],
)
def test_lines_that_are_not_read(answer, reason):
    with pytest.raises(Unreadable, match=f"^{reason}$"):
        read_line(answer, LengthBounds())


@pytest.mark.parametrize(
    "answer",
    [
        "1. A dog.\n2. A cat.\n3. 5. May was warm.",
        "1) A dog.\n2) A cat.\n3) 5. May was warm.",
        "Here are 3 sentences:\n\n**1.** A dog.\n\n**2.** A cat.\n\n**3.** 5. May was warm.\n\nSo much.\nBye.",
        "**1. A dog.**\n**2. A cat.**\n**3. 5. May was warm.**",
        "**Sure**\n  1: A dog.  \n  2: `A cat.`\n  3:\t5. May was warm.",
        '1. "A dog."\n2. "A cat."\n3. "5. May was warm."',
        "1. **A dog.**\n2. **A cat.**\n3. **5. May was warm.**",
        "**1.** **A dog.**\n2.**A cat.**\n3. **`5. May was warm.`**",
        "1.A dog.\n2)A cat.\n3:`5. May was warm.`",
        "(1) A dog.\n(2) A cat.\n(3) 5. May was warm.",
        "- 1. A dog.\n* **2.** A cat.\n  • (3) 5. May was warm.",
        "```\n1. A dog.\n2. A cat.\n3. 5. May was warm.\n```",
        "```1. A dog.\n2. A cat.\n3. 5. May was warm.```",
        "Here you are:\n```text\n1. A dog.\n2. A cat.\n3. 5. May was warm.\n```\nBye.",
        "1. A dog.\n2. A cat.\n3. 5. May was warm.\nSo they drift away.\n\nDo you want more?",
    ],
)
def test_lists_that_are_read(answer):
    assert read_list(answer, 3, LengthBounds()) == "A dog.\nA cat.\n5. May was warm."


@pytest.mark.parametrize(
    ("answer", "reason"),
    [
        ("", "too few: 0 items of 3"),
        ("A dog.\nA cat.\nA cow.", "too few: 0 items of 3"),
        ("1. A dog.\n2. A cat.", "too few: 2 items of 3"),
        ("1. A dog.\n2. A cat.\n3. A cow.\n4. A hen.", "too many: more than 3 items"),
        ("1. A dog.\n3. A cat.\n2. A cow.", "numbering: 3 where 2 was due"),
        ("0. A dog.\n1. A cat.\n2. A cow.", "numbering: 0 where 1 was due"),
        ("1. A dog.\n1. A cat.\n1. A cow.", "numbering: 1 where 2 was due"),
        ("1. A dog\nthat barks.\n2. A cat.\n3. A cow.", "newline: an item is more than one line"),
        ("1. A dog.\n\nand so on\n2. A cat.\n3. A cow.", "newline: an item is more than one line"),
        ("1. A dog.\n2. A cat.\n3. A cow.\nThat is it.\n4. A hen.", "too many: more than 3 items"),
        ("1. A dog.\n2. A cat.\n3. A cow.\n(1) is the nearest.", "too many: more than 3 items"),
        ("1. A dog.\n(1) A cat.\n3. A cow.", "numbering: 1 where 2 was due"),
        ("- A dog.\n- A cat.\n- A cow.", "too few: 0 items of 3"),
        ("1. A dog.\n```\n2. A cat.\n3. A cow.", "newline: an item is more than one line"),
        ("(1 A dog.\n(2 A cat.\n(3 A cow.", "too few: 0 items of 3"),
        ("1. A dog.\n2.\n3. A cow.", "empty"),
        ("1. A dog.\n2. \nA cat.\n3. A cow.", "newline: an item is more than one line"),
        ("1. A dog.\n2. ab\n3. A cow.", "too short"),
        ("1. A dog.\n2.5 A cat.\n3. A cow.", "newline: an item is more than one line"),
    ],
)
def test_lists_that_are_not_read(answer, reason):
    with pytest.raises(Unreadable) as caught:
        read_list(answer, 3, LengthBounds())
    assert str(caught.value) == reason


@pytest.mark.parametrize("item", ["**One** and **two**.", "**One** and **two**", "A **dog** barks.", "2.5 dogs bark."])
def test_what_is_bold_inside_an_item_stays(item):
    assert read_list(f"1. {item}\n2. Two.", 2, LengthBounds()) == f"{item}\nTwo."
