"""The trained part of a FREEZE model: the vectors of all layers → a code per layer → one similarity, or one vector."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file
from sentence_transformers.base.modules import Module
from torch import Tensor, nn

from sentsmith.encoders.protocol import Vectors
from sentsmith.errors import InputError, SettingsError
from sentsmith.methods.freeze.layer_encoders import LayerEncoders, Standardise
from sentsmith.methods.freeze.maps import LayerMaps
from sentsmith.methods.freeze.objective import weighted_similarity
from sentsmith.methods.freeze.settings import Combine, Head, Start
from sentsmith.methods.freeze.summed import SummedCodes
from sentsmith.methods.simcse.objective import at_least_float32, unit_vectors

# The head begins as the mean of the layers' cosines, stretched so that 0 … 1 becomes about 0.05 … 0.95.
_WEIGHT, _BIAS = 6.0, -3.0


class LayerCodes(Module):
    """The second module of a FREEZE model, behind a :class:`~sentsmith.encoders.layered.LayeredTransformer`.

    Its sentence vector holds the unit codes of all layers, one behind the other, each times a number that makes the
    whole a unit vector. With the non-negative head that number is √(w_l/Σw): the cosine of two vectors is then
    Σ w_l·c_l / Σw, which ranks as the learned similarity does. No product of two vectors can say what a head with
    weights of any sign says (identical sentences must score highest): with such a head all layers weigh alike in the
    vector, and :attr:`pair_scores` gives the similarity.

    Args:
        layers: L, of the frozen model.
        width: d, of the frozen model.
        kept: Indices of the layers that are read; all by default.
        start: What the codes are made by, as it was at first; see :data:`~sentsmith.methods.freeze.settings.Start`.
        bottlenecks: Width of the code of each kept layer; of encoders only.
        depth: Of the encoders.
        normalise: Whether there is a :class:`~sentsmith.methods.freeze.layer_encoders.Standardise` before all else.
        head: See :data:`~sentsmith.methods.freeze.settings.Head`.
        hidden: Units of the mlp head.
        combine: See :data:`~sentsmith.methods.freeze.settings.Combine`.

    Attributes:
        noise: Added to what the encoders read in training, in units of each layer's deviation.

    Raises:
        SettingsError: An unknown head or way to combine.
    """

    config_keys = [  # noqa: RUF012 - the library's attribute
        "layers", "width", "kept", "start", "bottlenecks", "depth", "normalise", "head", "hidden", "combine",
    ]  # fmt: skip

    def __init__(
        self,
        layers: int,
        width: int,
        *,
        kept: Sequence[int] | None = None,
        start: Start = "cosines",
        bottlenecks: Sequence[int] = (),
        depth: int = 1,
        normalise: bool = False,
        head: Head = "linear",
        hidden: int = 64,
        combine: Combine = "cosines",
    ) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        for name, value, known in (("head", head, Head), ("combine", combine, Combine), ("start", start, Start)):
            if value not in get_args(known):
                raise SettingsError(f"{name} {value!r} is unknown; use one of {', '.join(get_args(known))}")
        self.layers, self.width, self.depth, self.hidden = layers, width, depth, hidden
        self.kept = list(range(layers) if kept is None else kept)
        self.start, self.head, self.combine = start, head, combine
        self.bottlenecks, self.normalise = list(bottlenecks), normalise
        self.noise = 0.0
        count = len(self.kept)
        self.standardise = Standardise(count, width) if normalise else nn.Identity()
        self.encoders = self._encoders(count)
        witnesses = count if combine == "cosines" else 1
        if head == "mlp":
            self.mlp: nn.Sequential | None = nn.Sequential(
                nn.Linear(witnesses, hidden), nn.GELU(), nn.Linear(hidden, 1)
            )
        else:
            self.mlp = None
            # Squares cannot be negative.
            first = _WEIGHT / witnesses
            self.weight = nn.Parameter(torch.full((witnesses,), first if head == "linear" else first**0.5))
            self.bias = nn.Parameter(torch.tensor(_BIAS))

    def _encoders(self, count: int) -> nn.Module:
        if self.combine == "summed":
            return SummedCodes(LayerEncoders(count, self.width, self.bottlenecks, depth=self.depth))
        if self.start == "cosines":
            return nn.Identity()
        if self.start == "pca":
            return LayerMaps(count, self.width, self.bottlenecks)
        return LayerEncoders(count, self.width, self.bottlenecks, depth=self.depth)

    @property
    def weights(self) -> list[float] | None:
        """What each kept layer's cosine counts for; None of the mlp, which has no such numbers."""
        return None if self.mlp is not None else self._weights().tolist()

    def _weights(self) -> Tensor:
        return self.weight.detach().square() if self.head == "nonnegative" else self.weight.detach()

    def latents(self, states: Tensor) -> Tensor:
        """Return what the encoders read, ``[B, kept layers, d]``, of the frozen model's ``[B, L·d]``."""
        rows = states.reshape(len(states), self.layers, self.width)
        if len(self.kept) < self.layers:
            rows = rows[:, self.kept]
        found: Tensor = self.standardise(at_least_float32(rows))
        return found

    def encode(self, states: Tensor) -> Tensor:
        """Return the codes ``[B, kept layers, widest code]`` of ``[B, L·d]``; summed: ``[B, 1, d]``."""
        latents = self.latents(states)
        if self.training and self.noise:
            # The layer's deviation as the autoencoders measure it, here of the batch.
            rms = latents.var(dim=0, correction=0).mean(dim=-1).sqrt()
            latents = latents + self.noise * rms[:, None] * torch.randn_like(latents)
        codes: Tensor = self.encoders(latents)
        return codes if self.combine == "cosines" else codes[:, None]

    def similarity(self, cosines: Tensor) -> Tensor:
        """Return ŷ in (0, 1), ``[…]``, of cosines by layer ``[…, kept layers]``."""
        with torch.autocast(cosines.device.type, enabled=False):
            if self.mlp is not None:
                return torch.sigmoid(self.mlp(cosines))[..., 0]
            weight = self.weight.square() if self.head == "nonnegative" else self.weight
            return weighted_similarity(cosines, weight, self.bias)

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002 - the library's signature
        """Turn ``sentence_embedding`` ``[rows, L·d]`` into the unit vector of all codes, ``[rows, dimension]``."""
        units = unit_vectors(self.encode(features["sentence_embedding"]))
        vectors = units * self._shares().sqrt()[:, None]
        real = self._real()
        features["sentence_embedding"] = vectors.flatten(1) if real is None else vectors[:, real]
        return features

    def _shares(self) -> Tensor:
        """Return what part of a vector's squared length is each witness's."""
        if self.head == "nonnegative":
            weights = self._weights()
            return weights / weights.sum()
        witnesses = 1 if self.combine == "summed" else len(self.kept)
        return torch.full((witnesses,), 1 / witnesses, device=next(self.parameters()).device)

    def _real(self) -> Tensor | None:
        """Return which columns of the codes are no padding, ``[kept layers, widest]``; None where all are."""
        kept = getattr(self.encoders, "kept", None)
        return None if kept is None or bool(kept.all()) else kept

    def _widths(self) -> list[int]:
        if self.combine == "summed":
            return [self.width]
        return list(getattr(self.encoders, "bottlenecks", [self.width] * len(self.kept)))

    def get_embedding_dimension(self) -> int:
        """Return the length of the sentence vector."""
        return sum(self._widths())

    def layer_similarities(self, first: Vectors, second: Vectors) -> NDArray[np.float64]:
        """Return the cosines by layer of pairs of sentence vectors, ``[n, dimension]`` twice → ``[n, witnesses]``.

        Raises:
            InputError: The vectors have been cut.
        """
        if first.shape[1] != self.get_embedding_dimension():
            raise InputError(
                f"the layers of a vector of {first.shape[1]} numbers cannot be told; this model gives "
                f"{self.get_embedding_dimension()}, and truncate_dim cuts them"
            )
        ends = np.cumsum(self._widths())[:-1]
        sides = [np.split(np.asarray(side, dtype=np.float64), ends, axis=1) for side in (first, second)]
        dots = [np.einsum("nd,nd->n", a, b) for a, b in zip(*sides, strict=True)]
        shares = self._shares().double().cpu().numpy()
        # A layer that weighs nothing has left nothing in the vector to compare.
        return np.stack(dots, axis=1) / np.where(shares > 0, shares, 1.0)

    @property
    def pair_scores(self) -> Any:
        """The learned similarity of pairs of sentence vectors; None where their cosine ranks as it does."""
        return None if self.head == "nonnegative" else self._pair_scores

    def _pair_scores(self, first: Vectors, second: Vectors) -> NDArray[np.float64]:
        cosines = torch.from_numpy(self.layer_similarities(first, second)).float()
        with torch.no_grad():
            return self.similarity(cosines.to(next(self.parameters()).device)).double().cpu().numpy()

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:  # noqa: ARG002 - the library's signature
        """Save settings and weights."""
        self.save_config(output_path)
        self.save_torch_weights(output_path, safe_serialization=True)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> Self:  # type: ignore[override]
        """Load the module from a model's folder or hub name, as sentence-transformers does."""
        hub = {key: kwargs[key] for key in _HUB if key in kwargs}
        model = cls(**cls.load_config(model_name_or_path, subfolder, **hub))
        found = cls.load_file_path(model_name_or_path, "model.safetensors", subfolder, **hub)
        if found is None:
            raise InputError("has no model.safetensors; save the model again", path=Path(model_name_or_path, subfolder))
        model.load_state_dict(load_file(found))
        return model


_HUB = ("token", "cache_folder", "revision", "local_files_only")
