"""A decoder made an encoder without training, or an encoder made of one of ours with other settings."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentsmith.encoders.readout import ReadoutName
from sentsmith.errors import InputError, SettingsError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

_DECODER = "sentsmith.encoders.decoder.Decoder"


def is_saved_decoder(folder: Path) -> bool:
    """Whether a folder holds a model that begins with our decoder, and not a plain decoder."""
    listing = folder / "modules.json"
    if not listing.is_file():
        return False
    try:
        modules = json.loads(listing.read_text(encoding="utf-8"))
        return bool(modules[0]["type"] == _DECODER)
    except (ValueError, TypeError, LookupError):
        return False


def encoder_of(
    name: str | Path,
    *,
    template: str | None = None,
    both_ways_from: int | str | None = None,
    readout: ReadoutName | None = None,
    full_stop: bool | None = None,
    layers: int | None = None,
    final_norm: bool | None = None,
    merge: bool = True,
    device: str | None = None,
) -> SentenceTransformer:
    """Return a decoder as an encoder, without training; or one of ours, changed.

    What is None stays as it is: of one of ours as it was saved, of a plain decoder BeLLM's prompt, no layer that looks
    both ways, the last token, all layers and their norm.

    Args:
        name: The folder or hub name of a decoder, or the folder of a saved model that begins with one.
        template: The prompt.
        both_ways_from: The first layer that looks both ways, of the layers that are kept: a number, ``n-2``, ``n/2``,
            …, or ``none`` (:func:`sentsmith.methods.bellm.settings.first_layer`). With fewer layers and None, those
            that are left look as they did; that none of them does any more is warned of.
        readout: What is read of the tokens.
        full_stop: End sentences as the authors' evaluation does.
        layers: Keep so many, the first ones.
        final_norm: False takes off the norm behind the last layer.
        merge: Add an adapter to the weights it stands on.
        device: Where to; the fastest present by default.

    Raises:
        InputError: No such model.
        SettingsError: The template, a number of layers or the architecture does not do; an adapter on quantised
            weights; or a norm is asked for that was taken off.
    """
    from sentsmith.encoders.adapters import merge_adapter
    from sentsmith.encoders.decoder import make_encoder
    from sentsmith.encoders.loading import load, resolve

    folder = resolve(name)
    if not is_saved_decoder(folder):
        options: dict[str, Any] = {"layers": layers, "readout": readout, "template": template, "full_stop": full_stop}
        options = {key: value for key, value in options.items() if value is not None}
        model = make_encoder(folder, final_norm=final_norm is not False, device=device, **options)
        if both_ways_from is not None:
            _look(model[0], both_ways_from)
            _warn(model)
        return model
    model = load(folder, device=device)
    decoder, _ = _parts(model)
    if merge:
        merge_adapter(decoder.model)
    looked = decoder.both_ways_from
    _cut(decoder, layers, final_norm=final_norm)
    _read(model, template, readout, full_stop=full_stop)
    if both_ways_from is not None:
        _look(decoder, both_ways_from)
    elif looked is not None and decoder.both_ways_from is None:
        logger.warning(
            "the layers that look both ways, those from %d on, are not among the %d that are kept: none looks both "
            "ways now; for some that do, give the first of them",
            looked,
            decoder.model.config.num_hidden_layers,
        )
    _warn(model)
    return model


def write_encoder(name: str | Path, output: str | Path, **options: Any) -> dict[str, Any]:
    """Write what :func:`encoder_of` makes into the folder ``output``, with a card; returns the card's facts.

    Raises:
        InputError: The folder is a file or not empty; and what :func:`encoder_of` raises.
    """
    from sentsmith.files import atomic_folder
    from sentsmith.training import card

    target = Path(output)
    if target.is_file() or (target.is_dir() and any(target.iterdir())):
        raise InputError("is there already and not empty; give another folder for the model", path=target)
    model = encoder_of(name, **options)
    facts = facts_of(model)
    with atomic_folder(target) as staged:
        model.save_pretrained(str(staged), create_model_card=False)
        lines = [f"- {key.replace('_', ' ')}: `{value}`" for key, value in facts.items()]
        text = [
            card.header("bellm"),
            "# A decoder as a sentence encoder\n",
            f"Made of `{name}` by `sentsmith encoder`, which trains nothing.\n",
            card.use(plain=False),
            "## How it was made\n",
            *lines,
        ]
        (staged / "README.md").write_text("\n".join(text) + "\n", encoding="utf-8")
    return facts


def facts_of(model: SentenceTransformer) -> dict[str, Any]:
    """Return what tells such an encoder from others of the same decoder, by name."""
    decoder, reader = _parts(model)
    return {
        "layers": decoder.model.config.num_hidden_layers,
        "both_ways_from": decoder.both_ways_from,
        "readout": reader.readout,
        "template": decoder.template,
        "full_stop": decoder.full_stop,
        "final_norm": decoder.final_norm,
        "parameters": sum(weights.numel() for weights in model.parameters()),
    }


def _parts(model: SentenceTransformer) -> tuple[Any, Any]:
    from sentsmith.encoders.readout import Readout

    if len(model) < 2 or not isinstance(model[1], Readout):
        raise SettingsError("the decoder of this model is not followed by a readout of ours; make it anew of its base")
    return model[0], model[1]


def _look(decoder: Any, given: int | str) -> None:
    from sentsmith.methods.bellm.settings import first_layer

    decoder.look_both_ways(first_layer(given, decoder.model.config.num_hidden_layers))


def _cut(decoder: Any, layers: int | None, *, final_norm: bool | None) -> None:
    from sentsmith.encoders.both_ways import look_both_ways
    from sentsmith.encoders.layers import keep_layers

    if final_norm and not decoder.final_norm:
        raise SettingsError("the norm behind the last layer was taken off and is not in the model; make it of its base")
    depth = decoder.model.config.num_hidden_layers
    if layers is None and (final_norm is None or final_norm == decoder.final_norm):
        return
    start, kept = decoder.both_ways_from, depth if layers is None else layers
    # What was done to the layers is undone before some of them are gone, and done again to those that are left.
    look_both_ways(decoder.model, None)
    decoder.final_norm = decoder.final_norm and final_norm is not False
    keep_layers(decoder.model, kept, final_norm=decoder.final_norm)
    decoder.look_both_ways(None if start is None or start >= kept else start)


def _read(
    model: SentenceTransformer, template: str | None, readout: ReadoutName | None, *, full_stop: bool | None
) -> None:
    from sentsmith.encoders.readout import Readout
    from sentsmith.encoders.template import Template

    decoder, before = _parts(model)
    if full_stop is not None:
        decoder.full_stop = full_stop
    if template is not None:
        decoder.filling = Template(template)
        vars(decoder).pop("last_id", None)  # that of the template before
    model[1] = Readout(readout or before.readout, before.dimension, decoder.last_id)


def _warn(model: SentenceTransformer) -> None:
    decoder, reader = _parts(model)
    decoder.warn_of_no_effect(reader.readout)
