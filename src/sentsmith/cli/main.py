"""The command ``sentsmith``: registers the verbs, and turns every failure into one line and an exit code."""

from __future__ import annotations

import errno
import os
import sys
import traceback

import typer

from sentsmith.cli.audit import audit
from sentsmith.cli.embed import embed
from sentsmith.cli.evaluate import evaluate
from sentsmith.cli.index import index
from sentsmith.cli.quickstart import quickstart
from sentsmith.cli.report import report
from sentsmith.cli.search import search
from sentsmith.cli.train import train
from sentsmith.errors import SentsmithError

app = typer.Typer(
    name="sentsmith",
    help="Turn raw sentences into a better sentence-embedding model, and prove that it is better.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
)


@app.callback()
def _root() -> None:
    """Turn raw sentences into a better sentence-embedding model, and prove that it is better."""


app.command("audit")(audit)
app.command("embed")(embed)
app.command("evaluate")(evaluate)
app.command("index")(index)
app.command("quickstart")(quickstart)
app.command("report")(report)
app.command("search")(search)
app.command("train")(train)


def main() -> None:
    """Run the command; exit code 0 done, 1 the job failed, 2 the input or the settings were wrong."""
    try:
        app()
    except SentsmithError as error:
        _end(str(error), error.exit_code)
    except KeyboardInterrupt:
        _end("interrupted; nothing half-written was left behind", 1)
    except BrokenPipeError:
        # The reader of a pipe (head, less) went away: what it wanted it has.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    except OSError as error:
        name = f"{error.filename}: " if error.filename else ""
        full = error.errno == errno.ENOSPC
        _end(
            "the disk is full; free some space and run again" if full else f"{name}{error.strerror or error}",
            1,
        )
    except MemoryError:
        _end("not enough memory; use a smaller batch, or split the input", 1)
    except Exception as error:
        _end(f"unexpected {type(error).__name__}: {error} (SENTSMITH_DEBUG=1 shows where)", 1)


def _end(message: str, code: int) -> None:
    if os.environ.get("SENTSMITH_DEBUG"):
        traceback.print_exc()
    line = " ".join(message.split())
    sys.stderr.write(f"sentsmith: error: {line}\n")
    raise SystemExit(code)
