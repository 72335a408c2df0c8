import json
import sys

import pytest

from sentsmith.cli.main import main


def run(monkeypatch, capsys, *arguments):
    monkeypatch.setattr(sys, "argv", ["sentsmith", *map(str, arguments)])
    with pytest.raises(SystemExit) as end:
        sys.exit(main())  # it returns when all went well
    out, err = capsys.readouterr()
    return end.value.code or 0, out, err


def test_report_writes_one_page(tmp_path, monkeypatch, capsys):
    folder = tmp_path / "run"
    folder.mkdir()
    (folder / "results.json").write_text(json.dumps({"model": "minilm", "scores": {"STSB": 82.03}}))
    page = tmp_path / "page.html"
    code, out, err = run(monkeypatch, capsys, "report", folder, "--output", page)
    assert (code, out, err) == (0, f"wrote {page}\n", "")
    assert "82.03" in page.read_text(encoding="utf-8")
    assert run(monkeypatch, capsys, "report", folder, "-o", page, "--quiet") == (0, "", "")


def test_a_folder_that_is_no_run_ends_in_one_line(tmp_path, monkeypatch, capsys):
    page = tmp_path / "page.html"
    code, out, err = run(monkeypatch, capsys, "report", tmp_path, "--output", page)
    assert (code, out) == (2, "")
    assert err == f"sentsmith: error: {tmp_path}: holds neither run.json nor results.json, so it is no run folder\n"
    assert not page.exists()


def test_the_output_is_needed(tmp_path, monkeypatch, capsys):
    code, _, err = run(monkeypatch, capsys, "report", tmp_path)
    assert code == 2
    assert "--output" in err
