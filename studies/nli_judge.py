"""A small judge of natural-language inference, for what a language model has written: MiniLM as a cross-encoder.

    python studies/nli_judge.py DATA/nli/pairs.tsv.gz judge

trains it on the training parts of SNLI, counterfactual SNLI, Textual-Entailment-New-Protocols and MNLI, and writes the
model and ``accuracy.json``: its accuracy on SNLI's dev and test part and MNLI's dev part, without the pairs whose
premise was trained on. Other studies ask it:

    Judge.load("judge").labels([("Two children play.", "Nobody plays.")])
"""

from __future__ import annotations

import argparse
import logging
import random
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, get_args

import torch
from sentence_transformers import CrossEncoder

from sentsmith.corpus.reading import read_rows
from sentsmith.encoders.loading import loading_errors, refuse_pickled_weights, resolve
from sentsmith.errors import InputError
from sentsmith.files import atomic_folder, write_json

logger = logging.getLogger("sentsmith.studies.nli_judge")

Label = Literal["contradiction", "entailment", "neutral"]
LABELS: tuple[Label, ...] = get_args(Label)
# Not HELP, whose sentences are made by rules, and not the paragraphs and edited twins of New-Protocols.
TRAINED_ON = ("snli-cat", "snli-2k", "cad", "te-base", "te-contrast", "mnli-20k")
MEASURED_ON = {"snli/dev": ("snli", "dev"), "snli/test": ("snli", "test"), "mnli/dev": ("mnli-20k", "dev")}
_POOL = 50  # batches whose pairs are sorted by length together


@dataclass(frozen=True)
class Labelled:
    """A pair and what it is."""

    premise: str
    hypothesis: str
    label: Label


@dataclass(frozen=True)
class Trainer:
    """How it is trained.

    Attributes:
        limit: Train on so many pairs, drawn at random; None takes all.
        epochs: Passes over them.
        batch_size: Pairs in a batch.
        learning_rate: The peak; warmed up over a tenth of the steps, then lowered to 0 linearly.
        max_length: Tokens of a pair; what is longer is cut.
        seed: Of the draw, the order, the head and the dropout.
    """

    limit: int | None = None
    epochs: int = 1
    batch_size: int = 32
    learning_rate: float = 5e-5
    max_length: int = 96
    seed: int = 0

    def train(self, pairs: Sequence[Labelled], start: str = "minilm") -> CrossEncoder:
        """Return a cross-encoder trained on ``pairs``, from an encoder's weights and a new head."""
        dice = random.Random(self.seed)
        torch.manual_seed(self.seed)
        chosen = list(pairs)
        dice.shuffle(chosen)
        chosen = chosen[: self.limit]
        judge = CrossEncoder(str(resolve(start)), num_labels=len(LABELS), max_length=self.max_length)
        config = judge.model.config
        config.id2label, config.label2id = dict(enumerate(LABELS)), {label: i for i, label in enumerate(LABELS)}
        todo = [batch for _ in range(self.epochs) for batch in self._batches(chosen, dice)]
        optimiser = torch.optim.AdamW(judge.model.parameters(), lr=self.learning_rate, weight_decay=0.01)
        warm = max(1, len(todo) // 10)
        schedule = torch.optim.lr_scheduler.LambdaLR(
            optimiser, lambda step: min((step + 1) / warm, (len(todo) - step) / max(1, len(todo) - warm))
        )
        judge.model.train()
        begun = time.perf_counter()
        for step, batch in enumerate(todo, start=1):
            loss = self._loss(judge, batch)
            optimiser.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(judge.model.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            if step % 50 == 0 or step == len(todo):
                rate = step * self.batch_size / (time.perf_counter() - begun)
                logger.info("step %d of %d: loss %.3f, %.1f pairs/s", step, len(todo), float(loss.detach()), rate)
        judge.model.eval()
        return judge

    def _batches(self, pairs: list[Labelled], dice: random.Random) -> list[list[Labelled]]:
        """Return the pairs in batches of like length, in random order: padding would cost more than it teaches."""
        dice.shuffle(pairs)
        batches = []
        for start in range(0, len(pairs), self.batch_size * _POOL):
            pool = sorted(pairs[start : start + self.batch_size * _POOL], key=_length)
            batches += [pool[i : i + self.batch_size] for i in range(0, len(pool), self.batch_size)]
        dice.shuffle(batches)
        return batches

    def _loss(self, judge: CrossEncoder, batch: Sequence[Labelled]) -> torch.Tensor:
        features = judge.tokenizer(
            [pair.premise for pair in batch],
            [pair.hypothesis for pair in batch],
            padding=True,
            truncation=True,
            max_length=self.max_length,
            return_tensors="pt",
        ).to(judge.model.device)
        wanted = torch.tensor([LABELS.index(pair.label) for pair in batch], device=judge.model.device)
        return torch.nn.functional.cross_entropy(judge.model(**features).logits, wanted)


def _length(pair: Labelled) -> int:
    return len(pair.premise) + len(pair.hypothesis)


class Judge:
    """Says of a premise and a hypothesis whether the second follows from the first, contradicts it, or neither."""

    def __init__(self, model: CrossEncoder) -> None:
        self._model = model
        names = model.model.config.id2label
        self._names = [names[number] for number in sorted(names)]

    @classmethod
    def load(cls, folder: str | Path, *, device: str | None = None) -> Judge:
        """Load a judge that this script has trained.

        Raises:
            InputError: No such folder, one without weights in safetensors, or a model with other labels.
        """
        place = Path(folder)
        if not place.is_dir():
            raise InputError("no such folder; train a judge into it: python studies/nli_judge.py PAIRS", path=place)
        refuse_pickled_weights(place)
        with loading_errors(place):
            model = CrossEncoder(
                str(place), device=device, local_files_only=True, model_kwargs={"use_safetensors": True}
            )
        if sorted(model.model.config.id2label.values()) != sorted(LABELS):
            raise InputError(f"is no judge: its labels are not {', '.join(LABELS)}", path=place)
        return cls(model)

    def labels(self, pairs: Sequence[tuple[str, str]], *, batch_size: int = 64) -> list[Label]:
        """Return one label for each (premise, hypothesis), in order."""
        if not pairs:
            return []
        # The library sorts by length itself.
        scores = self._model.predict(list(pairs), batch_size=batch_size, show_progress_bar=False)
        return [self._names[number] for number in scores.argmax(axis=1).tolist()]


def read(path: str | Path, *, sources: Sequence[str], split: str) -> Iterator[Labelled]:
    """Yield the labelled pairs of some sources and one split.

    Raises:
        InputError: The file cannot be read, or lacks a column.
    """
    for row in read_rows(path, columns=("premise", "hypothesis", "label", "source", "split")):
        fits = row["split"] == split and row["source"] in sources and row["label"] in LABELS
        if fits and row["premise"] and row["hypothesis"]:
            yield Labelled(row["premise"], row["hypothesis"], row["label"])


def measure(
    judge: Judge, pairs: Sequence[Labelled], *, seen: frozenset[str], sample: int | None = None
) -> dict[str, Any]:
    """Return accuracy in [0, 1], how many pairs of each label were judged, and how the wrong ones were called.

    Args:
        judge: The judge.
        pairs: Labelled pairs.
        seen: Premises it was trained on, whose pairs are left out.
        sample: Judge so many of them, drawn at random; None judges all.
    """
    fresh = [pair for pair in pairs if pair.premise not in seen]
    chosen = random.Random(0).sample(fresh, sample) if sample is not None and sample < len(fresh) else fresh
    found = judge.labels([(pair.premise, pair.hypothesis) for pair in chosen])
    calls = {label: dict.fromkeys(LABELS, 0) for label in LABELS}
    for pair, label in zip(chosen, found, strict=True):
        calls[pair.label][label] += 1
    right = sum(calls[label][label] for label in LABELS)
    return {
        "accuracy": right / len(chosen) if chosen else None,
        "pairs": len(chosen),
        "left_out": len(pairs) - len(fresh),
        "called": calls,
    }


def main(arguments: Sequence[str] | None = None) -> None:
    """Parse the command line, train, save, measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("pairs", help="rows with premise, hypothesis, label, source, split")
    parser.add_argument("output", help="folder of the model")
    parser.add_argument("--start", default="minilm", help="the encoder it starts from")
    parser.add_argument("--sources", nargs="+", default=TRAINED_ON, help="whose training parts it learns from")
    parser.add_argument("--max-length", type=int, default=Trainer.max_length, help="tokens of a pair")
    parser.add_argument("--limit", type=int, help="train on so many pairs, drawn at random")
    parser.add_argument("--epochs", type=int, default=Trainer.epochs)
    parser.add_argument("--learning-rate", type=float, default=Trainer.learning_rate)
    parser.add_argument("--seed", type=int, default=Trainer.seed)
    parser.add_argument("--sample", type=int, help="judge so many pairs of each part; all by default")
    options = parser.parse_args(arguments)
    logging.basicConfig(level=logging.INFO, format="%(message)s", stream=sys.stderr)
    trained_on = list(read(options.pairs, sources=options.sources, split="train"))
    if not trained_on:
        raise InputError(f"holds no pair of {', '.join(options.sources)} in a split 'train'", path=options.pairs)
    trainer = Trainer(
        limit=options.limit,
        epochs=options.epochs,
        learning_rate=options.learning_rate,
        max_length=options.max_length,
        seed=options.seed,
    )
    judge = trainer.train(trained_on, options.start)
    seen = frozenset(pair.premise for pair in trained_on)
    with atomic_folder(options.output) as folder:
        judge.save_pretrained(str(folder), create_model_card=False)
        results = {
            name: measure(
                Judge(judge),
                list(read(options.pairs, sources=(source,), split=split)),
                seen=seen,
                sample=options.sample,
            )
            for name, (source, split) in MEASURED_ON.items()
        }
        write_json(folder / "accuracy.json", results)
    print("| part | pairs | accuracy |\n|---|---|---|")
    for name, found in results.items():
        print(
            f"| {name} | {found['pairs']} | {'–' if found['accuracy'] is None else format(found['accuracy'], '.3f')} |"
        )


if __name__ == "__main__":
    main()
