"""Near duplicates among millions of sentences: exact, without random hashing, vectorised.

Two texts are near duplicates when the bags (multisets) of their words differ by at most k words replaced,
added or left out, in any order of the words: ``max(|A − B|, |B − A|) ≤ k``, where k grows with the number of
words of the longer one (:func:`allowed_changes`).

Candidates up to :data:`LONGEST` words come from deletion neighbourhoods: bags that differ by at most k have a
common bag after at most k words are taken out of each. The hash of a bag is the wrap-around sum of its words'
64-bit hashes, so taking a word out is a subtraction, and the keys of a whole block of sentences are a few
lines of numpy. Texts longer than that share some of their 16 smallest hashes of word triples (a bottom-k
sketch, Broder 1997) when they are near. Every candidate is then compared on its words, so a collision of
hashes never counts.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

Hashes = NDArray[np.uint64]
Places = NDArray[np.int64]

SHORTEST = 5
"""Two texts of fewer words are no near duplicates: one changed word of four makes another sentence."""

TWO_CHANGES = 12
"""From this many words on, two may differ."""

LONGEST = 32
"""The longest text, in words, whose pairs of deletions are enumerated."""

_SKETCH = 16
_SHARED = 2
_COMMON = 1000
_BLOOM_BITS = 28
_KNOWN_WORDS = 1_000_000
_SLICE = 1 << 20


def allowed_changes(words: int) -> int:
    """Return by how many words a text of ``words`` words may differ from its near duplicate.

    None below 5 words, 1 below 12, 2 up to 32, then a tenth of the words.
    """
    if words < SHORTEST:
        return 0
    if words < TWO_CHANGES:
        return 1
    return 2 if words <= LONGEST else words // 10


def is_near(first: Sequence[str], second: Sequence[str]) -> bool:
    """Tell whether two texts, as words of their normal forms, are near duplicates."""
    allowed = allowed_changes(max(len(first), len(second)))
    if not allowed or abs(len(first) - len(second)) > allowed:
        return False
    one, other = Counter(first), Counter(second)
    return (one - other).total() <= allowed and (other - one).total() <= allowed


class NeighbourIndex:
    """Finds the near duplicates of texts among the texts it was made from.

    Args:
        texts: Normal forms (words with single spaces).
    """

    def __init__(self, texts: Sequence[str]) -> None:
        self._words = [text.split() for text in texts]
        self._hashes = _WordHashes()
        keys, owners, long = self._keys(self._words)
        self._short = _Lookup(keys[~long], owners[~long])
        self._long = _Lookup(keys[long], owners[long], most=_COMMON)

    def __len__(self) -> int:
        return len(self._words)

    def find(self, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
        """Yield ``(place in texts, place in the index)`` for every pair of near duplicates, each pair once.

        Args:
            texts: Normal forms; a few thousand at a time keep memory small.
        """
        words = [text.split() for text in texts]
        keys, owners, long = self._keys(words)
        for query, place in self._short.pairs(keys[~long], owners[~long], 1):
            if is_near(words[query], self._words[place]):
                yield query, place
        for query, place in self._long.pairs(keys[long], owners[long], _SHARED):
            first, second = words[query], self._words[place]
            if max(len(first), len(second)) > LONGEST and is_near(first, second):
                yield query, place

    def _keys(self, words: Sequence[Sequence[str]]) -> tuple[Hashes, Places, NDArray[np.bool_]]:
        """Return the keys of all texts, whose they are, and whether they belong to a sketch."""
        keys: list[Hashes] = [np.empty(0, np.uint64)]
        owners: list[Places] = [np.empty(0, np.int64)]
        long: list[NDArray[np.bool_]] = [np.empty(0, np.bool_)]

        def add(found: Hashes, whose: Places, *, sketch: bool) -> None:
            keys.append(found.ravel())
            owners.append(np.repeat(whose, found.shape[1]))
            long.append(np.full(found.size, sketch))

        lengths = np.fromiter((len(text) for text in words), np.int64, len(words))
        for length in np.unique(lengths[lengths >= SHORTEST - 1]).tolist():
            places = np.flatnonzero(lengths == length)
            hashes = self._hashed([words[place] for place in places.tolist()], length)
            if length <= LONGEST:
                # The longer text of a pair sets what is allowed, and two words more is the longest it can be.
                add(_deletions(hashes, allowed_changes(min(length + 2, LONGEST))), places, sketch=False)
            if length + allowed_changes(LONGEST + 1) > LONGEST:
                # The shorter text of a pair may be one of those enumerated while the longer one is sketched.
                add(_sketches(hashes), places, sketch=True)
        return np.concatenate(keys), np.concatenate(owners), np.concatenate(long)

    def _hashed(self, texts: Sequence[Sequence[str]], length: int) -> Hashes:
        if len(self._hashes) > _KNOWN_WORDS:
            self._hashes.clear()
        known = self._hashes
        flat = [known[word] for text in texts for word in text]
        return np.array(flat, np.uint64).reshape(len(texts), length)


class _WordHashes(dict[str, int]):
    """Maps a word to its 64-bit hash, the same in every process; filled as words are met."""

    def __missing__(self, word: str) -> int:
        value = int.from_bytes(hashlib.blake2b(word.encode(), digest_size=8).digest())
        self[word] = value
        return value


def _deletions(hashes: Hashes, deleted: int) -> Hashes:
    """Return ``[texts, keys]``: bag hashes of ``[texts, words]`` with up to ``deleted`` words out."""
    whole = hashes.sum(axis=1, keepdims=True, dtype=np.uint64)
    parts = [whole, whole - hashes]
    if deleted == 2:
        first, second = np.triu_indices(hashes.shape[1], 1)
        parts.append(whole - hashes[:, first] - hashes[:, second])
    return np.concatenate(parts, axis=1)


def _sketches(hashes: Hashes) -> Hashes:
    """Return ``[texts, 16]``: the smallest hashes of the triples of neighbouring words."""
    a, b, c = hashes[:, :-2], hashes[:, 1:-1], hashes[:, 2:]
    triples = np.sort(_mixed(a + _mixed(b + _mixed(c))), axis=1)
    return triples[:, :_SKETCH]


def _mixed(values: Hashes) -> Hashes:
    # The finaliser of splitmix64 (Steele, Lea and Flood 2014): every input bit changes half of the output's.
    values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return values ^ (values >> np.uint64(31))


class _Lookup:
    """Sorted keys with their owners, behind a bit table that turns most strangers away at once."""

    def __init__(self, keys: Hashes, owners: Places, *, most: int | None = None) -> None:
        order = np.argsort(keys, kind="stable")
        self._keys = keys[order]
        self._owners = owners[order].astype(np.int32)
        if most is not None:
            self._drop_common(most)
        # As many bits as keep the table nearly empty, and no more.
        bits = min(_BLOOM_BITS, max(10, int(len(self._keys) * 32).bit_length()))
        self._shift = np.uint64(64 - bits)
        self._bits = np.zeros(1 << (bits - 3), np.uint8)
        for start in range(0, len(self._keys), _SLICE):
            byte, bit = self._position(self._keys[start : start + _SLICE])
            np.bitwise_or.at(self._bits, byte, bit)

    def _drop_common(self, most: int) -> None:
        # A triple of words that a thousand texts hold says nothing, and would make a million pairs.
        _, inverse, counts = np.unique(self._keys, return_inverse=True, return_counts=True)
        rare = counts[inverse] <= most
        self._keys, self._owners = self._keys[rare], self._owners[rare]

    def _position(self, keys: Hashes) -> tuple[NDArray[np.int64], NDArray[np.uint8]]:
        position = keys >> self._shift
        bit = np.left_shift(np.uint8(1), (position & np.uint64(7)).astype(np.uint8))
        return (position >> np.uint64(3)).astype(np.int64), bit

    def pairs(self, keys: Hashes, queries: Places, shared: int) -> Iterator[tuple[int, int]]:
        """Yield ``(query, owner)`` for those that share at least ``shared`` keys, each pair once."""
        byte, bit = self._position(keys)
        hopeful = np.flatnonzero(self._bits[byte] & bit)
        keys, queries = keys[hopeful], queries[hopeful]
        order = np.argsort(keys)  # sorted questions walk the sorted keys instead of jumping about in memory
        keys, queries = keys[order], queries[order]
        left = np.searchsorted(self._keys, keys, side="left")
        right = np.searchsorted(self._keys, keys, side="right")
        hit = np.flatnonzero(right > left)
        yield from self._expanded(queries[hit], left[hit], right[hit], shared)

    def _expanded(self, queries: Places, left: Places, right: Places, shared: int) -> Iterator[tuple[int, int]]:
        # By query, so that a pair found through several keys meets itself and is given once; a slice of
        # queries at a time, so that a popular key does not fill the memory.
        order = np.argsort(queries, kind="stable")
        queries, left, counts = queries[order], left[order], (right - left)[order]
        sizes = np.cumsum(counts)
        start = 0
        while start < len(queries):
            done = sizes[start - 1] if start else 0
            end = int(np.searchsorted(sizes, done + _SLICE, side="right"))
            end = max(end, start + 1)
            end = int(np.searchsorted(queries, queries[end - 1], side="right"))
            part = counts[start:end]
            offsets = np.arange(part.sum()) - np.repeat(np.cumsum(part) - part, part)
            owners = self._owners[np.repeat(left[start:end], part) + offsets]
            both = (np.repeat(queries[start:end], part) << 32) | owners
            found, times = np.unique(both, return_counts=True)
            for pair in found[times >= shared].tolist():
                yield pair >> 32, pair & 0xFFFFFFFF
            start = end
