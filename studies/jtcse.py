"""The numbers of docs/jtcse.md: JTCSE from two copies of MiniLM, its parts, and what it is distilled into.

    sentsmith audit SENTENCES --against DATA/sts --against DATA/transfer
    python studies/jtcse.py --data-dir DATA --sentences SENTENCES --output runs

Rows named ``screen-…`` are capped at 30 steps and measured on STS-B dev alone; the seven test sets are looked at for
the final rows only.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from runner import Results, Row, mean_and_spread, print_table, run
from sentsmith.evaluation.similarity import spearman
from sentsmith.evaluation.sts import PARTS, YEARS
from sentsmith.files import make_folder, write_text
from sentsmith.methods.jtcse.towers import with_readout

_DATA = ("data.train={sentences}", "data.dev={data}/sts/STSBenchmark/dev.csv", "training.seed={seed}")
# The last step, not the best by dev: where dev prefers the start, the row would only repeat "sum".
_JOINED = (
    *_DATA,
    "data.dev=[]",
    "data.held_out=0",
    "training.select=last",
    "jtcse.simcse.enabled=false",
    "jtcse.first.model={runs}/sum-{seed}/tower_1",
    "jtcse.second.model={runs}/sum-{seed}/tower_2",
)
# A higher rate than the recipe's, so that thirty steps show which way each part pulls.
_SCREEN = (
    *_JOINED,
    "training.learning_rate=1e-5",
    "training.max_steps=30",
)
_DEV = ("diagnostics",)
_PARTS = ("nce", "icnce", "ictm")


def _losses(*on: str) -> Row:
    off = tuple(f"jtcse.{part}=false" for part in _PARTS if part not in on)
    return Row(f"screen-{'+'.join(on) or 'none'}", "jtcse-small", (*_SCREEN, *off), _DEV, seeds=(1,))


FINAL = [
    Row("start", None, model="minilm", seeds=(1,)),
    Row("sum", "jtcse-small", (*_DATA, *(f"jtcse.{part}=false" for part in _PARTS))),
    Row("tncse", "jtcse-small", (*_JOINED, "jtcse.cross_layers=0")),
    Row("jtcse", "jtcse-small", _JOINED),
    Row(
        "distilled",
        "distill-small",
        # Half of the sum, which points the same way: a student that starts as a tower need not double its vectors.
        (
            *_DATA,
            "distill.teachers={{model: {runs}/jtcse-{seed}, weight: 0.5}}",
            "training.max_steps=null",
            "training.max_length=32",
            "training.eval_steps=100",
        ),
    ),
]
LOSSES = [
    _losses(),
    *(_losses(part) for part in _PARTS),
    *(_losses(one, two) for one, two in (("nce", "icnce"), ("nce", "ictm"), ("icnce", "ictm"))),
    _losses(*_PARTS),
]
CROSS = [
    Row("screen-cross-0", "jtcse-small", (*_SCREEN, "jtcse.cross_layers=0"), _DEV, seeds=(1,)),
    *(
        Row(
            f"screen-cross-{mode}-{count}",
            "jtcse-small",
            (*_SCREEN, f"jtcse.cross_layers={count}", f"jtcse.cross={mode}"),
            _DEV,
            seeds=(1,),
        )
        for mode, count in (("last", 1), ("carry", 2), ("carry", 3), ("carry", 6))
    ),
]
SICK = [
    Row(
        "screen-with-sick",
        "jtcse-small",
        (*_SCREEN, "data.train={runs}/with-sick.txt"),
        _DEV,
        seeds=(1,),
    )
]
READOUTS = [
    Row(
        f"readout-{readout}",
        None,
        model="{runs}/jtcse-{seed}",
        view=lambda model, readout=readout: with_readout(model, readout),
        suites=_DEV,
        seeds=(1,),
    )
    for readout in ("cls", "mean", "first_last", "pooler")
]


def with_sick(options: argparse.Namespace) -> None:
    """Write the sentences with all of SICK's, unlabelled, among them: transductive, as the papers do."""
    sick: dict[str, None] = {}
    for file in sorted((Path(options.data_dir) / "sts" / "SICK").glob("SICK_*.txt")):
        lines = file.read_text(encoding="utf-8").splitlines()[1:]
        sick.update((text, None) for line in lines for text in line.split("\t")[1:3])
    sentences = Path(options.sentences).read_text(encoding="utf-8").splitlines()
    write_text(make_folder(options.output) / "with-sick.txt", "\n".join([*sick, *sentences]) + "\n")


def _sts(results: Sequence[Any]) -> list[float]:
    return [result["averages"]["sts"] for result in results if "sts" in result["averages"]]


def _figure(results: Sequence[Any], key: str) -> str:
    return mean_and_spread([r["diagnostics"][key] for r in results if r["diagnostics"][key] is not None], 3)


def _dev(results: Sequence[Any]) -> str:
    return mean_and_spread([result["scores"]["STSB-dev"] for result in results])


def show(found: Results) -> None:
    """Print every table."""
    tasks = [*YEARS, *PARTS]
    print_table(
        "Seven STS tasks, mean and standard deviation over seeds",
        [
            "",
            "seeds",
            *tasks,
            "average",
            "STS-B dev",
            "alignment",
            "uniformity",
            "E_CLS",
            "GMACs",
            "dev score per GMAC",
        ],
        [
            [
                row.name,
                str(len(found[row.name])),
                *(mean_and_spread([r["scores"][task] for r in found[row.name]]) for task in tasks),
                mean_and_spread(_sts(found[row.name])),
                _dev(found[row.name]),
                *(_figure(found[row.name], key) for key in ("alignment", "uniformity", "e_cls", "gmacs")),
                _figure(found[row.name], "score_per_gmac"),
            ]
            for row in FINAL
        ],
    )
    for title, rows in (
        ("Parts of the loss, 30 steps", LOSSES),
        ("Crossed layers, 30 steps", CROSS),
        ("Unlabelled SICK-R, 30 steps", [LOSSES[-1], *SICK]),
        ("Readouts of the trained twin", READOUTS),
    ):
        print_table(
            title,
            ["", "STS-B dev", "alignment", "uniformity", "E_CLS"],
            [
                [
                    row.name,
                    _dev(found[row.name]),
                    *(_figure(found[row.name], key) for key in ("alignment", "uniformity", "e_cls")),
                ]
                for row in rows
            ],
        )
    # One point for each trained model: the readouts are one model read out in several ways, "none" is "sum" again.
    points = [
        (result["diagnostics"]["e_cls"], result["scores"]["STSB-dev"])
        for name, results in found.items()
        for result in results
        if not name.startswith("readout-") and name != "screen-none"
    ]
    if len(points) > 2:
        energies, scores = zip(*points, strict=True)
        print(f"\nE_CLS against STS-B dev over {len(points)} models: Spearman {spearman(energies, scores):.2f}")


if __name__ == "__main__":
    run([*FINAL, *LOSSES, *CROSS, *SICK, *READOUTS], show, with_sick)
