"""Every failure is one class with one exit code, and says where it was found."""

from __future__ import annotations

import pytest

from sentsmith.errors import InputError, MissingExtraError, SentsmithError, SettingsError, require


@pytest.mark.parametrize(
    ("kind", "code"), [(SentsmithError, 1), (InputError, 2), (SettingsError, 2), (MissingExtraError, 2)]
)
def test_exit_codes(kind, code):
    error = kind("no")
    assert isinstance(error, SentsmithError)
    assert error.exit_code == code
    assert str(error) == "no"


def test_file_and_row_stand_before_the_message():
    assert str(InputError("is wrong", path="a.csv", row=3)) == "a.csv, row 3: is wrong"
    assert str(InputError("is wrong", path="a.csv")) == "a.csv: is wrong"
    error = SettingsError("is wrong", path="a.csv", row=3)
    assert (error.path, error.row) == ("a.csv", 3)


def test_a_missing_extra_says_how_to_get_it():
    assert require("json", extra="search").dumps([]) == "[]"
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_module_anywhere", extra="search")
    assert "pip install 'sentsmith[search]'" in str(caught.value)
