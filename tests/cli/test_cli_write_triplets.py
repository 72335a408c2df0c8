"""``sentsmith write triplets`` from the outside: a real endpoint, a real tiny model, kills, budgets, bad input."""

from __future__ import annotations

import json
import random
import sqlite3
import time

import pytest

from sentsmith.corpus.reading import read_rows

# Words that the tiny model knows, and few of them: it has 64 positions.
PROMPTS = """
template: {prompt: "{instruction} {exemplars}{inputs}a", exemplar: "{inputs}a {output} . ", input: "{input} ; "}
tasks:
  entailment: {parse: sentence, opposite: contradiction, instructions: ["and the same ,"]}
  contradiction: {parse: sentence, opposite: entailment, instructions: ["and not the same ,"]}
"""


@pytest.fixture(scope="session")
def writer(save_writer):
    """Return the folder of a tiny LLaMA that writes."""
    return save_writer("llama")


@pytest.fixture
def here(tmp_path, sentences, monkeypatch):
    """Return a folder, the current one, with short sentences and prompts for the tiny model."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "s.txt").write_text("\n".join(" ".join(text.split()[:8]) for text in sentences))
    (folder / "p.yaml").write_text(PROMPTS)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def plainly(endpoint):
    """Return the options that write plainly at an endpoint, which answers by the input of the prompt."""

    def reply(request, times):
        lines = request["messages"][0]["content"].splitlines()
        sentence = lines[-2].removeprefix("Sentence: ")
        return f"[{len(lines[0]) % 7}] {sentence[::-1]}"

    endpoint.reply = reply
    return ("--llm", f"{endpoint.url}#m", "--omega", "0", "--max-ratio", "20")


def refused(result, message, code=2):
    assert result[:2] == (code, "")
    assert result[2].startswith("sentsmith: error: ")
    assert result[2].count("\n") == 1
    assert message in result[2]


def test_help(command):
    code, out, err = command("write", "triplets", "--help")
    assert (code, err) == (0, "")
    for option in ("--llm", "--prompts", "--omega", "--noise", "--ledger", "--budget", "--dry-run", "--demonstrations"):
        assert option in out
    assert "\n  triplets " in command("write", "--help")[1]


def test_a_real_endpoint(here, command, endpoint, plainly):
    code, out, err = command("write", "triplets", "s.txt", "o.parquet", *plainly, "--json", "--quiet")
    assert code == 0, err
    said = json.loads(out)
    assert (said["sentences"], said["triplets"], said["asked"], said["stopped"]) == (60, 60, 120, False)
    rows = list(read_rows("o.parquet"))
    sentences = (here / "s.txt").read_text().splitlines()
    assert [row["anchor"] for row in rows] == sentences
    assert all(row["positive"].endswith(row["anchor"][::-1]) for row in rows)
    assert len(endpoint.seen) == 120
    # Again: nobody is asked, and the file is the same.
    before = (here / "o.parquet").read_bytes()
    code, out, err = command("write", "triplets", "s.txt", "o.parquet", *plainly)
    assert code == 0, err
    assert out == (
        "o.parquet: 60 triplets of 60 sentences\n"
        "0 questions asked, 120 answered before; 0 prompt and 0 answer tokens, 0 s\n"
    )
    assert (len(endpoint.seen), (here / "o.parquet").read_bytes()) == (120, before)


def test_what_cannot_be_read_is_told(here, command, endpoint, plainly):
    answer = endpoint.reply
    endpoint.reply = lambda request, times: (
        "" if " dog" in request["messages"][0]["content"] else answer(request, times)
    )
    code, out, err = command("write", "triplets", "s.txt", "o.csv", *plainly)
    assert code == 0, err
    left_out = list(read_rows("o.csv.quarantine.jsonl"))
    kept = list(read_rows("o.csv"))
    assert len(kept) + len(left_out) == 60
    assert left_out
    assert f"o.csv.quarantine.jsonl: {len(left_out)} rows left out ({len(left_out)} entailment: empty, " in out


def test_endpoints_cannot_be_guided(here, command, endpoint):
    refused(command("write", "triplets", "s.txt", "o.csv", "--llm", f"{endpoint.url}#m"), "--omega 0")
    assert endpoint.seen == []
    assert sorted(path.name for path in here.iterdir()) == ["p.yaml", "s.txt"]


def test_a_budget_stops_cleanly_and_a_later_run_completes(here, command, endpoint, plainly):
    prices = ("--price-in", "1", "--price-out", "2")
    code, out, err = command("write", "triplets", "s.txt", "o.csv", *plainly, *prices, "--budget", "0.001usd")
    assert code == 0, err
    first = len(endpoint.seen)
    assert 0 < first < 120
    assert "the budget is used up" in out
    assert "at these prices" in out
    code, out, err = command("write", "triplets", "s.txt", "o.csv", *plainly, "--json")
    assert code == 0, err
    assert json.loads(out)["triplets"] == 60
    assert len(endpoint.seen) == 120
    code, out, err = command("write", "triplets", "s.txt", "none.csv", *plainly, "--budget", "1")
    assert code == 0, err
    assert out.startswith(
        "none.csv: nothing written yet, none of 60 sentences has its triplet\nthe budget is used up, 60"
    )
    assert not (here / "none.csv").exists()
    refused(command("write", "triplets", "s.txt", "o.csv", *plainly, "--budget", "lots"), "budget 'lots'")
    refused(command("write", "triplets", "s.txt", "o.csv", *plainly, "--price-in", "1"), "need each other")


def test_a_dry_run_asks_an_endpoint_nothing(here, command, endpoint, plainly):
    code, out, err = command(
        "write", "triplets", "s.txt", "o.csv", *plainly, "--dry-run", "--price-in", "1", "--price-out", "2"
    )
    assert code == 0, err
    assert out.startswith("120 requests (0 more are in the ledger already); about ")
    assert "; time unknown (the ledger has no such answers yet); at most " in out
    assert endpoint.seen == []
    said = json.loads(command("write", "triplets", "s.txt", "o.csv", *plainly, "--dry-run", "--json")[1])
    assert (said["dry_run"], said["requests"], said["money"]) == (True, 120, None)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "kills"), [(30, 2), (250, 20)])
def test_killed_it_ends_with_the_same_bytes(here, command, endpoint, plainly, sentsmith_process, count, kills):
    (here / "n.txt").write_text("\n".join(f"a man number {number} sings ." for number in range(count)))
    code, _, err = command("write", "triplets", "n.txt", "whole.parquet", *plainly, "--quiet")
    assert code == 0, err
    asked = len(endpoint.seen)
    answer = endpoint.reply

    def slowly(request, times):
        time.sleep(0.04)
        return answer(request, times)

    endpoint.reply = slowly
    dice = random.Random(0)
    arguments = ("write", "triplets", "n.txt", "o.parquet", *plainly, "--concurrency", "2", "--quiet")
    for _ in range(kills):
        run = sentsmith_process(*arguments, cwd=here)
        # It is let begin: the moments of the kills are spread over the asking.
        before = len(endpoint.seen)
        run.wait_for(lambda before=before: len(endpoint.seen) > before)
        time.sleep(dice.uniform(0.0, 0.4))
        assert run.running, run.stderr
        run.kill()
    assert not (here / "o.parquet").exists()
    run = sentsmith_process(*arguments, cwd=here).wait()
    assert run.returncode == 0, run.stderr
    assert (here / "o.parquet").read_bytes() == (here / "whole.parquet").read_bytes()
    with sqlite3.connect("o.parquet.ledger.sqlite") as ledger:
        found = ledger.execute("SELECT COUNT(*), COUNT(DISTINCT key) FROM requests").fetchone()
    assert found == (2 * count, 2 * count)
    # A kill loses what was under way, and what was answered in that moment and not written down yet.
    assert 2 * count <= len(endpoint.seen) - asked <= 2 * count + 4 * kills


def tiny(writer, *more):
    return (
        "--llm", str(writer), "--prompts", "p.yaml", "--max-new-tokens", "24", "--temperature", "2", "--device", "cpu",
        "--max-ratio", "50", *more,
    )  # fmt: skip


@pytest.mark.slow
def test_a_real_model_guided(here, command, writer):
    code, out, err = command("write", "triplets", "s.txt", "o.parquet", *tiny(writer), "--json", "--quiet")
    assert code == 0, err
    said = json.loads(out)
    assert said["triplets"] + said["quarantined"] == 60
    assert said["triplets"] > 5
    rows = list(read_rows("o.parquet"))
    assert len({row["positive"] for row in rows}) > 5
    left_out = list(read_rows("o.parquet.quarantine.jsonl")) if said["quarantined"] else []
    assert len(rows) + len(left_out) == 60
    # Other guidance, other sentences; the order of rows does not matter to a sentence.
    assert command("write", "triplets", "s.txt", "w.parquet", *tiny(writer, "--omega", "-0.9"))[0] == 0
    other = {row["anchor"]: row for row in read_rows("w.parquet")}
    assert any(other[row["anchor"]] != row for row in rows if row["anchor"] in other)
    lines = (here / "s.txt").read_text().splitlines()
    (here / "turned.txt").write_text("\n".join(lines[::-1]))
    assert command("write", "triplets", "turned.txt", "t.parquet", *tiny(writer))[0] == 0
    assert list(read_rows("t.parquet")) == rows[::-1]


@pytest.mark.slow
def test_a_real_model_killed(here, command, writer, sentsmith_process):
    small_blocks = "import sentsmith.llm.local as l; l.LocalBackend.__init__.__kwdefaults__['block'] = 4"
    arguments = ("write", "triplets", "s.txt", "o.parquet", *tiny(writer), "--quiet")
    run = sentsmith_process(*arguments, cwd=here, before=small_blocks)
    ledger = here / "o.parquet.ledger.sqlite-wal"
    run.wait_for(lambda: ledger.exists() and ledger.stat().st_size > 60_000)
    run.kill()
    assert not (here / "o.parquet").exists()
    assert sentsmith_process(*arguments, cwd=here, before=small_blocks).wait().returncode == 0
    whole = sentsmith_process(*(a.replace("o.parquet", "w.parquet") for a in arguments), cwd=here, before=small_blocks)
    assert whole.wait().returncode == 0
    assert (here / "o.parquet").read_bytes() == (here / "w.parquet").read_bytes()
    said = json.loads(command(*arguments, "--json")[1])
    assert (said["asked"], said["skipped"]) == (0, 120)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.txt", "o.csv"), "absent.txt: does not exist"),
        (("bad.txt", "o.csv"), "bad.txt, row 2: byte 3"),
        (("s.txt", "o.csv", "--prompts", "bad.yaml"), "bad.yaml: key 'template': Field required"),
        (("s.txt", "o.csv", "--prompts", "multicrs"), "did you mean 'multicsr'"),
        (("s.txt", "o.csv", "--noise", "loud"), "setting 'noise': "),
        (("s.txt", "o.csv", "--omega", "nan"), "setting 'omega': "),
        (("s.txt", "o.csv", "--top-p", "0"), "setting 'top_p': "),
        (("s.txt", "o.csv", "--min-characters", "900"), "min_characters 900 is above max_characters 600"),
        (("s.txt", "o.csv", "--demonstrations", "3"), "demonstrations and demonstration_pool need each other"),
        (("s.txt", "o.csv", "--floor", "0.1"), "floor does nothing without omega other than 0"),
        (("s.txt", "o.csv", "--demonstration-model", "m"), "demonstration_model does nothing without demonstrations"),
        (("s.txt", "o.txt"), "a .txt file holds one column"),
        (("s.txt", "s.csv"), "s.csv: exists; give another name, or --overwrite"),
        (("s.txt", "o.csv", "--ledger", "bad.txt"), "bad.txt: is no ledger"),
    ],
)
def test_bad_input(here, command, plainly, arguments, message):
    (here / "bad.txt").write_bytes(b"A dog.\nA \xff cat.\n" * 200)
    (here / "bad.yaml").write_text("tasks: {}")
    (here / "s.csv").write_text("mine")
    refused(command("write", "triplets", *plainly, *arguments), message)
    assert (here / "s.csv").read_text() == "mine"


def test_models_that_are_none(here, command):
    refused(command("write", "triplets", "s.txt", "o.csv", "--llm", "./nope"), "nope: no such folder")
    refused(command("write", "triplets", "s.txt", "o.csv", "--llm", "http://localhost:1/v1"), "names no model")
    refused(command("write", "triplets", "s.txt", "o.csv"), "Missing option '--llm'")
