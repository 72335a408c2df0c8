"""Sentences → vectors, for evaluation, search and whole files."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from sentsmith.encoders.chunked import Chunking, forward
from sentsmith.encoders.openvino import OpenVinoModel
from sentsmith.encoders.protocol import Vectors

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

# Without activations to keep for a backward pass, a chunk this size is the fastest here (benchmarks/chunks.py).
INFERENCE = Chunking(tokens=1024, min_rows=8)
PRECISIONS = ("fp32", "bf16")
BACKENDS = ("torch", "openvino")
_BLOCK = 4096


class ModelEncoder:
    """A ``SentenceTransformer`` as an :class:`~sentsmith.encoders.protocol.Encoder`.

    Args:
        model: Any model that sentence-transformers runs.
        chunking: How sentences are grouped; by length, so that little padding is computed.
        precision: ``"fp32"``, or ``"bf16"`` where the processor computes it natively. Vectors come out float32.
        prompt: Text put before each sentence; None uses the model's own default prompt.
        backend: ``"torch"``, or ``"openvino"`` (an extra): fp32 on x86 processors, for inference, faster. It holds a
            compiled copy of the weights as they are now.

    Raises:
        ValueError: An unknown precision or backend, or bf16 asked of OpenVINO.
    """

    def __init__(
        self,
        model: SentenceTransformer,
        *,
        chunking: Chunking = INFERENCE,
        precision: str = "fp32",
        prompt: str | None = None,
        backend: str = "torch",
    ) -> None:
        if backend not in BACKENDS:
            raise ValueError(f"backend {backend!r}: use one of {', '.join(BACKENDS)}")
        if precision not in PRECISIONS:
            raise ValueError(f"precision {precision!r}: use one of {', '.join(PRECISIONS)}")
        if backend == "openvino" and precision != "fp32":
            raise ValueError(f"the openvino backend computes fp32, not {precision}")
        self.model = model
        self.runner: nn.Module = model if backend == "torch" else OpenVinoModel(model)
        self.chunking = chunking
        self.precision = precision
        default = getattr(model, "default_prompt_name", None)
        self.prompt = prompt if prompt is not None else (model.prompts.get(default) if default else None)

    @property
    def pair_scores(self) -> Callable[[Vectors, Vectors], NDArray[np.float64]] | None:
        """The model's own similarity of pairs of its vectors, ``[n, d]`` twice → ``[n]``; None where it is the cosine.

        A model whose last module has a method ``pair_scores`` has one: no product of two vectors says what it does.
        """
        return getattr(self.model[-1], "pair_scores", None)

    def encode(self, sentences: Sequence[str]) -> Vectors:
        """Return float32 ``[len(sentences), dimension]``, rows in the order given.

        Runs in evaluation mode and leaves the model in the mode it was in. An empty sentence is encoded as the model
        encodes its special tokens.
        """
        if not isinstance(sentences, str) and not len(sentences):
            return np.empty((0, self.model.get_embedding_dimension() or 0), dtype=np.float32)
        return self.encode_by(self.runner, sentences, columns=self.model.truncate_dim)

    @torch.inference_mode()
    def encode_by(
        self, runner: nn.Module, sentences: Sequence[str], *, block: int | None = None, columns: int | None = None
    ) -> Vectors:
        """Return what another module makes of the model's features, computed as :meth:`encode` computes.

        Args:
            runner: Maps features to a dictionary with ``sentence_embedding`` ``[rows, columns]``.
            sentences: At least one.
            block: How many sentences' columns are on the model's device at once; 4,096 if not given.
            columns: Keep so many, the first ones; all if not given.

        Returns:
            float32 ``[len(sentences), columns]``, rows in the order given, in one piece of memory.
        """
        if isinstance(sentences, str):
            raise TypeError("encode takes a list of sentences, not one string")
        size = block or _BLOCK
        with evaluation_mode(self.model):
            return np.concatenate(
                [self._block(runner, sentences[i : i + size], columns) for i in range(0, len(sentences), size)]
            )

    def _block(self, runner: nn.Module, sentences: Sequence[str], columns: int | None) -> Vectors:
        features = self.model.preprocess(list(sentences), prompt=self.prompt)
        device = self.model.device
        tensors = {k: v.to(device) for k, v in features.items() if isinstance(v, torch.Tensor) and v.dim() == 2}
        if "prompt_length" in features:
            # Read by a pooling that leaves the prompt's tokens out.
            tensors["prompt_length"] = torch.tensor([int(features["prompt_length"])])
        half = torch.autocast(device.type, torch.bfloat16) if self.precision == "bf16" else contextlib.nullcontext()
        with half:
            vectors = forward(runner, tensors, self.chunking)
        # Not a view: what is cut off would stay in memory with the rest.
        return vectors[:, :columns].float().contiguous().cpu().numpy()


@contextlib.contextmanager
def evaluation_mode(model: nn.Module) -> Iterator[None]:
    """Run the block with the model in evaluation mode; afterwards every part is in the mode it was in."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        # One by one: a part that stays in evaluation mode while the rest trains must not be switched on.
        for module, mode in modes:
            module.training = mode


@contextlib.contextmanager
def max_length(model: SentenceTransformer, tokens: int | None) -> Iterator[None]:
    """Run the block with sentences cut to ``tokens``, or not cut by us (None); the model keeps its own limit."""
    before = model.max_seq_length
    model.max_seq_length = tokens
    try:
        yield
    finally:
        model.max_seq_length = before


def as_encoder(model: SentenceTransformer, *, precision: str = "fp32", backend: str = "torch") -> ModelEncoder:
    """Return ``model`` as an encoder (see :class:`ModelEncoder`)."""
    return ModelEncoder(model, precision=precision, backend=backend)
