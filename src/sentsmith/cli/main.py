"""The command ``sentsmith``: registers the verbs, and turns every failure into one line and an exit code."""

from __future__ import annotations

import contextlib
import errno
import os
import sys
import traceback

import typer

from sentsmith.cli.audit import audit
from sentsmith.cli.curate import curate
from sentsmith.cli.embed import embed
from sentsmith.cli.encoder import encoder
from sentsmith.cli.evaluate import evaluate
from sentsmith.cli.index import index
from sentsmith.cli.quickstart import quickstart
from sentsmith.cli.report import report
from sentsmith.cli.search import search
from sentsmith.cli.train import train
from sentsmith.cli.words import words
from sentsmith.cli.write import write
from sentsmith.errors import InputError, SentsmithError
from sentsmith.training.processes import count

_FULL = (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)

app = typer.Typer(
    name="sentsmith",
    help="Turn raw sentences into a better sentence-embedding model, and prove that it is better.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _root(context: typer.Context) -> None:
    """Turn raw sentences into a better sentence-embedding model, and prove that it is better."""
    if count() > 1 and context.invoked_subcommand != "train":
        raise InputError(f"{context.invoked_subcommand} runs in one process, not in {count()}; start it by itself")


app.command("audit")(audit)
app.command("curate")(curate)
app.command("embed")(embed)
app.command("encoder")(encoder)
app.command("evaluate")(evaluate)
app.command("index")(index)
app.command("quickstart")(quickstart)
app.command("report")(report)
app.command("search")(search)
app.command("train")(train)
app.command("words")(words)
app.add_typer(write, name="write")


def main() -> None:
    """Run the command; exit code 0 done, 1 the job failed, 2 the input or the settings were wrong."""
    try:
        _run()
        # Here and not at exit, so that a full disk or a closed pipe is told like any other failure.
        sys.stdout.flush()
    except SentsmithError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("interrupted; nothing that looks finished was left half-written", 1)
    except BrokenPipeError:
        # The reader of a pipe (head, less) went away: what it wanted it has.
        _drop_output()
    except Exception as error:  # noqa: BLE001 - the last door: a traceback helps nobody but us
        if isinstance(error, OSError):
            _drop_output()
        _end(_in_words(error), 1)


def _run() -> None:
    # Typer's own way of running ends Ctrl-C silently and usage errors in three lines; the steps inside it do not.
    command = typer.main.get_command(app)
    try:
        with command.make_context("sentsmith", sys.argv[1:]) as context:
            command.invoke(context)
    except typer.Exit as done:
        raise SystemExit(done.exit_code) from None
    except Exception as error:
        # Wrong use of the command line: the class moved between typer's versions, its two members did not.
        show = getattr(error, "format_message", None)
        if show is None:
            raise
        where = getattr(getattr(error, "ctx", None), "command_path", "sentsmith")
        help_of = "" if type(error).__name__ == "NoArgsIsHelpError" else f" ({where} --help shows how)"
        if not help_of:
            sys.stdout.write(f"{show()}\n")
            raise SystemExit(2) from None
        _end(f"{show().rstrip('.')}{help_of}", 2)


def _in_words(error: Exception) -> str:
    if _disk_is_full(error):
        return "the disk is full, or a file would grow over its limit; free some space and run again"
    if isinstance(error, MemoryError):
        return "not enough memory; use a smaller batch, or split the input"
    if isinstance(error, OSError):
        name = f"{error.filename}: " if error.filename else ""
        return f"{name}{error.strerror or error}"
    return f"unexpected {type(error).__name__}: {error} (SENTSMITH_DEBUG=1 shows where)"


def _disk_is_full(error: BaseException | None) -> bool:
    # Libraries that write outside Python raise their own classes, with the system's words or number inside.
    signs = [f"os error {number}" for number in _FULL] + [os.strerror(number).lower() for number in _FULL]
    while error is not None:
        text = str(error).lower()
        if getattr(error, "errno", None) in _FULL or any(sign in text for sign in signs):
            return True
        if "pytorchstreamwriter failed" in text or "unexpected pos" in text:
            return True
        error = error.__cause__ or error.__context__
    return False


def _drop_output() -> None:
    # What is left in the buffer would be written again at exit, and fail again.
    with contextlib.suppress(OSError, ValueError):
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def _end(message: str, code: int) -> None:
    if os.environ.get("SENTSMITH_DEBUG"):
        traceback.print_exc()
    line = " ".join(message.split())
    sys.stderr.write(f"sentsmith: error: {line}\n")
    raise SystemExit(code) from None
