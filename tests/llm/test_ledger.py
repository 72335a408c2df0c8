"""The ledger: one row per request, whole or not at all, one process at a time."""

from __future__ import annotations

import json
import sqlite3
import subprocess
import sys

import pytest

from sentsmith.errors import InputError, SentsmithError
from sentsmith.llm.backend import Decoding, Prompt
from sentsmith.llm.ledger import Entry, Ledger, Record, Usage
from sentsmith.llm.questions import Question, key_of


def entry(key, *, task="score", model="m", against=None, given=("a", "b"), prompt="p", **record):
    return Entry(
        key=key,
        task=task,
        given=given,
        prompt=prompt,
        against=against,
        model=model,
        parameters={"temperature": 0.0},
        record=Record(**{"state": "parsed", "value": "v", "attempts": 1} | record),
    )


def test_what_is_written_is_there_after_reopening(tmp_path):
    path = tmp_path / "deep" / "a.sqlite"
    record = Record("parsed", 4.5, None, "4.5", 2, 10, 3, 1.5, 0.25)
    with Ledger(path) as ledger:
        assert ledger.get("k") is None
        ledger.write(
            [
                Entry(
                    key="k",
                    task="score",
                    given=("ü", 'say "hi"\n'),
                    prompt="p\0q",
                    against="other",
                    model="m",
                    parameters={"seed": 1},
                    record=record,
                )
            ]
        )
        ledger.write([])
    with Ledger(path) as ledger:
        assert ledger.get("k") == record
        (row,) = ledger.rows()
    assert json.loads(row.pop("given")) == ["ü", 'say "hi"\n']
    assert json.loads(row.pop("parameters")) == {"seed": 1}
    assert row.pop("created").startswith("20")
    assert row == {
        "key": "k",
        "task": "score",
        "prompt": "p\0q",
        "against": "other",
        "model": "m",
        "answer": "4.5",
        "state": "parsed",
        "value": "4.5",
        "reason": None,
        "attempts": 2,
        "prompt_tokens": 10,
        "answer_tokens": 3,
        "seconds": 1.5,
        "price": 0.25,
    }


def test_values_keep_their_type(tmp_path):
    with Ledger(tmp_path / "a") as ledger:
        for value in ("4.5", 4.5, "", 'a "quote" ü', 3):
            ledger.write([entry("k", value=value)])
            read = ledger.get("k").value
            assert read == value
            assert type(read) is type(value)


def test_a_row_is_replaced_and_a_list_is_written_whole_or_not_at_all(tmp_path):
    with Ledger(tmp_path / "a") as ledger:
        ledger.write([entry("k", state="retry", value=None, reason="empty")])
        ledger.write([entry("k")])
        assert ledger.counts() == {"parsed": 1}
        with pytest.raises(ValueError, match="not JSON compliant"):
            ledger.write([entry("l"), entry("k", value=float("nan"))])
        with pytest.raises(SentsmithError, match=r"cannot be read or written any more.*is kept"):
            ledger.write([entry("l"), entry("k", state="whatever")])
        assert ledger.get("l") is None
        assert ledger.get("k").state == "parsed"
        ledger.write([entry("l")])
        assert ledger.counts() == {"parsed": 2}


def test_half_of_a_surrogate_pair_is_no_reason_to_fail(tmp_path):
    with Ledger(tmp_path / "a") as ledger:
        ledger.write([entry("k", answer="a\ud800b", prompt="\udc00", given=("\ud800",))])
        assert ledger.get("k").answer == "a?b"


def test_counts_reasons_and_history(tmp_path):
    with Ledger(tmp_path / "a") as ledger:
        ledger.write(
            [
                entry("1", prompt_tokens=10, answer_tokens=4, seconds=1.0),
                entry("2", prompt_tokens=20, answer_tokens=8, seconds=2.0, attempts=2),
                entry("7", against="q", prompt_tokens=50, answer_tokens=9, seconds=7.0),
                entry("3", task="entailment", state="quarantined", value=None, reason="copy"),
                entry("4", state="quarantined", value=None, reason="answered 503: busy", attempts=0),
                entry("5", state="quarantined", value=None, reason="answered 503: down", attempts=0),
                entry("6", model="other", state="retry", value=None, reason="empty"),
            ]
        )
        assert ledger.counts() == {"parsed": 3, "quarantined": 3, "retry": 1}
        assert ledger.reasons() == {"answered 503": 2, "copy": 1}
        assert ledger.reasons("entailment") == {"copy": 1}
        # What never was answered says nothing of how long answers are.
        assert ledger.history("m") == {
            ("score", False): Usage(3, 30, 12, 3.0),
            ("score", True): Usage(1, 50, 9, 7.0),
            ("entailment", False): Usage(1, 0, 0, 0.0),
        }
        assert ledger.history("nobody") == {}


def foreign(path):
    connection = sqlite3.connect(path)
    connection.execute("CREATE TABLE requests (key TEXT)")
    connection.commit()
    connection.close()


def other_version(path):
    with Ledger(path):
        pass
    connection = sqlite3.connect(path)
    connection.execute("PRAGMA user_version = 7")
    connection.commit()
    connection.close()


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda path: path.write_text("anchor,positive\n" * 100), "is no ledger"),
        (foreign, "is an SQLite file, but no ledger"),
        (other_version, "version 7; this sentsmith reads version 1"),
        (lambda path: path.mkdir(), "is a folder"),
    ],
)
def test_what_is_no_ledger_is_refused_in_one_line_and_left_alone(tmp_path, make, message):
    path = tmp_path / "a.sqlite"
    make(path)
    before = path.read_bytes() if path.is_file() else None
    with pytest.raises(InputError, match=message) as error:
        Ledger(path)
    assert "\n" not in str(error.value)
    assert str(path) in str(error.value)
    assert before is None or path.read_bytes() == before


def test_an_empty_file_becomes_a_ledger(tmp_path):
    # What a process leaves that was killed before the first write.
    path = tmp_path / "a.sqlite"
    path.touch()
    with Ledger(path) as ledger:
        assert ledger.counts() == {}


def test_a_second_process_gets_one_line_and_a_later_one_the_file(tmp_path):
    path = tmp_path / "a.sqlite"
    code = f"from sentsmith.llm.ledger import Ledger\nLedger({str(path)!r}).close()"
    with Ledger(path) as ledger:
        ledger.write([entry("k")])
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 1
        assert "is in use by another run; wait for it, or give another --ledger" in done.stderr
        with pytest.raises(InputError, match="is in use by another run"):
            Ledger(path)
        ledger.write([entry("l")])
    with Ledger(path) as ledger:
        assert ledger.counts() == {"parsed": 2}


def test_the_key_depends_on_everything_that_the_answer_depends_on():
    def question(**changes):
        values = {"task": "score", "given": ("a", "b"), "prompt": Prompt("p"), "parse": float}
        return Question(**values | changes)

    decoding = Decoding(temperature=1.0)
    keys = [
        key_of(question(), "m", decoding),
        key_of(question(task="t"), "m", decoding),
        key_of(question(given=("a b",)), "m", decoding),
        key_of(question(prompt=Prompt("p", "")), "m", decoding),
        key_of(question(prompt=Prompt("p", "q")), "m", decoding),
        key_of(question(prompt=Prompt("q")), "m", decoding),
        key_of(question(prompt=Prompt("\ud800")), "m", decoding),
        key_of(question(), "n", decoding),
        *(
            key_of(question(), "m", decoding.model_copy(update={name: value}))
            for name, value in {
                "max_new_tokens": 9,
                "temperature": 0.5,
                "top_p": 0.5,
                "seed": 1,
                "first_weight": 2.0,
                "second_weight": -1.0,
                "floor": 0.1,
            }.items()
        ),
    ]
    assert len(set(keys)) == len(keys)
    assert set(Decoding.model_fields) == {
        "max_new_tokens", "temperature", "top_p", "seed", "first_weight", "second_weight", "floor",
    }  # fmt: skip
    assert keys[0] == key_of(question(parse=str), "m", Decoding(temperature=1.0))
    # Nothing is drawn at temperature 0: what was answered under one seed is not paid for again under another.
    greedy = key_of(question(), "m", Decoding())
    assert greedy not in keys
    assert greedy == key_of(question(), "m", Decoding(seed=1, top_p=0.5))
    assert greedy != key_of(question(), "m", Decoding(max_new_tokens=9))
