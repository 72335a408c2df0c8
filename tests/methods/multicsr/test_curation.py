"""Which triplets are kept: the paper's rule, the released code's, and the table of thresholds."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentsmith.corpus.reading import read_rows
from sentsmith.corpus.rows import Triplet
from sentsmith.errors import InputError, SentsmithError, SettingsError
from sentsmith.llm.backend import Answer
from sentsmith.llm.outputs import beside
from sentsmith.llm.parsing import read_score
from sentsmith.llm.questions import Unreadable
from sentsmith.llm.spending import Budget
from sentsmith.methods.multicsr import scored, scoring
from sentsmith.methods.multicsr.curation import (
    CurationSettings,
    accept,
    kept_by_threshold,
    swap_and_neq,
    thresholds,
    verdict,
)
from sentsmith.settings import keys_of

# The worked numbers of the method's description.
PAIRS = [
    ("4.5", "0.0"),
    ("3.0", "3.0"),
    ("3.5", "3.0"),
    ("4.0", "3.0"),
    ("5", "3.5"),
    ("2.9", "0"),
    ("1.0", "4.0"),
    ("5.9", "0.0"),
    ("4.50", "1.0"),
    ("", "1.0"),
]
PARSED = [
    (4.5, 0.0),
    (3.0, 3.0),
    (3.5, 3.0),
    (4.0, 3.0),
    (5.0, 3.5),
    (2.9, 0.0),
    (1.0, 4.0),
    (None, 0.0),
    (None, 1.0),
    (None, 1.0),
]
KEEP = [True, False, False, True, False, False, False, False, False, False]
COMPAT = ["keep", "drop", "keep", "keep", "drop", "drop", "keep_swapped", "keep", "drop", "drop"]


def parsed(text):
    try:
        return read_score(text)
    except Unreadable:
        return None


def test_scores_of_the_vector():
    assert [tuple(map(parsed, pair)) for pair in PAIRS] == PARSED


@pytest.mark.parametrize(("pair", "kept"), list(zip(PARSED, KEEP, strict=True)))
def test_acceptance_of_the_vector(pair, kept):
    assert (None not in pair and accept(*pair, alpha=3, beta=3, gamma=1)) is kept


@pytest.mark.parametrize(("pair", "decision"), list(zip(PAIRS, COMPAT, strict=True)))
def test_the_released_rule_of_the_vector(pair, decision):
    # The released code's pattern lets 5.1 to 5.9 pass, and so keeps this pair; to us "5.9" is no score.
    decision = "drop" if pair == ("5.9", "0.0") else decision
    scores = [parsed(text) for text in pair]
    assert (swap_and_neq(*scores, alpha=3, beta=3) if None not in scores else "drop") == decision


def test_the_margin_is_not_lost_to_binary_fractions():
    assert 2.2 + 1.1 > 3.3
    assert accept(3.3, 2.2, alpha=3, beta=3, gamma=1.1)
    assert not accept(3.2, 2.2, alpha=3, beta=3, gamma=1.1)


SCORE = st.integers(0, 50).map(lambda tenths: tenths / 10)


@given(st.lists(st.tuples(SCORE, SCORE), max_size=20), st.sampled_from([-1.0, 0.0, 0.7, 1.0, 2.5]), st.booleans())
def test_the_table_counts_what_the_rule_keeps(pairs, gamma, swap):
    steps = thresholds(1.0)
    shared = {"swap_and_neq": True} if swap else {"gamma": gamma}
    first, second = [a for a, _ in pairs], [b for _, b in pairs]
    counts = kept_by_threshold(first, second, steps=steps, settings=CurationSettings(**shared))
    for row, alpha in enumerate(steps):
        for column, beta in enumerate(steps):
            settings = CurationSettings(alpha=alpha, beta=beta, **shared)
            assert counts[row, column] == sum(verdict(a, b, settings) != "drop" for a, b in pairs)


def test_steps():
    assert thresholds(0.5) == [0.0, 0.5, 1.0, 1.5, 2.0, 2.5, 3.0, 3.5, 4.0, 4.5, 5.0]
    assert thresholds(1.0) == [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]


# -- whole files --------------------------------------------------------------------------------------------------

# (anchor, positive, negative) → the scores that the model below gives the pairs.
SCORES = {("a one", "p one"): "4.5", ("a one", "n one"): "0.5", ("a two", "p two"): "2.0", ("a two", "n two"): "4.0"}
SCORES |= {("a three", "p three"): "4.0", ("a three", "n three"): "3.0", ("a four", "p four"): "high"}
SCORES |= {("a four", "n four"): "0.0"}


@pytest.fixture
def triplet_file(tmp_path):
    """Return a file of four triplets."""
    file = tmp_path / "t.csv"
    rows = "\n".join(f"a {word},p {word},n {word}" for word in ("one", "two", "three", "four"))
    file.write_text(f"anchor,positive,negative\n{rows}\n")
    return file


@pytest.fixture
def judge(scripted):
    """Return a language model that scores by :data:`SCORES`."""

    def reply(prompt, decoding):
        asked = prompt.text.rpartition("Sentence 1: ")[2]
        for (first, second), score in SCORES.items():
            if f'"{first}"' in asked and f'"{second}"' in asked:
                return score
        raise AssertionError(asked)

    return scripted(reply)


def read(path):
    return [tuple(row.values()) for row in read_rows(path)]


ONE = ("a one", "p one", "n one", 4.5, 0.5)
TWO = ("a two", "p two", "n two", 2.0, 4.0)
THREE = ("a three", "p three", "n three", 4.0, 3.0)


def test_a_language_model_scores(triplet_file, judge, tmp_path):
    out = tmp_path / "o.parquet"
    advanced, expected = [], []
    done = scoring.curate(triplet_file, out, backend=lambda: judge, advance=advanced.append, expect=expected.append)
    assert read(out) == [ONE, THREE]
    assert read(scoring.scores_file(out)) == [ONE, TWO, THREE]
    assert (done.kept, done.swapped, list(done.positive_scores)) == (2, 0, [4.5, 2.0, 4.0])
    assert (done.tally.rows, done.tally.complete, done.tally.quarantined, done.tally.pending) == (4, 3, 1, 0)
    assert done.tally.reasons == {"positive_score: no score": 1}
    assert (sum(advanced), expected) == (8, [8])
    (left_out,) = read_rows(beside(out).quarantine)
    assert left_out["row"] == 4
    assert left_out["given"]["positive_score"] == ["a four", "p four"]
    assert left_out["reasons"] == {"positive_score": "no score"}
    assert left_out["answers"] == {"positive_score": "high", "negative_score": "0.0"}
    asked = len(judge.seen)
    # The same again, with another threshold, asks nobody and needs no permission: the ledger is there.
    done = scoring.curate(triplet_file, out, CurationSettings(alpha=4.5), backend=lambda: judge)
    assert read(out) == [ONE]
    assert (len(judge.seen), done.outcome.asked) == (asked, 0)


def test_scores_that_are_there_ask_nobody(triplet_file, judge, tmp_path):
    first, second = tmp_path / "o.parquet", tmp_path / "again.jsonl"
    scoring.curate(triplet_file, first, backend=lambda: judge)
    done = scoring.curate(scoring.scores_file(first), second, CurationSettings(alpha=2, beta=5, gamma=-2))
    assert read(second) == [ONE, TWO, THREE]
    assert (done.scores, done.outcome, done.tally.complete) == (scoring.scores_file(first), None, 3)
    assert not scoring.scores_file(second).exists()
    done = scoring.curate(scoring.scores_file(first), tmp_path / "s.tsv", CurationSettings(swap_and_neq=True))
    # The second triplet's negative is nearer (4.0) than its positive (2.0): kept, with the two exchanged.
    assert (done.kept, done.swapped) == (3, 1)
    assert read(tmp_path / "s.tsv")[1] == ("a two", "n two", "p two", "4.0", "2.0")
    done = scoring.curate(scoring.scores_file(first), tmp_path / "l.csv", CurationSettings(limit=1))
    assert done.tally.rows == 1


def test_nothing_kept_leaves_no_output(triplet_file, judge, tmp_path):
    out = tmp_path / "o.parquet"
    done = scoring.curate(triplet_file, out, CurationSettings(alpha=5), backend=lambda: judge)
    assert (done.kept, len(done.positive_scores), done.removed) == (0, 3, False)
    assert not out.exists()
    assert scoring.scores_file(out).exists()
    # The scores are this job's own, though there is no output: other thresholds go on from there.
    scoring.curate(triplet_file, out, backend=lambda: judge)
    assert read(out) == [ONE, THREE]
    # An output of those thresholds would pass for one of these: it goes.
    done = scoring.curate(triplet_file, out, CurationSettings(alpha=5), backend=lambda: judge)
    assert (done.kept, done.removed, out.exists()) == (0, True, False)


def test_nothing_kept_leaves_an_output_of_somebody_else(triplet_file, judge, tmp_path):
    out = tmp_path / "o.csv"
    out.write_text("mine")
    for _ in range(2):
        # It might have been replaced, and was not: it is still somebody else's.
        done = scoring.curate(triplet_file, out, CurationSettings(alpha=5), backend=lambda: judge, overwrite=True)
        assert (done.kept, done.removed, out.read_text()) == (0, False, "mine")
    with pytest.raises(InputError, match="exists; give another name, or --overwrite"):
        scoring.curate(triplet_file, out, backend=lambda: judge)


class Encoder:
    """Angles by text: the cosine of two texts is known."""

    def encode(self, sentences):
        angles = {"a": 0.0, "p": np.arccos(0.8), "n": np.arccos(-0.5)}
        turned = [angles[text[0]] for text in sentences]
        return np.stack([np.cos(turned), np.sin(turned)], axis=1).astype(np.float32)


def angles():
    return scored.Scorer("angles", "0" * 64, Encoder())


def test_cosines_score(triplet_file, tmp_path):
    out = tmp_path / "o.jsonl"
    done = scoring.curate(triplet_file, out, scorer=angles)
    assert list(done.positive_scores) == pytest.approx([4.0] * 4, abs=1e-5)
    assert list(done.negative_scores) == [0.0] * 4
    assert (done.kept, done.outcome) == (4, None)
    assert [row[:3] for row in read(out)] == [(f"a {w}", f"p {w}", f"n {w}") for w in ("one", "two", "three", "four")]
    record = json.loads(beside(out).record.read_text())
    assert record["scorer"] == {"name": "angles", "sha256": "0" * 64}
    assert (record["ledger"], record["kept"], record["counts"]["complete"]) == (None, 4, 4)
    assert not beside(out).ledger.exists()
    # The same again needs no permission: the record says whose it is.
    before = out.read_bytes()
    scoring.curate(triplet_file, out, scorer=angles)
    assert out.read_bytes() == before


def test_cosines_come_block_by_block(monkeypatch):
    rows = [Triplet(f"a {number}", f"p {number}", f"n {number}") for number in range(7)]
    monkeypatch.setattr(scored, "_BLOCK", 3)
    advanced = []
    found = list(scored.by_cosine(rows, Encoder(), advance=advanced.append))
    assert [row.triplet for row in found] == rows
    assert advanced == [6, 6, 2]


def test_a_budget_stops_and_a_later_run_completes(triplet_file, judge, tmp_path):
    out = tmp_path / "o.parquet"
    judge.block = 1
    settings = CurationSettings(max_new_tokens=2)
    tokens = 2 * (len(judge_prompt(settings)) + 2) + 1
    done = scoring.curate(triplet_file, out, settings, backend=lambda: judge, budget=Budget(tokens=tokens))
    assert done.outcome.stopped
    assert (done.tally.complete, done.tally.pending) == (1, 3)
    assert read(out) == [ONE]
    done = scoring.curate(triplet_file, out, settings, backend=lambda: judge)
    assert (done.outcome.stopped, done.tally.pending) == (False, 0)
    assert read(out) == [ONE, THREE]
    # Nothing scored at all is no failure either.
    other = tmp_path / "other.parquet"
    done = scoring.curate(triplet_file, other, settings, backend=lambda: judge, budget=Budget(tokens=1))
    assert (done.tally.pending, done.kept, other.exists(), scoring.scores_file(other).exists()) == (4, 0, False, False)


def judge_prompt(settings):
    from sentsmith.llm.prompts import load_prompts

    return load_prompts(settings.prompts).question("score", ("a one", "p one")).prompt.text.split()


def test_nothing_to_score_with(triplet_file, tmp_path):
    with pytest.raises(SettingsError, match=r"--llm SPEC .*--scorer MODEL .*OUT\.scores\.parquet"):
        scoring.curate(triplet_file, tmp_path / "o.parquet")
    with pytest.raises(SettingsError, match="give --llm or --scorer"):
        scoring.curate(triplet_file, tmp_path / "o.parquet", backend=lambda: None, scorer=angles)


def test_no_answer_can_be_read(triplet_file, scripted, tmp_path):
    with pytest.raises(SentsmithError, match=r"none of 4 triplets has both scores \(4 positive_score: no score, 4 neg"):
        scoring.curate(triplet_file, tmp_path / "o.parquet", backend=lambda: scripted(lambda *_: "very"))
    assert not (tmp_path / "o.parquet").exists()
    assert len(list(read_rows(beside(tmp_path / "o.parquet").quarantine))) == 4


@pytest.mark.parametrize(
    ("row", "message"),
    [
        ("a,b,c,high,1", r"t\.csv, row 3: positive_score 'high' is not a number"),
        ("a,b,c,5.5,1", r"row 3: positive_score 5\.5 is out of range; scores lie in \[0, 5\]"),
        ("a,b,c,4,-1", "row 3: negative_score -1 is out of range"),
        ("a,b,c,4,nan", "row 3: negative_score nan is out of range"),
        ("a,,c,4,1", "row 3: positive"),
    ],
)
def test_scores_that_are_none(tmp_path, row, message):
    file = tmp_path / "t.csv"
    file.write_text(f"anchor,positive,negative,positive_score,negative_score\na dog,b dog,c dog,4,1\n{row}\n")
    with pytest.raises(InputError, match=message):
        scoring.curate(file, tmp_path / "o.parquet")
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


@pytest.mark.parametrize(
    ("out", "message"),
    [("t.csv", "lies in .*t.csv, which is read"), ("o.txt", "holds one column"), ("o.xml", "unknown kind")],
)
def test_outputs_that_cannot_be(triplet_file, judge, out, message):
    with pytest.raises(InputError, match=message):
        scoring.curate(triplet_file, triplet_file.parent / out, backend=lambda: judge)
    assert judge.seen == []


def test_an_output_of_somebody_else_stays(triplet_file, judge, tmp_path):
    out = tmp_path / "o.csv"
    out.write_text("mine")
    with pytest.raises(InputError, match="exists; give another name, or --overwrite"):
        scoring.curate(triplet_file, out, backend=lambda: judge)
    scoring.curate(triplet_file, out, backend=lambda: judge, overwrite=True)
    assert len(read(out)) == 2
    with pytest.raises(InputError, match="standard input"):
        scoring.curate("-", tmp_path / "x.csv", backend=lambda: judge)


def test_scores_of_somebody_else_stay(triplet_file, judge, tmp_path):
    out = tmp_path / "o.csv"
    scores = scoring.scores_file(out)
    scores.write_text("mine")
    for how in ({"backend": lambda: judge}, {"scorer": angles}):
        with pytest.raises(InputError, match=r"o\.csv\.scores\.parquet: exists, and is where the scores go"):
            scoring.curate(triplet_file, out, **how)
    assert (scores.read_text(), judge.seen) == ("mine", [])
    scoring.curate(triplet_file, out, backend=lambda: judge, overwrite=True)
    assert read(scores) == [ONE, TWO, THREE]


def test_a_dry_run_makes_no_file_its_own(triplet_file, judge, tmp_path):
    out = tmp_path / "o.csv"
    scoring.estimate_scores(triplet_file, out, lambda: judge)
    assert beside(out).ledger.exists()
    out.write_text("mine")
    with pytest.raises(InputError, match="exists; give another name, or --overwrite"):
        scoring.curate(triplet_file, out, backend=lambda: judge)
    assert out.read_text() == "mine"


def test_what_was_lost_is_told_from_what_cannot_be_read(triplet_file, scripted, tmp_path):
    def lost(prompt, decoding):
        return Answer(
            "", finished=False, prompt_tokens=0, answer_tokens=0, seconds=0.0, failure="timed out: 1 s", lost=True
        )

    out = tmp_path / "o.csv"
    with pytest.raises(SentsmithError, match=r"8 .*: timed out|4 .*: timed out") as caught:
        scoring.curate(triplet_file, out, backend=lambda: scripted(lost))
    assert "No answer came to 4 of them: --retry-quarantined asks again" in str(caught.value)
    assert "follow these prompts" not in str(caught.value)


# setting → what both runs share, the change; what differs is what is asked, how, or what is written.
MATTERS = {
    "prompts": ({}, "score-examples"),
    "seed": ({}, 4),
    "max_new_tokens": ({}, 9),
    "temperature": ({}, 0.5),
    "top_p": ({"temperature": 0.5}, 0.9),
    "limit": ({}, 1),
    "alpha": ({}, 4.2),
    "beta": ({}, 1.0),
    "gamma": ({}, 2.0),
    "swap_and_neq": ({}, True),
}


def test_every_setting_has_a_case():
    assert set(MATTERS) == set(keys_of(CurationSettings))


@pytest.mark.parametrize("name", MATTERS)
def test_every_setting_matters(name, triplet_file, judge, tmp_path):
    shared, changed = MATTERS[name]
    found = []
    for place, values in enumerate((shared, {**shared, name: changed})):
        judge.seen.clear()
        out = tmp_path / f"{place}.csv"
        scoring.curate(triplet_file, out, CurationSettings(**values), backend=lambda: judge)
        found.append((list(judge.seen), read(out)))
    assert found[0] != found[1]


def test_gamma_is_not_the_released_codes():
    with pytest.raises(ValueError, match="gamma belongs to the paper's rule"):
        CurationSettings(swap_and_neq=True, gamma=0.5)
