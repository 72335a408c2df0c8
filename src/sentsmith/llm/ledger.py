"""The ledger: everything a language model was asked and answered, one row per request, in one SQLite file.

Answers are paid for, in money or in hours, so they are on disk (WAL, ``synchronous=FULL``) before the next ones are
waited for. One process at a time holds a ledger; the system frees it when that process dies, however it dies.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import json
import sqlite3
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, Self

from sentsmith.errors import InputError, SentsmithError
from sentsmith.files import make_folder

State = Literal["parsed", "quarantined", "retry"]

# "Snts": tells our files from other people's SQLite files. The schema has a number of its own.
_APPLICATION = 0x536E7473
_SCHEMA = 1
_TABLE = """
CREATE TABLE requests (
    key TEXT PRIMARY KEY,
    task TEXT NOT NULL,
    given TEXT NOT NULL,          -- the texts of the corpus, a JSON list
    prompt TEXT NOT NULL,
    against TEXT,                 -- the second prompt of guided decoding
    model TEXT NOT NULL,
    parameters TEXT NOT NULL,     -- JSON: how the tokens of the answer kept here were chosen
    answer TEXT NOT NULL,         -- raw
    state TEXT NOT NULL CHECK (state IN ('parsed', 'quarantined', 'retry')),
    value TEXT,                   -- JSON: what was read in the answer
    reason TEXT,                  -- why nothing was
    attempts INTEGER NOT NULL,    -- answers that came, readable or not
    prompt_tokens INTEGER NOT NULL,  -- of all attempts together, as are the next three
    answer_tokens INTEGER NOT NULL,
    seconds REAL NOT NULL,
    price REAL,                   -- NULL: no price was given
    created TEXT NOT NULL         -- UTC, of the last attempt
)
"""
_COLUMNS = (
    "key", "task", "given", "prompt", "against", "model", "parameters", "answer", "state", "value", "reason",
    "attempts", "prompt_tokens", "answer_tokens", "seconds", "price", "created",
)  # fmt: skip
_RECORD = "state, value, reason, answer, attempts, prompt_tokens, answer_tokens, seconds, price"
_WRITE = f"INSERT OR REPLACE INTO requests ({', '.join(_COLUMNS)}) VALUES ({', '.join('?' * len(_COLUMNS))})"  # noqa: S608


@dataclass(frozen=True, slots=True)
class Record:
    """What is known about one request.

    Attributes:
        state: ``parsed``, ``quarantined`` (given up), or ``retry`` (unreadable, to be asked once more).
        value: What was read in the answer; None unless parsed.
        reason: Why nothing was read; None if parsed. A detail, if any, stands after ``": "``.
        answer: The last raw answer; "" where none came.
        attempts: Answers that came, readable or not.
        prompt_tokens: Read, over all attempts.
        answer_tokens: Written, over all attempts.
        seconds: They took.
        price: They cost; None where no price was given.
    """

    state: State
    value: str | float | None = None
    reason: str | None = None
    answer: str = ""
    attempts: int = 0
    prompt_tokens: int = 0
    answer_tokens: int = 0
    seconds: float = 0.0
    price: float | None = None


@dataclass(frozen=True, slots=True)
class Entry:
    """One row: the request and what is known about it.

    Attributes:
        key: See :func:`~sentsmith.llm.questions.key_of`.
        task: What was asked for.
        given: The texts of the corpus that it is about.
        prompt: What the model read.
        against: The second prompt of guided decoding.
        model: The backend's name.
        parameters: How the tokens of the kept answer were chosen, as JSON.
        record: What came of it.
    """

    key: str
    task: str
    given: tuple[str, ...]
    prompt: str
    against: str | None
    model: str
    parameters: dict[str, Any]
    record: Record


@dataclass(frozen=True, slots=True)
class Usage:
    """What requests of one kind took so far.

    Attributes:
        answers: That came, over all attempts.
        prompt_tokens: They read together.
        answer_tokens: They wrote together.
        seconds: They took together.
    """

    answers: int
    prompt_tokens: int
    answer_tokens: int
    seconds: float


class Ledger:
    """A file of requests and answers; a context manager.

    Args:
        path: The file; made, with its folder, if there is none.

    Raises:
        InputError: The file is no ledger, is one of another version, cannot be written, or is in use by another
            process.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        if self.path.is_dir():
            raise InputError("is a folder; give the name of a ledger file", path=self.path)
        make_folder(self.path.parent)
        # No implicit transactions: each list of answers is one, begun and ended here.
        try:
            self._connection = sqlite3.connect(self.path, timeout=0.2, isolation_level=None)
        except sqlite3.Error as error:
            raise InputError(f"cannot be opened as a ledger: {error}", path=self.path) from error
        try:
            self._open()
        except BaseException:
            self._connection.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let go of the file; everything written is in it."""
        self._connection.close()

    def get(self, key: str) -> Record | None:
        """Return what is known about the request of this key, or None if it was never answered."""
        with self._failures():
            row = self._connection.execute(f"SELECT {_RECORD} FROM requests WHERE key = ?", (key,)).fetchone()  # noqa: S608
        return None if row is None else _record(row)

    def write(self, entries: Iterable[Entry]) -> None:
        """Write rows, all or none of them; one that is there under the same key is replaced.

        Raises:
            SentsmithError: The disk is full, or the file cannot be written any more.
        """
        now = dt.datetime.now(dt.UTC).isoformat(timespec="seconds")
        rows = [_row(entry, now) for entry in entries]
        if rows:
            with self._failures(), self._transaction():
                self._connection.executemany(_WRITE, rows)

    def counts(self) -> dict[State, int]:
        """Return how many requests are in each state; a state without any is absent."""
        with self._failures():
            return dict(self._connection.execute("SELECT state, COUNT(*) FROM requests GROUP BY state ORDER BY state"))

    def reasons(self, task: str | None = None) -> Counter[str]:
        """Return how many requests are quarantined for each reason, details left out; of one task, or of all."""
        query = "SELECT reason FROM requests WHERE state = 'quarantined' AND (?1 IS NULL OR task = ?1)"
        with self._failures():
            return Counter(kind_of(reason) for (reason,) in self._connection.execute(query, (task,)))

    def history(self, model: str) -> dict[tuple[str, bool], Usage]:
        """Return what the answers of this model took so far, by task, and by whether they were guided."""
        query = """
            SELECT
                task, against IS NOT NULL AS guided,
                SUM(attempts), SUM(prompt_tokens), SUM(answer_tokens), SUM(seconds)
            FROM requests WHERE model = ? AND attempts > 0 GROUP BY task, guided
        """
        with self._failures():
            rows = self._connection.execute(query, (model,))
            return {(task, bool(guided)): Usage(*sums) for task, guided, *sums in rows}

    def rows(self) -> Iterator[dict[str, Any]]:
        """Yield every row as a dictionary of the table's columns, by key; ``given``, ``value`` … stay JSON text."""
        with self._failures():
            for row in self._connection.execute(f"SELECT {', '.join(_COLUMNS)} FROM requests ORDER BY key"):  # noqa: S608
                yield dict(zip(_COLUMNS, row, strict=True))

    def _open(self) -> None:
        try:
            # Held from here to the end: two runs on one ledger would each pay for the same answers.
            self._connection.execute("PRAGMA locking_mode = EXCLUSIVE")
            application, version = self._number("application_id"), self._number("user_version")
            tables = self._connection.execute("SELECT COUNT(*) FROM sqlite_master").fetchone()[0]
            # Somebody else's file stays as it is, its journal mode included.
            self._check(application, version, empty=tables == 0 and application == version == 0)
            self._connection.execute("PRAGMA journal_mode = WAL")
            self._connection.execute("PRAGMA synchronous = FULL")
            with self._transaction():
                if tables == 0:
                    self._connection.execute(_TABLE)
                    self._connection.execute(f"PRAGMA application_id = {_APPLICATION}")
                    self._connection.execute(f"PRAGMA user_version = {_SCHEMA}")
        except sqlite3.Error as error:
            raise InputError(_opening(error), path=self.path) from error

    def _number(self, name: str) -> int:
        return int(self._connection.execute(f"PRAGMA {name}").fetchone()[0])

    def _check(self, application: int, version: int, *, empty: bool) -> None:
        if empty:
            return
        if application != _APPLICATION:
            raise InputError("is an SQLite file, but no ledger; give another name", path=self.path)
        if version != _SCHEMA:
            raise InputError(
                f"is a ledger of version {version}; this sentsmith reads version {_SCHEMA}: use the one that wrote it, "
                "or give another name",
                path=self.path,
            )

    @contextlib.contextmanager
    def _transaction(self) -> Iterator[None]:
        self._connection.execute("BEGIN IMMEDIATE")
        try:
            yield
        except BaseException:
            # A full disk has rolled it back already.
            if self._connection.in_transaction:
                self._connection.execute("ROLLBACK")
            raise
        self._connection.execute("COMMIT")

    @contextlib.contextmanager
    def _failures(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise SentsmithError(
                f"{self.path}: the ledger cannot be read or written any more ({error}); what it holds is kept: mend "
                "the cause and run the same command again"
            ) from error


def kind_of(reason: str) -> str:
    """Return a reason without its detail, which stands after ``": "``."""
    return reason.partition(": ")[0]


def _opening(error: sqlite3.Error) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code is not None and code & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return "is in use by another run; wait for it, or give another --ledger"
    if code is not None and code & 0xFF == sqlite3.SQLITE_NOTADB:
        return "is no ledger (not an SQLite file); give another name"
    return f"cannot be opened as a ledger: {error}; give another name"


def _record(row: tuple[Any, ...]) -> Record:
    state, value, *rest = row
    return Record(state, None if value is None else json.loads(value), *rest)


def _row(entry: Entry, now: str) -> tuple[Any, ...]:
    record = entry.record
    return (
        entry.key,
        entry.task,
        json.dumps(entry.given),
        _text(entry.prompt),
        None if entry.against is None else _text(entry.against),
        entry.model,
        json.dumps(entry.parameters, sort_keys=True),
        _text(record.answer),
        record.state,
        None if record.value is None else json.dumps(record.value, allow_nan=False),
        None if record.reason is None else _text(record.reason),
        record.attempts,
        record.prompt_tokens,
        record.answer_tokens,
        record.seconds,
        record.price,
        now,
    )


def _text(text: str) -> str:
    # Half of a surrogate pair has no UTF-8, which is what SQLite stores.
    return text.encode("utf-8", "replace").decode("utf-8")
