"""``sentsmith write rankings`` from the outside: a real endpoint, a real tiny model, kills, budgets, wrong options."""

from __future__ import annotations

import json
import sqlite3

import pytest

from sentsmith.cli import console
from sentsmith.corpus.reading import read_rankings, read_rows

# Words that the tiny model knows, and few of them: it has 64 positions.
PROMPTS = """
template: {prompt: "{instruction} {exemplars}{inputs}a", exemplar: "{inputs}a {output} . ", input: "{input} ; "}
tasks:
  rewrite: {parse: line, instructions: ["and the same ,"]}
"""


@pytest.fixture
def here(tmp_path, sentences, monkeypatch):
    """Return a folder, the current one, with short sentences and prompts for the tiny model."""
    folder = tmp_path / "here"
    folder.mkdir()
    (folder / "s.txt").write_text("\n".join(" ".join(text.split()[:8]) for text in sentences[:30]))
    (folder / "p.yaml").write_text(PROMPTS)
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def at_once(endpoint):
    """Return the options that write whole lists at an endpoint, which numbers what it makes of the sentence."""

    def reply(request, times):
        sentence = request["messages"][0]["content"].splitlines()[-2].removeprefix("Sentence: ")
        items = [f"**{number}.** {sentence} {'far ' * number}away" for number in (1, 2, 3, 4)]
        return "Here you are:\n\n" + "\n".join(items[: 3 if sentence.startswith("a") else 4])

    endpoint.reply = reply
    return ("--llm", f"{endpoint.url}#m", "--writer", "single-shot", "--count", "4")


def stepwise(endpoint):
    endpoint.reply = lambda request, times: (
        request["messages"][0]["content"].splitlines()[-2].removeprefix("Sentence: ") + " on"
    )
    return ("--llm", f"{endpoint.url}#m", "--writer", "stepwise", "--count", "3", "--together", "6", "--limit", "12")


def refused(result, message, code=2):
    assert result[:2] == (code, "")
    assert result[2].startswith("sentsmith: error: ")
    assert result[2].count("\n") == 1
    assert message in result[2]


def test_help(command):
    code, out, err = command("write", "rankings", "--help")
    assert (code, err) == (0, "")
    for option in ("--llm", "--writer", "--direction", "--together", "--clusters", "--ledger", "--budget", "--dry-run"):
        assert option in out
    assert "\n  rankings " in command("write", "--help")[1]


def test_whole_lists_of_a_real_endpoint(here, command, endpoint, at_once):
    sentences = (here / "s.txt").read_text().splitlines()
    short = sum(text.startswith("a") for text in sentences)
    assert short
    code, out, err = command("write", "rankings", "s.txt", "o.parquet", *at_once)
    assert code == 0, err
    assert out.startswith(
        f"o.parquet: {30 - short} lists of 30 seeds\n"
        f"o.parquet.quarantine.jsonl: {short} rows left out ({short} too few)\n30 questions asked, 0 answered before; "
    )
    rows = [row.sentences for row in read_rankings("o.parquet")]
    assert [row[0] for row in rows] == [text for text in sentences if not text.startswith("a")]
    assert all(row[4] == f"{row[0]} far far far far away" for row in rows)
    assert len(endpoint.seen) == 30
    said = json.loads(command("write", "rankings", "s.txt", "o.parquet", *at_once, "--json")[1])
    assert (said["seeds"], said["lists"], said["asked"], said["skipped"]) == (30, 30 - short, 0, 30)
    assert (said["reasons"], said["quarantine"]) == ({"too few": short}, "o.parquet.quarantine.jsonl")
    assert len(endpoint.seen) == 30


def test_step_by_step_at_a_real_endpoint_with_a_budget(here, command, endpoint):
    options = stepwise(endpoint)
    prices = ("--price-in", "1", "--price-out", "2")
    code, out, err = command("write", "rankings", "s.txt", "o.jsonl", *options, *prices, "--budget", "0.0004usd")
    assert code == 0, err
    assert "the budget is used up" in out
    first = len(endpoint.seen)
    assert 0 < first < 36
    found = command("write", "rankings", "s.txt", "o.jsonl", *options, "--dry-run")[1]
    assert found.startswith(f"{36 - first} requests ({first} more are in the ledger already); about ")
    code, out, err = command("write", "rankings", "s.txt", "o.jsonl", *options)
    assert code == 0, err
    assert out.startswith("o.jsonl: 12 lists of 12 seeds\n")
    assert len(endpoint.seen) == 36
    assert all(row["sentences"][3] == f"{row['sentences'][0]} on on on" for row in read_rows("o.jsonl"))
    # Other settings: what the earlier run wrote stays, and is said to.
    written, other = (here / "o.jsonl").read_bytes(), (*options, "--seed", "1", "--temperature", "1", "--budget", "1")
    out = command("write", "rankings", "s.txt", "o.jsonl", *other)[1]
    assert out.startswith(
        "o.jsonl: nothing written yet, none of 12 seeds has its list; the file still holds what was there before\n"
    )
    said = json.loads(command("write", "rankings", "s.txt", "o.jsonl", *other, "--json")[1])
    assert (said["output"], said["left_as_it_was"], said["quarantine"]) == (None, "o.jsonl", None)
    assert (here / "o.jsonl").read_bytes() == written


def test_an_endpoint_cannot_be_steered(here, command, endpoint):
    refused(command("write", "rankings", "s.txt", "o.jsonl", "--llm", f"{endpoint.url}#m"), "--direction 0")
    assert endpoint.seen == []
    assert sorted(path.name for path in here.iterdir()) == ["p.yaml", "s.txt"]


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("more", [(), ("--dry-run",)])
def test_the_drawing_of_seeds_shows_how_far_it_is(command, at_once, monkeypatch, tiny_bert, more):
    drawn = (*at_once, "--clusters", "2", "--per-cluster", "3", "--seed-model", str(tiny_bert))
    monkeypatch.setattr(console, "progress_wanted", lambda *, quiet: not quiet)
    code, _, err = command("write", "rankings", "s.txt", "o.jsonl", *drawn, *more)
    assert code == 0, err
    assert "seeds: 100%" in err
    assert "seeds" not in command("write", "rankings", "s.txt", "q.jsonl", *drawn, *more, "--quiet")[2]


@pytest.mark.usefixtures("here")
def test_corruption_needs_no_model(command):
    code, out, err = command("write", "rankings", "s.txt", "o.jsonl", "--writer", "corruption", "--count", "5")
    assert code == 0, err
    assert out == "o.jsonl: 30 lists of 30 seeds\n"
    assert all(len(row["sentences"]) == 6 for row in read_rows("o.jsonl"))
    said = json.loads(
        command("write", "rankings", "s.txt", "o.jsonl", "--writer", "corruption", "--limit", "7", "--json")[1]
    )
    assert (said["seeds"], said["lists"], said["pending"]) == (7, 7, 0)
    assert "ledger" not in said


def tiny(writer, *more):
    return (
        "--llm", str(writer), "--prompts", "p.yaml", "--max-new-tokens", "12", "--device", "cpu", "--count", "4",
        "--min-characters", "1", "--together", "6", *more,
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("temperature", ["0", "1"])
def test_killed_inside_lists_it_ends_with_the_same_bytes(here, command, brief_writer, sentsmith_process, temperature):
    arguments = ("write", "rankings", "s.txt", "o.parquet", *tiny(brief_writer, "--temperature", temperature))
    code, _, err = command(*(a.replace("o.parquet", "whole.parquet") for a in arguments))
    assert code == 0, err
    with sqlite3.connect("whole.parquet.ledger.sqlite") as ledger:
        asked = ledger.execute("SELECT COUNT(*) FROM requests").fetchone()[0]
    # Stopped for good after the third round, so that it is killed between two rounds, and after the fifth.
    for rounds in (3, 2):
        blocked = f"""
            import pathlib, signal
            import sentsmith.llm.local as local
            answers, rounds = local.LocalBackend._block, []
            def block(self, prompts, decoding):
                rounds.append(len(prompts))
                if len(rounds) > {rounds}:
                    pathlib.Path("blocked").touch()
                    signal.pause()
                return answers(self, prompts, decoding)
            local.LocalBackend._block = block
"""
        run = sentsmith_process(*arguments, cwd=here, before=blocked)
        run.wait_for((here / "blocked").exists)
        run.kill()
        (here / "blocked").unlink()
        assert not (here / "o.parquet").exists()
    code, out, err = command(*arguments, "--json")
    assert code == 0, err
    said = json.loads(out)
    assert 0 < said["asked"] < asked
    assert said["reasons"]
    assert (here / "o.parquet").read_bytes() == (here / "whole.parquet").read_bytes()
    assert (here / "o.parquet.quarantine.jsonl").read_bytes() == (here / "whole.parquet.quarantine.jsonl").read_bytes()
    with sqlite3.connect("o.parquet.ledger.sqlite") as ledger:
        assert ledger.execute("SELECT COUNT(*) FROM requests").fetchone()[0] == asked


@pytest.mark.slow
def test_the_small_real_model(here, command, nli_lm):
    (here / "c.txt").write_text("Two children are playing soccer in the park.\nA woman is slicing an onion.\n")
    model = ("--llm", str(nli_lm), "--prompts", "nli-lm-8m", "--device", "cpu", "--count", "3", "--repeats", "4")
    code, _, err = command("write", "rankings", "c.txt", "o.jsonl", *model)
    assert code == 0, err
    rows = [row["sentences"] for row in read_rows("o.jsonl")]
    assert [len(row) for row in rows] == [4, 4]
    assert all(row[0] != row[1] for row in rows)
    refused(command("write", "rankings", "c.txt", "l.jsonl", *model, "--writer", "single-shot"), "has no task 'list'")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("absent.txt", "o.jsonl"), "absent.txt: does not exist"),
        (("s.txt", "o.csv"), "o.csv: cannot hold lists of sentences; write .jsonl or .parquet"),
        (("s.txt", "s.jsonl"), "s.jsonl: exists; give another name, or --overwrite"),
        (("s.txt", "o.jsonl", "--prompts", "rankings"), "did you mean 'ranking'"),
        (("s.txt", "o.jsonl", "--task", "nothing"), "ranking: has no task 'nothing'"),
        (("s.txt", "o.jsonl", "--direction", "inf"), "setting 'direction': "),
        (("s.txt", "o.jsonl", "--writer", "loud"), "setting 'writer': "),
        (("s.txt", "o.jsonl", "--writer", "stepwise", "--direction", "1"), "direction does nothing without"),
        (("s.txt", "o.jsonl", "--per-cluster", "3"), "per_cluster does nothing without clusters"),
        (("s.txt", "o.jsonl", "--budget", "lots"), "budget 'lots'"),
        (("s.txt", "o.jsonl", "--price-in", "1"), "need each other"),
        (("s.txt", "o.jsonl", "--ledger", "bad.txt"), "bad.txt: is no ledger"),
        (("s.txt", "o.jsonl", "--writer", "corruption"), "--llm does nothing with --writer corruption"),
    ],
)
def test_bad_input(here, command, endpoint, arguments, message):
    (here / "bad.txt").write_bytes(b"A dog.\nA \xff cat.\n" * 200)
    (here / "s.jsonl").write_text("mine")
    plainly = () if "--direction" in arguments or "--writer" in arguments else ("--direction", "0")
    refused(command("write", "rankings", "--llm", f"{endpoint.url}#m", *plainly, *arguments), message)
    assert (here / "s.jsonl").read_text() == "mine"


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ((), "--writer directional needs --llm, the language model that writes"),
        (("--writer", "single-shot"), "--writer single-shot needs --llm"),
        (("--writer", "corruption", "--dry-run"), "--dry-run does nothing with --writer corruption"),
        (("--writer", "corruption", "--prompts", "ranking"), "--prompts does nothing with --writer corruption"),
        (("--writer", "corruption", "--budget", "5k"), "--budget does nothing with --writer corruption"),
        (("--writer", "corruption", "--device", "cpu"), "--device does nothing with --writer corruption"),
        (("--writer", "corruption", "--max-characters", "60"), "max_characters does nothing without a writer"),
        (("--llm", "./nope"), "nope: no such folder"),
    ],
)
def test_a_model_is_needed_or_is_not(command, arguments, message):
    refused(command("write", "rankings", "s.txt", "o.jsonl", *arguments), message)
