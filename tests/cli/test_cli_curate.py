"""``sentsmith curate`` from the outside: a real endpoint, a real encoder, scores that are there, bad input."""

from __future__ import annotations

import json
import re

import pytest

from sentsmith.corpus.reading import read_rows
from sentsmith.methods.multicsr import scoring


@pytest.fixture
def here(tmp_path, sentences, monkeypatch):
    """Return a folder, the current one, with 12 triplets: the positive repeats words of the anchor."""
    folder = tmp_path / "here"
    folder.mkdir()
    rows = [
        {"anchor": text, "positive": f"{text} anew", "negative": other}
        for text, other in zip(sentences[:12], sentences[12:24], strict=True)
    ]
    (folder / "t.jsonl").write_text("\n".join(json.dumps(row) for row in rows))
    monkeypatch.chdir(folder)
    return folder


@pytest.fixture
def judge(endpoint):
    """Return the options of an endpoint that scores by the share of common words."""

    def reply(request, times):
        first, second = re.findall(r'Sentence \d: "(.*)"', request["messages"][0]["content"])[-2:]
        one, two = set(first.split()), set(second.split())
        return f"{5 * len(one & two) / len(one | two):.1f}"

    endpoint.reply = reply
    return ("--llm", f"{endpoint.url}#m")


def refused(result, message, code=2):
    assert result[:2] == (code, "")
    assert result[2].startswith("sentsmith: error: ")
    assert result[2].count("\n") == 1
    assert message in result[2]


def test_an_endpoint_scores_and_thresholds_are_tried_without_it(here, command, endpoint, judge):
    code, out, err = command("curate", "t.jsonl", "o.parquet", *judge, "--json", "--quiet")
    assert code == 0, err
    said = json.loads(out)
    rows, scored = list(read_rows("o.parquet")), list(read_rows("o.parquet.scores.parquet"))
    assert (said["triplets"], said["scored"], said["asked"]) == (12, 12, 24)
    assert said["kept"] == len(rows)
    assert 0 < len(rows) <= 12
    assert rows == [
        row
        for row in scored
        if row["positive_score"] >= 3
        and row["negative_score"] <= 3
        and row["positive_score"] - row["negative_score"] >= 1
    ]
    steps = said["thresholds"]["alpha"]
    assert said["thresholds"]["kept"][steps.index(3.0)][steps.index(3.0)] == len(rows)
    assert said["pictures"] == ["o.parquet.thresholds.svg", "o.parquet.scores.svg"]
    for name in said["pictures"]:
        assert (here / name).read_text().startswith("<svg ")
    asked = len(endpoint.seen)
    code, out, err = command("curate", "o.parquet.scores.parquet", "strict.csv", "--alpha", "4.5", "--gamma", "3.5")
    assert code == 0, err
    assert (here / "strict.csv").exists()
    kept = sum(row["positive_score"] >= 4.5 and row["positive_score"] - row["negative_score"] >= 3.5 for row in scored)
    assert f"strict.csv: {kept} of 12 scored triplets kept; scores: o.parquet.scores.parquet" in out
    assert "Triplets kept, γ = 3.5" in out
    assert "β 3" in out
    assert "α 5" in out
    assert len(endpoint.seen) == asked


def test_unreadable_scores_are_counted_with_reasons(here, command, endpoint, judge):
    answer = endpoint.reply

    endpoint.reply = lambda request, times: (
        "quite similar" if " anew" in request["messages"][0]["content"] else answer(request, times)
    )
    code, _, err = command("curate", "t.jsonl", "o.parquet", *judge)
    assert code == 1
    assert "none of 12 triplets has both scores (12 positive_score: no score)" in err
    assert len(list(read_rows("o.parquet.quarantine.jsonl"))) == 12
    endpoint.reply = answer
    code, out, err = command("curate", "t.jsonl", "o.parquet", *judge, "--retry-quarantined", "--json")
    assert code == 0, err
    assert (json.loads(out)["asked"], json.loads(out)["quarantined"]) == (12, 0)


def test_an_encoder_scores(here, command, tiny_bert):
    code, out, err = command(
        "curate", "t.jsonl", "o.csv", "--scorer", tiny_bert, "--alpha", "1", "--beta", "5", "--gamma", "0"
    )
    assert code == 0, err
    scored = list(read_rows("o.csv.scores.parquet"))
    assert len(scored) == 12
    assert all(0 <= row[name] <= 5 for row in scored for name in ("positive_score", "negative_score"))
    # A sentence with one word more is nearer to it than another sentence, on the whole.
    nearer = sum(row["positive_score"] > row["negative_score"] for row in scored)
    assert nearer >= 10
    assert f"o.csv: {len(list(read_rows('o.csv')))} of 12 scored triplets kept" in out
    record = json.loads((here / "o.csv.record.json").read_text())
    assert (record["scorer"]["name"], len(record["scorer"]["sha256"]), record["ledger"]) == (str(tiny_bert), 64, None)


def test_the_released_rule(here, command):
    (here / "s.csv").write_text(
        "anchor,positive,negative,positive_score,negative_score\na one,b one,c one,1.0,4.0\na two,b two,c two,4.0,1.0\n"
    )
    code, out, err = command("curate", "s.csv", "o.csv", "--swap-and-neq")
    assert code == 0, err
    assert [tuple(row.values()) for row in read_rows("o.csv")] == [
        ("a one", "c one", "b one", "4.0", "1.0"),
        ("a two", "b two", "c two", "4.0", "1.0"),
    ]
    assert "o.csv: 2 of 2 scored triplets kept, 1 of them with positive and negative exchanged" in out
    assert "Triplets kept, the released code's rule" in out


def test_none_kept_shows_the_table_and_fails(here, command):
    (here / "s.csv").write_text("anchor,positive,negative,positive_score,negative_score\na,b,c,2.0,1.0\n")
    code, out, err = command("curate", "s.csv", "o.csv", "--quiet")
    assert code == 1
    assert "Triplets kept" in out
    assert err == (
        "sentsmith: error: none of 1 triplets is kept by these thresholds, so o.csv was not written; s.csv holds the "
        "scores: curate it with others\n"
    )
    assert not (here / "o.csv").exists()
    (here / "good.csv").write_text("anchor,positive,negative,positive_score,negative_score\na,b,c,5.0,1.0\n")
    scoring.curate("good.csv", "o.csv")
    assert (here / "o.csv").exists()
    err = command("curate", "s.csv", "o.csv", "--quiet")[2]
    assert "so o.csv, which an earlier run wrote, was removed; s.csv holds" in err
    assert not (here / "o.csv").exists()


def test_a_budget_for_nothing(here, command, endpoint, judge):
    code, out, err = command("curate", "t.jsonl", "o.csv", *judge, "--budget", "1")
    assert code == 0, err
    assert out.startswith(
        "o.csv: nothing written yet, none of 12 triplets has its scores\nthe budget is used up, 12 rows"
    )
    said = json.loads(command("curate", "t.jsonl", "o.csv", *judge, "--budget", "1", "--json")[1])
    assert (said["output"], said["scores"], said["pending"], said["pictures"]) == (None, None, 12, [])
    assert sorted(path.name for path in here.iterdir()) == ["o.csv.ledger.sqlite", "t.jsonl"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("t.jsonl", "o.csv"), "t.jsonl: has no columns positive_score and negative_score"),
        (("t.jsonl", "t.jsonl"), "t.jsonl: lies in t.jsonl, which is read"),
        (("t.jsonl", "o.csv", "--llm", "http://127.0.0.1:1/v1#m", "--scorer", "minilm"), "give --llm or --scorer"),
        (("bad.csv", "o.csv"), "bad.csv, row 3: negative_score 'low' is not a number"),
        (("t.jsonl", "o.csv", "--alpha", "6"), "setting 'alpha': "),
        (("t.jsonl", "o.csv", "--scorer", "./nope"), "nope: no such folder"),
        (("t.jsonl", "o.csv", "--llm", "m", "--scorer", "minilm", "--dry-run"), "give --llm or --scorer"),
        *(
            (("t.jsonl", "o.csv", *scorer, *given), f"{given[0]} is for a language model: give --llm SPEC")
            for scorer, given in (
                ((), ("--dry-run",)),
                ((), ("--budget", "1k")),
                ((), ("--temperature", "0.5")),
                (("--scorer", "minilm"), ("--price-in", "1")),
                (("--scorer", "minilm"), ("--ledger", "l.sqlite")),
                (("--scorer", "minilm"), ("--retry-quarantined",)),
                (("--scorer", "minilm"), ("--prompts", "multicsr")),
            )
        ),
        (("t.jsonl", "o.csv", "--device", "cpu"), "--device is for a model that scores: give --llm or --scorer"),
        (("t.jsonl", "o.csv", "--swap-and-neq", "--gamma", "2"), "gamma belongs to the paper's rule"),
        (("empty.jsonl", "o.csv", "--scorer", "minilm"), "empty.jsonl: is empty"),
        (("-", "o.csv"), "give a file or a folder"),
    ],
)
def test_bad_input(here, command, arguments, message):
    (here / "bad.csv").write_text(
        "anchor,positive,negative,positive_score,negative_score\na dog,b,c,4,1\na cat,b,c,4,low\n"
    )
    (here / "empty.jsonl").write_text("")
    before = sorted(path.name for path in here.iterdir())
    refused(command("curate", *arguments, "--quiet"), message)
    assert sorted(path.name for path in here.iterdir()) == before


def test_a_dry_run(here, command, endpoint, judge):
    code, out, err = command("curate", "t.jsonl", "o.csv", *judge, "--dry-run")
    assert code == 0, err
    assert out.startswith("24 requests (0 more are in the ledger already)")
    assert endpoint.seen == []
