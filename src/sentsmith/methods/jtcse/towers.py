"""Two towers in one model: each an encoder of its own, the sentence vector is the sum of both."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, cast, get_args

import torch
from safetensors.torch import load_file, save_file
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Dense, InputModule, Transformer
from sentence_transformers.util import load_dir_path
from torch import Tensor, nn

from sentsmith.encoders.pooling import rebuilt, with_pooling, without_normalize
from sentsmith.errors import InputError, SettingsError
from sentsmith.methods.jtcse.cross import CrossPlan, Recorder, cross_streams, first_crossed, layers_of

if TYPE_CHECKING:
    from collections.abc import Sequence

Readout = Literal["cls", "mean", "first_last", "pooler"]
"""How a tower's token vectors become its sentence vector (JTCSE, Table XI)."""

_PROBE = "The naïve café's 2 DOGS — don't bark, 犬!"
_FOLDERS = ("tower_1", "tower_2")
_POOLERS = "poolers.safetensors"


@dataclass(frozen=True)
class Joint:
    """What joint training reads besides the sentence vectors.

    Attributes:
        pooled: The pooled vectors.
        cross: Where attention crosses; None without cross streams.
    """

    pooled: bool = True
    cross: CrossPlan | None = None


class TwinTower(InputModule):
    """Two encoders of one architecture and one tokenizer; the sentence vector is the sum of their sentence vectors.

    Saved as two whole sentence-transformers models, ``tower_1`` and ``tower_2``, each of which can be used alone.
    Neither poolers nor cross-attention take part in inference.

    Args:
        first: Tower I; its tokenizer serves both.
        second: Tower II.

    Attributes:
        towers: Both, without a closing normalisation (the length of the vectors carries meaning here).
        poolers: New poolers, for towers whose architecture has none; empty otherwise.
        joint: What a pass in training mode returns as ``streams`` besides; None is nothing. Set by the loss.
    """

    def __init__(self, first: SentenceTransformer, second: SentenceTransformer) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.towers = nn.ModuleList([without_normalize(first), without_normalize(second)])
        self.poolers = nn.ModuleList()
        self.joint: Joint | None = None
        _check_alike(*self.encoders, *(tower.tokenizer for tower in (first, second)))
        _check_readouts(*self.pair)
        lengths = [tower.max_seq_length for tower in self.pair if tower.max_seq_length is not None]
        self.max_seq_length = min(lengths, default=None)

    @property
    def pair(self) -> list[SentenceTransformer]:
        """Both towers, each a model that can be used alone."""
        return list(self.towers)  # type: ignore[arg-type]

    @property
    def encoders(self) -> list[Any]:
        """The transformers models of both towers."""
        return [_transformer(tower).model for tower in self.pair]

    @property
    def tokenizer(self) -> Any:
        """Tower I's tokenizer, which reads for both."""
        return self.pair[0].tokenizer

    @tokenizer.setter
    def tokenizer(self, tokenizer: Any) -> None:
        for tower in self.pair:
            tower.tokenizer = tokenizer

    @property
    def max_seq_length(self) -> int | None:
        """Tokens a sentence is cut to."""
        return self.pair[0].max_seq_length

    @max_seq_length.setter
    def max_seq_length(self, tokens: int | None) -> None:
        for tower in self.pair:
            tower.max_seq_length = tokens

    def get_embedding_dimension(self) -> int | None:
        """Return the length of the sentence vector, that of either tower's."""
        return self.pair[0].get_embedding_dimension()

    def preprocess(self, inputs: Sequence[Any], prompt: str | None = None, **kwargs: Any) -> dict[str, Any]:
        """Tokenize sentences, once for both towers."""
        return _transformer(self.pair[0]).preprocess(inputs, prompt=prompt, **kwargs)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002 - the library's signature
        """Add ``sentence_embedding`` ``[rows, d]``, the sum; in joint training ``streams`` too (:meth:`streams`)."""
        if self.training and self.joint is not None:
            streams = self.streams(features, self.joint)
            features["streams"] = torch.cat(streams, dim=1)
            features["sentence_embedding"] = streams[0] + streams[1]
        else:
            first, second = (tower(dict(features))["sentence_embedding"] for tower in self.pair)
            features["sentence_embedding"] = first + second
        return features

    def streams(self, features: dict[str, Any], joint: Joint) -> list[Tensor]:
        """Return what the joint loss compares, each ``[rows, d]``.

        The towers' sentence vectors; if wanted, their pooled vectors (the pooler reads the sentence vector, whatever
        the readout) and their cross streams under the same readout.
        """
        layers = [layers_of(encoder) for encoder in self.encoders] if joint.cross is not None else []
        recorders = [] if joint.cross is None else [Recorder(tower[first_crossed(joint.cross)]) for tower in layers]
        with ExitStack() as stack:
            for recorder in recorders:
                stack.enter_context(recorder.recording())
            tokens = [tower[0](dict(features)) for tower in self.pair]
        vectors = [self._read_out(index, found) for index, found in enumerate(tokens)]
        if joint.pooled:
            vectors += [self._pooled(index, vector) for index, vector in enumerate(vectors)]
        if joint.cross is not None:
            crossed = cross_streams(joint.cross, layers, recorders)
            vectors += [
                self._read_out(index, _with_last_layer(tokens[index], stream)) for index, stream in enumerate(crossed)
            ]
        return vectors

    def _read_out(self, index: int, found: dict[str, Any]) -> Tensor:
        features = dict(found)
        for module in list(self.pair[index])[1:]:
            features = module(features)
        vector: Tensor = features["sentence_embedding"]
        return vector

    def _pooled(self, index: int, vector: Tensor) -> Tensor:
        pooler = self.poolers[index] if len(self.poolers) else self.encoders[index].pooler
        # A pooler takes token vectors and reads the first.
        pooled: Tensor = pooler(vector[:, None])
        return pooled

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:  # noqa: ARG002 - the library's signature
        """Save both towers, each a model of its own, in folders of ``output_path``."""
        for name, tower in zip(_FOLDERS, self.pair, strict=True):
            tower.save_pretrained(str(Path(output_path) / name), create_model_card=False)
        if len(self.poolers):
            save_file(self.poolers.state_dict(), Path(output_path) / _POOLERS)

    @classmethod
    def load(
        cls,
        model_name_or_path: str,
        subfolder: str = "",
        token: bool | str | None = None,
        cache_folder: str | None = None,
        revision: str | None = None,
        local_files_only: bool = False,
        init_defaults: dict[str, Any] | None = None,  # noqa: ARG003 - the library's signature
        **kwargs: Any,
    ) -> Self:
        """Load both towers from safetensors.

        Raises:
            InputError: A tower's folder is missing.
        """
        folders = [
            load_dir_path(
                model_name_or_path,
                subfolder=str(Path(subfolder) / name),
                token=token,
                cache_folder=cache_folder,
                revision=revision,
                local_files_only=local_files_only,
            )
            for name in _FOLDERS
        ]
        if None in folders:
            raise InputError(f"lacks {' or '.join(_FOLDERS)}; save the model again", path=model_name_or_path)
        towers = [
            SentenceTransformer(
                str(folder),
                trust_remote_code=kwargs.get("trust_remote_code", False),
                local_files_only=True,
                device="cpu",
                model_kwargs={"use_safetensors": True, **(kwargs.get("model_kwargs") or {})},
            )
            for folder in folders
        ]
        twin = cls(*towers)
        poolers = Path(str(folders[0])).parent / _POOLERS
        if poolers.is_file():
            twin.poolers = _new_poolers(twin)
            twin.poolers.load_state_dict(load_file(poolers))
        return twin


def twin(first: SentenceTransformer, second: SentenceTransformer) -> SentenceTransformer:
    """Return the model whose sentence vector is the sum of two models' sentence vectors; weights are shared with them.

    Raises:
        SettingsError: The two differ in architecture, depth, width or tokenizer, or are no encoders.
    """
    return rebuilt(first, [TwinTower(first, second)])


def tower_pair(model: SentenceTransformer) -> TwinTower:
    """Return the :class:`TwinTower` of a model that has one.

    Raises:
        SettingsError: It has none.
    """
    if isinstance(model[0], TwinTower):
        return model[0]
    raise SettingsError(f"a model of two towers is needed, not one that begins with {type(model[0]).__name__}")


def with_readout(model: SentenceTransformer, readout: Readout) -> SentenceTransformer:
    """Return a model of two towers under another readout (JTCSE, Table XI); weights are shared.

    Args:
        model: Of two towers.
        readout: ``cls``, ``mean``, ``first_last``, or ``pooler``: the pooler on the readout that the towers have now.

    Raises:
        SettingsError: No model of two towers, an unknown readout, or ``pooler`` for towers without one.
    """
    pair = tower_pair(model)
    if readout not in get_args(Readout):
        raise SettingsError(f"readout {readout!r} is unknown; use one of {', '.join(get_args(Readout))}")
    if readout != "pooler":
        return twin(*(with_pooling(tower, readout) for tower in pair.pair))
    require_poolers(pair)
    return twin(*(_with_pooler(pair, index) for index in (0, 1)))


def require_poolers(pair: TwinTower) -> None:
    """Check that both towers have a pooler, and that it can read their sentence vectors.

    Raises:
        SettingsError: One has none, or a module between pooling and output has changed the width.
    """
    if len(pair.poolers):
        return
    for encoder, tower in zip(pair.encoders, pair.pair, strict=True):
        dense = getattr(getattr(encoder, "pooler", None), "dense", None)
        width = tower.get_embedding_dimension()
        if dense is not None and dense.in_features != width:
            raise SettingsError(
                f"the pooler of {type(encoder).__name__} reads vectors of {dense.in_features}, and the tower's have "
                f"{width}; set jtcse.pooling, which leaves later modules out, or switch jtcse.ictm off"
            )
        if dense is None:
            raise SettingsError(
                f"{type(encoder).__name__} has no pooler, which the modulus constraint reads; train a new one with "
                "jtcse.pooler fresh, or switch jtcse.ictm off"
            )


def renew_poolers(pair: TwinTower) -> None:
    """Give both towers new poolers, ``tanh(W·h + b)``; in the architecture's own place, if it has one."""
    for encoder in pair.encoders:
        if getattr(getattr(encoder, "pooler", None), "dense", None) is None:
            pair.poolers = _new_poolers(pair)
            return
    for encoder in pair.encoders:
        _initialise(encoder.pooler.dense, encoder.config)


class _Pooler(nn.Module):
    """A pooler for an architecture that has none; called as the library's poolers are."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.dense = nn.Linear(width, width)

    def forward(self, tokens: Tensor) -> Tensor:
        return torch.tanh(self.dense(tokens[:, 0]))


def _new_poolers(pair: TwinTower) -> nn.ModuleList:
    poolers = nn.ModuleList()
    for encoder in pair.encoders:
        pooler = _Pooler(pair.get_embedding_dimension() or encoder.config.hidden_size)
        _initialise(pooler.dense, encoder.config)
        poolers.append(pooler.to(encoder.device))
    return poolers


def _initialise(dense: nn.Linear, config: Any) -> None:
    nn.init.normal_(dense.weight, std=getattr(config, "initializer_range", 0.02))
    nn.init.zeros_(dense.bias)


def _with_pooler(pair: TwinTower, index: int) -> SentenceTransformer:
    tower = pair.pair[index]
    pooler: Any = pair.poolers[index] if len(pair.poolers) else pair.encoders[index].pooler
    width = pooler.dense.in_features
    head = Dense(width, width, activation_function=nn.Tanh())
    head.linear = pooler.dense
    return rebuilt(tower, [*tower, head])


def _transformer(tower: SentenceTransformer) -> Transformer:
    first: nn.Module = tower[0]
    if isinstance(first, Transformer):
        return cast("Transformer", first)
    raise SettingsError(f"a tower begins with a transformer, not with {type(first).__name__}")


def _with_last_layer(found: dict[str, Any], stream: Tensor) -> dict[str, Any]:
    features = {**found, "token_embeddings": stream}
    if "all_layer_embeddings" in found:
        features["all_layer_embeddings"] = (*found["all_layer_embeddings"][:-1], stream)
    return features


def _check_alike(first: Any, second: Any, first_tokenizer: Any, second_tokenizer: Any) -> None:
    for encoder in (first, second):
        _check_encoder(encoder)
    names = {
        "model_type": "architecture",
        "hidden_size": "width",
        "num_hidden_layers": "number of layers",
        "num_attention_heads": "number of attention heads",
    }
    for key, name in names.items():
        one, two = getattr(first.config, key, None), getattr(second.config, key, None)
        if one != two:
            raise SettingsError(f"the towers differ in {name}: {one} and {two}; both need the same")
    same = first_tokenizer.get_vocab() == second_tokenizer.get_vocab()
    if not same or first_tokenizer(_PROBE)["input_ids"] != second_tokenizer(_PROBE)["input_ids"]:
        raise SettingsError("the towers have different tokenizers; both need the same, since they read the same tokens")


def _check_readouts(first: SentenceTransformer, second: SentenceTransformer) -> None:
    one, two = first.get_embedding_dimension(), second.get_embedding_dimension()
    if one != two:
        raise SettingsError(
            f"the towers' sentence vectors are {one} and {two} long; they are summed and need one length"
        )
    described = [
        [(type(module).__name__, getattr(module, "pooling_mode", None)) for module in list(tower)[1:]]
        for tower in (first, second)
    ]
    if described[0] != described[1]:
        names = [", ".join(f"{name} {mode or ''}".strip() for name, mode in each) for each in described]
        raise SettingsError(
            f"the towers read their vectors out differently ({names[0]}; {names[1]}); set jtcse.pooling, which "
            "gives both the same"
        )


def _check_encoder(encoder: Any) -> None:
    from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES as CAUSAL
    from transformers.models.auto.modeling_auto import MODEL_FOR_MASKED_LM_MAPPING_NAMES as MASKED

    config = encoder.config
    kind = config.model_type
    if getattr(config, "is_decoder", False) or (kind in CAUSAL and kind not in MASKED):
        raise SettingsError(f"{type(encoder).__name__} is a decoder; the towers are encoders, such as BERT or RoBERTa")
    if getattr(config, "is_encoder_decoder", False):
        raise SettingsError(f"{type(encoder).__name__} has a decoder; the towers are encoders only, such as BERT")
