"""FREEZE as a training run: the frozen model is read once, then encoders and a head learn from the scored pairs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self

from pydantic import model_validator

from sentsmith.methods.freeze.settings import FreezeSettings
from sentsmith.training.settings import Recipe as SharedRecipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

    from sentsmith.evaluation.pairs import ScoredPairs
    from sentsmith.methods.freeze.build import Building
    from sentsmith.methods.freeze.store import LayerStore, StoreCollator
    from sentsmith.training.selection import Judge

_ENCODERS = r".*\.encoders\..*"


class Recipe(SharedRecipe):
    """A FREEZE recipe; ``model`` is any transformer, or a FREEZE model to go on with; rows are scored pairs."""

    method: Literal["freeze"] = "freeze"
    freeze: FreezeSettings = FreezeSettings()

    @model_validator(mode="after")
    def _settings_that_do_not_go_together(self) -> Self:
        settings = self.freeze
        changed = [
            name for name, field in FreezeSettings.model_fields.items() if getattr(settings, name) != field.default
        ]
        linear = settings.start in ("cosines", "pca")
        looks_up = settings.look_up and settings.readout != "attention"
        refused = {
            "data.column is for sentences; these rows are found by their columns' names": self.data.column is not None,
            "freeze.depth is that of encoders with hidden layers: freeze.start scratch or autoencoder": (
                linear and "depth" in changed
            ),
            "freeze.late_bottleneck is for one freeze.bottleneck, not for a list": (
                settings.late_bottleneck is not None and isinstance(settings.bottleneck, tuple)
            ),
            "freeze.combine summed is the sum of codes: freeze.start scratch or autoencoder": (
                settings.combine == "summed" and linear
            ),
            "freeze.combine summed has one cosine, the learned similarity itself: freeze.head nonnegative": (
                settings.combine == "summed" and settings.head != "nonnegative"
            ),
            "freeze.combine summed needs all layers: leave freeze.leave_out": (
                settings.combine == "summed" and bool(settings.leave_out)
            ),
            "freeze.hidden is for freeze.head mlp": "hidden" in changed and settings.head != "mlp",
            "freeze.readout attention learns what it reads, so nothing can be stored: leave freeze.look_up": (
                settings.readout == "attention" and "look_up" in changed
            ),
            "freeze.noise is on what encoders read, and freeze.start cosines has none": (
                settings.noise > 0 and settings.start == "cosines"
            ),
            "freeze.store and store_dtype are for stored vectors, and the frozen model runs in every step": (
                not (looks_up or self.reads_sentences) and ("store" in changed or "store_dtype" in changed)
            ),
            "training.chunk_tokens and recompute are for a model that runs, and stored vectors are looked up": looks_up
            and (self.training.chunk_tokens is not None or self.training.recompute),
            "training.blend averages with the start model, whose encoders are random or an autoencoder's; leave it 1": (
                self.training.blend != 1.0
            ),
        }
        for message, wrong in refused.items():
            if wrong:
                raise ValueError(message)
        return self

    @property
    def reads_sentences(self) -> bool:
        """Whether the frozen model is read over raw sentences."""
        return self.freeze.start in ("pca", "autoencoder") or self.freeze.normalise_input

    def reads(self) -> tuple[str, ...]:
        """Return what every recipe reads, the raw sentences, and the folder of the store."""
        more = (self.freeze.autoencoder.sentences, self.freeze.store)
        return (*super().reads(), *(name for name in more if name is not None))


def run(
    recipe: Recipe,
    output: str | Path,
    *,
    resume: bool = False,
    overwrite: bool = False,
    progress: bool = False,
) -> dict[str, Any]:
    """Train by ``recipe`` into the folder ``output``; returns the run record.

    Raises:
        InputError: The data, the model or the output folder are wrong.
        SettingsError: The settings do not fit the model.
        SentsmithError: The training failed.
    """
    from transformers import set_seed

    from sentsmith.methods.freeze.build import Building, open_model
    from sentsmith.methods.freeze.objective import FreezeLoss
    from sentsmith.methods.freeze.store import dev_pairs, shared_sentences
    from sentsmith.training.data import load_rows, pair_rows
    from sentsmith.training.output import Output
    from sentsmith.training.run import Plan, check_enough, train

    settings = recipe.freeze
    place = Output(Path(output), resume, overwrite)
    place.check(recipe)
    rows = load_rows(
        recipe.data,
        lambda path: pair_rows(path, settings.scale),
        held_out=recipe.data.kept_apart,
        seed=recipe.training.seed,
    )
    check_enough(recipe, len(rows.train))
    dev, source = dev_pairs(recipe.data.dev, rows, scale=settings.scale)
    if shared := shared_sentences(rows, dev):
        rows.warnings.append(f"{shared} sentences of the pairs that choose the checkpoint are trained on too")
    # Encoders draw their weights.
    set_seed(recipe.training.seed)
    building = Building(recipe, rows, open_model(recipe), progress=progress)
    # All input is read: from here on the folder is this run's own.
    work = place.open(recipe, rows.sha256)
    model = building.model(work)
    store = building.store(work) if building.looks_up else None
    plan = Plan(
        model=model,
        loss=lambda trained, chunking: FreezeLoss(trained, settings.loss, chunking=chunking),
        rows=rows,
        collator=None if store is None else lambda trained: _collator(trained, store),
        judge=_judge(building, dev, source, work),
        # The trainer refuses a pattern that no weight has.
        learning_rates={_ENCODERS: settings.encoder_learning_rate} if building.has_learning_encoders() else {},
        notes=_notes(model, settings.loss),
        facts=building.facts,
        learned=lambda trained: {"weights": trained[-1].weights},
        seconds=building.seconds,
    )
    return train(recipe, plan, replace(place, resume=True, overwrite=False), progress=progress)


def _judge(building: Building, dev: Sequence[ScoredPairs], source: str, work: Path) -> Judge | None:
    from sentsmith.methods.freeze.store import StoreJudge
    from sentsmith.training.selection import ScoredPairsJudge

    if not dev:
        return None
    if not building.looks_up:
        return ScoredPairsJudge(dev, source)
    return StoreJudge(dev, source, building.dev_store(dev, work))


def _collator(model: SentenceTransformer, store: LayerStore) -> StoreCollator:
    from sentsmith.methods.freeze.store import StoreCollator

    return StoreCollator(preprocess_fn=model.preprocess, store=store)


def _notes(model: SentenceTransformer, loss: str) -> list[str]:
    frozen: Any = model[0]
    codes: Any = model[1]
    notes = [
        "Method: FREEZE; the vectors of all layers of a frozen model, each through an encoder of its own.",
        f"Readout: {frozen.readout}; how sentences end: {frozen.punctuation}; loss: {loss}.",
    ]
    if codes.pair_scores is None:
        notes.append("The cosine of two vectors ranks pairs as the learned similarity does.")
    else:
        notes.append(
            f"Its similarity is that of its head ({codes.head}): `model[-1].pair_scores(first, second)` on two arrays "
            "of its vectors. Their cosine weighs all layers alike and is not what was trained."
        )
    return notes
