"""Reading files of unknown encoding."""

import logging

import pytest

from sentsmith.errors import InputError
from sentsmith.evaluation.lines import read_lines, rejoin


def test_latin_1_is_read_and_said(tmp_path, caplog):
    file = tmp_path / "old.txt"
    file.write_bytes(b"plain\ncaf\xe9\n")
    with caplog.at_level(logging.INFO):
        text = read_lines(file)
    assert text.lines == ("plain", "café")
    assert text.encoding == "latin-1"
    assert "row 2 is not UTF-8" in caplog.text


def test_only_line_feeds_end_lines(tmp_path):
    file = tmp_path / "a.txt"
    file.write_bytes("\ufeffone\u2028still one\x85too\r\n\r\nlast".encode())
    assert read_lines(file).lines == ("one\u2028still one\x85too", "", "last")


@pytest.mark.parametrize(("content", "message"), [(b"a\nb\0c", r"row 2: is a binary file"), (None, "no such file")])
def test_binary_and_missing_files_are_errors(tmp_path, content, message):
    file = tmp_path / "x.txt"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_lines(file)


def test_a_folder_is_an_error(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_lines(tmp_path)


def test_rejoin_makes_one_space():
    assert rejoin(" a \t b\u00a0c ") == "a b c"
    assert rejoin("  ") == ""
