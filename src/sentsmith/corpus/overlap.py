"""The heart of the audit: which texts of the test sets a training text repeats, and how closely."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from sentsmith.corpus.neighbours import NeighbourIndex
from sentsmith.corpus.normalising import normal_form
from sentsmith.corpus.testsets import SourceText

KINDS = ("exact", "normalised", "near")
"""How a training text repeats a test text, the closest first."""

_FEWEST_WORDS = 3


class Match(NamedTuple):
    """A training text (its place in its block) repeats a test text (its number); ``kind`` counts in KINDS."""

    place: int
    test: int
    kind: int


class OverlapIndex:
    """All texts of the test sets, ready to be looked up.

    Normalised matches need three words, near ones five: shorter texts ("the film", "yes") are in every
    corpus. Exact matches always count.

    Args:
        texts: The texts, of one folder or of several.
        near: Whether to look for near duplicates too.
    """

    def __init__(self, texts: Iterable[SourceText], *, near: bool = True) -> None:
        self.texts: list[str] = []
        self.sources: list[str] = []
        self.files_of: list[set[int]] = []
        """For each distinct text, the places in ``sources`` of the files that hold it."""
        self._numbers: dict[str, int] = {}
        self._forms: dict[str, list[int]] = {}
        self._keys: dict[str, list[int]] = {}
        files: dict[str, int] = {}
        for source, _, text in texts:
            file = files.setdefault(source, len(files))
            self._add(text, file)
        self.sources = list(files)
        self._form_list = list(self._forms)
        self._near = NeighbourIndex(self._form_list if near else [])

    def _add(self, text: str, file: int) -> None:
        number = self._numbers.get(text)
        if number is None:
            number = self._numbers[text] = len(self.texts)
            self.texts.append(text)
            self.files_of.append(set())
            form = normal_form(text)
            if form.count(" ") >= _FEWEST_WORDS - 1:
                self._forms.setdefault(form, []).append(number)
                self._keys.setdefault(form.replace(" ", ""), []).append(number)
        self.files_of[number].add(file)

    def matches(self, texts: Sequence[str]) -> Iterator[Match]:
        """Yield every match of these training texts; of each pair the closest kind only.

        Args:
            texts: Some thousands at a time.
        """
        forms = [normal_form(text) for text in texts]
        for place, (text, form) in enumerate(zip(texts, forms, strict=True)):
            exact = self._numbers.get(text.strip())
            if exact is not None:
                yield Match(place, exact, 0)
            for number in self._keys.get(form.replace(" ", ""), ()):
                if number != exact:
                    yield Match(place, number, 1)
        for place, neighbour in self._near.find(forms) if len(self._near) else ():
            form = self._form_list[neighbour]
            if form.replace(" ", "") != forms[place].replace(" ", ""):
                for number in self._forms[form]:
                    yield Match(place, number, 2)


@dataclass
class FileTally:
    """What was found of one test file.

    Attributes:
        texts: Distinct texts in it.
        exact: How many of them the training data repeats to the letter.
        normalised: How many more it repeats but for case, punctuation, space and tokenisation.
        near: How many more it repeats but for a few words, or their order.
        rows: How many rows of the training data repeat a text of this file.
    """

    texts: int = 0
    exact: int = 0
    normalised: int = 0
    near: int = 0
    rows: int = 0


@dataclass
class Tally:
    """Counts over all blocks of the training data."""

    index: OverlapIndex
    rows: int = 0
    texts: int = 0
    overlapping: dict[str, int] = field(default_factory=lambda: dict.fromkeys(KINDS, 0))
    examples: dict[str, list[dict[str, str]]] = field(default_factory=lambda: {kind: [] for kind in KINDS})
    _best: dict[int, int] = field(default_factory=dict)
    _rows_of: dict[int, int] = field(default_factory=dict)

    def add_block(self, texts: Sequence[str], row_of: Sequence[int], rows: int, *, most_examples: int) -> set[int]:
        """Count a block of rows.

        Args:
            texts: All texts of the block.
            row_of: For each text the place of its row in the block.
            rows: How many rows the block has.
            most_examples: How many examples of each kind to keep.

        Returns:
            The places of the rows that overlap.
        """
        kind_of: dict[int, int] = {}
        files_of: dict[int, set[int]] = {}
        for place, test, kind in self.index.matches(texts):
            row = row_of[place]
            kind_of[row] = min(kind, kind_of.get(row, kind))
            files_of.setdefault(row, set()).update(self.index.files_of[test])
            self._best[test] = min(kind, self._best.get(test, kind))
            self._keep_example(texts[place], test, KINDS[kind], most_examples)
        for files in files_of.values():
            for file in files:
                self._rows_of[file] = self._rows_of.get(file, 0) + 1
        for kind in kind_of.values():
            self.overlapping[KINDS[kind]] += 1
        self.rows += rows
        self.texts += len(texts)
        return set(kind_of)

    def _keep_example(self, text: str, test: int, kind: str, most: int) -> None:
        kept = self.examples[kind]
        if len(kept) < most:
            source = self.index.sources[min(self.index.files_of[test])]
            kept.append({"train": text[:300], "test": self.index.texts[test][:300], "file": source})

    def repeated(self) -> set[str]:
        """Return the test texts that were met."""
        return {self.index.texts[test] for test in self._best}

    def files(self) -> dict[str, FileTally]:
        """Return the counts of each test file, in the order they were read."""
        tallies = [FileTally(rows=self._rows_of.get(file, 0)) for file in range(len(self.index.sources))]
        for test, files in enumerate(self.index.files_of):
            kind = self._best.get(test)
            for file in files:
                tally = tallies[file]
                tally.texts += 1
                if kind is not None:
                    setattr(tally, KINDS[kind], getattr(tally, KINDS[kind]) + 1)
        return dict(zip(self.index.sources, tallies, strict=True))
