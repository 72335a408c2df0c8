"""Lists step by step: many under way, those that are dropped, and runs that stop and go on inside a list."""

from __future__ import annotations

import itertools
import json

import pytest

from sentsmith.corpus.reading import read_rows
from sentsmith.errors import SentsmithError
from sentsmith.llm.backend import Answer, Decoding, Prompt
from sentsmith.llm.local import LocalBackend
from sentsmith.llm.parsing import LengthBounds
from sentsmith.llm.prompts import load_prompts
from sentsmith.llm.spending import Budget, Price
from sentsmith.methods.ranking.validation import repeats_itself
from sentsmith.methods.ranking.writing import WritingSettings, estimate_rankings, write_rankings

PROMPTS = load_prompts("ranking")
SEEDS = [f"Row {number} stands." for number in range(7)]
# Words that the tiny model knows, and few of them: it has 64 positions.
TINY = """
template: {prompt: "{instruction} {exemplars}{inputs}a", exemplar: "{inputs}a {output} . ", input: "{input} ; "}
tasks:
  rewrite: {parse: line, instructions: ["and the same ,"]}
"""
REAL = {"prompts": "p.yaml", "count": 4, "max_new_tokens": 12, "min_characters": 1}


def about(prompt):
    """Return the sentence that a prompt of the shipped file is about."""
    return prompt.rpartition("Sentence: ")[2].partition("\n")[0]


def on(prompt, decoding):
    return f"{about(prompt.text)} on"


def grown(seed, count):
    return [seed + " on" * step for step in range(count + 1)]


def few(**more):
    return WritingSettings(count=3, **more)


@pytest.fixture
def short(here, sentences):
    """Write short sentences and prompts for the tiny model."""
    (here / "short.txt").write_text("\n".join(" ".join(text.split()[:8]) for text in sentences[:8]))
    (here / "p.yaml").write_text(TINY)


@pytest.fixture(scope="session")
def tiny(brief_writer):
    """Return a real tiny model as a backend."""
    return LocalBackend(brief_writer, device="cpu")


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


@pytest.mark.usefixtures("short")
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


@pytest.mark.usefixtures("short")
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
    found = estimate_rankings("s.txt", "o.jsonl", lambda: model, few())
    assert (found.requests, found.known, found.dropped) == (12, 7, 1)
    assert all(decoding.temperature == 0 for _, decoding in model.seen)
    done = write_rankings("s.txt", "o.jsonl", lambda: model, few())
    assert (done.tally.complete, done.tally.reasons) == (6, {"newline": 1})


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
