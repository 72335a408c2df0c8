"""What a run keeps of a model: all weights, or those of the adapter that it trains."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from sentsmith.errors import SentsmithError
from sentsmith.training.weights import load_weights, put_weights, save_weights, trained_weights


def make(*, frozen):
    model = nn.Sequential(nn.Linear(2, 3), nn.BatchNorm1d(3), nn.Linear(3, 2, bias=False))
    for parameter in (*model[0].parameters(), *model[1].parameters()) if frozen else ():
        parameter.requires_grad_(False)
    return model


@pytest.mark.parametrize("frozen", [False, True])
def test_there_and_back(tmp_path, frozen):
    first, second = make(frozen=frozen), make(frozen=frozen)
    base = {name: value.clone() for name, value in second.state_dict().items()}
    first[1].running_mean.fill_(7.0)
    save_weights(first, tmp_path / "w.safetensors")
    kept = {"2.weight"} if frozen else set(first.state_dict())
    assert set(load_file(tmp_path / "w.safetensors")) == kept
    load_weights(second, tmp_path / "w.safetensors")
    for name, value in second.state_dict().items():
        assert torch.equal(value, (first.state_dict() if name in kept else base)[name])
    assert [path.name for path in tmp_path.iterdir()] == ["w.safetensors"]


def test_they_are_not_copied():
    model = make(frozen=True)
    with torch.no_grad():
        trained_weights(model)["2.weight"].fill_(2.0)
    assert model[2].weight.eq(2.0).all()


def test_shared_weights_are_kept(tmp_path):
    """Tied embeddings stand under two names, and safetensors takes no memory twice."""
    model = nn.ModuleDict({"one": nn.Linear(2, 2), "two": nn.Linear(2, 2)})
    model["two"].weight = model["one"].weight
    save_weights(model, tmp_path / "w.safetensors")
    wanted = model["one"].weight.detach().clone()
    model["one"].weight.data.zero_()
    load_weights(model, tmp_path / "w.safetensors")
    assert torch.equal(model["two"].weight, wanted)
    assert model["two"].weight is model["one"].weight


def test_weights_of_another_model_are_refused():
    model, other = make(frozen=True), make(frozen=False)
    with pytest.raises(SentsmithError, match=r"not of this model: 0.bias is in one of them only; begin again"):
        put_weights(model, trained_weights(other))
    with pytest.raises(SentsmithError, match="not of this model"):
        put_weights(other, trained_weights(model))
