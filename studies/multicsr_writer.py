"""How well a small language model entails and contradicts, over ω and over the kinds of noise.

    python studies/nli_judge.py DATA/nli/pairs.tsv.gz judge
    python studies/multicsr_writer.py captions.txt --llm nli-lm-8m --judge judge --output writer-study

Each answer is labelled by the judge. What is printed is the share of answers with the label that was asked for, and of
those that only repeat their premise. ``answers.jsonl`` holds all answers with their labels; where it is there, it is
only printed again.
"""

from __future__ import annotations

import argparse
import json
import logging
import random
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

from nli_judge import Judge
from runner import print_table
from sentsmith.corpus.normalising import normal_form
from sentsmith.corpus.reading import read_sentences
from sentsmith.files import write_text
from sentsmith.llm.backend import Backend, Decoding, Prompt
from sentsmith.llm.local import LocalBackend
from sentsmith.llm.prompts import NOISES, Noise, Prompts, load_prompts

TASKS = ("entailment", "contradiction")
OMEGAS = (-0.3, -0.1, 0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)


@dataclass(frozen=True)
class Condition:
    """One way to write: steered away from a noise with ω, or (``noisy``) by the noisy instruction itself."""

    noise: Noise
    omega: float
    noisy: bool = False

    @property
    def name(self) -> str:
        """The row of the table."""
        return f"{self.noise} alone" if self.noisy else f"{self.noise} {self.omega:g}"


def write(condition: Condition, task: str, premises: Sequence[str], prompts: Prompts, backend: Backend) -> list[str]:
    """Return the model's raw answer to each premise, greedy."""
    found = {}
    decoding = Decoding(max_new_tokens=64, second_weight=-condition.omega)
    noise: Noise = "none" if condition.omega == 0 and not condition.noisy else condition.noise

    def asked() -> Iterator[tuple[str, Prompt]]:
        for place, premise in enumerate(premises):
            prompt = prompts.question(task, (premise,), noise=noise).prompt
            yield str(place), Prompt(prompt.against or "") if condition.noisy else prompt

    for block in backend.answers(asked(), decoding):
        found.update({key: answer.text.strip() for key, answer in block})
    return [found[str(place)] for place in range(len(premises))]


def conditions(omega: float) -> list[Condition]:
    """Return the sweep of ω against the opposite instruction, then each noise at one ω and alone."""
    sweep = [Condition("opposite", value) for value in OMEGAS]
    noises = [noise for noise in NOISES if noise != "none"]
    others = [Condition(noise, omega) for noise in noises if noise != "opposite"]
    return [*sweep, *others, *(Condition(noise, 0.0, noisy=True) for noise in noises)]


def label(judge: Judge, premises: Sequence[str], answers: Sequence[str]) -> list[str]:
    """Return ``copy``, ``empty`` or the judge's label of each answer."""
    verdicts = judge.labels(list(zip(premises, answers, strict=True)))
    forms = [normal_form(answer) for answer in answers]
    same = [form == normal_form(premise) for form, premise in zip(forms, premises, strict=True)]
    return [
        "empty" if not form else "copy" if copied else verdict
        for form, copied, verdict in zip(forms, same, verdicts, strict=True)
    ]


def show(rows: Sequence[dict[str, str]]) -> None:
    """Print the shares by condition and task."""
    kinds = ("entailment", "neutral", "contradiction", "copy", "empty")
    table = []
    for name in dict.fromkeys(row["condition"] for row in rows):
        for task in TASKS:
            own = [row for row in rows if row["condition"] == name and row["task"] == task]
            counts = Counter(row["label"] for row in own)
            counts["different"] = len({row["answer"] for row in own})
            table.append([name, task, *(f"{100 * counts[kind] / len(own):.1f}" for kind in (*kinds, "different"))])
    columns = ["steered away from, ω", "asked for", *kinds, "different answers"]
    print_table("Answers by their label, %", columns, table)


def blind(rows: Sequence[dict[str, str]], names: Sequence[str], count: int, folder: Path) -> None:
    """Write ``count`` answers of each condition, mixed, without saying whose they are; the key is beside them."""
    dice = random.Random(0)
    drawn = [row for name in names for row in dice.sample([row for row in rows if row["condition"] == name], count)]
    dice.shuffle(drawn)
    lines = [f"{i}\t{row['premise']}\t{row['answer']}" for i, row in enumerate(drawn)]
    keys = [f"{i}\t{row['condition']}\t{row['task']}\t{row['label']}" for i, row in enumerate(drawn)]
    write_text(folder / "blind.tsv", "\n".join(lines) + "\n")
    write_text(folder / "blind-key.tsv", "\n".join(keys) + "\n")


def answered(options: argparse.Namespace) -> list[dict[str, str]]:
    """Let the model write under every condition, and label what it wrote."""
    premises = list(islice(read_sentences(options.premises), options.limit))
    prompts, backend, judge = load_prompts(options.prompts), LocalBackend(options.llm), Judge.load(options.judge)
    rows = []
    for condition in conditions(options.omega):
        for task in TASKS:
            answers = write(condition, task, premises, prompts, backend)
            labels = label(judge, premises, answers)
            rows += [
                {"condition": condition.name, "task": task, "premise": premise, "answer": answer, "label": verdict}
                for premise, answer, verdict in zip(premises, answers, labels, strict=True)
            ]
    return rows


def main() -> None:
    """Parse the command line, write, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("premises", help="sentences, one a line")
    parser.add_argument("--llm", required=True, help="folder of the model")
    parser.add_argument("--prompts", default="nli-lm-8m")
    parser.add_argument("--judge", required=True, help="folder of studies/nli_judge.py")
    parser.add_argument("--output", required=True)
    parser.add_argument("--limit", type=int, default=300)
    parser.add_argument("--omega", type=float, default=0.3, help="of the noise variants")
    parser.add_argument("--blind", nargs="*", default=["opposite 0", "opposite 0.3", "opposite 0.6"])
    parser.add_argument("--blind-count", type=int, default=50)
    options = parser.parse_args()
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    folder = Path(options.output)
    if not (folder / "answers.jsonl").exists():
        rows = answered(options)
        blind(rows, options.blind, options.blind_count, folder)
        write_text(folder / "answers.jsonl", "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    show([json.loads(line) for line in (folder / "answers.jsonl").read_text(encoding="utf-8").splitlines()])


if __name__ == "__main__":
    main()
