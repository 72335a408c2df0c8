"""Sentences → clean sentences: characters put right, wrong lengths and duplicates left out, all counted."""

from __future__ import annotations

import hashlib
import logging
import unicodedata
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Literal

from pydantic import Field, model_validator

from sentsmith.corpus.normalising import match_key
from sentsmith.settings import Settings

log = logging.getLogger(__name__)


class CleaningSettings(Settings):
    """What :func:`clean` keeps.

    Attributes:
        min_characters: Shorter sentences are dropped (counted after tidying).
        max_characters: Longer ones are dropped.
        min_words: Sentences of fewer words (split at spaces) are dropped.
        max_words: Those of more words are dropped.
        duplicates: Which later copies are dropped: ``normalised`` (the same letters and digits, whatever
            the case, punctuation and spaces), ``exact``, or none (``keep``).
    """

    min_characters: int = Field(default=1, ge=1)
    max_characters: int = Field(default=2000, ge=1)
    min_words: int = Field(default=1, ge=1)
    max_words: int = Field(default=256, ge=1)
    duplicates: Literal["normalised", "exact", "keep"] = "normalised"

    @model_validator(mode="after")
    def _ordered(self) -> CleaningSettings:
        for unit in ("characters", "words"):
            least, most = getattr(self, f"min_{unit}"), getattr(self, f"max_{unit}")
            if least > most:
                raise ValueError(f"min_{unit} {least} is above max_{unit} {most}; nothing would be left")
        return self


@dataclass
class CleaningCounts:
    """How many sentences were read and kept, and why the others were not."""

    read: int = 0
    kept: int = 0
    empty: int = 0
    too_short: int = 0
    too_long: int = 0
    duplicate: int = 0


def tidy(text: str) -> str:
    """Return the text in Unicode NFC, without control characters, with single spaces.

    Control and format characters go, except the joiners that some scripts spell with; line breaks and tabs
    become a space; lone surrogates and private characters go too.
    """
    composed = unicodedata.normalize("NFC", text)
    if not composed.isprintable():
        composed = "".join(map(_kept, composed))
    return " ".join(composed.split())


def _kept(character: str) -> str:
    if character.isspace():
        return " "
    if character in "\u200c\u200d":  # joiners: part of the spelling in Persian and the languages of India
        return character
    return "" if unicodedata.category(character)[0] == "C" else character


def clean(
    sentences: Iterable[str],
    settings: CleaningSettings | None = None,
    *,
    counts: CleaningCounts | None = None,
) -> Iterator[str]:
    """Yield the sentences tidied (see :func:`tidy`), without those that the settings rule out.

    Duplicates are remembered by 64-bit hashes: some 100 bytes a sentence whatever its length, and a sentence
    is mistaken for another one with a chance of about 1 in 30 million over a million sentences.

    Args:
        sentences: A stream.
        settings: None means the defaults.
        counts: Filled while the result is read; logged at the end in any case.
    """
    settings = settings or CleaningSettings()
    counts = counts if counts is not None else CleaningCounts()
    seen: set[int] = set()
    for sentence in sentences:
        counts.read += 1
        text = tidy(sentence)
        reason = _ruled_out(text, settings) or _seen_before(text, settings, seen)
        if reason:
            setattr(counts, reason, getattr(counts, reason) + 1)
            continue
        counts.kept += 1
        yield text
    log.info(
        "cleaning kept %d of %d sentences; dropped: %d empty, %d too short, %d too long, %d duplicates",
        counts.kept,
        counts.read,
        counts.empty,
        counts.too_short,
        counts.too_long,
        counts.duplicate,
    )


def _ruled_out(text: str, settings: CleaningSettings) -> str:
    if not text:
        return "empty"
    words = text.count(" ") + 1
    if len(text) < settings.min_characters or words < settings.min_words:
        return "too_short"
    if len(text) > settings.max_characters or words > settings.max_words:
        return "too_long"
    return ""


def _seen_before(text: str, settings: CleaningSettings, seen: set[int]) -> str:
    if settings.duplicates == "keep":
        return ""
    # Text of signs only has an empty key; it is then compared as it stands.
    key = (match_key(text) if settings.duplicates == "normalised" else "") or text
    number = int.from_bytes(hashlib.blake2b(key.encode(), digest_size=8).digest())
    if number in seen:
        return "duplicate"
    seen.add(number)
    return ""
