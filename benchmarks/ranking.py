"""Ranked lists: many written together against one at a time; training by kept vectors against a teacher in the loop.

Writing, from premises of ``nli/`` on a small language model, steered as the paper does it: lists per second with all
lists under way together, and with one. The lists that are written one at a time are some of the others (every so many,
by length), since all of them would take minutes. Answers are drawn, not greedy: greedily a small model soon writes one
sentence for ever, which is asked once and then read in the ledger, and costs nothing. For the same reason no list is
dropped for repetition; one that is dropped for an answer that cannot be read counts as a list.

Training, lists of 33 as in the paper: steps that look the teacher's vectors up, and steps that run the teacher on the
sentences. The latter is given the student's token ids, so it tokenises nothing a second time. The one pass that makes
the vectors is timed too.

    python benchmarks/ranking.py --llm ../shared/models/nli-lm-8m --data-dir ../shared/data
"""

from __future__ import annotations

import argparse
import copy
import logging
import statistics
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import common

Figure = tuple[float, ...]


def main() -> None:
    """Print both ratios, pair by pair."""
    parser = common.arguments(__doc__.splitlines()[0])
    parser.set_defaults(repeats=3)
    parser.add_argument("--parts", default="writing,training", help="what to measure")
    parser.add_argument("--llm", default="../shared/models/nli-lm-8m", help="folder of the language model that writes")
    parser.add_argument("--prompts", default="nli-lm-8m", help="its prompt file")
    parser.add_argument("--lists", type=int, default=64, help="under way together")
    parser.add_argument("--alone", type=int, default=4, help="lists written one at a time")
    parser.add_argument("--count", type=int, default=4, help="sentences that follow the seed; the paper has 32")
    parser.add_argument("--batch", type=int, default=128, help="rows of a batch at most; a list takes two")
    parser.add_argument("--device", default="cpu", help="of the language model")
    parser.add_argument("--model", default="minilm", help="the model in training, and its teacher")
    parser.add_argument("--steps", type=int, default=12, help="training steps a run; the first is not timed")
    parser.add_argument("--batch-size", type=int, default=1, help="lists per training step")
    options = parser.parse_args()
    import torch
    import transformers

    torch.set_num_threads(options.threads)
    logging.disable(logging.WARNING)
    transformers.logging.disable_progress_bar()
    print(common.machine(), "\n")
    for part in options.parts.split(","):
        {"writing": writing, "training": training}[part](options)


def writing(options: argparse.Namespace) -> None:
    """Measure lists per second, together and one at a time."""
    from sentsmith.llm.local import LocalBackend

    model = LocalBackend(options.llm, device=options.device, batch=options.batch)
    seeds = sorted(_premises(options.data_dir, options.lists), key=len)
    # From the middle of each stretch, so that they are as long as the others on average.
    apart = max(1, len(seeds) // options.alone)
    few = seeds[apart // 2 :: apart][: options.alone]
    together, alone = _interleaved(
        {
            f"{options.lists} together": lambda: _lists(model, seeds, options, together=options.lists),
            "one at a time": lambda: _lists(model, few, options, together=1),
        },
        options,
    )
    print(f"writing: {options.count} sentences after each seed; {len(few)} lists one at a time")
    print("| | lists/s | answers/s | tokens an answer | dropped lists |\n|---|---|---|---|---|")
    for name, runs in ((f"{options.lists} together", together), ("one at a time", alone)):
        rates = [statistics.median(column) for column in zip(*runs, strict=True)]
        print(f"| {name} | {rates[0]:.3f} | {rates[1]:.2f} | {rates[2]:.1f} | {rates[3]:.0%} |")
    print("\ntogether over one at a time, lists/s:", _ratios(together, alone, 0))
    print("together over one at a time, answers/s:", _ratios(together, alone, 1), "\n", flush=True)


def _premises(data_dir: str, count: int) -> list[str]:
    from sentsmith.corpus.reading import read_sentences
    from sentsmith.corpus.sampling import sample_random

    path = Path(data_dir) / "nli" / "pairs.tsv.gz"
    if not path.is_file():
        sys.exit(f"{path} is not here: give --data-dir")
    return sample_random(dict.fromkeys(read_sentences(path, column="premise")), count, seed=0)


def _lists(model: Any, seeds: list[str], options: argparse.Namespace, *, together: int) -> Figure:
    """Return lists and answers per second, tokens per answer, and the share of lists that were dropped."""
    from sentsmith.methods.ranking.writing import WritingSettings, write_rankings

    settings = WritingSettings(
        prompts=options.prompts,
        count=options.count,
        together=together,
        max_new_tokens=48,
        temperature=0.7,
        repeats=options.count + 2,
    )
    with tempfile.TemporaryDirectory() as name:
        source = Path(name) / "seeds.txt"
        source.write_text("\n".join(seeds) + "\n", encoding="utf-8")
        start = time.perf_counter()
        done = write_rankings(source, Path(name) / "lists.jsonl", lambda: model, settings)
        seconds = time.perf_counter() - start
    outcome, tally = done.outcome, done.tally
    assert outcome is not None, "a language model writes"
    answers = outcome.asked
    return (
        tally.rows / seconds,
        answers / seconds,
        outcome.answer_tokens / answers,
        tally.quarantined / tally.rows,
    )


def training(options: argparse.Namespace) -> None:
    """Measure training steps per second, by the teacher's kept vectors and with the teacher in the loop."""
    bench = Training(options)
    looked_up, recomputed = _interleaved(
        {"looked up": lambda: bench.train(recompute=False), "recomputed": lambda: bench.train(recompute=True)}, options
    )
    print(
        f"training: {options.batch_size} list(s) of 33 a step, max length 32, fp32, the teacher as large as the student"
    )
    print("| teacher | steps/s |\n|---|---|")
    for name, runs in (("looked up", looked_up), ("recomputed", recomputed)):
        print(f"| {name} | {statistics.median(rate for rate, *_ in runs):.2f} |")
    print("\nlooked up over recomputed, steps/s:", _ratios(looked_up, recomputed, 0))
    step = 1 / statistics.median(rate for rate, *_ in looked_up)
    share = bench.seconds / bench.steps / step
    print(f"the one pass that makes the vectors: {bench.seconds:.1f} s, {share:.2f} of an epoch of steps that look up")


class Training:
    """A student, its teacher, lists, and the teacher's vectors of them."""

    def __init__(self, options: argparse.Namespace) -> None:
        from datasets import Dataset

        from sentsmith.encoders.loading import load
        from sentsmith.methods.ranking.corruption import Words, corrupt
        from sentsmith.training.teachers import load_teacher
        from sentsmith.training.text_vectors import text_vectors

        self.options, self.steps = options, options.steps
        seeds = common.mixture(options.data_dir, self.steps * options.batch_size)
        words = Words.of(seeds)
        lists = [[seed, *corrupt(seed, 32, words, seed=0)] for seed in seeds]
        self.teacher = load_teacher(options.model, max_length=32, depends={})
        with tempfile.TemporaryDirectory() as folder:
            start = time.perf_counter()
            self.texts = text_vectors(self.teacher, (text for one in lists for text in one), Path(folder))
            self.seconds = time.perf_counter() - start
        labels = [[self.texts.places[text] for text in one] for one in lists]
        self.rows = Dataset.from_dict({"sentences": lists, "label": labels})
        self.student = load(options.model)
        self.student.max_seq_length = 32

    def train(self, *, recompute: bool) -> Figure:
        """Return steps per second, of all steps but the first."""
        from sentsmith.methods.ranking.loss import ListCollator
        from sentsmith.methods.ranking.recipe import RankingTraining
        from sentsmith.training.trainer import make_trainer

        model = copy.deepcopy(self.student)
        clock = common.clock()
        with tempfile.TemporaryDirectory() as work:
            trainer = make_trainer(
                model,
                self._loss(model, recompute=recompute),
                self.rows,
                RankingTraining(batch_size=self.options.batch_size, max_steps=self.steps, save_steps=10_000),
                work=Path(work),
                precision="fp32",
                evaluator=None,
                callbacks=[clock],
                progress=False,
                collator=ListCollator(model.preprocess),
            )
            trainer.train()
        return ((self.steps - 1) / clock.seconds,)

    def _loss(self, model: Any, *, recompute: bool) -> Any:
        import torch

        from sentsmith.encoders.chunked import Chunking, forward, join
        from sentsmith.methods.ranking.loss import NOTHING, RankingLoss, list_cosines
        from sentsmith.methods.ranking.objective import refine_similarities

        # The defaults of a training run.
        chunking = Chunking(16384 if torch.cuda.is_available() else 512, 8)
        teacher = self.teacher.model.eval()
        features: list[Any] = []

        def looked_up(labels: Any) -> Any:
            return self.texts.look_up(labels[labels != NOTHING].cpu().numpy()).to(labels.device)

        def recomputed(_labels: Any) -> Any:
            with torch.no_grad():
                return forward(teacher, features.pop(), chunking)

        vectors_of: Callable[[Any], Any] = recomputed if recompute else looked_up

        def targets(labels: Any, sizes: Any) -> Any:
            similarities = list_cosines(vectors_of(labels), sizes, width=labels.shape[1])
            return refine_similarities(similarities, omega=0.5, sizes=sizes)

        class Loss(RankingLoss):
            """Keeps the token ids of the lists for the teacher."""

            def forward(self, sentence_features: Iterable[Any], labels: Any) -> dict[str, Any]:
                """Return the loss; see the base class."""
                given = list(sentence_features)
                if recompute:
                    features.append(join(given[:1], pad_token_id=self.pad_token_id))
                return super().forward(given, labels)

        return Loss(model, targets, chunking=chunking, pad_token_id=model.tokenizer.pad_token_id or 0)


def _interleaved(variants: dict[str, Callable[[], Figure]], options: argparse.Namespace) -> list[list[Figure]]:
    """Run the variants in turn, so that a machine whose speed drifts treats them alike."""
    found: dict[str, list[Figure]] = {name: [] for name in variants}
    for repeat in range(options.repeats):
        for name, variant in variants.items():
            found[name].append(variant())
            print(
                f"  run {repeat + 1}/{options.repeats} {name}: {found[name][-1][0]:.3f}/s", file=sys.stderr, flush=True
            )
    return list(found.values())


def _ratios(first: list[Figure], second: list[Figure], place: int) -> str:
    ratios = [a[place] / b[place] for a, b in zip(first, second, strict=True)]
    return f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})"


if __name__ == "__main__":
    main()
