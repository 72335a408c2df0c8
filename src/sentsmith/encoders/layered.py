"""A frozen transformer that says of a sentence what each of its layers says: one vector per layer (FREEZE).

The vectors are those of the residual stream behind each block, before any final norm; the embedding layer is not among
them. They come out as one, layer behind layer, so that everything that handles sentence vectors handles them.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import torch
from sentence_transformers.base.modules import Transformer
from torch import Tensor, nn

from sentsmith.encoders.layers import layers_of
from sentsmith.encoders.loading import loading_errors, refuse_pickled_weights, resolve
from sentsmith.encoders.readout import last_token, masked_mean, states_at
from sentsmith.encoders.taps import check_tapped, recorded
from sentsmith.errors import InputError, SettingsError

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

LayerReadout = Literal["last", "mean", "sum", "attention"]
"""What is read of a layer's token states: the last token's; their mean; their sum; a mean weighted by what a trained
query finds in each token."""
Punctuation = Literal["full_stop", "none", "as_is"]
"""How every sentence ends: with a full stop where it has no end; without any; as it was given. The last token of two
sentences is only comparable where they end alike (METHODS §4)."""

_ENDS = ".!?\N{HORIZONTAL ELLIPSIS}\N{IDEOGRAPHIC FULL STOP}\N{FULLWIDTH EXCLAMATION MARK}\N{FULLWIDTH QUESTION MARK}"
_QUOTES = "\"'\N{RIGHT DOUBLE QUOTATION MARK}\N{RIGHT SINGLE QUOTATION MARK})]"
_EMPTY = "."  # stands for a sentence without words: some tokenizers make no token of it


def ended(sentence: str, policy: Punctuation) -> str:
    """Return the sentence with the ending that the policy gives it; a full stop where nothing is left."""
    text = sentence.strip()
    words = text.rstrip(_QUOTES)
    if policy == "full_stop" and not words.endswith(tuple(_ENDS)):
        text += "."
    elif policy == "none":
        # Also before closing quotation marks, which stay.
        text = words.rstrip(f"{_ENDS} ") + text[len(words) :]
    return (text if policy != "as_is" else sentence) if text else _EMPTY


class LayeredTransformer(Transformer):
    """The first module of a FREEZE model: a transformer whose weights never change and whose dropout is off.

    Args:
        model_name_or_path: A decoder's or encoder's folder.
        readout: See :data:`LayerReadout`.
        punctuation: See :data:`Punctuation`.
        **kwargs: Those of sentence-transformers' ``Transformer``.

    Raises:
        SettingsError: An unknown readout or policy, layers that cannot be found, or no token to pad with.
    """

    config_keys = [*Transformer.config_keys, "readout", "punctuation"]  # noqa: RUF012 - the library's attribute
    # A folder of its own: the frozen model must not be taken for the trained one.
    save_in_root = False

    def __init__(
        self,
        model_name_or_path: str,
        *,
        readout: LayerReadout = "last",
        punctuation: Punctuation = "full_stop",
        **kwargs: Any,
    ) -> None:
        for name, value, known in (
            ("readout", readout, get_args(LayerReadout)),
            ("punctuation", punctuation, get_args(Punctuation)),
        ):
            if value not in known:
                raise SettingsError(f"{name} {value!r} is unknown; use one of {', '.join(known)}")
        # Flash attention would run without padding, in one row: the taps read rows.
        super().__init__(model_name_or_path, **{**kwargs, "unpad_inputs": False})
        self.readout = readout
        self.punctuation = punctuation
        self.layers = len(layers_of(self.model))
        self.width = super().get_embedding_dimension()
        self._pad_right()
        self.model.requires_grad_(requires_grad=False)
        # Zeros weigh all tokens alike: training begins at the mean.
        query = torch.zeros(self.layers, self.width)
        self.query = nn.Parameter(query) if readout == "attention" else None
        self.train(mode=False)

    def _pad_right(self) -> None:
        tokenizer: Any = self.tokenizer
        # Behind the sentence, where a decoder's tokens do not see it and positions count from the first token.
        tokenizer.padding_side = "right"
        if tokenizer.pad_token is None:
            stand_in = tokenizer.eos_token or tokenizer.unk_token
            if stand_in is None:
                raise SettingsError("the model's tokenizer has no token to pad with; give it a pad_token and save it")
            tokenizer.pad_token = stand_in

    def train(self, mode: bool = True) -> LayeredTransformer:
        """Switch the mode, but not the frozen transformer's: it has no dropout."""
        super().train(mode)
        self.model.eval()  # type: ignore[no-untyped-call]
        return self

    def get_embedding_dimension(self) -> int:
        """Return layers × width."""
        return self.layers * self.width

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:  # type: ignore[override]  # texts only
        """Give each sentence its ending, and tokenize.

        Raises:
            InputError: Something else than a text.
        """
        for text in inputs:
            if not isinstance(text, str):
                raise InputError(f"this model takes sentences, not {type(text).__name__}")
        return super().preprocess([ended(text, self.punctuation) for text in inputs], prompt=prompt, **kwargs)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:
        """Add ``sentence_embedding`` ``[rows, layers · d]``, the first layer first.

        Raises:
            SettingsError: What the model does behind its last layer is not known, so its layers cannot be told.
        """
        # Without a graph through the frozen weights; an inference mode's tensors could not be trained on.
        with torch.no_grad(), recorded(layers_of(self.model)) as states:
            output = super().forward(dict(features), **kwargs)
        check_tapped(self.model, output, states)
        mask = features["attention_mask"]
        vectors = [self._read(layer, tokens, mask) for layer, tokens in enumerate(states[1:])]
        features["sentence_embedding"] = torch.cat(vectors, dim=1)
        return features

    def _read(self, layer: int, tokens: Tensor, mask: Tensor) -> Tensor:
        if self.readout == "last":
            return states_at(tokens, last_token(mask))
        if self.readout == "mean":
            return masked_mean(tokens, mask)
        if self.query is None:
            return (tokens * mask[..., None].to(tokens.dtype)).sum(dim=1)
        return attended(tokens, mask, self.query[layer])

    def save(self, output_path: str, *args: Any, **kwargs: Any) -> None:
        """Save the transformer as it came, and what has been trained of the readout."""
        super().save(output_path, *args, **kwargs)
        if self.query is not None:
            from safetensors.torch import save_file

            save_file({"query": self.query.detach().cpu().contiguous()}, Path(output_path) / _QUERY)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> LayeredTransformer:  # type: ignore[override]
        """Load the module from a model's folder or hub name, as sentence-transformers does."""
        module = super().load(model_name_or_path, subfolder, **kwargs)
        if module.query is not None:
            from safetensors.torch import load_file

            hub = {key: kwargs[key] for key in _HUB if key in kwargs}
            found = cls.load_file_path(model_name_or_path, _QUERY, subfolder, **hub)
            if found is not None:
                module.query.data.copy_(load_file(found)["query"])
        return module


_QUERY = "query.safetensors"
_HUB = ("token", "cache_folder", "revision", "local_files_only")


def attended(tokens: Tensor, mask: Tensor, query: Tensor) -> Tensor:
    """Return the mean of token states, weighted by softmax of ``query · LayerNorm(state) / √d``, ``[rows, d]``.

    Args:
        tokens: ``[rows, width, d]``.
        mask: int64 ``[rows, width]``, 1 for real tokens; at least one per row.
        query: ``[d]``.
    """
    normed = nn.functional.layer_norm(tokens, tokens.shape[-1:])
    scores = (normed @ query) / tokens.shape[-1] ** 0.5
    weights = scores.masked_fill(mask == 0, float("-inf")).softmax(dim=1)
    mean: Tensor = (weights[..., None] * tokens).sum(dim=1)
    return mean


def make_layered(
    name: str | Path,
    *,
    readout: LayerReadout = "last",
    punctuation: Punctuation = "full_stop",
    device: str | None = None,
) -> SentenceTransformer:
    """Return a model that encodes a sentence into the vectors of all layers of a transformer, one behind the other.

    Args:
        name: A decoder's or encoder's folder, plain or of sentence-transformers; a hub name; or minilm.
        readout: See :data:`LayerReadout`.
        punctuation: See :data:`Punctuation`.
        device: Where to; the fastest present by default.

    Raises:
        InputError: No such model, no weights in safetensors, or its first module is no plain transformer.
        SettingsError: Its layers cannot be found.
    """
    from sentence_transformers import SentenceTransformer

    folder = resolve(name)
    refuse_pickled_weights(folder)
    options: dict[str, Any] = {"readout": readout, "punctuation": punctuation}
    weights = {"use_safetensors": True, "dtype": torch.float32}
    with loading_errors(folder):
        subfolder = _first_module(folder)
        if subfolder is None:
            module = LayeredTransformer(str(folder), model_kwargs=weights, **options)
        else:
            module = LayeredTransformer.load(
                str(folder), subfolder, model_kwargs=weights, local_files_only=True, init_defaults=options
            )
    return SentenceTransformer(modules=[module], device=device).eval()


def _first_module(folder: Path) -> str | None:
    """Return the subfolder of the transformer of a sentence-transformers model; None of a plain transformer."""
    listing = folder / "modules.json"
    if not listing.is_file():
        return None
    first = json.loads(listing.read_text(encoding="utf-8"))[0]
    kind = str(first["type"])
    if not (kind.startswith("sentence_transformers.") and kind.endswith("Transformer")):
        raise InputError(
            f"begins with a {kind.rpartition('.')[2]}, whose layers cannot be read; give the transformer that it was "
            "made of",
            path=folder,
        )
    return str(first["path"])
