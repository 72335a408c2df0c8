"""A model compiled by OpenVINO: the same vectors, faster on x86 processors (extra ``openvino``).

The whole pipeline (transformer, pooling, normalising) is traced once and compiled for the processor at hand; batches of
any shape run without compiling again. The vectors agree with torch's to float32 rounding (``benchmarks/embedding.py``).
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

from sentsmith.encoders.chunked import pads_left
from sentsmith.encoders.layers import is_decoder
from sentsmith.errors import SentsmithError, require

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

logger = logging.getLogger(__name__)

_EXAMPLE = ("A sentence to trace with.", "And a longer one, so that the mask of the shorter one holds padding too.")


class OpenVinoModel(nn.Module):
    """Features → ``sentence_embedding``, like the model it is made from, for inference only.

    Args:
        model: The model; left as it is.

    Raises:
        MissingExtraError: OpenVINO is not installed.
        SentsmithError: The model cannot be traced.
    """

    def __init__(self, model: SentenceTransformer) -> None:
        from sentence_transformers.base.modules import Transformer

        super().__init__()
        ov = require("openvino", extra="openvino")
        features = model.preprocess(list(_EXAMPLE))
        self.keys = [key for key, value in features.items() if isinstance(value, Tensor) and value.dim() == 2]
        example = {key: features[key].cpu() for key in self.keys}
        threads = torch.get_num_threads()
        try:
            with warnings.catch_warnings():
                # Tracing warns of shapes that it takes for constants; the test of other shapes shows they are not.
                warnings.simplefilter("ignore")
                graph = ov.convert_model(_Whole(model, self.keys), example_input=tuple(example.values()))
        except Exception as error:
            raise SentsmithError(
                f"OpenVINO cannot trace this model ({type(error).__name__}); use the torch backend"
            ) from error
        settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
        self.right_only = isinstance(model[0], Transformer) and is_decoder(model)
        self.compiled: Any = ov.Core().compile_model(graph, "CPU", settings)

    def forward(self, features: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return the sentence vectors, float32 ``[rows, dimension]``.

        Raises:
            SentsmithError: A decoder's rows are padded on the left.
        """
        if self.right_only and pads_left(features):
            # There, a causal layer's first rows see nothing at all, and OpenVINO makes NaN of that.
            raise SentsmithError("OpenVINO reads a decoder's sentences padded on the right: set tokenizer.padding_side")
        outputs = self.compiled([features[key].cpu().contiguous().numpy() for key in self.keys])
        # The compiled model reuses its output buffer in the next call.
        return {"sentence_embedding": torch.from_numpy(outputs[0].copy())}


class _Whole(nn.Module):
    """All modules of a model as one function of tensors, which is what can be traced."""

    def __init__(self, model: SentenceTransformer, keys: list[str]) -> None:
        super().__init__()
        self.model = model.eval()
        self.keys = keys

    def forward(self, *tensors: Tensor) -> Tensor:
        vectors: Tensor = self.model(dict(zip(self.keys, tensors, strict=True)))["sentence_embedding"]
        return vectors
