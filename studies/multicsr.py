"""The numbers of docs/multicsr.md: what each stage of MultiCSR brings, with a very small writer and with a strong one.

    python studies/premises.py DATA/nli/pairs.tsv.gz --split train --sources snli-cat snli-2k --output premises.txt
    sentsmith audit premises.txt --against DATA/sts --output clean.txt
    python studies/multicsr.py --data-dir DATA --sentences clean.txt --llm nli-lm-8m --output runs

Rows of the small writer start from the writer itself, read as an encoder (mean of its last layer), and are measured on
STS-B dev. Rows named ``strong-…`` train MiniLM on ``written/written.jsonl``; ``test-…`` looks at the seven test sets of
those models, for the rows that were chosen. Every row trains for as many steps, however many triplets it has.
``--rows`` names what to do in this run, by patterns.
"""

from __future__ import annotations

import argparse
import random
from collections.abc import Iterable, Sequence
from pathlib import Path

from runner import Results, Row, mean_and_spread, print_table, run
from sentsmith.corpus.reading import read_rows
from sentsmith.corpus.rows import Triplet, as_dict
from sentsmith.corpus.writing import write_rows
from sentsmith.encoders.pooling import with_pooling
from sentsmith.errors import InputError
from sentsmith.llm.local import LocalBackend
from sentsmith.methods.multicsr.curation import CurationSettings
from sentsmith.methods.multicsr.generation import COLUMNS, WritingSettings, write_triplets
from sentsmith.methods.multicsr.scored import open_scorer, read_scored
from sentsmith.methods.multicsr.scoring import curate

OMEGA = 0.3
OMEGAS = (-0.3, 0.0, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)
SIGMAS = (0.5, 0.7, 0.9)
COPIES = (1, 16, 48)
BATCH = 64
_PROMPTS = "nli-lm-8m"
_DEV = ("sts-dev",)
# A cosine does not tell a contradiction from an entailment, and the best contradictions have a high one: here it only
# says whether the positive is near enough.
_PAPERS = CurationSettings(prompts=_PROMPTS)
_POSITIVE = CurationSettings(alpha=3.5, beta=5.0, gamma=-5.0)
_COMMON = (
    "training.seed={seed}",
    f"training.batch_size={BATCH}",
    "data.held_out=0",
    "training.select=last",
    "multicsr.mask_duplicates=false",
    "multicsr.cache={runs}/vectors",
)
_SMALL = (*_COMMON, "model={llm}", "multicsr.pooling=mean", "training.learning_rate=1e-4", "training.max_steps=40")
_STRONG = (*_COMMON, "training.batch_size=32", "training.max_steps=60", "training.blend=0.5")


def _row(name: str, data: str, *overrides: str, mask: bool = True, seeds: tuple[int, ...] | None = (1,)) -> Row:
    """A row that starts from the writer."""
    return Row(
        name,
        "multicsr-small",
        (*_SMALL, f"data.train={{runs}}/data/{data}.parquet", f"multicsr.mask={str(mask).lower()}", *overrides),
        _DEV,
        seeds=seeds,
    )


def _strong(name: str, data: str, *, mask: bool) -> Row:
    """A row that starts from MiniLM."""
    overrides = (*_STRONG, f"data.train={{runs}}/data/{data}.parquet", f"multicsr.mask={str(mask).lower()}")
    return Row(f"strong-{name}", "multicsr-small", overrides, _DEV)


START = [
    Row("start-writer", None, model="{llm}", view=lambda model: with_pooling(model, "mean"), suites=_DEV, seeds=(1,)),
    Row("start-minilm", None, model="minilm", suites=_DEV, seeds=(1,)),
]
# Table 3: with all stages, without one or two, with none. MiniLM's cosine curates: by its own scores the writer keeps
# too few of its triplets to train on.
STAGES = [
    _row(
        "stages-" + ("".join(str(stage) for stage in (1, 2, 3) if stage in on) or "none"),
        ("guided" if 1 in on else "plain") + ("-curated" if 2 in on else ""),
        mask=3 in on,
        seeds=None if on in ({1, 2, 3}, set(), {2, 3}, {1, 3}, {1, 2}) else (1,),
    )
    for on in ({1, 2, 3}, {2, 3}, {1, 3}, {1, 2}, {1}, {2}, {3}, set())
]
SWEEP = [_row(f"omega-{omega:g}", f"omega{omega:g}", mask=False) for omega in OMEGAS]
THRESHOLD = [_row(f"sigma-{sigma:g}", "guided", f"multicsr.threshold={sigma}") for sigma in SIGMAS]
DUPLICATES = [
    _row(f"copies-{copies}-{'mask' if mask else 'plain'}", f"copies{copies}", mask=mask)
    for copies in COPIES
    for mask in (False, True)
]
STRONG = [
    _strong(name, data, mask=mask)
    for name, data, mask in (
        ("plain", "written", False),
        ("mask", "written", True),
        ("llm", "written-by-llm", False),
        ("cosine", "written-by-cosine", False),
        ("positive", "written-by-positive", False),
        ("both", "written-by-both", False),
        ("positive-mask", "written-by-positive", True),
    )
]
TEST = [
    Row(row.name.replace("strong", "test"), None, model=f"{{runs}}/{row.name}-{{seed}}", suites=("sts",))
    for row in STRONG
]


def prepare(options: argparse.Namespace) -> None:
    """Write the training sets that are not there yet."""
    folder = Path(options.output) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    backend = _Opened(options.llm)
    write(folder / "plain.parquet", options, backend, 0.0, options.premises)
    write(folder / "guided.parquet", options, backend, OMEGA, options.premises)
    for omega in OMEGAS:
        write(folder / f"omega{omega:g}.parquet", options, backend, omega, options.sweep_premises)
    for name in ("plain", "guided"):
        score(folder / f"{name}.parquet", folder / f"{name}-by-llm.parquet", backend)
        score(folder / f"{name}.parquet", folder / f"{name}-curated.parquet", None)
    for copies in COPIES:
        repeat(folder / "guided-curated.parquet.scores.parquet", folder / f"copies{copies}.parquet", copies)
    written = folder / "written.parquet"
    if not written.exists():
        rows = read_rows(Path(options.data_dir) / "written" / "written.jsonl")
        triplets = (Triplet(row["premise"], row["entailment"], row["contradiction"]) for row in rows)
        write_rows(written, map(as_dict, triplets), columns=COLUMNS)
    score(written, folder / "written-by-llm.parquet", backend)
    score(written, folder / "written-by-cosine.parquet", None)
    score(written, folder / "written-by-positive.parquet", None, _POSITIVE)
    score(folder / "written-by-llm.parquet", folder / "written-by-both.parquet", None, _POSITIVE)


class _Opened:
    """Opens the writer when it is first needed."""

    def __init__(self, name: str) -> None:
        self.name = name
        self._model: LocalBackend | None = None

    def __call__(self) -> LocalBackend:
        if self._model is None:
            self._model = LocalBackend(self.name)
        return self._model


def write(path: Path, options: argparse.Namespace, backend: _Opened, omega: float, limit: int) -> None:
    """Write triplets with the small writer."""
    if not path.exists():
        settings = WritingSettings(prompts=_PROMPTS, omega=omega, limit=limit, max_new_tokens=64)
        print(path.name, write_triplets(options.sentences, path, backend, settings).tally)


def score(triplets: Path, path: Path, backend: _Opened | None, settings: CurationSettings = _PAPERS) -> None:
    """Curate triplets by the writer's own scores, or by MiniLM's cosine where there is no backend."""
    if not path.exists():
        cosine = None if backend else lambda: open_scorer("minilm")
        done = curate(triplets, path, settings, backend=backend, scorer=cosine)
        print(f"{path.name}: {done.kept} kept, {done.tally}")


def repeat(scored: Path, path: Path, copies: int) -> None:
    """Write triplets of which one takes so many places of a batch, on average.

    It is the one whose positive is nearest to its anchor: where it is not within σ, the mask does not know the copies.
    """
    if path.exists():
        return
    rows = sorted(read_scored(scored), key=lambda row: -row.positive_score)
    if len(rows) < 16 * BATCH:
        raise InputError(f"holds {len(rows)} triplets; the rows of repeated ones need {16 * BATCH}", path=scored)
    one, *others = [row.triplet for row in rows]
    dice = random.Random(0)
    mixed = dice.sample(others, 16 * (BATCH - copies)) + [one] * (16 * copies)
    dice.shuffle(mixed)
    write_rows(path, map(as_dict, mixed), columns=COLUMNS)


def show(found: Results) -> None:
    """Print every table."""

    def table(title: str, rows: Iterable[Row], tasks: Sequence[str]) -> None:
        print_table(
            title,
            ["", "seeds", *tasks],
            [
                [
                    row.name,
                    str(len(found[row.name])),
                    *(mean_and_spread([r["scores"][task] for r in found[row.name]]) for task in tasks),
                ]
                for row in rows
            ],
        )

    dev = ("STSB-dev", "SICKR-dev")
    table("Stages of MultiCSR (the paper's Table 3)", [*START, *STAGES], dev)
    table("ω, without curation and mask", SWEEP, dev)
    table("σ, without curation", THRESHOLD, dev)
    table("One triplet so many times in a batch of 64", DUPLICATES, dev)
    table("Triplets of a strong writer, MiniLM", STRONG, dev)
    table("The same on the test sets", TEST, ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR"))
    averages = [[r.name, mean_and_spread([x["averages"]["sts"] for x in found[r.name]])] for r in TEST]
    print_table("Average of the seven", ["", "sts"], averages)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llm", required=True, help="folder of the small writer")
    parser.add_argument("--premises", type=int, default=3000, help="of the stages")
    parser.add_argument("--sweep-premises", type=int, default=1000, help="of each ω")


if __name__ == "__main__":
    run([*START, *STAGES, *SWEEP, *THRESHOLD, *DUPLICATES, *STRONG, *TEST], show, prepare, _arguments)
