"""Lists without a language model: a sentence that loses its words step by step, the control of the other writers.

Nothing here knows what a sentence means. What a model learns from these lists, beside what it learns from lists that a
language model has written, is what their order alone teaches.
"""

from __future__ import annotations

import hashlib
import random
from bisect import bisect_right
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Self

from sentsmith.errors import InputError, SettingsError

# A sentence that the list has already is drawn again, so many times: a swap undone, a word that came back. A corpus of
# a few words may have no other.
_TRIES = 8

_Change = Callable[[list[str], "Words", random.Random], None]


@dataclass(frozen=True, eq=False)
class Words:
    """The words of a corpus, split at white space, to draw from by their frequency.

    Attributes:
        words: Each once, sorted: the order of the sentences changes no draw.
        ends: The words' counts, summed up from the first word to this one.
        places: Word → where it stands in ``words``.
    """

    words: tuple[str, ...]
    ends: tuple[int, ...]
    places: Mapping[str, int]

    @classmethod
    def of(cls, sentences: Iterable[str]) -> Self:
        """Count the words of a corpus.

        Raises:
            InputError: There are fewer than two different words: none could take the place of another.
        """
        counts = Counter(word for sentence in sentences for word in sentence.split())
        if len(counts) < 2:
            raise InputError(f"the sentences hold {len(counts)} different words; at least 2 are needed to draw from")
        words = tuple(sorted(counts))
        ends = tuple(accumulate(counts[word] for word in words))
        return cls(words, ends, {word: place for place, word in enumerate(words)})

    def other(self, word: str, uniform: float) -> str:
        """Return a word other than ``word``, drawn by frequency among all others.

        Args:
            word: Of the corpus or not.
            uniform: In [0, 1), the random number it is drawn by.
        """
        place = self.places.get(word)
        if place is None:
            return self.words[bisect_right(self.ends, int(uniform * self.ends[-1]))]
        start = self.ends[place - 1] if place else 0
        count = self.ends[place] - start
        drawn = int(uniform * (self.ends[-1] - count))
        # The word's own share is cut out of the line: what lies behind it moves up.
        return self.words[bisect_right(self.ends, drawn if drawn < start else drawn + count)]


def corrupt(sentence: str, count: int, words: Words, *, seed: int) -> list[str]:
    """Return sentences that move away from a sentence, each made from the one before by one change.

    The change is drawn evenly among those that are possible:

    * a word is dropped, while more than half of the sentence's first number of words (rounded up) is left;
    * two words that differ change places, if there are two;
    * a word is replaced by another one of the corpus, drawn by frequency.

    So a sentence of one word is only ever replaced, none becomes empty, and none is the same as the one before it. One
    that the list has already is drawn again up to 8 times. Words are joined by one space.

    Args:
        sentence: At least one word.
        count: How many further sentences.
        words: Of the corpus.
        seed: With the sentence, all that the draws depend on: neither the other sentences' order nor ``count`` matters
            (the first ones stay the same).

    Returns:
        ``count`` sentences, the given one not among them.

    Raises:
        InputError: The sentence has no word.
        SettingsError: ``count`` is negative.
    """
    if count < 0:
        raise SettingsError(f"count {count}: must be 0 or more")
    current = sentence.split()
    if not current:
        raise InputError("a sentence without a word cannot be corrupted; remove empty rows")
    digest = hashlib.sha256(repr((seed, sentence)).encode("ascii", "backslashreplace")).digest()
    # Of its methods, `random` alone draws the same numbers in every version of Python.
    dice = random.Random(int.from_bytes(digest[:16], "big"))
    least = (len(current) + 1) // 2
    found = [" ".join(current)]
    seen = set(found)
    for _ in range(count):
        for _ in range(_TRIES):
            changed = _changed(current, least, words, dice)
            text = " ".join(changed)
            if text not in seen:
                break
        current = changed
        found.append(text)
        seen.add(text)
    return found[1:]


def _changed(current: list[str], least: int, words: Words, dice: random.Random) -> list[str]:
    changes: list[_Change] = [_replace]
    if len(current) > least:
        changes.append(_drop)
    if any(word != current[0] for word in current):
        changes.append(_swap)
    changed = current[:]
    changes[_below(len(changes), dice)](changed, words, dice)
    return changed


def _replace(current: list[str], words: Words, dice: random.Random) -> None:
    place = _below(len(current), dice)
    current[place] = words.other(current[place], dice.random())


def _drop(current: list[str], _words: Words, dice: random.Random) -> None:
    del current[_below(len(current), dice)]


def _swap(current: list[str], _words: Words, dice: random.Random) -> None:
    first = _below(len(current), dice)
    others = [place for place, word in enumerate(current) if word != current[first]]
    second = others[_below(len(others), dice)]
    current[first], current[second] = current[second], current[first]


def _below(count: int, dice: random.Random) -> int:
    return int(dice.random() * count)
