"""BeLLM's cost: looking both ways over the causal model, and a LoRA step over sentence-transformers' own trainer.

Encoding: the same decoder, prompt and readout; only the layers that look both ways differ. Sentences of mixed lengths,
and of one length, where nothing is padded.

Training: the same decoder, adapter, prompts, rows, batch, maximum length and number format. The peer is a causal
decoder with its last token read, in sentence-transformers' trainer with its defaults and its own loss; ours looks both
ways from the middle on. Triplets with a prompt that is too long are left out: the peer would cut its end, which
it reads.

Both sides run in one process and take turns, so that a machine whose speed drifts treats them alike. Beside the time on
the clock stands that of the processor, which other programs on the machine disturb less.

    python benchmarks/bellm.py --model ../shared/models/nli-lm-8m --triplets ../shared/data/nli/triplets_train.csv
"""

from __future__ import annotations

import argparse
import logging
import statistics
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import common

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

PEER, OURS = "sentence-transformers", "ours"


def main() -> None:
    """Print the ratios of encoding and of training."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.add_argument("--model", default="../shared/models/nli-lm-8m", help="a decoder's folder or hub name")
    parser.add_argument("--triplets", default="../shared/data/nli/triplets_train.csv", help="file of training triplets")
    parser.add_argument("--rows", type=int, default=256, help="sentences embedded a turn")
    parser.add_argument("--turns", type=int, default=15, help="turns of each way of looking")
    parser.add_argument("--steps", type=int, default=4, help="training steps a run; the first is not timed")
    parser.add_argument("--batch-size", type=int, default=64)
    parser.add_argument("--max-length", type=int, default=64, help="tokens, the prompt included")
    parser.add_argument("--only", choices=("encoding", "training"), help="measure this alone")
    options = parser.parse_args()
    import torch

    logging.disable(logging.WARNING)
    torch.set_num_threads(options.threads)
    print(common.machine())
    if options.only != "training":
        _print_encoding(options)
    if options.only != "encoding":
        _print_training(options)


class Watch:
    """Time on the clock and of the processor, in seconds, of a block of code."""

    def __enter__(self) -> Self:
        """Begin, when the device is done with what came before."""
        _wait()
        self.begun = time.perf_counter(), time.process_time()
        return self

    def __exit__(self, *_: object) -> None:
        """End, when the device is done."""
        _wait()
        self.clock, self.processor = time.perf_counter() - self.begun[0], time.process_time() - self.begun[1]


def _wait() -> None:
    import torch

    if torch.cuda.is_available():
        torch.cuda.synchronize()


def _ratio(values: Sequence[float], reference: Sequence[float]) -> str:
    ratios = [value / other for value, other in zip(values, reference, strict=True)]
    return f"{statistics.median(ratios):.3f} ({min(ratios):.3f}–{max(ratios):.3f})"


def _print_encoding(options: argparse.Namespace) -> None:
    from sentsmith.encoders.decoder import make_encoder

    model: Any = make_encoder(options.model, readout="mean")
    layers = model[0].model.config.num_hidden_layers
    print(f"\nencoding: {options.rows} sentences a turn, {options.turns} turns, readout mean, {layers} layers")
    print("\n| sentences (prompt included) | first layer that looks both ways | sentences/s "
          "| time over causal, median (min–max) | processor time over causal |\n|---|---|---|---|---|")  # fmt: skip
    for name, texts in _sentences(model, options).items():
        watches = _encode(model, texts, (None, 0, layers // 2), options.turns)
        causal = watches[None]
        for start, each in watches.items():
            rate = len(texts) / statistics.median(watch.clock for watch in each)
            print(
                f"| {name} | {'none' if start is None else start} | {rate:.1f} "
                f"| {_ratio([watch.clock for watch in each], [watch.clock for watch in causal])} "
                f"| {_ratio([watch.processor for watch in each], [watch.processor for watch in causal])} |",
                flush=True,
            )


def _sentences(model: Any, options: argparse.Namespace) -> dict[str, list[str]]:
    """Return sentences of mixed lengths, and of the commonest length alone."""
    drawn = common.mixture(options.data_dir, 20 * options.rows)
    # Counted inside the prompt, where a sentence may be cut into other tokens than alone.
    lengths = [int(row.sum()) for row in model.preprocess(drawn)["attention_mask"]]
    commonest = Counter(lengths).most_common(1)[0][0]
    uniform = [text for text, length in zip(drawn, lengths, strict=True) if length == commonest][: options.rows]
    mean = statistics.mean(lengths[: options.rows])
    return {f"mixed, {mean:.0f} tokens on average": drawn[: options.rows], f"all of {commonest} tokens": uniform}


def _encode(model: Any, texts: list[str], starts: Sequence[int | None], turns: int) -> dict[int | None, list[Watch]]:
    from sentsmith.encoders.embedding import as_encoder

    encoder = as_encoder(model)
    encoder.encode(texts)
    found: dict[int | None, list[Watch]] = {start: [] for start in starts}
    for turn in range(turns):
        # Nobody is always the first.
        for start in (*starts[turn % len(starts) :], *starts[: turn % len(starts)]):
            model[0].look_both_ways(start)
            with Watch() as watch:
                encoder.encode(texts)
            found[start].append(watch)
    return found


def _print_training(options: argparse.Namespace) -> None:
    from sentsmith.training.precision import resolve_precision

    rows = _rows(options)
    precision = resolve_precision("auto", "cuda" if _gpu() else "cpu")
    batch, steps = options.batch_size, options.steps
    print(f"\ntraining: batch {batch}, {steps - 1} steps timed a run, max length {options.max_length}, {precision}")
    found: dict[str, list[Run]] = {PEER: [], OURS: []}
    for _ in range(options.repeats):
        for name, make in ((PEER, _peer), (OURS, _ours)):
            found[name].append(_train(make, rows, precision, options))
    print("\n| training | real tokens/s | of them per computed token | speed over the peer, median (min–max) "
          "| by processor time |\n|---|---|---|---|---|")  # fmt: skip
    for name, runs in found.items():
        clock, processor = ([getattr(run, kind) for run in runs] for kind in ("per_second", "per_processor_second"))
        print(
            f"| {name} | {statistics.median(clock):.0f} | {runs[0].share:.2f} "
            f"| {_ratio(clock, [run.per_second for run in found[PEER]])} "
            f"| {_ratio(processor, [run.per_processor_second for run in found[PEER]])} |",
            flush=True,
        )


def _gpu() -> bool:
    import torch

    return torch.cuda.is_available()


def _rows(options: argparse.Namespace) -> Any:
    """Return triplets whose prompts are short enough, one batch a step, as the two sides read them."""
    from datasets import Dataset
    from transformers import AutoTokenizer

    from sentsmith.encoders.template import REPRESENTATIVE_WORD
    from sentsmith.training.data import load_rows, triplet_rows
    from sentsmith.training.settings import SourceSettings

    wanted = options.batch_size * options.steps
    read = load_rows(SourceSettings(train=options.triplets, limit=2 * wanted), triplet_rows).train
    tokenizer = AutoTokenizer.from_pretrained(options.model)
    kept: dict[str, list[str]] = {name: [] for name in read.column_names}
    for row in read:
        prompts = [REPRESENTATIVE_WORD.format(sentence=text) for text in row.values()]
        if max(len(ids) for ids in tokenizer(prompts)["input_ids"]) <= options.max_length:
            for name, text in row.items():
                kept[name].append(text)
    cut = {name: texts[:wanted] for name, texts in kept.items()}
    prompted = {name: [REPRESENTATIVE_WORD.format(sentence=text) for text in texts] for name, texts in cut.items()}
    return {OURS: Dataset.from_dict(cut), PEER: Dataset.from_dict(prompted)}


class Run:
    """One run's figures, and the trainer's callback and the loss's hook that find them."""

    def __init__(self) -> None:
        from transformers import TrainerCallback

        run = self

        class Steps(TrainerCallback):
            """Times all steps after the first."""

            def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
                """Start after the first step, stop after the last."""
                if state.global_step == 1:
                    run.watch.__enter__()
                    run.real = run.computed = 0
                elif state.global_step == state.max_steps:
                    run.watch.__exit__()

        self.watch = Watch()
        self.real = self.computed = 0
        self.callback = Steps()

    def count_real(self, loss: Any, args: tuple[Any, ...]) -> None:
        """Count the tokens of a step that are no padding; a hook of the loss."""
        self.real += sum(int(column["attention_mask"].sum()) for column in args[0])

    def count_computed(self, model: Any, args: tuple[Any, ...]) -> None:
        """Count the tokens that the model computes, padding included; a hook of the model."""
        self.computed += args[0]["input_ids"].numel()

    @property
    def per_second(self) -> float:
        """Real tokens per second on the clock."""
        return self.real / self.watch.clock

    @property
    def per_processor_second(self) -> float:
        """Real tokens per second of the processor."""
        return self.real / self.watch.processor

    @property
    def share(self) -> float:
        """Real tokens per computed token."""
        return self.real / self.computed


def _train(make: Callable[..., Any], rows: Any, precision: str, options: argparse.Namespace) -> Run:
    run = Run()
    with tempfile.TemporaryDirectory() as folder:
        trainer = make(rows, precision, options, Path(folder))
        trainer.add_callback(run.callback)
        trainer.loss.register_forward_pre_hook(run.count_real)
        trainer.model.register_forward_pre_hook(run.count_computed)
        trainer.train()
    return run


def _ours(rows: Any, precision: str, options: argparse.Namespace, work: Path) -> Any:
    from sentsmith.encoders.chunked import Chunking
    from sentsmith.methods.bellm.objective import BellmLoss
    from sentsmith.methods.bellm.recipe import Recipe, build
    from sentsmith.training.trainer import make_trainer

    training = {"batch_size": options.batch_size, "max_steps": options.steps, "save_steps": 10_000}
    looking = {"both_ways_from": "n/2", "readout": "last"}
    recipe = Recipe.model_validate(
        {"model": options.model, "data": {"train": options.triplets}, "training": training, "bellm": looking}
    )
    model = build(recipe)
    model.max_seq_length = options.max_length
    # The defaults of a training run.
    chunking = Chunking(16384 if _gpu() else 512, 32 if precision == "bf16" else 8)
    return make_trainer(
        model,
        BellmLoss(model, chunking=chunking),
        rows[OURS],
        recipe.training,
        work=work,
        precision=precision,
        evaluator=None,
        callbacks=[],
        progress=False,
    )


def _peer(rows: Any, precision: str, options: argparse.Namespace, work: Path) -> Any:
    import torch
    from sentence_transformers import (
        SentenceTransformer,
        SentenceTransformerTrainer,
        SentenceTransformerTrainingArguments,
    )
    from sentence_transformers.base.modules import Transformer
    from sentence_transformers.sentence_transformer.losses import MultipleNegativesRankingLoss
    from sentence_transformers.sentence_transformer.modules import Pooling
    from transformers.trainer_callback import PrinterCallback

    from sentsmith.encoders.adapters import add_lora
    from sentsmith.methods.bellm.settings import LoraSettings

    decoder: Any = Transformer(options.model, max_seq_length=options.max_length, model_kwargs={"dtype": torch.float32})
    model = SentenceTransformer(modules=[decoder, Pooling(decoder.get_embedding_dimension(), "lasttoken")])
    lora = LoraSettings()
    add_lora(decoder.model, rank=lora.rank, alpha=lora.alpha, dropout=lora.dropout)
    settings = SentenceTransformerTrainingArguments(
        output_dir=str(work),
        per_device_train_batch_size=options.batch_size,
        max_steps=options.steps,
        bf16=precision == "bf16",
        use_cpu=not _gpu(),
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    trainer = SentenceTransformerTrainer(
        model=model, args=settings, train_dataset=rows[PEER], loss=MultipleNegativesRankingLoss(model, scale=20.0)
    )
    trainer.remove_callback(PrinterCallback)
    return trainer


if __name__ == "__main__":
    main()
