"""Recall and precision of ``sentsmith audit`` on planted near duplicates.

Sentences of a real test set are changed in known ways and hidden among real training rows, together with
decoys made from the same sentences by changing too much. The audit runs as users run it, on files; what it
leaves out is compared with what was planted. Other rows that it leaves out are judged by brute force,
independently of the audit's code: the best ``difflib`` ratio over words, in the order written or sorted,
against every test sentence.

    python benchmarks/audit_planted.py --data-dir DIR [--planted 1000] [--background 50000] [--seed 0]
    [--json]

DIR holds ``sts/STSBenchmark`` and ``sentences/sentences.tsv.gz``.
"""

from __future__ import annotations

import argparse
import collections
import difflib
import json
import random
import re
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

JUDGED_NEAR = 0.75  # one word of five, or two of twelve, replaced give 0.8 and 0.83
SHORTEST = 5  # words; the audit states that shorter sentences have no near duplicates

Change = Callable[[list[str], random.Random, Sequence[str]], list[str]]


def replace_one(words: list[str], draw: random.Random, vocabulary: Sequence[str]) -> list[str]:
    """Replace a word by another of the background."""
    place = draw.randrange(len(words))
    other = draw.choice([word for word in draw.sample(vocabulary, 5) if word != words[place].lower()])
    return [*words[:place], other, *words[place + 1 :]]


def drop_one(words: list[str], draw: random.Random, vocabulary: Sequence[str]) -> list[str]:  # noqa: ARG001
    """Leave a word out."""
    place = draw.randrange(len(words))
    return words[:place] + words[place + 1 :]


def add_one(words: list[str], draw: random.Random, vocabulary: Sequence[str]) -> list[str]:
    """Put a word in."""
    place = draw.randrange(len(words) + 1)
    return [*words[:place], draw.choice(vocabulary), *words[place:]]


def reorder(words: list[str], draw: random.Random, vocabulary: Sequence[str]) -> list[str]:  # noqa: ARG001
    """Move the clause behind a comma, a conjunction or a preposition to the front."""
    joints = {
        "and",
        "while",
        "with",
        "in",
        "on",
        "at",
        "as",
        "after",
        "from",
        "for",
        "by",
        "to",
        "of",
        "near",
    }
    cuts = [i for i in range(1, len(words)) if words[i].lower() in joints or words[i - 1].endswith(",")]
    cut = draw.choice(cuts or range(1, len(words)))
    bare = [word.rstrip(".,!?") for word in words]
    moved = [*bare[cut:-1], bare[-1] + ",", *bare[:cut]]
    return [word for word in moved if word]


def punctuate(words: list[str], draw: random.Random, vocabulary: Sequence[str]) -> list[str]:  # noqa: ARG001
    """Print the sentence as a tokeniser, a headline or a careless typist would."""
    text = " ".join(words)
    way = draw.randrange(4)
    if way == 0:
        text = re.sub(r"([.,!?;:\"()])", r" \1 ", text.lower()).replace("n't", " n't").replace("'s", " 's")
    elif way == 1:
        text = text.upper().rstrip(".") + " !"
    elif way == 2:
        text = "``" + text.replace(",", "").rstrip(".") + "''"
    else:
        text = text.replace("'", "’").replace("-", " - ").rstrip(".") + "…"
    return text.split()


CHANGES: dict[str, Change] = {
    "one word replaced": replace_one,
    "one word left out": drop_one,
    "one word added": add_one,
    "clause moved": reorder,
    "punctuation and case": punctuate,
}


def decoy(words: list[str], draw: random.Random, vocabulary: Sequence[str]) -> list[str]:
    """Replace three words in eight, at least three: a sentence on the same plan that says something else."""
    changed = list(words)
    for place in draw.sample(range(len(words)), max(3, round(0.375 * len(words)))):
        changed[place] = draw.choice(vocabulary)
    return changed


def make_rows(
    tests: Sequence[str], background: Sequence[str], planted: int, seed: int
) -> tuple[list[tuple[str, str]], int]:
    """Return shuffled ``(kind, sentence)`` rows: planted, as many decoys, and the background."""
    draw = random.Random(seed)
    usable = sorted({text for text in tests if len(text.split()) >= SHORTEST})
    if not usable:
        raise SystemExit(f"no test sentence has {SHORTEST} words")
    vocabulary = sorted({word.lower() for text in background for word in text.split() if word.isalpha()})
    chosen = draw.sample(usable, min(planted, len(usable)))
    rows = [("background", text) for text in background]
    kinds = list(CHANGES)
    for number, text in enumerate(chosen):
        kind = kinds[number % len(kinds)]
        rows.append((kind, " ".join(CHANGES[kind](text.split(), draw, vocabulary))))
        rows.append(("decoy", " ".join(decoy(text.split(), draw, vocabulary))))
    draw.shuffle(rows)
    return rows, len(chosen)


class Judge:
    """Brute force: the best word-level difflib ratio against every test sentence."""

    def __init__(self, tests: Sequence[str]) -> None:
        self._tests = [self._words(text) for text in sorted(set(tests))]
        self._bags = [collections.Counter(words) for words in self._tests]

    @staticmethod
    def _words(text: str) -> list[str]:
        return re.findall(r"[a-z0-9]+", text.lower().replace("'", "").replace("’", ""))

    def ratio(self, text: str) -> float:
        """Return the highest ratio of the text to any test sentence, in [0, 1]."""
        words = self._words(text)
        bag = collections.Counter(words)
        best = 0.0
        for other, other_bag in zip(self._tests, self._bags, strict=True):
            size = len(words) + len(other)
            # An upper bound of the ratio, difflib's own quick_ratio: skips what cannot win, loses nothing.
            if not size or 2 * (bag & other_bag).total() <= best * size:
                continue
            for one, two in ((words, other), (sorted(words), sorted(other))):
                best = max(best, difflib.SequenceMatcher(None, one, two, autojunk=False).ratio())
        return best


def measure(tests: Sequence[str], background: Sequence[str], *, planted: int, seed: int) -> dict[str, Any]:
    """Plant, audit, and judge; returns counts, recall by kind, precision and seconds."""
    from sentsmith.corpus.audit import audit
    from sentsmith.corpus.reading import read_rows

    rows, count = make_rows(tests, background, planted, seed)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (folder / "tests").mkdir()
        (folder / "tests" / "tests.txt").write_text("".join(f"{text}\n" for text in tests), encoding="utf-8")
        with (folder / "train.jsonl").open("w", encoding="utf-8") as file:
            for number, (_, text) in enumerate(rows):
                file.write(json.dumps({"number": number, "text": text}) + "\n")
        started = time.perf_counter()
        audit(folder / "train.jsonl", folder / "tests", output=folder / "clean.jsonl")
        seconds = time.perf_counter() - started
        kept = {row["number"] for row in read_rows(folder / "clean.jsonl")}
    flagged = [row for number, row in enumerate(rows) if number not in kept]
    return _scores(rows, flagged, Judge(tests), count) | {"seconds": round(seconds, 2)}


def _scores(
    rows: Sequence[tuple[str, str]], flagged: Sequence[tuple[str, str]], judge: Judge, planted: int
) -> dict[str, Any]:
    there = collections.Counter(kind for kind, _ in rows)
    found = collections.Counter(kind for kind, _ in flagged)
    others = [(kind, text) for kind, text in flagged if kind not in CHANGES]
    right = [judge.ratio(text) >= JUDGED_NEAR for _, text in others]
    hits = sum(found[kind] for kind in CHANGES)
    return {
        "planted": planted,
        "decoys": there["decoy"],
        "background": there["background"],
        "recall": round(hits / planted, 4),
        "recall_by_kind": {kind: round(found[kind] / there[kind], 4) for kind in CHANGES if there[kind]},
        "precision": round((hits + sum(right)) / len(flagged), 4) if flagged else None,
        "flagged": len(flagged),
        "flagged_decoys": found["decoy"],
        "flagged_background": found["background"],
        "flagged_not_planted_judged_right": sum(right),
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data-dir", type=Path, required=True)
    parser.add_argument("--planted", type=int, default=1000)
    parser.add_argument("--background", type=int, default=50_000)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()

    from sentsmith.corpus.reading import read_sentences
    from sentsmith.corpus.sampling import sample_random
    from sentsmith.corpus.testsets import read_test_texts

    stsb = arguments.data_dir / "sts" / "STSBenchmark"
    tests = [text for source, _, text in read_test_texts(stsb) if source in {"dev.csv", "test.csv"}]
    sentences = read_sentences(arguments.data_dir / "sentences" / "sentences.tsv.gz")
    background = sample_random(sentences, arguments.background, seed=arguments.seed)
    result = measure(tests, background, planted=arguments.planted, seed=arguments.seed)
    if arguments.json:
        print(json.dumps(result, indent=2))
        return
    for kind, recall in result["recall_by_kind"].items():
        print(f"{kind:24s} recall {recall:.3f}")
    print(f"{'all ' + str(result['planted']) + ' planted':24s} recall {result['recall']:.3f}")
    print(
        f"precision {result['precision']:.3f}: {result['flagged']} rows flagged, of them "
        f"{result['flagged_decoys']} of {result['decoys']} decoys and {result['flagged_background']} of "
        f"{result['background']} background rows, {result['flagged_not_planted_judged_right']} of these "
        f"judged near by brute force; audit took {result['seconds']} s"
    )


if __name__ == "__main__":
    main()
