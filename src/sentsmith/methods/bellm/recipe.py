"""BeLLM as a training run: a decoder made an encoder, and its contrastive training."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pydantic import model_validator

from sentsmith.encoders.template import IN_CONTEXT, REPRESENTATIVE_WORD, Template
from sentsmith.errors import SettingsError
from sentsmith.methods.bellm.settings import BellmSettings, LoraSettings
from sentsmith.training.settings import Recipe as SharedRecipe

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer
    from torch import nn

    from sentsmith.encoders.chunked import Chunking
    from sentsmith.training.data import TrainingRows
    from sentsmith.training.selection import Judge


# What is read of rows of one kind only.
_OF_ROWS = {
    **dict.fromkeys(
        ("contrastive_weight", "cosine_weight", "angle_weight", "temperature", "mask_duplicates"), "triplets"
    ),
    "hinge_weight": "conditional",
}


class Recipe(SharedRecipe):
    """A BeLLM recipe; ``model`` is a decoder, or a model of BeLLM to go on with; rows are triplets, or C-STS's."""

    several_processes: ClassVar[bool] = True
    method: Literal["bellm"] = "bellm"
    bellm: BellmSettings = BellmSettings()

    @model_validator(mode="after")
    def _settings_that_do_not_go_together(self) -> Self:
        settings, lora = self.bellm, self.bellm.tuning == "lora"
        cut = settings.added_layers > 0 or settings.layers is not None
        looks = settings.added_layers > 0 or settings.both_ways_from is not None
        changed = _changed(settings)
        refused = {
            "data.column is for sentences; these rows are found by their columns' names": self.data.column is not None,
            "bellm.quantise freezes the base, so it needs bellm.tuning lora": settings.quantise != "none" and not lora,
            "bellm.save adapter needs bellm.tuning lora": settings.save == "adapter" and not lora,
            "bellm.save adapter holds no bellm.layers or added_layers, which its base has not; save merged": (
                settings.save == "adapter" and cut
            ),
            "training.blend averages weights, and an average of adapters is none of models; use bellm.tuning full": (
                self.training.blend != 1.0 and lora
            ),
            "bellm.added_layers copies weights, which bellm.quantise has not whole": (
                settings.added_layers > 0 and settings.quantise != "none"
            ),
            "bellm.lora is the adapter's, which bellm.tuning full has not": settings.lora != LoraSettings()
            and not lora,
            "bellm.pad_leak is for layers that look both ways, and bellm.both_ways_from is null": (
                settings.pad_leak is True and not looks
            ),
            # Rows that are held out are judged by a contrast at this temperature too.
            "bellm.temperature is the contrastive loss's, whose weight is 0": (
                "temperature" in changed and not settings.contrastive_weight and not self.data.kept_apart
            ),
            "bellm.mask_duplicates is the contrastive loss's, whose weight is 0": (
                "mask_duplicates" in changed and not settings.contrastive_weight
            ),
        }
        for message, wrong in refused.items():
            if wrong:
                raise ValueError(message)
        self._check_rows()
        return self

    def _check_rows(self) -> None:
        settings = self.bellm
        if settings.template is not None:
            _check_prompt("bellm.template", settings.template, settings)
        wrong = [name for name in _changed(settings) if _OF_ROWS.get(name, settings.rows) != settings.rows]
        if wrong:
            raise ValueError(f"bellm.{wrong[0]} is for bellm.rows {_OF_ROWS[wrong[0]]}")
        if not any((settings.contrastive_weight, settings.cosine_weight, settings.angle_weight)):
            raise ValueError("the weights of all terms of the loss are 0: there is nothing to train for")


def _changed(settings: BellmSettings) -> list[str]:
    """Return the settings that are not as they are by default."""
    return [name for name, field in BellmSettings.model_fields.items() if getattr(settings, name) != field.default]


def _check_prompt(whose: str, template: str, settings: BellmSettings) -> None:
    if ("condition" in Template(template).fields) != (settings.rows == "conditional"):
        raise SettingsError(f"{whose} {template!r}: {{condition}} is for bellm.rows conditional, and needed")


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
        MissingExtraError: peft or bitsandbytes is needed and not installed.
        SentsmithError: The training failed.
    """
    from transformers import set_seed

    from sentsmith.training.data import conditional_rows, load_rows, triplet_rows
    from sentsmith.training.output import Output
    from sentsmith.training.run import Plan, check_enough, train

    settings = recipe.bellm
    place = Output(Path(output), resume, overwrite)
    place.check(recipe)
    read = conditional_rows if settings.rows == "conditional" else triplet_rows
    rows = load_rows(recipe.data, read, held_out=recipe.data.kept_apart, seed=recipe.training.seed)
    check_enough(recipe, len(rows.train))
    judge = _conditional_judge(recipe, rows) if settings.rows == "conditional" else None
    # An adapter draws its weights: the seed has to stand before it is put on.
    set_seed(recipe.training.seed)
    model = build(recipe)
    plan = Plan(
        model=model,
        loss=lambda trained, chunking: _loss(trained, chunking, settings),
        rows=rows,
        saved_as=lambda trained: _merged(recipe, trained) if settings.save == "merged" else trained,
        collator=_collator if settings.rows == "conditional" else None,
        judge=judge,
        temperature=settings.temperature,
        notes=_notes(recipe, model),
        facts=_facts(model),
    )
    return train(recipe, plan, place, progress=progress)


def build(recipe: Recipe, *, quantised: bool = True) -> SentenceTransformer:
    """Return the model to train: the decoder as an encoder, with its adapter.

    Args:
        recipe: The settings.
        quantised: False loads the base in full precision, whatever the settings.
    """
    from sentsmith.encoders.adapters import add_lora
    from sentsmith.encoders.loading import resolve
    from sentsmith.methods.bellm.encoder import is_saved_decoder
    from sentsmith.methods.bellm.settings import first_layer

    settings = recipe.bellm
    again = is_saved_decoder(resolve(recipe.model))
    model = _of_our_own(recipe) if again else _of_a_decoder(recipe, quantised=quantised)
    decoder: Any = model[0]
    depth = decoder.model.config.num_hidden_layers
    first = first_layer(settings.both_ways_from, depth - settings.added_layers)
    # Added layers look both ways, and only those unless others are asked for.
    decoder.look_both_ways(depth - settings.added_layers if settings.added_layers and first is None else first)
    decoder.warn_of_no_effect(settings.readout)
    if settings.layer_recompute:
        # The library has a new name for it, of which it warns.
        name = "activation_checkpointing_enable"
        enable = getattr(decoder.model, name, None) or decoder.model.gradient_checkpointing_enable
        enable({"use_reentrant": False})
    if settings.tuning == "lora":
        folder = Path(recipe.model)
        base = str(folder.resolve()) if folder.is_dir() else recipe.model
        add_lora(decoder.model, **settings.lora.model_dump(), base=base)
    return model


def _of_a_decoder(recipe: Recipe, *, quantised: bool) -> SentenceTransformer:
    from sentsmith.encoders.adapters import quantisation
    from sentsmith.encoders.decoder import make_encoder

    settings = recipe.bellm
    paper = IN_CONTEXT if settings.rows == "conditional" else REPRESENTATIVE_WORD
    return make_encoder(
        recipe.model,
        template=settings.template or paper,
        readout=settings.readout,
        pad_leak=bool(settings.pad_leak),
        full_stop=bool(settings.full_stop),
        layers=settings.layers,
        added_layers=settings.added_layers,
        model_kwargs=quantisation(settings.quantise if quantised else "none"),
    )


def _of_our_own(recipe: Recipe) -> SentenceTransformer:
    """Go on with a model that was trained before: its own prompt, full stops and padding where none are set."""
    from sentsmith.methods.bellm.encoder import encoder_of

    settings = recipe.bellm
    for name, plain in (("quantise", "none"), ("added_layers", 0), ("save", "merged")):
        if getattr(settings, name) != plain:
            raise SettingsError(
                f"bellm.{name} is for a decoder as it came, and {recipe.model!r} is a model of BeLLM already; leave it "
                f"{plain!r}, or begin with the decoder"
            )
    model = encoder_of(
        recipe.model,
        template=settings.template,
        readout=settings.readout,
        full_stop=settings.full_stop,
        layers=settings.layers,
        both_ways_from="none",  # `build` has the layers look as the recipe says
    )
    decoder: Any = model[0]
    _check_prompt(
        "the model's own prompt, in place of which bellm.template could give another,", decoder.template, settings
    )
    if settings.pad_leak is not None:
        decoder.pad_leak = settings.pad_leak
    return model


def _merged(recipe: Recipe, model: SentenceTransformer) -> SentenceTransformer:
    from sentsmith.encoders.adapters import merge_adapter
    from sentsmith.training.weights import put_weights, trained_weights

    if recipe.bellm.quantise != "none":
        # The adapter goes onto the decoder's own weights. What it was trained on, the values that 4 bits stand for,
        # is a little off them.
        whole = build(recipe, quantised=False)
        put_weights(whole, trained_weights(model))
        model = whole
    decoder: Any = model[0]
    merge_adapter(decoder.model)
    return model


def _loss(model: SentenceTransformer, chunking: Chunking, settings: BellmSettings) -> nn.Module:
    from sentsmith.methods.bellm.conditional import ConditionalLoss
    from sentsmith.methods.bellm.objective import BellmLoss

    pad_token_id = getattr(model.tokenizer, "pad_token_id", None) or 0
    if settings.rows == "conditional":
        return ConditionalLoss(model, hinge_weight=settings.hinge_weight, chunking=chunking, pad_token_id=pad_token_id)
    return BellmLoss(
        model,
        contrastive_weight=settings.contrastive_weight,
        cosine_weight=settings.cosine_weight,
        angle_weight=settings.angle_weight,
        temperature=settings.temperature,
        chunking=chunking,
        mask_duplicates=settings.mask_duplicates,
        pad_token_id=pad_token_id,
    )


def _collator(model: SentenceTransformer) -> Any:
    from sentsmith.methods.bellm.conditional import ConditionalCollator

    return ConditionalCollator(preprocess_fn=model.preprocess)


def _conditional_judge(recipe: Recipe, rows: TrainingRows) -> Judge | None:
    from sentsmith.training.selection import ConditionalJudge

    if recipe.data.dev:
        return ConditionalJudge.of_files(recipe.data.dev)
    return ConditionalJudge.of_rows(rows.held_out) if len(rows.held_out) else None


def _facts(model: SentenceTransformer) -> dict[str, Any]:
    decoder: Any = model[0]
    reader: Any = model[1]
    return {
        "layers": decoder.model.config.num_hidden_layers,
        "both_ways_from": decoder.both_ways_from,
        "readout": reader.readout,
        "template": decoder.template,
        "full_stop": decoder.full_stop,
        "pad_leak": decoder.pad_leak,
        "parameters": sum(weights.numel() for weights in model.parameters()),
        "trained_parameters": sum(weights.numel() for weights in model.parameters() if weights.requires_grad),
    }


def _notes(recipe: Recipe, model: SentenceTransformer) -> list[str]:
    facts = _facts(model)
    seen = "none" if facts["both_ways_from"] is None else f"{facts['both_ways_from']} to {facts['layers'] - 1}"
    method = f"Method: BeLLM (Li and Li 2024): layers that look both ways: {seen} (of 0 to {facts['layers'] - 1})"
    notes = [f"{method}; readout: {facts['readout']}; prompt: `{facts['template']}`, which the model adds itself."]
    if facts["pad_leak"]:
        notes.append("As in the authors' code, not in the paper: pad_leak. Vectors depend on the sentences of a batch.")
    if recipe.bellm.quantise != "none":
        notes.append(
            "The adapter was trained on weights in 4 bits and is saved for (or merged into) those in full precision. "
            "The scores on held-out data during the training are those in 4 bits."
        )
    if recipe.bellm.save == "adapter":
        notes.append(f"An adapter: loading it needs its base, `{recipe.model}`, in the place it had.")
    return notes
