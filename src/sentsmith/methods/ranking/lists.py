"""The training rows of ranking: lists, as many and in the order that the settings ask for, and triplets beside them."""

from __future__ import annotations

import logging
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, cycle, islice
from typing import TYPE_CHECKING, Any

from sentsmith.corpus.datasets import data_hash
from sentsmith.errors import InputError
from sentsmith.training.data import TrainingRows, find_audit, load_rows, ranking_rows, triplet_rows

if TYPE_CHECKING:
    from sentsmith.methods.ranking.recipe import Recipe

logger = logging.getLogger(__name__)

# Fewer held-out lists than this choose by chance.
_FEW = 30


@dataclass(frozen=True)
class Lists:
    """What is trained on.

    Attributes:
        rows: Lists in the column ``sentences``; with triplets, some of them in the columns ``anchor``, ``positive`` and
            ``negative`` of each row.
        loaded: The lists as they were read, before a share of them was drawn.
        facts: What the run record says.
    """

    rows: TrainingRows
    loaded: TrainingRows
    facts: Mapping[str, Any]

    def trained_texts(self) -> Iterator[str]:
        """Yield the sentences of the lists that are trained on."""
        return chain.from_iterable(self.rows.train["sentences"])

    def texts(self) -> Iterator[str]:
        """Yield the sentences of all lists, whatever the seed and the share."""
        return chain(*(chain.from_iterable(part["sentences"]) for part in (self.loaded.train, self.loaded.held_out)))


def load_lists(recipe: Recipe) -> Lists:
    """Read the lists of a recipe, and its triplets.

    Raises:
        InputError: A file cannot be read, or holds nothing.
    """
    settings, dice = recipe.ranking, random.Random(recipe.training.seed)
    loaded = load_rows(recipe.data, ranking_rows, held_out=recipe.data.kept_apart, seed=recipe.training.seed)
    lists = [list(sentences) for sentences in loaded.train["sentences"]]
    if settings.share < 1.0:
        kept = dice.sample(range(len(lists)), max(1, round(settings.share * len(lists))))
        lists = [lists[place] for place in sorted(kept)]
    if settings.shuffle:
        for sentences in lists:
            dice.shuffle(sentences)
    columns: dict[str, Any] = {"sentences": lists}
    facts: dict[str, Any] = {"lists": len(lists), "sentences": sum(map(len, lists)), "triplets": None}
    warnings, sha256 = list(loaded.warnings), loaded.sha256
    if settings.triplets is not None:
        triplets, facts["triplets"], found = _triplets(settings.triplets)
        dice.shuffle(triplets)
        columns |= dealt(triplets, hands=len(lists), each=settings.triplets_per_list)
        facts["triplets"]["used"] = min(len(triplets), len(lists) * settings.triplets_per_list)
        warnings += found + _left_out(facts["triplets"])
        sha256 += f"+{facts['triplets']['sha256']}"
    # Around the first of two sentences there is no order that could be wrong.
    long = [place for place, sentences in enumerate(loaded.held_out["sentences"]) if len(sentences) > 2]
    held_out = loaded.held_out.select(long)
    if len(held_out) < min(_FEW, len(loaded.held_out)) or 0 < len(held_out) < _FEW:
        warnings += _warned(
            f"the step is chosen by {len(held_out)} held-out lists of three sentences or more, which is little; give "
            "data.dev, or raise data.held_out"
        )
    train = type(loaded.train).from_dict(columns)
    rows = replace(loaded, train=train, held_out=held_out, warnings=warnings, sha256=sha256)
    return Lists(rows, loaded, facts)


def _triplets(path: str) -> tuple[list[dict[str, str]], dict[str, Any], list[str]]:
    triplets = list(triplet_rows(path))
    if not triplets:
        raise InputError("holds no triplets to train on", path=path)
    audit, warnings = find_audit(path)
    return triplets, {"path": path, "sha256": data_hash(path), "rows": len(triplets), "audit": audit}, warnings


def _left_out(facts: Mapping[str, Any]) -> list[str]:
    if facts["used"] == facts["rows"]:
        return []
    return _warned(
        f"only {facts['used']:,} of {facts['rows']:,} triplets are trained on, as there are too few lists to carry "
        "them; raise ranking.triplets_per_list"
    )


def _warned(warning: str) -> list[str]:
    logger.warning("%s", warning)
    return [warning]


def dealt(triplets: Sequence[dict[str, str]], *, hands: int, each: int) -> dict[str, list[list[str]]]:
    """Return columns of lists: the triplets dealt out to so many lists, over and over where there are too few."""
    stream: Iterator[dict[str, str]] = cycle(triplets)
    rows = [list(islice(stream, each)) for _ in range(hands)]
    return {name: [[triplet[name] for triplet in row] for row in rows] for name in triplets[0]}
