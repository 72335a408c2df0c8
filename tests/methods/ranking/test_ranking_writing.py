"""Written lists: what each writer asks, what it writes, what an earlier run wrote, and what is refused."""

from __future__ import annotations

import io
import json
import sys

import pytest
import torch

from sentsmith.corpus.reading import read_rankings, read_rows
from sentsmith.errors import SentsmithError, SettingsError
from sentsmith.llm.guidance import combine_logits
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.outputs import beside
from sentsmith.llm.prompts import load_prompts
from sentsmith.llm.spending import Budget
from sentsmith.methods.ranking.writing import WritingSettings, estimate_rankings, write_rankings

PROMPTS = load_prompts("ranking")
SEEDS = [f"Row {number} stands." for number in range(7)]


def about(prompt):
    """Return the sentence that a prompt of the shipped file is about."""
    return prompt.rpartition("Sentence: ")[2].partition("\n")[0]


def on(prompt, decoding):
    return f"{about(prompt.text)} on"


def grown(seed, count):
    return [seed + " on" * step for step in range(count + 1)]


def names(folder):
    return sorted(path.name for path in folder.iterdir())


def few(**more):
    return WritingSettings(count=3, **more)


def test_each_seed_gets_a_list(here, scripted):
    model = scripted(on)
    advanced, expected = [], []
    done = write_rankings("s.txt", "o.parquet", lambda: model, few(), advance=advanced.append, expect=expected.append)
    assert [list(row.sentences) for row in read_rankings("o.parquet")] == [grown(seed, 3) for seed in SEEDS]
    assert (done.tally.rows, done.tally.complete, done.outcome.asked) == (7, 7, 21)
    assert (sum(advanced), expected) == (21, [21])
    assert names(here) == ["o.parquet", "o.parquet.ledger.sqlite", "o.parquet.record.json", "s.txt"]
    record = json.loads((here / "o.parquet.record.json").read_text())
    assert (record["job"], record["model"], record["counts"]["complete"]) == ("write rankings", "scripted", 7)
    assert record["settings"]["direction"] == 0.5
    assert len(record["prompts_sha256"]) == 64
    # Again: nobody is asked, and the file is the same.
    before = (here / "o.parquet").read_bytes()
    again = write_rankings("s.txt", "o.parquet", lambda: model, few())
    assert (again.outcome.asked, again.outcome.skipped, (here / "o.parquet").read_bytes()) == (0, 21, before)


@pytest.mark.parametrize("direction", [0.5, 1.0, -0.25])
def test_each_step_is_steered_away_from_the_sentence_before_the_last(here, scripted, direction):
    asked = []

    def reply(prompt, decoding):
        asked.append((prompt, decoding))
        return on(prompt, decoding)

    write_rankings("s.txt", "o.jsonl", lambda: scripted(reply), few(direction=direction, floor=0.1, limit=1))
    seed, first, second, _ = grown(SEEDS[0], 3)
    assert [prompt for prompt, _ in asked] == [
        PROMPTS.question("rewrite", (last,), against=(before,)).prompt
        for last, before in ((seed, seed), (first, seed), (second, first))
    ]
    assert asked[0][0].text == asked[0][0].against
    for _, decoding in asked:
        assert (decoding.first_weight, decoding.second_weight) == (1 + direction, -direction)
        assert (decoding.floor, decoding.max_new_tokens, decoding.temperature) == (0.1, 100, 0.0)


def test_the_weights_are_those_of_the_worked_example():
    """Direction 0.5 over log-softmax; at 0 the plain model decides."""
    last = torch.tensor([1.0, 0.8, -0.5], dtype=torch.float64).log_softmax(-1)
    before = torch.tensor([1.5, 0.0, 0.2], dtype=torch.float64).log_softmax(-1)

    def mixed(direction):
        how = WritingSettings(direction=direction).decoding()
        return combine_logits(last, before, first_weight=how.first_weight, second_weight=how.second_weight)

    torch.testing.assert_close(
        mixed(0.5), torch.tensor([-0.869508, -0.419508, -2.469508], dtype=torch.float64), atol=1e-5, rtol=0
    )
    torch.testing.assert_close(
        mixed(1.5), torch.tensor([-1.180801, 0.569199, -2.980801], dtype=torch.float64), atol=1e-5, rtol=0
    )
    assert (int(mixed(0.0).argmax()), int(mixed(0.5).argmax())) == (0, 1)


def test_guidance_is_refused_where_there_are_no_logits(here, scripted):
    def plainly(prompt, decoding):
        assert prompt.against is None
        assert (decoding.first_weight, decoding.second_weight) == (1.0, 0.0)
        return on(prompt, decoding)

    model = scripted(plainly, guides=False, name="http://h/v1#m")
    with pytest.raises(SettingsError, match=r"http://h/v1#m gives no logits.*--direction 0.*stepwise.*single-shot"):
        write_rankings("s.txt", "o.jsonl", lambda: model, few())
    assert names(here) == ["s.txt"]
    for out, settings in (("a.jsonl", few(direction=0.0)), ("b.jsonl", few(writer="stepwise"))):
        write_rankings("s.txt", out, lambda: model, settings)
        assert [row["sentences"] for row in read_rows(out)] == [grown(seed, 3) for seed in SEEDS]
    assert "Change the meaning of the sentence a little" in model.seen[-1][0]
    assert "Rewrite the sentence" in model.seen[0][0]


def test_a_whole_list_at_once(here, scripted):
    def reply(prompt, decoding):
        assert "list of 3 sentences" in prompt.text
        assert decoding.max_new_tokens == 150
        if about(prompt.text) == SEEDS[2]:
            return "1. One.\n2. Two."
        if about(prompt.text) == SEEDS[4]:
            return "1. One.\n2. One.\n3. One."
        return "\n".join(f"{number}. {about(prompt.text)[:-1]} {'far ' * number}away." for number in (1, 2, 3))

    model = scripted(reply, guides=False)
    settings = few(writer="single-shot", max_new_tokens=50)
    expected, advanced = [], []
    done = write_rankings("s.txt", "o.jsonl", lambda: model, settings, expect=expected.append, advance=advanced.append)
    assert (done.tally.complete, done.tally.reasons) == (5, {"too few": 1, "repetition": 1})
    assert (expected, sum(advanced), done.outcome.asked) == ([7], 7, 7)
    first = next(read_rows("o.jsonl"))["sentences"]
    assert first == [SEEDS[0], "Row 0 stands far away.", "Row 0 stands far far away.", "Row 0 stands far far far away."]


def test_corruption_asks_nobody(here):
    settings = few(writer="corruption")
    expected, advanced = [], []
    done = write_rankings("s.txt", "o.parquet", None, settings, expect=expected.append, advance=advanced.append)
    assert (done.tally.complete, done.outcome, expected, sum(advanced)) == (7, None, [7], 7)
    rows = [row["sentences"] for row in read_rows("o.parquet")]
    assert [row[0] for row in rows] == SEEDS
    assert all(len(row) == 4 and row[1] != row[0] for row in rows)
    assert names(here) == ["o.parquet", "o.parquet.record.json", "s.txt"]
    record = json.loads((here / "o.parquet.record.json").read_text())
    assert (record["ledger"], record["model"], record["prompts_sha256"]) == (None, None, None)
    before = (here / "o.parquet").read_bytes()
    write_rankings("s.txt", "o.parquet", None, settings)
    assert (here / "o.parquet").read_bytes() == before
    write_rankings("s.txt", "o.parquet", None, few(writer="corruption", seed=1))
    assert (here / "o.parquet").read_bytes() != before


def test_a_model_is_given_where_one_is_asked_and_only_there(here, scripted):
    def opened():
        raise AssertionError("the model was opened")

    with pytest.raises(SettingsError, match="'directional' asks a language model: give one, or write by corruption"):
        write_rankings("s.txt", "n.parquet", None, few())
    with pytest.raises(SettingsError, match="'corruption' asks no language model: give none, or name another writer"):
        write_rankings("s.txt", "n.parquet", opened, few(writer="corruption"))
    for backend in (None, opened):
        with pytest.raises(SettingsError, match="'corruption' asks no language model: there is nothing to estimate"):
            estimate_rankings("s.txt", "n.parquet", backend, few(writer="corruption"))
    assert names(here) == ["s.txt"]


def test_where_corruption_gives_no_list_the_advice_is_about_the_sentences(here):
    (here / "two.txt").write_text("one\ntwo\n")
    advice = r"none of 2 seeds gave a list \(2 repetition\): the sentences hold too few words .*--count, .*--repeats$"
    with pytest.raises(SentsmithError, match=advice) as caught:
        write_rankings("two.txt", "o.jsonl", None, WritingSettings(writer="corruption", count=9))
    assert "model" not in str(caught.value)
    assert "answer" not in str(caught.value)
    assert names(here) == ["o.jsonl.quarantine.jsonl", "s.txt", "two.txt"]


def kept(folder):
    """Return what stands in the output and beside it, the ledger left out."""
    return {name: (folder / name).read_bytes() for name in names(folder) if not name.endswith(".sqlite")}


def test_an_earlier_output_stays_with_what_belongs_to_it_where_nothing_is_written(here, scripted):
    def reply(prompt, decoding):
        return "a\nb" if "Row 3" in prompt.text or decoding.temperature else on(prompt, decoding)

    model = scripted(reply)
    done = write_rankings("s.txt", "o.jsonl", lambda: model, few())
    assert (done.tally.quarantined, done.stands) == (1, False)
    before = kept(here)
    assert "o.jsonl.quarantine.jsonl" in before
    # Other settings: one list is dropped, then the budget is used up.
    other, most = few(direction=0.2, together=1), Budget(tokens=300)
    stopped = write_rankings("s.txt", "o.jsonl", lambda: scripted(lambda *_: "a\nb"), other, budget=most)
    assert (stopped.tally.complete, stopped.stands) == (0, True)
    assert stopped.tally.quarantined
    assert stopped.tally.pending
    assert kept(here) == before
    with pytest.raises(SentsmithError, match=r"^o\.jsonl is left as it was: none of 7 .*\.sqlite holds the answers"):
        write_rankings("s.txt", "o.jsonl", lambda: model, few(temperature=0.5))
    assert kept(here) == before
    new = write_rankings("s.txt", "n.jsonl", lambda: model, few(direction=0.2), budget=Budget(tokens=1))
    assert (new.tally.complete, new.stands, (here / "n.jsonl").exists()) == (0, False, False)
    # Without an output, the quarantine says what was dropped.
    with pytest.raises(SentsmithError, match=r"^none of 7 .*n\.jsonl\.quarantine\.jsonl holds the answers"):
        write_rankings("s.txt", "n.jsonl", lambda: model, few(temperature=0.5))
    assert len(list(read_rows("n.jsonl.quarantine.jsonl"))) == 7


def test_every_distinct_sentence_is_a_seed(here, scripted):
    # To the model, which reads one line, the last ones are the first one.
    texts = [*SEEDS, *SEEDS[::-1], "Row 0  stands.", " Row\t0\nstands."]
    (here / "twice.jsonl").write_text("\n".join(json.dumps({"text": text}) for text in texts))
    done = write_rankings("twice.jsonl", "o.jsonl", lambda: scripted(on), few())
    assert [row["sentences"][0] for row in read_rows("o.jsonl")] == SEEDS
    assert (done.tally.complete, done.outcome.asked) == (7, 21)
    assert write_rankings("twice.jsonl", "l.jsonl", lambda: scripted(on), few(limit=2)).tally.rows == 2


def test_seeds_from_clusters_are_drawn_once(here, scripted, tiny_bert, sentences):
    (here / "many.txt").write_text("\n".join(sentences[:30]))
    settings = few(clusters=3, per_cluster=2, seed_model=str(tiny_bert), limit=5)

    def reply(prompt, decoding):
        return f"{about(prompt.text)[:20]} {len(prompt.text)} on"

    done = write_rankings("many.txt", "o.jsonl", lambda: scripted(reply), settings)
    drawn = json.loads((here / "o.jsonl.seeds.json").read_text())["seeds"]
    assert done.tally.rows == 5
    assert [row["sentences"][0] for row in read_rows("o.jsonl")] == drawn[:5]
    assert set(drawn) <= set(sentences[:30])
    again = write_rankings("many.txt", "o.jsonl", lambda: scripted(reply), settings)
    assert again.outcome.asked == 0


def test_standard_input(here, scripted, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n\n".join(SEEDS[:3]).encode())))
    write_rankings("-", "o.jsonl", lambda: scripted(on), few())
    assert [row["sentences"] for row in read_rows("o.jsonl")] == [grown(seed, 3) for seed in SEEDS[:3]]
    assert names(here) == ["o.jsonl", "o.jsonl.ledger.sqlite", "o.jsonl.record.json", "s.txt"]


def test_one_ledger_serves_several_lengths_of_lists(here, scripted):
    model = scripted(on)
    write_rankings("s.txt", "long.jsonl", lambda: model, WritingSettings(count=5), ledger="all.sqlite")
    done = write_rankings("s.txt", "short.jsonl", lambda: model, few(), ledger="all.sqlite")
    assert (done.outcome.asked, done.tally.complete) == (0, 7)
    with Ledger("all.sqlite") as ledger:
        assert ledger.counts() == {"parsed": 35}
    assert beside("short.jsonl", "all.sqlite").ledger.name == "all.sqlite"
