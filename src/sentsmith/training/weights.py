"""The weights that a run changes: what is kept of a step, and put back."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from safetensors.torch import load_file, save_file

from sentsmith.errors import SentsmithError
from sentsmith.files import atomic_path

if TYPE_CHECKING:
    from torch import Tensor, nn


def trained_weights(model: nn.Module) -> dict[str, Tensor]:
    """Return the weights that training changes, by name, not copied: all, or those of an adapter on a frozen base."""
    parameters = dict(model.named_parameters(remove_duplicate=False))
    if all(parameter.requires_grad for parameter in parameters.values()):
        return dict(model.state_dict())
    return {name: parameter.detach() for name, parameter in parameters.items() if parameter.requires_grad}


def save_weights(model: nn.Module, path: Path) -> None:
    """Write the trained weights as safetensors."""
    # Copies: safetensors refuses weights that share memory.
    weights = {name: value.detach().cpu().contiguous().clone() for name, value in trained_weights(model).items()}
    with atomic_path(path) as temporary:
        save_file(weights, temporary)


def put_weights(model: nn.Module, weights: dict[str, Tensor]) -> None:
    """Put trained weights back into the model they are from.

    Raises:
        SentsmithError: They are another model's.
    """
    if weights.keys() != trained_weights(model).keys():
        odd = sorted(weights.keys() ^ trained_weights(model).keys())
        raise SentsmithError(f"the kept weights are not of this model: {odd[0]} is in one of them only; begin again")
    model.load_state_dict(weights, strict=False)


def load_weights(model: nn.Module, path: Path) -> None:
    """Put back what :func:`save_weights` wrote; raises as :func:`put_weights` does."""
    put_weights(model, load_file(path))
