"""``sentsmith write`` at the edges that need no model."""

from __future__ import annotations

import subprocess
import sys

import pytest


@pytest.fixture
def translate(tmp_path, monkeypatch, command):
    """Return a function that runs ``sentsmith write translations s.txt ARGUMENTS`` in a folder with that file."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.txt").write_text("a dog .\n")

    def call(*arguments):
        result = command("write", "translations", "s.txt", *arguments)
        assert [path.name for path in tmp_path.iterdir()] == ["s.txt"]
        return result

    return call


def refused(result, message, code=2):
    assert result[:2] == (code, "")
    assert "Traceback" not in result[2]
    assert result[2].startswith("sentsmith: error: ")
    assert result[2].count("\n") == 1
    assert message in result[2]


def test_help(command):
    code, out, err = command("write", "--help")
    assert (code, err) == (0, "")
    assert "\n  translations " in out
    assert command("write") == (2, out, "")
    code, out, err = command("write", "translations", "--help")
    assert (code, err) == (0, "")
    for option in ("--llm", "--column", "--limit", "--batch-tokens", "--beams", "--overwrite", "--quiet", "--json"):
        assert option in out
    refused(command("write", "rhymes"), "No such command 'rhymes'")


def test_help_imports_nothing_heavy():
    code = "import sys; sys.argv = ['sentsmith', 'write', 'translations', '--help']\n"
    code += (
        "from sentsmith.cli.main import main\ntry:\n    main()\nexcept SystemExit as end:\n    assert not end.code\n"
    )
    code += "assert not {'torch', 'transformers', 'pyarrow', 'sentsmith.llm'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True, timeout=60, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize("spec", ["gpt", "marian:en-fr", "a,b,c"])
def test_models_that_are_no_pair(translate, spec):
    refused(translate("o.csv", "--llm", spec), f"--llm '{spec}' ")


def test_models_that_are_not_there(translate):
    refused(translate("o.csv", "--llm", "./there,./back"), "there: no such folder")
    refused(translate("o.csv", "--llm", "marian:en-fr-en"), "'Helsinki-NLP/opus-mt-en-fr' is no folder here", code=1)
    refused(translate("o.csv"), "Missing option '--llm'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("o.txt",), "o.txt: a .txt file holds one column; write .jsonl, .csv, .tsv or .parquet"),
        (("o.docx",), "o.docx: is of an unknown kind"),
        (("o.csv", "--limit", "0"), "Invalid value for '--limit'"),
        (("o.csv", "--batch-tokens", "0"), "Invalid value for '--batch-tokens'"),
        (("o.csv", "--beams", "0"), "Invalid value for '--beams'"),
    ],
)
def test_bad_outputs_and_options(translate, arguments, message):
    refused(translate(*arguments, "--llm", "a,b"), message)
