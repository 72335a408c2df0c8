"""A model's raw answer → the sentence or the score in it, or the reason why there is none."""

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
    text = answer.strip()
    if len(text) > 1 and _QUOTES.get(text[0]) == text[-1]:
        text = text[1:-1].strip()
    form = normal_form(text)
    if not form:
        raise Unreadable("empty")
    if len(text.splitlines()) > 1:
        raise Unreadable("newline")
    if form == normal_form(given):
        raise Unreadable("copy")
    if len(text) < max(bounds.min_characters, bounds.min_ratio * len(given)):
        raise Unreadable(TOO_SHORT_OR_LONG[0])
    if len(text) > min(bounds.max_characters, bounds.max_ratio * len(given)):
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
