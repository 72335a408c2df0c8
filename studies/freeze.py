"""The numbers of docs/freeze.md: the ladder of FREEZE, one vector per sentence, and what failed for the authors.

    sentsmith audit DATA/sentences/sentences.tsv.gz --against DATA --output clean.tsv.gz
    python studies/sentences.py clean.tsv.gz sentences.txt --words 4 30
    python studies/freeze.py --data-dir DATA --sentences sentences.txt --decoder nli-lm-8m --output runs

``M-STEP`` is a row on the model M (``minilm`` or ``decoder``): the five steps of the ladder, then heads and single
vectors, then what failed. Everything is trained on STS-B's train part, chosen and compared on its dev part;
``test-M-STEP`` looks at the seven test sets, with and without the pairs whose sentences are trained on. The frozen
models are read once, by all rows. ``--rows`` names what to do in this run, by patterns.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import random
import statistics
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from runner import Results, Row, mean_and_spread, print_table, run
from sentsmith.encoders.embedding import as_encoder
from sentsmith.encoders.loading import load
from sentsmith.encoders.pooling import with_pooling
from sentsmith.encoders.protocol import Encoder
from stored import StoredEncoder, can_store

NLI_ROWS = 5_000
_NLI_SCORES = {"entailment": 5.0, "neutral": 2.5, "contradiction": 0.0}
_DEV = ("sts-dev",)
_TESTS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR")

# Layers and width: bottlenecks are a quarter and a half of the width, as the paper's 256 and 512 are of 1,024.
SIZES = {"minilm": (6, 384), "decoder": (8, 256)}
_MODEL = {"minilm": "minilm", "decoder": "{decoder}"}
_TRAINING = (
    "training.seed={seed}",
    "data.train={data}/sts/STSBenchmark/train.csv",
    "data.dev={data}/sts/STSBenchmark/dev.csv",
    "freeze.autoencoder.sentences={sentences}",
    "freeze.autoencoder.epochs=20",
    "freeze.autoencoder.patience=3",
    "freeze.store={runs}/store",
)
_AE, _LAST, _MSE = "freeze.start=autoencoder", "freeze.readout=last", "freeze.loss=mse"
_FREE, _VECTOR = "freeze.head=linear", "freeze.head=nonnegative"


def mean_pooled(model: Any) -> Any:
    """Return a model that reads the mean of its tokens; a decoder would read the last one by itself."""
    return with_pooling(model, "mean")


def _row(model: str, step: str, *overrides: str, seeds: tuple[int, ...] | None = (1,)) -> Row:
    name = f"{model}-{step}"
    return Row(name, "freeze-small", (f"model={_MODEL[model]}", *_TRAINING, *overrides), _DEV, seeds=seeds)


def _rows(model: str) -> list[Row]:
    layers, width = SIZES[model]
    narrow, half = f"freeze.bottleneck={width // 4}", f"freeze.bottleneck={width // 2}"
    wide = (narrow, f"freeze.late_bottleneck={width // 2}")
    last = (_AE, _LAST, _FREE, *wide)
    ladder = [
        _row(
            model,
            "1-cosines",
            "freeze.start=cosines",
            _LAST,
            _FREE,
            _MSE,
            seeds=None,
        ),
        _row(model, "2-scratch", "freeze.start=scratch", _LAST, _FREE, _MSE, narrow, seeds=None),
        _row(model, "3-autoencoder", _AE, _LAST, _FREE, _MSE, narrow, seeds=None),
        _row(model, "4-late", *last, _MSE, seeds=None),
        _row(model, "5-log-variance", *last, seeds=None),
    ]
    heads = [
        _row(model, "nonnegative", _AE, _LAST, _VECTOR, *wide, seeds=None),
        _row(model, "mlp", _AE, _LAST, "freeze.head=mlp", *wide),
        _row(model, "frozen", *last, "freeze.train_encoders=false"),
        _row(model, "summed", _AE, _LAST, _VECTOR, *wide, "freeze.combine=summed", seeds=None),
        _row(model, "summed-start", _AE, _LAST, _VECTOR, *wide, "freeze.combine=summed", "training.max_steps=1"),
        _row(model, "vector", half, seeds=None),
        _row(model, "vector-free", half, _FREE, seeds=None),
        _row(model, "vector-quarter", narrow),
        _row(model, "vector-last", half, _LAST),
    ]
    # The best of each on dev.
    best = {"minilm": {"last": 6, "mean": 6}, "decoder": {"last": 7, "mean": 1}}[model]
    single = [
        _row(
            model,
            f"best-layer-{readout}",
            "freeze.start=cosines",
            f"freeze.readout={readout}",
            f"freeze.leave_out={[layer for layer in range(1, layers + 1) if layer != best[readout]]}",
        )
        for readout in best
    ]
    failed = [
        _row(model, "mean", *last, "freeze.readout=mean"),
        _row(model, "sum", *last, "freeze.readout=sum"),
        _row(model, "deep", *last, "freeze.depth=2"),
        _row(model, "normalised", *last, "freeze.normalise_input=true"),
        _row(model, "noise", *last, "freeze.noise=0.1"),
        _row(model, "attention", *last, "freeze.readout=attention", "training.epochs=2"),
        _row(model, "as-is", *last, "freeze.punctuation=as_is"),
        _row(model, "no-end", *last, "freeze.punctuation=none"),
        _row(model, "nli", *last, "data.train={runs}/data/nli.csv", "training.epochs=5"),
        _row(model, "after-nli", *last, f"model={{runs}}/{model}-nli-{{seed}}"),
    ]
    without = [_row(model, f"without-{layer}", *last, f"freeze.leave_out=[{layer}]") for layer in range(1, layers + 1)]
    return [*ladder, *heads, *single, *failed, *without]


ROWS = {model: _rows(model) for model in SIZES}
# The mean of the last layer's tokens, behind the final norm.
_STARTS = [
    Row(f"{model}-as-it-is", None, model=_MODEL[model], suites=_DEV, view=mean_pooled, seeds=(1,)) for model in SIZES
]
_MEASURED = (
    "1-cosines",
    "2-scratch",
    "3-autoencoder",
    "4-late",
    "5-log-variance",
    "nonnegative",
    "summed",
    "vector",
    "vector-free",
    "best-layer-last",
    "best-layer-mean",
)
TEST = [
    Row(
        f"test-{row.name}",
        None,
        model=row.model or f"{{runs}}/{row.name}-{{seed}}",
        suites=("sts",),
        view=row.view,
        seeds=row.seeds,
        # The search for shared sentences takes longer than all the rest: not of the ladder's steps.
        trained_on=() if row.name.partition("-")[2][:1].isdigit() else ("{data}/sts/STSBenchmark/train.csv",),
    )
    for row in (*_STARTS, *(row for rows in ROWS.values() for row in rows))
    if row.recipe is None or row.name.partition("-")[2] in _MEASURED
]


def prepare(options: argparse.Namespace) -> None:
    """Make scored pairs of NLI's: what follows 5, what contradicts 0, and what does neither between them."""
    target = Path(options.output) / "data" / "nli.csv"
    if target.exists():
        return
    with gzip.open(Path(options.data_dir) / "nli" / "pairs.tsv.gz", "rt", encoding="utf-8", newline="") as stream:
        pairs = [
            row for row in csv.DictReader(stream, delimiter="\t", quoting=csv.QUOTE_NONE) if row["split"] == "train"
        ]
    drawn = random.Random(0).sample([row for row in pairs if row["label"] in _NLI_SCORES], NLI_ROWS)
    target.parent.mkdir(parents=True, exist_ok=True)
    with target.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.writer(stream)
        writer.writerow(["sentence1", "sentence2", "score"])
        writer.writerows([row["premise"], row["hypothesis"], _NLI_SCORES[row["label"]]] for row in drawn)


def show(found: Results) -> None:
    """Print every table."""

    def score(result: Any, task: str) -> float:
        return float(result["scores"][task])

    def pearson(result: Any, task: str) -> float:
        return float(result["details"]["tasks"][task]["pearson"])

    def table(title: str, rows: Iterable[Row], columns: Sequence[str], cells: Any) -> None:
        done = [row for row in rows if found[row.name]]
        print_table(
            title, ["", "seeds", *columns], [[row.name, str(len(found[row.name])), *cells(row)] for row in done]
        )

    def dev(row: Row) -> list[str]:
        results = found[row.name]
        return [
            mean_and_spread([kind(result, task) for result in results])
            for task in ("STSB-dev", "SICKR-dev")
            for kind in (pearson, score)
        ]

    def tests(row: Row) -> list[str]:
        results = found[row.name]
        return [
            mean_and_spread([pearson(result, "STSB") for result in results]),
            *(mean_and_spread([score(result, task) for result in results]) for task in _TESTS),
            mean_and_spread([result["averages"]["sts"] for result in results]),
        ]

    def without(row: Row) -> list[str]:
        parts = [[r["details"]["tasks"][task]["without_shared"]["score"] for r in found[row.name]] for task in _TESTS]
        return [
            *map(mean_and_spread, parts),
            mean_and_spread([statistics.mean(seed) for seed in zip(*parts, strict=True)]),
        ]

    columns = ("STS-B dev Pearson", "Spearman", "SICK trial Pearson", "Spearman")
    table("Not trained, dev", _STARTS, columns, dev)
    for model, rows in ROWS.items():
        table(f"{model}, dev", rows, columns, dev)
    table("Test sets, Spearman", TEST, ("STSB Pearson", *_TESTS, "mean"), tests)
    apart = [row for row in TEST if row.trained_on]
    table("The same, without pairs that share a sentence with STS-B's train part", apart, (*_TESTS, "mean"), without)


def opened(name: str, options: argparse.Namespace) -> Encoder:
    """Load a model; of a FREEZE model the frozen part is looked up."""
    model = load(name)
    return StoredEncoder(model, name, Path(options.output) / "store") if can_store(model) else as_encoder(model)


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--decoder", required=True, help="folder of the decoder, 8 layers of width 256")


if __name__ == "__main__":
    run([*_STARTS, *(row for rows in ROWS.values() for row in rows), *TEST], show, prepare, _arguments, opened)
