"""Written lists: what is asked step by step, which lists are dropped, and runs that stop and go on inside a list."""

from __future__ import annotations

import io
import itertools
import json
import sys

import pytest
import torch

from sentsmith.corpus.reading import read_rankings, read_rows
from sentsmith.errors import InputError, SentsmithError, SettingsError
from sentsmith.llm.backend import Answer, Decoding, Prompt
from sentsmith.llm.guidance import combine_logits
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.local import LocalBackend
from sentsmith.llm.outputs import beside
from sentsmith.llm.parsing import LengthBounds
from sentsmith.llm.prompts import load_prompts
from sentsmith.llm.spending import Budget, Price
from sentsmith.methods.ranking.validation import repeats_itself
from sentsmith.methods.ranking.writing import WritingSettings, estimate_rankings, write_rankings
from sentsmith.settings import keys_of, resolve

PROMPTS = load_prompts("ranking")
SEEDS = [f"Row {number} stands." for number in range(7)]
# Words that the tiny model knows, and few of them: it has 64 positions.
TINY = """
template: {prompt: "{instruction} {exemplars}{inputs}a", exemplar: "{inputs}a {output} . ", input: "{input} ; "}
tasks:
  rewrite: {parse: line, instructions: ["and the same ,"]}
  change: {parse: line, instructions: ["and not the same ,"]}
"""
REAL = {"prompts": "p.yaml", "count": 4, "max_new_tokens": 12, "min_characters": 1}


def about(prompt):
    """Return the sentence that a prompt of the shipped file is about."""
    return prompt.rpartition("Sentence: ")[2].partition("\n")[0]


def on(prompt, decoding):
    return f"{about(prompt.text)} on"


def grown(seed, count):
    return [seed + " on" * step for step in range(count + 1)]


@pytest.fixture
def here(tmp_path, sentences, monkeypatch):
    """Return a folder, the current one, with seeds, short sentences and prompts for the tiny model."""
    (tmp_path / "s.txt").write_text("\n".join(SEEDS))
    (tmp_path / "short.txt").write_text("\n".join(" ".join(text.split()[:8]) for text in sentences[:8]))
    (tmp_path / "p.yaml").write_text(TINY)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="session")
def tiny(brief_writer):
    """Return a real tiny model as a backend."""
    return LocalBackend(brief_writer, device="cpu")


def names(folder):
    return sorted(path.name for path in folder.iterdir() if path.name not in ("short.txt", "p.yaml"))


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


def chain(backend, text, count):
    """Return a list as plain greedy decoding writes it, one prompt at a time."""
    sentences = [text]
    prompts = load_prompts("p.yaml")
    for _ in range(count):
        question = prompts.question("rewrite", sentences[-1:], bounds=LengthBounds(min_characters=1))
        ((_, answer),) = next(iter(backend.answers([("k", Prompt(question.prompt.text))], Decoding(max_new_tokens=12))))
        assert answer.finished
        sentences.append(question.parse(answer.text))
    return sentences


@pytest.mark.usefixtures("here")
def test_direction_0_is_plain_greedy_decoding(tiny):
    write_rankings("short.txt", "o.jsonl", lambda: tiny, WritingSettings(**REAL, direction=0.0, repeats=9))
    rows = [row["sentences"] for row in read_rows("o.jsonl")]
    assert len(rows) > 3
    assert rows == [chain(tiny, row[0], 4) for row in rows]
    write_rankings("short.txt", "d.jsonl", lambda: tiny, WritingSettings(**REAL, direction=2.0, repeats=9))
    steered = {row["sentences"][0]: row["sentences"] for row in read_rows("d.jsonl")}
    both = [(row, steered[row[0]]) for row in rows if row[0] in steered]
    # The first step has nothing to be steered away from.
    assert both
    assert all(plain[1] == other[1] for plain, other in both)
    assert any(plain != other for plain, other in both)


class Recording:
    """A real backend, and how many prompts each of its blocks held."""

    def __init__(self, backend, stop_after=None):
        self.backend, self.stop_after = backend, stop_after
        self.blocks, self.prompts = [], []
        self.name, self.guides, self.local, self.concurrency = backend.name, True, True, 1
        self.count_tokens = backend.count_tokens

    def answers(self, prompts, decoding):
        stream = iter(prompts)
        while block := list(itertools.islice(stream, self.backend.block)):
            if self.stop_after is not None and len(self.blocks) == self.stop_after:
                raise KeyboardInterrupt
            self.blocks.append(len(block))
            self.prompts += [prompt for _, prompt in block]
            yield from self.backend.answers(block, decoding)


@pytest.mark.usefixtures("here")
@pytest.mark.parametrize("temperature", [0.0, pytest.param(1.0, marks=pytest.mark.slow)])
def test_many_together_write_what_each_writes_alone_and_a_stopped_run_goes_on(here, tiny, temperature):
    def written(out, backend, together):
        settings = WritingSettings(**REAL, temperature=temperature, together=together)
        return write_rankings("short.txt", out, lambda: backend, settings)

    alone, three = Recording(tiny), Recording(tiny)
    done = written("alone.jsonl", alone, 1)
    assert 1 < done.tally.complete < 8
    assert set(alone.blocks) == {1}
    assert written("three.jsonl", three, 3).tally == done.tally
    whole = (here / "three.jsonl").read_bytes()
    assert whole == (here / "alone.jsonl").read_bytes()
    assert (here / "three.jsonl.quarantine.jsonl").read_bytes() == (here / "alone.jsonl.quarantine.jsonl").read_bytes()
    # Stopped in the middle of lists, twice.
    for stop_after in (2, 1):
        with pytest.raises(KeyboardInterrupt):
            written("o.jsonl", Recording(tiny, stop_after), 3)
        assert not (here / "o.jsonl").exists()
    rest = Recording(tiny)
    written("o.jsonl", rest, 3)
    assert (here / "o.jsonl").read_bytes() == whole
    assert rest.prompts == three.prompts[sum(three.blocks[:3]) :]


def test_a_list_that_ends_makes_room_for_the_next_seed(here, scripted):
    """Never more than so many are under way, and never fewer while there are seeds."""
    answers = []

    def reply(prompt, decoding):
        answers.append(about(prompt.text))
        # Rows 1 and 4 are dropped at their second step.
        return "One.\nTwo." if about(prompt.text) in ("Row 1 stands. on", "Row 4 stands. on") else on(prompt, decoding)

    model = scripted(reply, block=100)
    sizes = []
    answering = model.answers

    def counted(prompts, decoding):
        for batch in answering(prompts, decoding):
            sizes.append(len(batch))
            yield batch

    model.answers = counted
    advanced = []
    done = write_rankings("s.txt", "o.jsonl", lambda: model, few(together=3), advance=advanced.append)
    assert (done.tally.complete, done.tally.reasons) == (5, {"newline": 2})
    # 5 lists of 3 answers, 2 of 2.
    assert (sizes, sum(advanced)) == ([3, 3, 3, 3, 3, 2, 1, 1], 21)
    # Row 1 has gone after the second round; row 3 takes its place beside the others' third step.
    assert answers[6:9] == ["Row 0 stands. on on", "Row 2 stands. on on", "Row 3 stands."]


UNREADABLE = {
    1: ("One.\nTwo.", "newline"),
    2: ("`` ``", "empty"),
    3: ("x" * 601, "too long"),
    4: ("ab", "too short"),
    5: (Answer("cut o", finished=False, prompt_tokens=1, answer_tokens=8, seconds=0.1), "unfinished"),
}


def test_each_reason_to_drop_a_list_is_counted(here, scripted):
    def reply(prompt, decoding):
        text = about(prompt.text)
        number = int(text.split()[1].rstrip("."))
        if number == 6:
            return "Row 6 stays."
        return UNREADABLE[number][0] if number in UNREADABLE and text.endswith(" on") else on(prompt, decoding)

    model = scripted(reply)
    done = write_rankings("s.txt", "o.jsonl", lambda: model, few())
    assert [row["sentences"] for row in read_rows("o.jsonl")] == [grown(SEEDS[0], 3)]
    assert (done.tally.rows, done.tally.complete, done.tally.quarantined) == (7, 1, 6)
    assert done.tally.reasons == {
        "newline": 1, "empty": 1, "too long": 1, "too short": 1, "unfinished": 1, "repetition": 1,
    }  # fmt: skip
    # The paper drops the list: no answer is asked for again.
    assert len(model.seen) == 3 + 5 * 2 + 3
    assert {decoding.temperature for _, decoding in model.seen} == {0.0}
    left_out = list(read_rows("o.jsonl.quarantine.jsonl"))
    assert [(row["row"], row["reason"].partition(":")[0]) for row in left_out] == [
        (number + 1, reason) for number, (_, reason) in UNREADABLE.items()
    ] + [(7, "repetition")]
    assert left_out[0]["sentences"] == grown(SEEDS[1], 1)
    assert (left_out[0]["answer"], left_out[4]["answer"]) == ("One.\nTwo.", "cut o")
    assert left_out[5]["sentences"] == [SEEDS[6], "Row 6 stays.", "Row 6 stays.", "Row 6 stays."]
    record = json.loads((here / "o.jsonl.record.json").read_text())
    assert record["counts"]["reasons"] == dict(done.tally.reasons)


@pytest.mark.usefixtures("here")
def test_a_model_that_runs_in_circles_is_told_what_helps(scripted):
    with pytest.raises(SentsmithError, match=r"\(7 repetition\); .* --temperature 0\.7 draws$") as caught:
        write_rankings("s.txt", "o.jsonl", lambda: scripted(lambda *_: "Always this."), few())
    assert "\n" not in str(caught.value)


def test_lengths_can_be_changed_afterwards_and_the_list_goes_on(here, scripted):
    model = scripted(on)
    with pytest.raises(SentsmithError, match="7 too long"):
        write_rankings("s.txt", "o.jsonl", lambda: model, few(max_characters=17))
    asked = len(model.seen)
    done = write_rankings("s.txt", "o.jsonl", lambda: model, few())
    assert (done.tally.complete, len(model.seen)) == (7, asked + 7)


@pytest.mark.parametrize("most", [Budget(tokens=600), Budget(money=0.0006)])
def test_a_budget_stops_inside_lists_and_a_later_run_goes_on(here, scripted, most):
    model = scripted(on)
    settings = few(max_new_tokens=8, together=2)
    price = Price(1.0, 2.0)
    write_rankings("s.txt", "whole.parquet", lambda: model, settings)
    done = write_rankings("s.txt", "o.parquet", lambda: model, settings, budget=most, price=price)
    assert done.outcome.stopped
    assert 1 <= done.tally.complete < 7
    assert done.tally.complete + done.tally.pending == 7
    assert done.outcome.asked % 3 != 0
    assert [row["sentences"] for row in read_rows("o.parquet")] == [
        grown(seed, 3) for seed in SEEDS[: done.tally.complete]
    ]
    later = write_rankings("s.txt", "o.parquet", lambda: model, settings, price=price)
    assert later.outcome.asked == 21 - done.outcome.asked
    assert (here / "o.parquet").read_bytes() == (here / "whole.parquet").read_bytes()
    none = write_rankings("s.txt", "none.parquet", lambda: model, settings, budget=Budget(tokens=1))
    assert (none.tally.pending, none.outcome.stopped, (here / "none.parquet").exists()) == (7, True, False)


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
    with pytest.raises(SettingsError, match="asks a language model"):
        write_rankings("s.txt", "n.parquet", None, few())


def test_every_distinct_sentence_is_a_seed(here, scripted):
    (here / "twice.txt").write_text("\n".join([*SEEDS, *SEEDS[::-1], "Row 0  stands."]))
    done = write_rankings("twice.txt", "o.jsonl", lambda: scripted(on), few())
    assert [row["sentences"][0] for row in read_rows("o.jsonl")] == [*SEEDS, "Row 0  stands."]
    # The last one is the first one to the model: it is asked once, and both have the list.
    assert (done.tally.complete, done.outcome.asked) == (8, 21)
    assert write_rankings("twice.txt", "l.jsonl", lambda: scripted(on), few(limit=2)).tally.rows == 2


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


def test_estimates(here, scripted):
    endpoint = scripted(on, guides=False)
    plain = few(direction=0.0, max_new_tokens=50)
    found = estimate_rankings("s.txt", "o.jsonl", lambda: endpoint, plain, price=Price(1e6, 2e6))
    tokens = sum(endpoint.count_tokens([PROMPTS.question("rewrite", (seed,)).prompt.text])[0] for seed in SEEDS)
    assert (found.requests, found.known, found.bound, endpoint.seen) == (21, 0, True, [])
    assert (found.prompt_tokens, found.answer_tokens, found.seconds) == (3 * tokens, 21 * 50, None)
    assert found.money == pytest.approx(3 * tokens + 2 * 21 * 50)
    # A local model is tried on the first step of each list, and what it wrote there is kept.
    local = scripted(on)
    found = estimate_rankings("s.txt", "o.jsonl", lambda: local, few())
    assert (len(local.seen), found.requests, found.known, found.bound) == (7, 14, 7, False)
    assert found.seconds == pytest.approx(14 * 0.5)
    assert not (here / "o.jsonl").exists()
    done = write_rankings("s.txt", "o.jsonl", lambda: local, few())
    assert (done.outcome.asked, done.outcome.skipped) == (14, 7)
    assert estimate_rankings("s.txt", "o.jsonl", lambda: local, few()).requests == 0
    at_once = estimate_rankings("s.txt", "o.jsonl", lambda: endpoint, few(writer="single-shot"))
    assert (at_once.requests, at_once.answer_tokens) == (7, 7 * 300)


def test_a_dry_run_does_not_ask_again_what_the_run_will_not(here, scripted):
    model = scripted(lambda prompt, decoding: "a\nb" if "0" in prompt.text else on(prompt, decoding))
    estimate_rankings("s.txt", "o.jsonl", lambda: model, few())
    assert all(decoding.temperature == 0 for _, decoding in model.seen)
    done = write_rankings("s.txt", "o.jsonl", lambda: model, few())
    assert (done.tally.complete, done.tally.reasons) == (6, {"newline": 1})


def test_what_was_lost_is_asked_again_on_request(here, scripted):
    def lost(prompt, decoding):
        return Answer("", finished=False, prompt_tokens=0, answer_tokens=0, seconds=0.0, failure="timed out", lost=True)

    def partly(prompt, decoding):
        return lost(prompt, decoding) if about(prompt.text) == f"{SEEDS[4]} on" else on(prompt, decoding)

    with pytest.raises(SentsmithError, match="none of 7 seeds gave a list") as caught:
        write_rankings("s.txt", "n.jsonl", lambda: scripted(lost), few())
    assert "No answer came to 7 of them: --retry-quarantined asks again" in str(caught.value)
    done = write_rankings("s.txt", "o.jsonl", lambda: scripted(partly), few())
    assert (done.tally.complete, done.tally.quarantined, done.tally.lost) == (6, 1, 1)
    again = write_rankings("s.txt", "o.jsonl", lambda: scripted(on), few(), retry_quarantined=True)
    assert (again.outcome.asked, again.tally.complete, again.tally.lost) == (2, 7, 0)


def test_what_could_not_be_read_is_drawn_again_on_request(here, scripted):
    def reply(prompt, decoding):
        newline = about(prompt.text) == f"{SEEDS[4]} on" and decoding.temperature == 0
        return "a\nb" if newline else on(prompt, decoding)

    done = write_rankings("s.txt", "o.jsonl", lambda: scripted(reply), few())
    assert done.tally.reasons == {"newline": 1}
    again = write_rankings("s.txt", "o.jsonl", lambda: scripted(reply), few(), retry_quarantined=True)
    assert (again.tally.complete, again.outcome.asked) == (7, 2)


def test_standard_input(here, scripted, monkeypatch):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO("\n\n".join(SEEDS[:3]).encode())))
    write_rankings("-", "o.jsonl", lambda: scripted(on), few())
    assert [row["sentences"] for row in read_rows("o.jsonl")] == [grown(seed, 3) for seed in SEEDS[:3]]
    assert names(here) == ["o.jsonl", "o.jsonl.ledger.sqlite", "o.jsonl.record.json", "s.txt"]


@pytest.mark.parametrize(
    ("sentences", "times", "found"),
    [
        ("abcdef", 3, False),
        ("abcccc", 3, True),
        ("abcbcb", 3, True),
        ("abacad", 3, True),
        ("aaabcd", 3, False),
        ("abcdcd", 3, False),
        ("abcdcd", 2, True),
        ("aB", 2, False),
    ],
)
def test_repetition_is_told_by_the_last_two(sentences, times, found):
    assert repeats_itself(list(sentences), times) is found


# setting → (what both runs share, the changed value)
MATTERS = {
    "prompts": ({"task": "rewrite"}, "nli-lm-8m"),
    "seed": ({"temperature": 0.5}, 1),
    "max_new_tokens": ({}, 7),
    "temperature": ({}, 0.5),
    "top_p": ({"temperature": 0.5}, 0.5),
    "limit": ({}, 2),
    "writer": ({}, "stepwise"),
    "count": ({}, 2),
    "direction": ({}, 0.2),
    "floor": ({}, 0.2),
    "task": ({}, "change"),
    "repeats": ({}, 2),
    "min_characters": ({}, 21),
    "max_characters": ({}, 20),
    "together": ({}, 2),
    "clusters": ({"seed_model": "{bert}", "clusters": 3, "per_cluster": 1}, 2),
    "per_cluster": ({"seed_model": "{bert}", "clusters": 2, "per_cluster": 1}, 3),
    "seed_model": ({"seed_model": "{bert}", "clusters": 3, "per_cluster": 1}, "{llama}"),
    "column": ({}, "second"),
}


def test_every_setting_has_a_case():
    assert set(MATTERS) == set(keys_of(WritingSettings))


@pytest.mark.parametrize("name", MATTERS)
def test_every_setting_matters(name, here, scripted, tiny_bert, tiny_llama, sentences):
    models = {"{bert}": str(tiny_bert), "{llama}": str(tiny_llama)}
    texts = sentences[:12] if "clusters" in MATTERS[name][0] else SEEDS
    (here / "s.csv").write_text("first,second\n" + "\n".join(f'"{text}","{text} Now."' for text in texts))
    shared, changed = MATTERS[name]
    found = []
    for place, values in enumerate((shared, {**shared, name: changed})):
        asked = []

        def reply(prompt, decoding, asked=asked):
            asked.append((prompt, decoding))
            # Twice the same, then something new.
            return f"Somebody walks {'far ' * (len(asked) % 4 // 2)}away."

        named = {key: models.get(value, value) for key, value in ({"column": "first", "count": 3} | values).items()}
        try:
            write_rankings(
                "s.csv", f"{place}.jsonl", lambda reply=reply: scripted(reply), resolve(WritingSettings, named)
            )
            rows = list(read_rows(f"{place}.jsonl"))
        except SentsmithError as error:
            assert "gave a list" in str(error)  # noqa: PT017
            rows = []
        found.append((asked, rows))
    assert found[0] != found[1]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"sentences": "absent.txt"}, "absent.txt: does not exist"),
        ({"sentences": "bad.txt"}, r"bad\.txt, row 2: .* which is not UTF-8"),
        ({"output": "o.csv"}, r"o\.csv: cannot hold lists of sentences; write \.jsonl or \.parquet"),
        ({"output": "mine.jsonl"}, r"mine\.jsonl: exists; give another name, or --overwrite"),
        ({"settings": few(prompts="nope")}, "nope: is no file and no prompt file that ships"),
        ({"settings": few(prompts="multicsr")}, "multicsr: has no task 'rewrite'; it has: entailment"),
        ({"settings": few(prompts="nli-lm-8m", writer="single-shot")}, "nli-lm-8m: has no task 'list'"),
        ({"settings": few(task="list")}, "read as a list; the writer 'directional' needs one .* read as a line"),
        ({"settings": few(prompts="multicsr", task="score")}, r"asked about 2 sentence\(s\) and read as a score"),
        ({"settings": few(clusters=20)}, "20"),
    ],
)
def test_bad_input_is_refused_before_the_model_is_opened(here, change, message):
    (here / "bad.txt").write_bytes(b"A dog.\nA \xff cat.\n")
    (here / "mine.jsonl").write_text("mine")
    before = names(here)

    def opened():
        raise AssertionError("the model was opened")

    call = {"sentences": "s.txt", "output": "o.jsonl", "settings": few(), **change}
    with pytest.raises((InputError, SettingsError), match=message):
        write_rankings(call["sentences"], call["output"], opened, call["settings"])
    assert names(here) == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"per_cluster": 3}, "per_cluster does nothing without clusters"),
        ({"seed_model": "m"}, "seed_model does nothing without clusters"),
        ({"writer": "stepwise", "direction": 1.0}, "direction does nothing without the writer directional"),
        ({"direction": 0.0, "floor": 0.1}, "floor does nothing without the writer directional, and direction"),
        ({"writer": "single-shot", "together": 8}, "together does nothing without a writer that goes step by step"),
        ({"writer": "corruption", "together": 8}, "together does nothing"),
        ({"writer": "corruption", "task": "x"}, "task does nothing without a language model"),
        ({"writer": "corruption", "prompts": "x"}, "prompts does nothing without a language model"),
        ({"writer": "corruption", "max_characters": 9}, "max_characters does nothing without a language model"),
        ({"writer": "corruption", "temperature": 1.0}, "temperature does nothing without a language model"),
        ({"writer": "loud"}, "setting 'writer'"),
        ({"direction": float("nan")}, "setting 'direction'"),
        ({"repeats": 1}, "setting 'repeats'"),
        ({"min_characters": 9, "max_characters": 8}, "min_characters 9 is above max_characters 8"),
    ],
)
def test_settings_that_do_nothing_are_refused(values, message):
    with pytest.raises(SettingsError) as caught:
        resolve(WritingSettings, values)
    assert message in str(caught.value)


def test_one_ledger_serves_several_lengths_of_lists(here, scripted):
    model = scripted(on)
    write_rankings("s.txt", "long.jsonl", lambda: model, WritingSettings(count=5), ledger="all.sqlite")
    done = write_rankings("s.txt", "short.jsonl", lambda: model, few(), ledger="all.sqlite")
    assert (done.outcome.asked, done.tally.complete) == (0, 7)
    with Ledger("all.sqlite") as ledger:
        assert ledger.counts() == {"parsed": 35}
    assert beside("short.jsonl", "all.sqlite").ledger.name == "all.sqlite"
