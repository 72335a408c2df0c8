"""BERT-whitening as a run: nothing is trained, a linear map is fitted and saved as part of the model."""

from __future__ import annotations

import logging
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from sentsmith.encoders.pooling import Pooling
from sentsmith.settings import Settings
from sentsmith.training.settings import BaseRecipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.methods.whitening.objective import Whitening

logger = logging.getLogger(__name__)


class WhiteningSettings(Settings):
    """What whitening adds to the shared settings."""

    dimension: int | None = Field(default=None, ge=1, description="Leading directions to keep; null keeps all")
    pooling: Pooling | None = Field(default=None, description="Replaces the model's pooling; null keeps its own")


class Recipe(BaseRecipe):
    """A whitening recipe. There is no ``training``, and nothing to choose: the map is computed, not learned."""

    method: Literal["whitening"] = "whitening"
    whitening: WhiteningSettings = WhiteningSettings()


def run(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,  # noqa: ARG001
) -> dict[str, Any]:
    """Fit by ``recipe`` into the folder ``output``; returns the run record.

    Raises:
        InputError: The data, the model or the output folder are wrong.
    """
    from sentsmith.encoders.embedding import as_encoder
    from sentsmith.encoders.loading import load
    from sentsmith.encoders.pooling import with_pooling
    from sentsmith.errors import SettingsError
    from sentsmith.methods.whitening.objective import fit_whitening
    from sentsmith.training.data import load_rows
    from sentsmith.training.output import Output
    from sentsmith.training.run import base_record, finish

    place = Output(Path(output), resume, overwrite)
    place.check(recipe)
    begun = time.perf_counter()
    rows = load_rows(recipe.data)
    model = load(recipe.model)
    if recipe.whitening.pooling is not None:
        model = with_pooling(model, recipe.whitening.pooling)
    vectors = as_encoder(model).encode(list(rows.train["sentence"]))
    try:
        fitted = fit_whitening(vectors, dimension=recipe.whitening.dimension)
    except ValueError as error:
        raise SettingsError(f"whitening: {error}") from error
    if len(vectors) < vectors.shape[1]:
        rows.warnings.append(f"{len(vectors)} sentences cannot span {vectors.shape[1]} dimensions; bring more")
    result = base_record(recipe, rows, time.perf_counter() - begun, rows.warnings)
    result["selection"] = None
    work = place.open(recipe, rows.sha256)
    finish(_with_map(model, fitted), recipe, result, work, notes=["Method: BERT-whitening (Su et al. 2021)."])
    return result


def _with_map(model: SentenceTransformer, fitted: Whitening) -> SentenceTransformer:
    import torch
    from sentence_transformers.base.modules import Dense

    from sentsmith.encoders.pooling import rebuilt

    weight = torch.from_numpy(fitted.matrix.T.copy()).float()
    bias = torch.from_numpy(-fitted.mean @ fitted.matrix).float()
    dense = Dense(
        weight.shape[1],
        weight.shape[0],
        activation_function=torch.nn.Identity(),
        init_weight=weight,
        init_bias=bias,
    )
    return rebuilt(model, [*model, dense])
