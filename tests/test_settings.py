"""Settings: overrides, one clear line for what is wrong, and a round trip through the file beside every output."""

from __future__ import annotations

from typing import Literal

import pytest
from pydantic import Field, model_validator

from sentsmith import settings
from sentsmith.errors import InputError, SettingsError
from sentsmith.settings import Settings


class Training(Settings):
    learning_rate: float = Field(default=1e-3, gt=0)
    seed: int = 1
    tokens: int | Literal["measure"] = 8
    schedule: Literal["linear", "cosine"] = "linear"


class Recipe(Settings):
    model: str
    files: tuple[str, ...] = ()
    training: Training = Training()

    @model_validator(mode="after")
    def _fits(self):
        if self.model == "bad":
            raise ValueError("training.seed does not fit the model")
        return self


def resolve(values=None, *overrides):
    return settings.resolve(Recipe, {"model": "m", **(values or {})}, overrides, path="r.yaml")


def test_overrides_lie_over_the_file_and_leave_the_rest():
    values = {"model": "m", "training": {"seed": 3, "learning_rate": 0.5}}
    found = settings.resolve(Recipe, values, ["training.seed=4", "model=other", "files=[a.txt, b.txt]"])
    assert (found.training.seed, found.training.learning_rate, found.model) == (4, 0.5, "other")
    assert found.files == ("a.txt", "b.txt")
    assert values["training"] == {"seed": 3, "learning_rate": 0.5}


def test_an_override_may_open_a_section_and_hold_an_equals_sign():
    assert settings.apply_overrides({}, ["a.b.c=x=y", "d="]) == {"a": {"b": {"c": "x=y"}}, "d": None}


@pytest.mark.parametrize("text", ["3e-5", "3.0e-5", "0.00003"])
def test_a_learning_rate_is_a_number_however_it_is_written(text, tmp_path):
    assert resolve({}, f"training.learning_rate={text}").training.learning_rate == 3e-5
    file = tmp_path / "r.yaml"
    file.write_text(f"model: m\ntraining:\n  learning_rate: {text}\n")
    assert settings.resolve(Recipe, settings.read_yaml(file)).training.learning_rate == 3e-5


def test_text_that_looks_like_a_number_stays_text():
    assert resolve({}, "model=12e4").model == "12e4"


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.seed", "write it as key=value"),
        ("=3", "write it as key=value"),
        ("model.size=3", "'model' holds a value and has no keys below it"),
        ("training.seed=[1", "the value is not valid YAML"),
    ],
)
def test_an_override_that_cannot_be_read(override, message):
    with pytest.raises(SettingsError, match=message):
        resolve({}, override)


@pytest.mark.parametrize(
    ("key", "near"),
    [
        ("training.learing_rate", "training.learning_rate"),
        ("learning_rate", "training.learning_rate"),
        ("trainning.seed", "training.seed"),
        ("modell", "model"),
    ],
)
def test_an_unknown_key_names_the_nearest_right_one(key, near):
    with pytest.raises(SettingsError) as caught:
        resolve({}, f"{key}=1")
    assert str(caught.value).startswith("r.yaml: unknown setting ")
    assert str(caught.value).endswith(f"did you mean {near!r}?")
    assert caught.value.exit_code == 2


def test_an_unknown_key_like_no_other_lists_them_all():
    with pytest.raises(SettingsError, match=r"known keys: files, model, training\.learning_rate, training\.schedule"):
        resolve({}, "zzzzzz=1")


@pytest.mark.parametrize(
    ("override", "message"),
    [
        ("training.learning_rate=0", "'training.learning_rate': Input should be greater than 0 (given: 0)"),
        ("training.seed=x", "'training.seed': Input should be a valid integer"),
        ("training.schedule=fast", "'training.schedule': Input should be 'linear' or 'cosine' (given: 'fast')"),
        ("files=[1]", "setting 'files': Input should be a valid string (given: 1)"),
        ("model=bad", "r.yaml: training.seed does not fit the model"),
    ],
)
def test_a_wrong_value_says_what_is_allowed_and_what_was_given(override, message):
    with pytest.raises(SettingsError) as caught:
        resolve({}, override)
    assert message in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_field_of_two_types_names_the_key_and_both():
    with pytest.raises(SettingsError) as caught:
        resolve({}, "training.tokens=many")
    line = str(caught.value)
    assert "setting 'training.tokens': " in line
    assert "valid integer" in line
    assert "'measure'" in line


def test_a_missing_key_is_named():
    with pytest.raises(SettingsError, match=r"setting 'model': Field required$"):
        settings.resolve(Recipe, {})


def test_settings_are_frozen():
    with pytest.raises(ValueError, match="frozen"):
        resolve().model = "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("model: m\ntraining: [1, 2\nx: y\n", r"r\.yaml, row 3: "),
        ("- a\n- b\n", "holds list; settings are a mapping"),
        ("", "holds NoneType; settings are a mapping"),
    ],
)
def test_yaml_that_is_wrong_names_file_and_row(tmp_path, text, message):
    (tmp_path / "r.yaml").write_text(text)
    with pytest.raises(InputError, match=message) as caught:
        settings.read_yaml(tmp_path / "r.yaml")
    assert "\n" not in str(caught.value)


def test_yaml_that_cannot_be_read(tmp_path):
    (tmp_path / "r.yaml").write_bytes(b"model: \xff\xfe")
    with pytest.raises(InputError, match="is not UTF-8 text"):
        settings.read_yaml(tmp_path / "r.yaml")
    for path in (tmp_path, tmp_path / "none.yaml"):
        with pytest.raises(InputError, match="cannot be read as YAML settings: "):
            settings.read_yaml(path)


def test_saved_settings_resolve_to_the_same(tmp_path):
    found = resolve({"files": ["ä.txt", "yes", "1e5"]}, "training.learning_rate=1e-9", "training.tokens=measure")
    settings.save(found, tmp_path / "settings.yaml")
    assert settings.resolve(Recipe, settings.read_yaml(tmp_path / "settings.yaml")) == found
