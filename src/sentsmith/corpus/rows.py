"""Typed rows, under the column names that sentence-transformers uses."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Triplet:
    """An anchor, a text that means the same, and one that does not (a hard negative)."""

    anchor: str
    positive: str
    negative: str

    def __post_init__(self) -> None:
        _need_text(anchor=self.anchor, positive=self.positive, negative=self.negative)


@dataclass(frozen=True, slots=True)
class Pair:
    """Two texts and how near they are in meaning; ``score`` lies in [0, 1]."""

    sentence1: str
    sentence2: str
    score: float

    def __post_init__(self) -> None:
        _need_text(sentence1=self.sentence1, sentence2=self.sentence2)
        if not (math.isfinite(self.score) and 0.0 <= self.score <= 1.0):
            raise ValueError(f"score {self.score} is out of range; scores lie in [0, 1]")


@dataclass(frozen=True, slots=True)
class Ranking:
    """A list of at least two texts, each further in meaning from the first than the one before it."""

    sentences: tuple[str, ...]

    def __post_init__(self) -> None:
        if len(self.sentences) < 2:
            raise ValueError(f"sentences holds {len(self.sentences)} text(s); a ranked list needs at least 2")
        for place, text in enumerate(self.sentences, start=1):
            _need_text(**{f"sentences[{place}]": text})


@dataclass(frozen=True, slots=True)
class Translation:
    """A sentence and its echo: the sentence translated into another language and back."""

    sentence: str
    echo: str

    def __post_init__(self) -> None:
        _need_text(sentence=self.sentence, echo=self.echo)


@dataclass(frozen=True, slots=True)
class Conditional:
    """Two texts and how near they are in meaning under a condition (C-STS); ``label`` lies in [1, 5], or is hidden."""

    sentence1: str
    sentence2: str
    condition: str
    label: float | None

    def __post_init__(self) -> None:
        _need_text(sentence1=self.sentence1, sentence2=self.sentence2, condition=self.condition)
        if self.label is not None and not 1.0 <= self.label <= 5.0:
            raise ValueError(f"label {self.label:g} is out of range; labels lie in [1, 5], and -1 is a hidden one")


Row = Triplet | Pair | Ranking | Translation | Conditional


def as_dict(row: Row) -> dict[str, Any]:
    """Return the row as a dictionary that JSON can hold; its keys are the column names."""
    values = asdict(row)
    return {key: list(value) if isinstance(value, tuple) else value for key, value in values.items()}


def _need_text(**texts: object) -> None:
    for name, text in texts.items():
        if not isinstance(text, str):
            reason = f"{name} holds {type(text).__name__}; it must be text"
            raise ValueError(reason)  # noqa: TRY004 - one class to catch
        if not text.strip():
            raise ValueError(f"{name} is empty; give it a text, or remove the row")
