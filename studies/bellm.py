"""The numbers of docs/bellm.md: which layers look both ways, what is read of them, and what that is worth.

    sentsmith audit DATA/nli/triplets_train.csv --against DATA/sts --output clean.csv
    python studies/bellm.py --data-dir DATA --sentences clean.csv --decoder nli-lm-8m --output runs

``screen-S-R`` trains the decoder a little, with the layers from S on looking both ways and the readout R, and is
measured on STS-B's dev and SICK's trial part, as ``start-S-R`` is, which is not trained. ``final-…`` trains the chosen
settings longer, one model for each seed; ``test-…`` looks at the seven test sets and at the captions, and
``inside-…`` at the tokens and the layers. ``--rows`` names what to do in this run, by patterns.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from runner import Results, Row, mean_and_spread, print_table, run
from sentsmith.encoders.decoder import make_encoder
from sentsmith.encoders.readout import ReadoutName
from sentsmith.methods.bellm.settings import first_layer

STEPS = 40
LONG = 100
LAYERS = 8
STARTS: dict[str, int | str | None] = {"none": None, "n-1": "n-1", "n-2": "n-2", "half": "n/2", "all": 0}
READOUTS: tuple[ReadoutName, ...] = ("last", "mean")
RATES = (3e-4, 1e-3)
_DEV = ("sts-dev",)
_TASKS = ("STSB-dev", "SICKR-dev")
_TESTS = ("STS12", "STS13", "STS14", "STS15", "STS16", "STSB", "SICKR")
_TRAINING = (
    "training.seed={seed}",
    "model={decoder}",
    "data.train={sentences}",
    "data.held_out=0",
    "training.select=last",
    "training.batch_size=64",
)


def _setting(start: int | str | None, readout: str) -> tuple[str, str]:
    return f"bellm.both_ways_from={'null' if start is None else start}", f"bellm.readout={readout}"


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
SCREEN = [_trained(f"screen-{start}-{readout}", *_setting(STARTS[start], readout)) for start, readout in _PAIRS]
OTHERS = [
    *(
        _trained(
            f"rate-{rate:g}-{start}-{readout}", *_setting(STARTS[start], readout), f"training.learning_rate={rate}"
        )
        for rate in RATES
        for start, readout in (("half", "mean"), ("n-1", "last"))
    ),
    # The paper's Addition: new layers behind the last one, those before as they were.
    *(_trained(f"added-{readout}", *_setting(None, readout), "bellm.added_layers=1") for readout in READOUTS),
    _trained("pad-leak-n-1-last", *_setting("n-1", "last"), "bellm.pad_leak=true"),
    _trained("angle-half-mean", *_setting("n/2", "mean"), "bellm.cosine_weight=1", "bellm.angle_weight=1"),
    *(
        _trained(
            f"lora-{rate:g}-half-mean", *_setting("n/2", "mean"), "bellm.tuning=lora", f"training.learning_rate={rate}"
        )
        for rate in (5e-4, 2e-3)
    ),
]
CHOSEN = {"none-mean": (None, "mean"), "half-mean": ("n/2", "mean"), "n-1-last": ("n-1", "last")}
FINAL = [
    *(
        _trained(f"final-{name}", *_setting(*setting), "training.learning_rate=3e-4", steps=LONG, seeds=None)
        for name, setting in CHOSEN.items()
    ),
    _trained(
        "final-lora-half-mean",
        *_setting("n/2", "mean"),
        "bellm.tuning=lora",
        "training.learning_rate=2e-3",
        steps=LONG,
        seeds=None,
    ),
]
_ENDS = [Row("start-minilm", None, model="minilm", seeds=(1,)), *START[:-1], *FINAL]
TEST = [
    Row(
        row.name.replace("final", "test", 1).replace("start", "test-start", 1),
        None,
        model=row.model or f"{{runs}}/{row.name}-{{seed}}",
        suites=("sts", "captions"),
        seeds=row.seeds,
    )
    for row in _ENDS
]
INSIDE = [
    replace(row, name=row.name.replace("test", "inside", 1), suites=("dependency", "degradation"), seeds=(1,))
    for row in TEST
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
    table(f"{STEPS} steps of 64 triplets", SCREEN, _TASKS, "sts-dev")
    table("Other settings, as many steps", OTHERS, _TASKS, "sts-dev")
    table(f"{LONG} steps", FINAL, _TASKS, "sts-dev")
    table("Test sets", TEST, (*_TESTS, "captions"), "sts")


def _arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--decoder", required=True, help="folder of the decoder, 8 layers")


if __name__ == "__main__":
    run([*START, *SCREEN, *OTHERS, *FINAL, *TEST, *INSIDE], show, prepare, _arguments)
