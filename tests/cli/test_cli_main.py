"""Every failure is one line on standard error and the right exit code, whatever broke inside."""

from __future__ import annotations

import errno
import json
import logging
import subprocess
import sys

import pytest

from sentsmith.cli import console
from sentsmith.cli import main as main_module
from sentsmith.errors import InputError, MissingExtraError, SentsmithError

VERBS = ("audit", "embed", "encoder", "evaluate", "index", "quickstart", "report", "search", "train", "words")


@pytest.fixture
def run(monkeypatch, capsys):
    """Return a function that runs ``sentsmith ARGUMENTS`` here and returns (exit code, stdout, stderr)."""

    def call(*arguments):
        monkeypatch.setattr(sys, "argv", ["sentsmith", *map(str, arguments)])
        try:
            main_module.main()
            code = 0
        except SystemExit as end:
            code = end.code or 0
        return code, *capsys.readouterr()

    return call


def one_line(stderr):
    assert "Traceback" not in stderr
    assert stderr.count("\n") == 1
    assert stderr.startswith("sentsmith: error: ")
    return stderr.removeprefix("sentsmith: error: ").rstrip("\n")


def test_help(run):
    code, out, err = run("--help")
    assert (code, err) == (0, "")
    assert all(f"\n  {verb} " in out for verb in VERBS)
    assert run() == (2, out, "")


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_has_help(run, verb):
    code, out, err = run(verb, "--help")
    assert (code, err) == (0, "")
    assert f"Usage: sentsmith {verb} " in out
    assert "--quiet" in out


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("trian",), "No such command 'trian'. Did you mean 'train'? (sentsmith --help shows how)"),
        (("--verbose",), "No such option: --verbose (sentsmith --help shows how)"),
        (
            ("train", "r.yaml", "--outptu", "x"),
            "No such option: --outptu (Possible options: --output) (sentsmith train",
        ),
        (("train", "r.yaml"), "Missing option '--output' / '-o' (sentsmith train --help shows how)"),
        (("train",), "Missing argument 'recipe' (sentsmith train --help shows how)"),
        (("embed", "a", "b", "c"), "unexpected extra argument"),
    ],
)
def test_wrong_use(run, arguments, message):
    code, out, err = run(*arguments)
    assert (code, out) == (2, "")
    assert message in one_line(err)


@pytest.fixture
def breaking(monkeypatch, run):
    """Return a function that runs a command whose inside raises this."""

    def call(error):
        def fail():
            raise error

        app = main_module.typer.Typer()
        app.command()(fail)
        monkeypatch.setattr(main_module, "app", app)
        return run()

    return call


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (SentsmithError("it failed"), 1, "it failed"),
        (InputError("is wrong\n  in two lines", path="a.csv", row=7), 2, "a.csv, row 7: is wrong in two lines"),
        (MissingExtraError("pip install it"), 2, "pip install it"),
        (KeyboardInterrupt(), 1, "interrupted; nothing that looks finished was left half-written"),
        (OSError(errno.ENOSPC, "No space left on device", "x.npy"), 1, "the disk is full"),
        (OSError(errno.EFBIG, "File too large"), 1, "the disk is full"),
        (RuntimeError("I/O error: No space left on device (os error 28)"), 1, "the disk is full"),
        (RuntimeError("[enforce fail at inline_container.cc:672] . unexpected pos 128 vs 22"), 1, "the disk is full"),
        (PermissionError(errno.EACCES, "Permission denied", "/x/y"), 1, "/x/y: Permission denied"),
        (MemoryError(), 1, "not enough memory; use a smaller batch"),
        (KeyError("k"), 1, "unexpected KeyError: 'k' (SENTSMITH_DEBUG=1 shows where)"),
    ],
)
def test_what_breaks_inside(breaking, error, code, message):
    found, out, err = breaking(error)
    assert (found, out) == (code, "")
    assert one_line(err).startswith(message)


def test_a_full_disk_inside_another_error(breaking):
    error = RuntimeError("cannot save")
    error.__cause__ = OSError(errno.ENOSPC, "No space left on device")
    assert "the disk is full" in breaking(error)[2]


def test_debugging_shows_where(breaking, monkeypatch):
    monkeypatch.setenv("SENTSMITH_DEBUG", "1")
    code, _, err = breaking(KeyError("k"))
    assert code == 1
    assert "Traceback" in err
    assert "in fail" in err


def script(*arguments, **options):
    return subprocess.run(
        [sys.executable, "-c", "from sentsmith.cli.main import main; main()", *arguments],
        stderr=subprocess.PIPE,
        text=True,
        timeout=60,
        check=False,
        **options,
    )


def test_standard_output_that_is_full():
    try:
        full = open("/dev/full", "w")  # noqa: SIM115, PTH123
    except OSError:
        pytest.skip("this system has no /dev/full")
    with full:
        done = script("train", "--help", stdout=full)
    assert done.returncode == 1
    assert one_line(done.stderr).startswith("the disk is full")


def test_a_reader_that_went_away():
    code = "import os, sys; r, w = os.pipe(); os.close(r); os.dup2(w, 1); sys.argv = ['sentsmith', '--help']\n"
    code += "from sentsmith.cli.main import main\nmain()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False)
    assert done.stderr == ""
    assert done.returncode == 0


# -- the console --------------------------------------------------------------------------------------------------


@pytest.fixture
def library_log():
    """Put the log of the library back as it was."""
    log = logging.getLogger("sentsmith")
    before = log.handlers[:], log.propagate, log.level
    yield logging.getLogger("sentsmith.somewhere")
    log.handlers[:], log.propagate = before[:2]
    log.setLevel(before[2])


@pytest.mark.parametrize("quiet", [False, True])
def test_the_log_goes_to_standard_error(library_log, capsys, quiet):
    console.start(quiet=quiet)
    console.start(quiet=quiet)
    library_log.info("said")
    library_log.warning("warned")
    out, err = capsys.readouterr()
    assert out == ""
    assert err == ("warned\n" if quiet else "said\nwarned\n")


def test_results_go_to_standard_output(capsys):
    console.say("a line")
    console.show_json({"text": "ä", "n": 1})
    console.show_table("title [x]", ("name", "n"), [("one [b]", "1.5")])
    out, err = capsys.readouterr()
    assert err == ""
    assert out.startswith('a line\n{\n  "text": "ä",')
    assert "title [x]" in out
    assert "one [b]" in out


def test_no_bar_without_a_terminal(capsys, monkeypatch):
    with console.progress("embedding", quiet=False) as advance:
        advance(3)
    assert capsys.readouterr().err == ""
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    with console.progress("embedding", quiet=True) as advance:
        advance(3)
    assert capsys.readouterr().err == ""
    with console.progress("embedding", quiet=False) as advance:
        advance(3)
    assert "embedding" in capsys.readouterr().err


def test_json_of_a_number_that_is_none_is_still_json(capsys):
    console.show_json({"score": None})
    assert json.loads(capsys.readouterr().out) == {"score": None}
