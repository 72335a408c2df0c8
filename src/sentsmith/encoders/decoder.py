"""A decoder as an encoder: a prompt around the sentence, and layers that look both ways (BeLLM, Li and Li 2024)."""

from __future__ import annotations

import logging
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import torch
from sentence_transformers.base.modules import Transformer
from torch import Tensor

from sentsmith.encoders.both_ways import both_ways_layers, check_sight, look_both_ways
from sentsmith.encoders.decoder_folder import adapter_base, hide, shown
from sentsmith.encoders.layers import append_layers, keep_layers
from sentsmith.encoders.loading import loading_errors, refuse_pickled_weights, resolve
from sentsmith.encoders.readout import Readout, ReadoutName
from sentsmith.encoders.template import REPRESENTATIVE_WORD, Item, Template, tokenize, with_full_stop
from sentsmith.errors import InputError, SettingsError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

_OWN_KEYS = ("template", "both_ways_from", "pad_leak", "full_stop", "final_norm")
# What a last sentence may end in: tokenizers join signs, and letters with what follows them, each in its own way.
_ENDINGS = ("a", "a.", "a?", 'a"', "a)", "\N{LATIN SMALL LETTER E WITH ACUTE}")


class Decoder(Transformer):
    """A decoder of transformers, without its head, that reads each sentence inside a prompt.

    The prompt and the layers that look both ways are saved with the model and restored with it. It is saved in a folder
    of its own below the model's, under this class, its configs under our names
    (:mod:`sentsmith.encoders.decoder_folder`): nothing that does not know it can load it as if it were causal.

    Args:
        model_name_or_path: A decoder's folder or hub name.
        template: The prompt; see :class:`sentsmith.encoders.template.Template`.
        both_ways_from: The first layer that looks both ways; see :func:`sentsmith.encoders.both_ways.look_both_ways`.
        pad_leak: Let these layers see padding, as the authors' code does.
        full_stop: End sentences as the authors' evaluation does (:func:`sentsmith.encoders.template.with_full_stop`).
        layers: Keep so many layers, the first ones.
        added_layers: Append so many copies of the last layer.
        final_norm: Keep the norm behind the last layer.
        **kwargs: Those of sentence-transformers' ``Transformer``.

    Raises:
        SettingsError: The template, a number of layers or the architecture does not do.
        SentsmithError: The model does not see what it is meant to (:func:`sentsmith.encoders.both_ways.check_sight`).
    """

    config_keys = [*Transformer.config_keys, *_OWN_KEYS]  # noqa: RUF012 - the library's attribute
    save_in_root = False

    def __init__(
        self,
        model_name_or_path: str,
        *,
        template: str = REPRESENTATIVE_WORD,
        both_ways_from: int | None = None,
        pad_leak: bool = False,
        full_stop: bool = False,
        layers: int | None = None,
        added_layers: int = 0,
        final_norm: bool = True,
        **kwargs: Any,
    ) -> None:
        self.filling = Template(template)
        super().__init__(model_name_or_path, **kwargs)
        self.pad_leak = pad_leak
        self.full_stop = full_stop
        self.final_norm = final_norm
        if layers is not None or not final_norm:
            kept = self.model.config.num_hidden_layers if layers is None else layers
            keep_layers(self.model, kept, final_norm=final_norm)
        append_layers(self.model, added_layers)
        self.look_both_ways(both_ways_from)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # type: ignore[override]
        """Load the module from a model's folder or hub name, as sentence-transformers does.

        Raises:
            InputError: Its settings are not all there, or the base of an adapter is not.
        """
        hub = {key: kwargs[key] for key in ("token", "cache_folder", "revision", "local_files_only") if key in kwargs}
        found = cls.load_dir_path(model_name_or_path, subfolder, **hub)
        place = Path(found or Path(model_name_or_path, subfolder))
        settings = cls.load_config(str(place))
        missing = [key for key in _OWN_KEYS if key not in settings]
        if missing:
            raise InputError(f"has no {missing[0]!r}; save the model again", path=place / cls.config_file_name)
        with shown(place) as folder:
            decoder = super().load(str(folder), **kwargs)
        # Where it is from, and not where it was for a moment.
        parts: list[Any] = [decoder.model, decoder.model.config, decoder.tokenizer]
        for part in parts:
            part.name_or_path = str(place)
        base = adapter_base(place)
        if base is not None:
            for config in decoder.model.peft_config.values():
                config.base_model_name_or_path = base
        return decoder

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the module, its configs under our names."""
        super().save(output_path, *args, **kwargs)
        hide(Path(output_path))

    @property
    def template(self) -> str:
        """The prompt."""
        return self.filling.text

    def look_both_ways(self, start: int | None) -> None:
        """Let the layers from ``start`` on see both ways, and those before only backwards; tried at once."""
        look_both_ways(self.model, start, pad_leak=self.pad_leak)
        self.both_ways_from = start
        check_sight(self.model)
        self._tried_on = self.model.device

    def on_model_ready(self, model: Any) -> None:  # noqa: ARG002 - the library's signature
        """Try it once more where it is to run: another device may attend by other code."""
        if self.model.device != self._tried_on:
            check_sight(self.model)

    def warn_of_no_effect(self, readout: ReadoutName) -> None:
        """Warn of the setting in which looking both ways changes nothing at all."""
        if self.pad_leak:
            return  # padding is seen, which changes the last token too
        layers = self.model.config.num_hidden_layers
        looking = [] if self.both_ways_from is None else both_ways_layers(layers, self.both_ways_from)
        if readout == "last" and looking == [layers - 1]:
            earlier = f" or begin at layer {layers - 2}" if layers > 1 else ""
            logger.warning(
                "only the last layer looks both ways and the last token is read: that is the causal model's vector, "
                "since the last token sees everything anyway; for an effect, read the mean%s",
                earlier,
            )

    @cached_property
    def last_id(self) -> int | None:
        """The id of the token that ends every prompt.

        None where the sentence stands at the end, or where the last token depends on how the sentence ends: there is
        nothing to assert then, and the mask tells which token is the last.
        """
        values = [dict.fromkeys(self.filling.fields, ending) for ending in _ENDINGS]
        rows = tokenize(self.filling, values, self.tokenizer, None)
        last = {None if row.own[-1] else row.ids[-1] for row in rows}
        return last.pop() if len(last) == 1 else None

    def preprocess(  # type: ignore[override]  # texts, and pairs of them; no pictures
        self, inputs: Sequence[Item], prompt: str | None = None, **kwargs: Any
    ) -> dict[str, Any]:
        """Fill the template and tokenize; what is too long loses words of its sentence, never of the prompt.

        Args:
            inputs: Sentences; (sentence, condition) for a template with a condition.
            prompt: Nothing: the model has its own.
            **kwargs: ``max_length`` in tokens, the prompt included; the model's own limit by default.

        Returns:
            ``input_ids``, ``attention_mask`` and ``sentence_mask`` (1 where a token stands for the sentence itself),
            int64 ``[rows, width]``, padded on the tokenizer's side.

        Raises:
            InputError: A prompt, items of the wrong kind, or no room for the prompt.
        """
        if prompt:
            raise SettingsError(f"prompt {prompt!r}: this model reads sentences inside its own, {self.template!r}")
        values = [self.filling.values(item) for item in inputs]
        if self.full_stop:
            values = [each | {"sentence": with_full_stop(each["sentence"])} for each in values]
        rows = tokenize(self.filling, values, self.tokenizer, kwargs.get("max_length") or self.max_seq_length)
        # Masked, so any id does; many decoders have none for padding.
        fill = getattr(self.tokenizer, "pad_token_id", None) or 0
        return {
            "input_ids": self._padded([row.ids for row in rows], fill),
            "attention_mask": self._padded([[1] * len(row.ids) for row in rows], 0),
            "sentence_mask": self._padded([[int(own) for own in row.own] for row in rows], 0),
            "modality": "text",
        }

    def _padded(self, rows: Sequence[Sequence[int]], fill: int) -> Tensor:
        side = getattr(self.tokenizer, "padding_side", "right")
        tensors = [torch.tensor(row, dtype=torch.long) for row in rows]
        return torch.nn.utils.rnn.pad_sequence(tensors, batch_first=True, padding_value=fill, padding_side=side)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002 - the library's signature
        """Add ``token_embeddings`` ``[rows, width, d]``: the last layer's, behind the final norm."""
        mask = features["attention_mask"]
        given = {"input_ids": features["input_ids"], "attention_mask": mask}
        if bool((mask[:, 0] == 0).any()):
            # A learned position (GPT-2's) counts from the first token, not from the first column.
            given["position_ids"] = (mask.cumsum(dim=1) - 1).clamp(min=0)
        # Not by way of the library's module, which calls the model's `forward` past its hooks.
        found = self.model(**given, use_cache=False, return_dict=True)
        features["token_embeddings"] = found.last_hidden_state
        if found.hidden_states is not None:
            features["all_layer_embeddings"] = found.hidden_states
        return features


def make_encoder(
    name: str | Path,
    *,
    template: str = REPRESENTATIVE_WORD,
    both_ways_from: int | None = None,
    readout: ReadoutName = "last",
    device: str | None = None,
    model_kwargs: dict[str, Any] | None = None,
    **options: Any,
) -> SentenceTransformer:
    """Make an encoder of a decoder, without training.

    Args:
        name: A decoder's folder or hub name, weights in safetensors.
        template: The prompt.
        both_ways_from: The first layer that looks both ways; None for none.
        readout: What is read of the tokens.
        device: Where to; the fastest present by default.
        model_kwargs: For transformers' ``from_pretrained``; weights are float32 unless ``dtype`` says otherwise.
        **options: Those of :class:`Decoder`.

    Raises:
        InputError: No such model, or no weights in safetensors.
        SettingsError: The template, a number of layers or the architecture does not do.
    """
    from sentence_transformers import SentenceTransformer

    folder = resolve(name)
    refuse_pickled_weights(folder)
    kwargs = {"use_safetensors": True, "dtype": torch.float32, **(model_kwargs or {})}
    with loading_errors(folder):
        decoder = Decoder(str(folder), template=template, both_ways_from=both_ways_from, model_kwargs=kwargs, **options)
    decoder.warn_of_no_effect(readout)
    modules: list[torch.nn.Module] = [decoder, Readout(readout, decoder.get_embedding_dimension(), decoder.last_id)]
    return SentenceTransformer(modules=modules, device=device).eval()
