"""A model's raw answer → the sentence, the list or the score in it, or the reason why there is none."""

from __future__ import annotations

import re
import unicodedata
from typing import Self

from pydantic import Field, model_validator

from sentsmith.corpus.normalising import normal_form
from sentsmith.llm.questions import Unreadable
from sentsmith.settings import Settings

_SCORE = re.compile(r"[0-9](\.[0-9])?")
_HIGHEST = 5.0
# "2.5 litres" is no second item: what stands right behind the number's sign is no digit.
_ITEM = re.compile(
    r"\s*(?:[-*+•]\s+)?(?P<bold>\*\*)?(?:\((?=[0-9]+\)))?(?P<number>[0-9]{1,4})[.):]"
    r"(?(bold)(?P<closed>\*\*)?)(?P<text>(?![0-9]).*)$"
)
_BOLD, _FENCE = "**", "```"
TOO_SHORT_OR_LONG = ("too short", "too long")
"""The reasons that depend on :class:`LengthBounds`."""

# Control characters, and halves of surrogate pairs, which no file can hold.
_NO_TEXT = ("Cc", "Cs")
# Models set an answer between these, though nobody asked them to.
_QUOTES = {'"': '"', "'": "'", "`": "`", "“": "”", "‘": "’", "«": "»", "„": "“"}


class LengthBounds(Settings):
    """How long a written sentence may be, in characters, by itself and beside the sentence that it was written for."""

    min_characters: int = Field(default=3, ge=1, description="The shortest sentence")
    max_characters: int = Field(default=600, ge=1, description="The longest sentence")
    min_ratio: float = Field(default=0.1, ge=0.0, description="The shortest, as a share of the input's characters")
    max_ratio: float = Field(default=5.0, gt=0.0, description="The longest, as a multiple of the input's characters")

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.min_characters > self.max_characters:
            raise ValueError(f"min_characters {self.min_characters} is above max_characters {self.max_characters}")
        if self.min_ratio > self.max_ratio:
            raise ValueError(f"min_ratio {self.min_ratio} is above max_ratio {self.max_ratio}")
        return self


def one_line(text: str) -> str:
    """Return ``text`` with every run of white space (line breaks, tabs, U+2028 …) as one space, none at the ends."""
    return " ".join(text.split())


def read_sentence(answer: str, given: str, bounds: LengthBounds) -> str:
    """Return the sentence of an answer: white space and one pair of quotation marks around it are taken away.

    Args:
        answer: The raw answer.
        given: The sentence that it was written for.
        bounds: How long it may be.

    Raises:
        Unreadable: ``empty`` (no letter and no digit), ``newline`` (several lines), ``copy`` (the normal form of the
            input), ``too short``, ``too long``, ``control character``.
    """
    text = _unquoted(answer.strip())
    form = normal_form(text)
    _need_one_line(text, form)
    if form == normal_form(given):
        raise Unreadable("copy")
    lowest, highest = bounds.min_ratio * len(given), bounds.max_ratio * len(given)
    return _of_length(text, max(bounds.min_characters, lowest), min(bounds.max_characters, highest))


def read_line(answer: str, bounds: LengthBounds) -> str:
    """Return the one line of an answer; it may say again what was given, and be of any length beside that.

    White space, code fences and one pair of quotation marks around it are taken away.

    Args:
        answer: The raw answer.
        bounds: How long it may be; the ratios are not used.

    Raises:
        Unreadable: ``empty`` (no letter and no digit), ``newline`` (several lines), ``too short``, ``too long``,
            ``control character``.
    """
    text = _unquoted(answer.strip().strip("`").strip())
    _need_one_line(text, normal_form(text))
    return _of_length(text, bounds.min_characters, bounds.max_characters)


def read_list(answer: str, count: int, bounds: LengthBounds) -> str:
    """Return the sentences of a numbered list, one a line.

    ``1. text``, ``1) text``, ``(1) text`` and ``1: text`` are items, also with a bullet before the number, without the
    space, or with the number, the text or both in bold. Empty lines, code fences around the answer, and text before
    the first item or after the last one are passed over.

    Args:
        answer: The raw answer.
        count: How many items there must be.
        bounds: How long each may be; the ratios are not used.

    Raises:
        Unreadable: ``numbering`` (not 1, 2, 3 … in order), ``too few`` or ``too many`` items, ``newline`` (an item
            before the last one is several lines), or what :func:`read_line` says of an item.
    """
    items: list[str] = []
    for line in answer.strip().removeprefix(_FENCE).removesuffix(_FENCE).splitlines():
        found = _ITEM.match(line)
        if found is None:
            if line.strip() and 0 < len(items) < count:
                raise Unreadable("newline: an item is more than one line")
            continue
        if len(items) == count:
            raise Unreadable(f"too many: more than {count} items")
        if int(found["number"]) != len(items) + 1:
            raise Unreadable(f"numbering: {found['number']} where {len(items) + 1} was due")
        items.append(_item(found))
    if len(items) < count:
        raise Unreadable(f"too few: {len(items)} items of {count}")
    return "\n".join(read_line(item, bounds) for item in items)


def _item(found: re.Match[str]) -> str:
    text = found["text"].strip()
    if found["bold"] and not found["closed"]:
        # Bold from before the number to the end of the item.
        return text.removesuffix(_BOLD)
    inner = text.removeprefix(_BOLD).removesuffix(_BOLD)
    # "**One** and **two**" begins and ends in bold, and is not bold as a whole.
    return inner if len(inner) + 4 == len(text) and _BOLD not in inner else text


def _unquoted(text: str) -> str:
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        return text[1:-1].strip()
    return text


def _need_one_line(text: str, form: str) -> None:
    if not form:
        raise Unreadable("empty")
    if len(text.splitlines()) > 1:
        raise Unreadable("newline")


def _of_length(text: str, lowest: float, highest: float) -> str:
    if len(text) < lowest:
        raise Unreadable(TOO_SHORT_OR_LONG[0])
    if len(text) > highest:
        raise Unreadable(TOO_SHORT_OR_LONG[1])
    line = one_line(text)
    if any(unicodedata.category(character) in _NO_TEXT for character in line):
        raise Unreadable("control character")
    return line


def read_score(answer: str) -> float:
    """Return the score of an answer: ``d`` or ``d.d`` from 0 to 5 and nothing beside it.

    Args:
        answer: The raw answer.

    Raises:
        Unreadable: ``no score`` (anything else, also ``4.50``), ``score above 5``.
    """
    text = answer.strip()
    if not _SCORE.fullmatch(text):
        raise Unreadable("no score")
    if float(text) > _HIGHEST:
        raise Unreadable("score above 5")
    return float(text)
