"""What is read of a decoder's token vectors: its last token, or a mean."""

from __future__ import annotations

from typing import Any, Literal, get_args

from sentence_transformers.base.modules import Module
from torch import Tensor

from sentsmith.errors import SentsmithError, SettingsError

ReadoutName = Literal["last", "mean", "all"]
"""``last``: the last token that is no padding, where a prompt has the model say the sentence in a word. ``mean``: the
mean of the sentence's own tokens, the prompt's left out. ``all``: the mean of all tokens."""


def last_token(mask: Tensor) -> Tensor:
    """Return the column of each row's last real token, int64 ``[rows]``, on whichever side the rows are padded.

    Args:
        mask: int64 ``[rows, width]``; 1 for real tokens. A row without any gives its last column.
    """
    width = mask.shape[1]
    return width - 1 - mask.flip(1).argmax(dim=1)


def states_at(tokens: Tensor, column: Tensor) -> Tensor:
    """Return the state of one token of each row, ``[rows, d]``.

    Args:
        tokens: ``[rows, width, d]``.
        column: int64 ``[rows]``, as :func:`last_token` gives it.
    """
    # Gathered, not indexed by numbers of rows: those would be constants where the pass is traced.
    return tokens.gather(1, column[:, None, None].expand(-1, -1, tokens.shape[2]))[:, 0]


def masked_mean(tokens: Tensor, mask: Tensor) -> Tensor:
    """Return the mean of the tokens that ``mask`` marks, ``[rows, d]``; zero for a row without any.

    Args:
        tokens: ``[rows, width, d]``.
        mask: int64 ``[rows, width]``.
    """
    weights = mask[..., None].to(tokens.dtype)
    return (tokens * weights).sum(dim=1) / weights.sum(dim=1).clamp(min=1)


class Readout(Module):
    """Reads a sentence vector out of token vectors.

    Args:
        readout: See :data:`ReadoutName`.
        dimension: Of the vectors.
        last_id: The id of the token that ends every prompt. ``last`` asserts that it reads this one: a prompt that was
            cut, or a tokenizer that ends otherwise, must not pass unseen. None asserts nothing.

    Raises:
        SettingsError: An unknown readout.
    """

    config_keys = ["readout", "dimension", "last_id"]  # noqa: RUF012 - the library's attribute

    def __init__(self, readout: ReadoutName, dimension: int, last_id: int | None = None) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        if readout not in get_args(ReadoutName):
            raise SettingsError(f"readout {readout!r} is unknown; use one of {', '.join(get_args(ReadoutName))}")
        self.readout = readout
        self.dimension = dimension
        self.last_id = last_id

    def get_embedding_dimension(self) -> int:
        """Return the length of the sentence vector."""
        return self.dimension

    def forward(self, features: dict[str, Any], **kwargs: Any) -> dict[str, Any]:  # noqa: ARG002 - the library's signature
        """Add ``sentence_embedding`` ``[rows, d]``.

        Reads ``token_embeddings`` ``[rows, width, d]``, ``attention_mask`` and, for ``mean``, ``sentence_mask``.

        Raises:
            SentsmithError: The last token is not the prompt's.
        """
        tokens, mask = features["token_embeddings"], features["attention_mask"]
        if self.readout == "last":
            features["sentence_embedding"] = self._last(tokens, mask, features.get("input_ids"))
        else:
            marked = mask if self.readout == "all" else features["sentence_mask"]
            features["sentence_embedding"] = masked_mean(tokens, marked)
        return features

    def _last(self, tokens: Tensor, mask: Tensor, ids: Tensor | None) -> Tensor:
        column = last_token(mask)
        if self.last_id is not None and ids is not None:
            found = ids.gather(1, column[:, None])
            wrong = found[found != self.last_id]
            if len(wrong):
                raise SentsmithError(
                    f"the last token of a sentence has id {int(wrong[0])}, not {self.last_id}, which ends the prompt; "
                    "was it cut by another tokenizer than the model's?"
                )
        return states_at(tokens, column)

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:  # noqa: ARG002 - the library's signature
        """Save the settings."""
        self.save_config(output_path)
