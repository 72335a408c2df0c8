"""The numbers of docs/bellm.md: which layers look both ways, what is read of them, and what that is worth.

    sentsmith audit DATA/nli/triplets_train.csv --against DATA/sts --output clean.csv
    python studies/bellm.py --data-dir DATA --sentences clean.csv --decoder nli-lm-8m --output runs

``start-S-R`` is the decoder with the layers from S on looking both ways and the readout R, not trained;
``trained-S-R`` is trained for a few steps. All are measured on STS-B's dev and SICK's trial part, and so are other
settings of the best one. ``test-…`` looks at the seven test sets and at the captions, for the chosen ones. ``--rows``
names what to do in this run, by patterns. The pictures:

    sentsmith evaluate minilm runs/data/half-mean runs/trained-half-mean-1 … --suite dependency,degradation \
        --data-dir DATA --output pictures
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from pathlib import Path

from runner import Results, Row, mean_and_spread, print_table, run
from sentsmith.encoders.decoder import make_encoder
from sentsmith.encoders.readout import ReadoutName
from sentsmith.methods.bellm.settings import first_layer

STEPS = 40
LONG = 200
LAYERS = 8
STARTS: dict[str, int | str | None] = {"none": None, "n-1": "n-1", "n-2": "n-2", "half": "n/2", "all": 0}
READOUTS: tuple[ReadoutName, ...] = ("last", "mean")
# What three seeds are spent on: the best of the others, no layer at all, and the paper's headline.
CHOSEN = (("half", "mean"), ("none", "mean"), ("n-1", "last"))
_DEV = ("sts-dev",)
_TASKS = ("STSB-dev", "SICKR-dev")
_TESTS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR")
CAPTIONS = "task2_test_2016"
_TRAINING = (
    "training.seed={seed}",
    "model={decoder}",
    "data.train={sentences}",
    "data.held_out=0",
    "training.select=last",
    "training.batch_size=64",
)


def _setting(start: str, readout: str) -> tuple[str, str]:
    first = STARTS[start]
    return f"bellm.both_ways_from={'null' if first is None else first}", f"bellm.readout={readout}"


def _trained(name: str, *overrides: str, steps: int = STEPS, seeds: tuple[int, ...] | None = (1,)) -> Row:
    return Row(name, "bellm-small", (*_TRAINING, f"training.max_steps={steps}", *overrides), _DEV, seeds=seeds)


_PAIRS = [(start, readout) for start in STARTS for readout in READOUTS]
START = [
    *(
        Row(f"start-{start}-{readout}", None, model=f"{{runs}}/data/{start}-{readout}", suites=_DEV, seeds=(1,))
        for start, readout in _PAIRS
    ),
    Row("start-minilm", None, model="minilm", suites=_DEV, seeds=(1,)),
]
TRAINED = [
    _trained(
        f"trained-{start}-{readout}",
        *_setting(start, readout),
        seeds=None if (start, readout) in CHOSEN else (1,),
    )
    for start, readout in _PAIRS
]
_BEST = _setting(*CHOSEN[0])
OTHERS = [
    _trained("rate-0.0003", *_BEST, "training.learning_rate=3e-4"),
    _trained("lora", *_BEST, "bellm.tuning=lora", "training.learning_rate=2e-3", seeds=None),
    _trained("angle", *_BEST, "bellm.cosine_weight=1", "bellm.angle_weight=1"),
    # The paper's Addition: a new layer behind the last one, which looks both ways; those before stay as they were.
    *(_trained(f"added-{readout}", *_setting("none", readout), "bellm.added_layers=1") for readout in READOUTS),
    _trained("pad-leak", *_setting("n-1", "last"), "bellm.pad_leak=true"),
    _trained("long", *_BEST, steps=LONG),
]


_ALL = {row.name: row for row in (*START, *TRAINED, *OTHERS)}
TEST = [
    Row(
        f"test-{name}",
        None,
        model=_ALL[name].model or f"{{runs}}/{name}-{{seed}}",
        suites=("sts", "captions"),
        seeds=_ALL[name].seeds,
    )
    for name in (
        "start-minilm",
        *(f"{stage}-{start}-{readout}" for stage in ("start", "trained") for start, readout in CHOSEN),
        "lora",
    )
]


def prepare(options: argparse.Namespace) -> None:
    """Make the encoders that are not trained."""
    for start, readout in _PAIRS:
        folder = Path(options.output) / "data" / f"{start}-{readout}"
        if not folder.exists():
            first = first_layer(STARTS[start], LAYERS)
            make_encoder(options.decoder, both_ways_from=first, readout=readout).save_pretrained(
                str(folder), create_model_card=False
            )


def show(found: Results) -> None:
    """Print every table."""

    def table(title: str, rows: Iterable[Row], tasks: Sequence[str], suite: str) -> None:
        def cells(row: Row) -> list[str]:
            results = found[row.name]
            scores = [mean_and_spread([r["scores"][task] for r in results]) for task in tasks]
            averages = [mean_and_spread([r["averages"][suite] for r in results])]
            return [row.name, str(len(results)), *scores, *averages]

        done = [row for row in rows if found[row.name]]
        print_table(title, ["", "seeds", *tasks, "mean"], [cells(row) for row in done])

    table("Not trained", START, _TASKS, "sts-dev")
    table(f"{STEPS} steps of 64 triplets", TRAINED, _TASKS, "sts-dev")
    table(f"Other settings, {STEPS} steps (long: {LONG})", OTHERS, _TASKS, "sts-dev")
    table("Test sets", TEST, (*_TESTS, CAPTIONS), "sts")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--decoder", required=True, help="folder of the decoder, 8 layers")


if __name__ == "__main__":
    run([*START, *TRAINED, *OTHERS, *TEST], show, prepare, _arguments)
