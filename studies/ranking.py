"""The numbers of docs/ranking.md: what ranked lists are worth, by who wrote them and by how they are trained on.

    python studies/premises.py DATA/nli/pairs.tsv.gz --split train --sources snli-cat snli-2k --output premises.txt
    sentsmith audit premises.txt --against DATA/sts --output clean.txt
    python studies/ranking.py --data-dir DATA --sentences clean.txt --llm nli-lm-8m --output runs

Rows named ``minilm-…`` post-train MiniLM, ``weak-…`` an unsupervised SimCSE of the small writer, on the lists that the
name ends in; ``written`` are those of ``written/written.jsonl``. All are measured on STS-B's dev and SICK's trial part
after as many steps of eight lists. ``test-…`` looks at the seven test sets and ``transfer-…`` at the transfer tasks,
for the rows that were chosen. ``--rows`` names what to do in this run, by patterns.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from runner import Results, Row, mean_and_spread, print_table, run
from sentsmith.corpus.reading import read_rankings, read_rows
from sentsmith.corpus.rows import Ranking, Triplet, as_dict
from sentsmith.corpus.writing import write_rows
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.evaluation import lists as drifting
from sentsmith.evaluation.suite import evaluate_models
from sentsmith.llm.local import LocalBackend
from sentsmith.methods.ranking.writing import WritingSettings, write_rankings
from sentsmith.report import drift

STEPS = 60
LONG = 240
COUNT = 8
OMEGAS = (0.25, 1.0, 3.0)
SHARES = (0.05, 0.1, 0.25, 0.5)
RATES = (3e-6, 3e-5, 1e-4)
_DEV = ("sts-dev",)
_TASKS = ("STSB-dev", "SICKR-dev")
_TESTS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR")
_TRANSFER = ("MR", "CR", "SUBJ", "MPQA", "SST2", "TREC", "MRPC")
# Drawn, not greedy: greedily the small writer soon writes one sentence for ever, and every list is dropped.
_DRAWN = {"prompts": "nli-lm-8m", "temperature": 0.7, "count": COUNT}
WRITERS = {
    "directional": WritingSettings(**_DRAWN, direction=1.0, floor=0.1),
    # The same prompt, so that λ is all that differs.
    "stepwise": WritingSettings(**_DRAWN, writer="stepwise", task="rewrite"),
}
LISTS = ("written", *WRITERS, "corruption")
_LISTS = ("training.seed={seed}", "data.held_out=0", "training.select=last", "ranking.cache={runs}/vectors")
_RANKING = (*_LISTS, "training.learning_rate=5e-5", "training.batch_size=8", f"training.max_steps={STEPS}")
_WEAK = "model={runs}/weak-start-1"


def _on(name: str, *overrides: str, lists: str = "written", seeds: tuple[int, ...] | None = (1,)) -> Row:
    return Row(
        name, "ranking-small", (*_RANKING, f"data.train={{runs}}/data/{lists}.jsonl", *overrides), _DEV, seeds=seeds
    )


def _rank_only(*overrides: str) -> tuple[str, ...]:
    return ("ranking.target=list", "ranking.cache=null", *overrides)


def averaged(model: Any, blend: float) -> Any:
    """Return a model that was saved with ``training.blend`` 0.5 as it would be with another one: a view."""
    start = load("minilm").state_dict()
    with torch.no_grad():
        for name, value in model.state_dict().items():
            if value.is_floating_point():
                value.copy_(torch.lerp(start[name], value, blend / _BLEND))
    return model


START = [
    Row("start-minilm", None, model="minilm", suites=_DEV, seeds=(1,)),
    Row(
        "weak-start",
        "simcse-small",
        (
            "training.seed={seed}",
            "model={llm}",
            "data.train={sentences}",
            "data.held_out=0",
            "simcse.pooling=mean",
            "training.learning_rate=1e-4",
            "training.batch_size=64",
            "training.max_steps=60",
            "training.select=last",
        ),
        _DEV,
        seeds=(1,),
    ),
]
BY_WRITER = [
    _on(f"{start}-{lists}", *overrides, lists=lists, seeds=None)
    for start, overrides in (("minilm", ()), ("weak", (_WEAK,)))
    for lists in LISTS
]
ABLATIONS = [
    _on("first", "ranking.first_row_only=true", seeds=None),
    _on("shuffled", "ranking.shuffle=true"),
    _on("rank-only", *_rank_only()),
    _on("first-rank-only", *_rank_only("ranking.first_row_only=true")),
    _on("meaning-only", "ranking.omega=0"),
    _on("authors-sign", "ranking.absolute_column_sign=true"),
    _on("blend", "training.blend=0.5"),
    _on("long", f"training.max_steps={LONG}", seeds=None),
]
SWEEPS = [
    *(_on(f"omega-{omega:g}", f"ranking.omega={omega}") for omega in OMEGAS),
    *(_on(f"first-omega-{omega:g}", f"ranking.omega={omega}", "ranking.first_row_only=true") for omega in (1.0, 3.0)),
    *(_on(f"rate-{rate:g}", f"training.learning_rate={rate}") for rate in RATES),
    *(_on(f"share-{share:g}", f"ranking.share={share}") for share in SHARES),
]
# The lists' loss is about ten times the triplets', and so is its gradient.
_BLEND = 0.5
_JOINT = (
    "ranking.triplets={runs}/data/triplets.jsonl",
    "ranking.triplets_per_list=4",
    "ranking.triplet_weight=10",
    f"training.blend={_BLEND}",
)


def _as_if(name: str, blend: float) -> Row:
    """The model of another row, averaged with the start in another way."""
    view = partial(averaged, blend=blend)
    return Row(f"{name}-blend-{blend:g}", None, model=f"{{runs}}/{name}-{{seed}}", view=view, suites=_DEV)


JOINT = [
    # As in the study of MultiCSR, without its mask.
    Row(
        "triplets",
        "multicsr-small",
        (
            "training.seed={seed}",
            "data.train={runs}/data/triplets.jsonl",
            "data.held_out=0",
            "training.batch_size=32",
            f"training.max_steps={STEPS}",
            "training.select=last",
            f"training.blend={_BLEND}",
            "multicsr.mask=false",
            "multicsr.mask_duplicates=false",
        ),
        _DEV,
    ),
    _on("joint", *_JOINT, seeds=None),
    _on("joint-equal", *_JOINT, "ranking.triplet_weight=1"),
    _on("joint-first", *_JOINT, "ranking.first_row_only=true", seeds=None),
    _on("joint-rank-only", *_JOINT, *_rank_only()),
    *(_as_if(name, blend) for name in ("joint", "triplets") for blend in (0.75, 1.0)),
    # A better teacher: the model of the triplets.
    _on("joint-taught", *_JOINT, "ranking.teacher={runs}/triplets-1", seeds=None),
    # One after the other: the model of the triplets teaches and learns.
    _on("then-lists", "model={runs}/triplets-{seed}", "training.learning_rate=2e-5", seeds=None),
]
TEST = [
    Row(f"test-{row.name}", None, model=row.model or f"{{runs}}/{row.name}-{{seed}}", view=row.view, suites=("sts",))
    for row in (*ABLATIONS, *SWEEPS, *JOINT, *BY_WRITER)
]
TRANSFER = [
    Row("transfer-minilm", None, model="minilm", suites=("transfer",), seeds=(1,)),
    *(replace(row, name=row.name.replace("test", "transfer", 1), suites=("transfer",), seeds=(1,)) for row in TEST),
]


def prepare(options: argparse.Namespace) -> None:
    """Write the lists that are not there yet, and say how they drift."""
    folder = Path(options.output) / "data"
    folder.mkdir(parents=True, exist_ok=True)
    _unpack(Path(options.data_dir) / "written" / "written.jsonl", folder)
    corrupted = folder / "corruption.jsonl"
    if not corrupted.exists():
        clusters = max(1, options.lists // 10)
        settings = WritingSettings(writer="corruption", count=COUNT, clusters=clusters, per_cluster=10)
        print(corrupted.name, write_rankings(options.sentences, corrupted, None, settings).tally)
    seeds = folder / "seeds.txt"
    if not seeds.exists():
        # All writers begin with the same sentences.
        firsts = (row.sentences[0] for row in read_rankings(corrupted))
        seeds.write_text("".join(f"{sentence}\n" for sentence in firsts), encoding="utf-8")
    for name, settings in WRITERS.items():
        path = folder / f"{name}.jsonl"
        if not path.exists():
            print(path.name, write_rankings(seeds, path, lambda: LocalBackend(options.llm), settings).tally)
    measured = Path(options.output) / "drift"
    if not (measured / "results.json").exists():
        files = [folder / f"{name}.jsonl" for name in LISTS]
        evaluate_models(
            ["minilm"],
            lambda name: as_encoder(load(name)),
            suites=(drifting.LISTS,),
            output=measured,
            lists=files,
            draw_lists=drift.draw,
        )
    found = json.loads((measured / "results.json").read_text(encoding="utf-8"))
    print_table("How the lists drift", *drifting.table([found]))


def _unpack(written: Path, folder: Path) -> None:
    """Write the strong writer's lists and triplets, each with its premise."""
    if (folder / "triplets.jsonl").exists():
        return
    rows = list(read_rows(written))
    lists = (Ranking((row["premise"], *row["ranking"])) for row in rows)
    write_rows(folder / "written.jsonl", map(as_dict, lists), columns=("sentences",))
    triplets = (Triplet(row["premise"], row["entailment"], row["contradiction"]) for row in rows)
    write_rows(folder / "triplets.jsonl", map(as_dict, triplets), columns=("anchor", "positive", "negative"))


def show(found: Results) -> None:
    """Print every table."""

    def table(title: str, rows: Iterable[Row], tasks: Sequence[str], suite: str) -> None:
        def cells(row: Row) -> list[str]:
            results = found[row.name]
            scores = [mean_and_spread([r["scores"][task] for r in results]) for task in tasks]
            average = mean_and_spread([r["averages"][suite] for r in results])
            return [row.name, str(len(results)), *scores, average]

        done = [row for row in rows if found[row.name]]
        print_table(title, ["", "seeds", *tasks, "mean"], [cells(row) for row in done])

    table("By writer", [*START, *BY_WRITER], _TASKS, "sts-dev")
    table("Ablations, MiniLM on the strong writer's lists", ABLATIONS, _TASKS, "sts-dev")
    table("Sweeps", SWEEPS, _TASKS, "sts-dev")
    table("With triplets", JOINT, _TASKS, "sts-dev")
    table("Test sets", TEST, _TESTS, "sts")
    table("Transfer tasks", TRANSFER, _TRANSFER, "transfer")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--llm", required=True, help="folder of the small writer")
    parser.add_argument("--lists", type=int, default=800, help="seeds of each writer, ten from each cluster")


if __name__ == "__main__":
    run([*START, *BY_WRITER, *ABLATIONS, *SWEEPS, *JOINT, *TEST, *TRANSFER], show, prepare, _arguments)
