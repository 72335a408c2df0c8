"""The settings of writing: each changes what is asked or written, and what would do nothing is refused."""

from __future__ import annotations

import pytest

from sentsmith.corpus.reading import read_rows
from sentsmith.errors import InputError, SentsmithError, SettingsError
from sentsmith.methods.ranking.writing import WritingSettings, write_rankings
from sentsmith.settings import keys_of, resolve

SEEDS = [f"Row {number} stands." for number in range(7)]


def few(**more):
    return WritingSettings(count=3, **more)


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
    before = sorted(here.iterdir())

    def opened():
        raise AssertionError("the model was opened")

    call = {"sentences": "s.txt", "output": "o.jsonl", "settings": few(), **change}
    with pytest.raises((InputError, SettingsError), match=message):
        write_rankings(call["sentences"], call["output"], opened, call["settings"])
    assert sorted(here.iterdir()) == before


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"per_cluster": 3}, "per_cluster does nothing without clusters: drop it, or set clusters"),
        ({"seed_model": "m"}, "seed_model does nothing without clusters"),
        (
            {"writer": "stepwise", "direction": 1.0},
            "direction does nothing without writer directional: drop it, or",
        ),
        ({"direction": 0.0, "floor": 0.1}, "floor does nothing without writer directional and a direction"),
        ({"writer": "single-shot", "together": 8}, "together does nothing without writer directional or stepwise"),
        ({"writer": "corruption", "together": 8}, "together does nothing"),
        ({"writer": "corruption", "task": "x"}, "task does nothing without a writer that asks"),
        ({"writer": "corruption", "prompts": "x"}, "prompts does nothing without a writer that asks"),
        (
            {"writer": "corruption", "max_characters": 9},
            "max_characters does nothing without a writer that asks",
        ),
        (
            {"writer": "corruption", "temperature": 1.0},
            "temperature does nothing without a writer that asks",
        ),
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
