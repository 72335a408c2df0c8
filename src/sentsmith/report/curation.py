"""Pictures of a curation: how many triplets each pair of thresholds keeps, and how their scores are spread."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from sentsmith.files import write_text
from sentsmith.report.pictures import heat_map, histograms


def draw(
    positive_scores: Sequence[float],
    negative_scores: Sequence[float],
    kept: ArrayLike,
    *,
    thresholds: Sequence[float],
    rule: str,
    output: str | Path,
) -> list[Path]:
    """Write ``OUT.thresholds.svg`` (a heat map) and ``OUT.scores.svg`` (two histograms).

    Args:
        positive_scores: Of the pairs of anchor and positive.
        negative_scores: Of the pairs of anchor and negative.
        kept: ``[t, t]`` triplets kept, α by row and β by column.
        thresholds: ``[t]``.
        rule: What else decides, for the title.
        output: OUT.

    Returns:
        The two files.

    Raises:
        InputError: There is no score.
    """
    labels = [f"{value:g}" for value in thresholds]
    map_file, histogram_file = Path(f"{output}.thresholds.svg"), Path(f"{output}.scores.svg")
    picture = heat_map(
        np.asarray(kept),
        row_labels=labels,
        column_labels=labels,
        title=f"Triplets kept of {len(positive_scores):,}, {rule}",
        x_label="β, the negative pair's highest score",
        y_label="α, the positive pair's lowest score",
        decimals=0,
    )
    write_text(map_file, picture)
    groups = {"anchor and positive": positive_scores, "anchor and negative": negative_scores}
    write_text(histogram_file, histograms(groups, x_label="score", title="Scores of the triplets' pairs"))
    return [map_file, histogram_file]
