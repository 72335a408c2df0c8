"""Files are whole or absent."""

from __future__ import annotations

import contextlib
import os

import pytest

from sentsmith.errors import InputError
from sentsmith.files import atomic_folder, atomic_path, make_folder, sha256, write_json, write_text


def test_an_exception_leaves_the_old_file_and_no_temporary_one(tmp_path):
    target = tmp_path / "a.txt"
    target.write_text("old")

    def write_half(failure):
        with atomic_path(target) as temporary:
            temporary.write_text("half")
            raise failure

    for failure in (ValueError, KeyboardInterrupt):
        with pytest.raises(failure):
            write_half(failure)
    assert target.read_text() == "old"
    assert list(tmp_path.iterdir()) == [target]


def test_the_file_appears_only_when_the_block_ends(tmp_path):
    target = tmp_path / "deep" / "a.txt"
    with atomic_path(target) as temporary:
        temporary.write_text("new")
        assert not target.exists()
        assert temporary.parent == target.parent
    assert target.read_text() == "new"
    assert list(target.parent.iterdir()) == [target]


@pytest.mark.parametrize(("mask", "mode"), [(0o022, 0o644), (0o077, 0o600)])
def test_permissions_follow_the_umask(tmp_path, mask, mode):
    before = os.umask(mask)
    try:
        write_text(tmp_path / "a.txt", "x")
        with atomic_folder(tmp_path / "folder"):
            pass
        assert os.umask(mask) == mask
    finally:
        os.umask(before)
    assert (tmp_path / "a.txt").stat().st_mode & 0o777 == mode
    assert (tmp_path / "folder").stat().st_mode & 0o777 == 0o777 & ~mask


def test_a_folder_is_replaced_whole_or_not_at_all(tmp_path):
    target = tmp_path / "index"
    with atomic_folder(target) as temporary:
        (temporary / "first").write_text("1")
    with contextlib.suppress(ZeroDivisionError), atomic_folder(target) as temporary:
        (temporary / "second").write_text("2")
        1 / 0  # noqa: B018
    assert [file.name for file in target.iterdir()] == ["first"]
    with atomic_folder(target) as temporary:
        (temporary / "second").write_text("2")
    assert [file.name for file in target.iterdir()] == ["second"]
    assert list(tmp_path.iterdir()) == [target]


def test_a_folder_where_a_file_is_wanted_and_the_reverse(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="is a folder; give the name of a file"), atomic_path(tmp_path):
        pass
    with pytest.raises(InputError, match="is a file where a folder is needed"):
        write_text(tmp_path / "file" / "below.txt", "x")
    with pytest.raises(InputError, match="is a file; give the name of a folder"), atomic_folder(tmp_path / "file"):
        pass
    with pytest.raises(InputError, match="is a file where a folder is needed"):
        make_folder(tmp_path / "file")


def test_a_folder_that_may_not_be_written_is_the_users_to_change(tmp_path, monkeypatch):
    def refuse(*_, **__):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.mkstemp", refuse)
    with pytest.raises(InputError, match="may not be written"):
        write_text(tmp_path / "a.txt", "x")


def test_json_is_utf8_and_strict(tmp_path):
    write_json(tmp_path / "a.json", {"b": "ä", "a": 1})
    assert (tmp_path / "a.json").read_text(encoding="utf-8") == '{\n  "b": "ä",\n  "a": 1\n}\n'
    with pytest.raises(ValueError, match="JSON"):
        write_json(tmp_path / "a.json", {"x": float("nan")})
    assert "ä" in (tmp_path / "a.json").read_text(encoding="utf-8")


def test_sha256_of_a_file_and_of_a_folder(tmp_path):
    (tmp_path / "a").write_bytes(b"abc")
    assert sha256(tmp_path / "a") == "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
    first = sha256(tmp_path)
    (tmp_path / "a").rename(tmp_path / "b")
    assert sha256(tmp_path) != first
    (tmp_path / "b").rename(tmp_path / "a")
    assert sha256(tmp_path) == first
    (tmp_path / "a").write_bytes(b"abd")
    assert sha256(tmp_path) != first
