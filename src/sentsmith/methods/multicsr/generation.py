"""MultiCSR's first stage: for each sentence an entailment and a contradiction, steered away from the opposite.

Each next token is the likeliest of ``l(instruction) − ω·l(noise)`` over the same prefix, where the noise is, in the
paper, the opposite instruction: what both would write is no answer to either. With ω = 0 (or noise ``none``) the model
writes what it writes by itself, which is SynCSE's generation, and which an endpoint can do too.
"""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Self

from pydantic import Field, model_validator

from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.reading import read_sentences, read_triplets, rereadable
from sentsmith.corpus.rows import Triplet
from sentsmith.errors import InputError
from sentsmith.llm.answering import ask
from sentsmith.llm.backend import Backend, Decoding, guidable
from sentsmith.llm.estimating import Estimate, estimate
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.outputs import (
    Asked,
    AskingSettings,
    Beside,
    LeftOut,
    Tally,
    Written,
    checked_output,
    complete_rows,
    write_complete,
)
from sentsmith.llm.parsing import LengthBounds
from sentsmith.llm.prompts import Noise, Prompts, load_prompts
from sentsmith.llm.spending import Budget, Price
from sentsmith.methods.multicsr.demonstrations import Demonstrations, as_exemplars

logger = logging.getLogger(__name__)

JOB = "write triplets"
"""What the record calls it."""
COLUMNS = ("anchor", "positive", "negative")
TASKS = ("entailment", "contradiction")


class WritingSettings(AskingSettings):
    """How triplets are written."""

    omega: float = Field(
        default=0.3,
        allow_inf_nan=False,
        description="ω, how strongly an answer is steered away from the noise; 0 writes plainly, below 0 steers to it",
    )
    noise: Noise = Field(default="opposite", description="What an answer is steered away from")
    floor: float = Field(
        default=0.0, ge=0.0, le=1.0, description="Plausibility floor of guided decoding, a share of the likeliest token"
    )
    length: LengthBounds = LengthBounds()
    column: str | None = Field(default=None, description="Text column, where the file has several")
    demonstrations: int = Field(
        default=0, ge=0, description="L, gold triplets shown in place of the prompt file's examples"
    )
    demonstration_threshold: float = Field(
        default=0.6, ge=-1.0, le=1.0, description="λ, the cosine a premise must reach to be shown"
    )
    demonstration_pool: str | None = Field(default=None, description="File of gold triplets")
    demonstration_model: str = Field(default="minilm", description="Finds the nearest premises")

    @model_validator(mode="after")
    def _settings_that_need_another(self) -> Self:
        if bool(self.demonstrations) != bool(self.demonstration_pool):
            raise ValueError("demonstrations and demonstration_pool need each other: how many, and a file of triplets")
        idle = []
        if not self.demonstrations:
            idle += [("demonstration_threshold", "demonstrations"), ("demonstration_model", "demonstrations")]
        if not self.guided:
            idle += [("floor", "omega other than 0 and a noise")]
        if self.omega == 0.0 and self.noise != "none":
            idle += [("noise", "omega other than 0")]
        if self.omega != 0.0 and self.noise == "none":
            idle += [("omega", "a noise")]
        for name, needed in idle:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} does nothing without {needed}: drop it, or set {needed}")
        return self

    @property
    def guided(self) -> bool:
        """Whether two prompts speak at each token."""
        return self.noise != "none" and self.omega != 0.0

    def decoding(self) -> Decoding:
        """Return how answers are decoded: guided by weights (1, −ω)."""
        plain = AskingSettings.decoding(self)
        if not self.guided:
            return plain
        return plain.model_copy(update={"second_weight": -self.omega, "floor": self.floor})


def write_triplets(
    sentences: str | Path,
    output: str | Path,
    backend: Callable[[], Backend],
    settings: WritingSettings | None = None,
    *,
    ledger: str | Path | None = None,
    budget: Budget | None = None,
    price: Price | None = None,
    retry_quarantined: bool = False,
    overwrite: bool = False,
    advance: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> Written:
    """Write a triplet for each sentence; what an earlier run asked is not asked again.

    Rows come in the order of the sentences, with the columns ``anchor``, ``positive``, ``negative``. A sentence of
    which an answer cannot be read is left out and listed in ``OUT.quarantine.jsonl`` with the reason. When the budget
    is reached, the triplets that are complete are written; a later run goes on. Where none is complete, an output that
    is there already is left as it was.

    Args:
        sentences: What :func:`~sentsmith.corpus.reading.read_sentences` reads, standard input (``-``) included.
        output: A table to write.
        backend: Opens the language model; called once the input is known to be good.
        settings: How they are written.
        ledger: Another ledger than ``OUT.ledger.sqlite``; several outputs may share one.
        budget: Where to stop.
        price: What tokens cost.
        retry_quarantined: Ask again what is in quarantine.
        overwrite: Replace an output that is not this job's own.
        advance: Called with the number of answers since the last call.
        expect: Called once with the number of answers there will be.

    Raises:
        InputError: The sentences cannot be read, or the output cannot be written.
        SettingsError: The prompts lack a task, or guidance is asked of a model that cannot be guided.
        SentsmithError: The model fails, or no sentence gave a triplet.
    """
    chosen = settings or WritingSettings()
    files = checked_output(output, sentences, JOB, ledger=ledger, overwrite=overwrite)
    with rereadable(sentences, files.output) as path:
        plan = _Plan(path, chosen)
        expect(len(TASKS) * plan.sentences)
        # A language model may take minutes to open; a pool that is wrong is told before.
        plan.retrieve()
        model = guidable(backend, guided=chosen.guided)
        with Ledger(files.ledger) as answers:
            outcome = ask(
                plan.questions(),
                model,
                answers,
                chosen.decoding(),
                budget=budget,
                price=price,
                retry_quarantined=retry_quarantined,
                advance=advance,
            )
            tally, stands = _write(plan, files, answers, model.name)
        return Written(tally, outcome, stands)


def estimate_triplets(
    sentences: str | Path,
    output: str | Path,
    backend: Callable[[], Backend],
    settings: WritingSettings | None = None,
    *,
    ledger: str | Path | None = None,
    price: Price | None = None,
) -> Estimate:
    """Return what :func:`write_triplets` would ask, and about how long that takes and what it costs.

    Raises:
        InputError: See :func:`write_triplets`, as for the others. An output that exists is no error here.
    """
    chosen = settings or WritingSettings()
    files = checked_output(output, sentences, JOB, ledger=ledger, overwrite=True)
    with rereadable(sentences, files.output) as path:
        plan = _Plan(path, chosen)
        plan.retrieve()
        model = guidable(backend, guided=chosen.guided)
        with Ledger(files.ledger) as answers:
            return estimate(plan.questions(), model, answers, chosen.decoding(), price=price)


class _Plan:
    """The sentences and the questions about them, to be gone through more than once."""

    def __init__(self, path: Path, settings: WritingSettings) -> None:
        self.path, self.settings = path, settings
        self.prompts: Prompts = load_prompts(settings.prompts).need(*TASKS, name=settings.prompts)
        self.sha256 = data_hash(path)
        # Read to the end before anything is asked: a bad row far below must not stop a run of days.
        self.sentences = sum(1 for _ in self.read())
        if not self.sentences:
            raise InputError("there is no sentence to write for", path=path)
        self._shown: list[list[Triplet]] = []

    def read(self) -> Iterator[str]:
        return itertools.islice(read_sentences(self.path, column=self.settings.column), self.settings.limit)

    def retrieve(self) -> None:
        """Find each sentence's demonstrations, if it is to have any."""
        settings = self.settings
        if not settings.demonstration_pool:
            return
        from sentsmith.encoders.embedding import as_encoder
        from sentsmith.encoders.loading import load

        pool = Demonstrations(
            read_triplets(settings.demonstration_pool),
            as_encoder(load(settings.demonstration_model)),
            count=settings.demonstrations,
            threshold=settings.demonstration_threshold,
        )
        self._shown = pool.nearest(list(self.read()))
        none = sum(not shown for shown in self._shown)
        logger.info("%d of %d sentences have no premise that is near enough to be shown", none, self.sentences)

    def rows(self) -> Iterator[tuple[str, Asked]]:
        """Yield each sentence with its questions."""
        settings = self.settings
        noise: Noise = settings.noise if settings.guided else "none"
        for place, sentence in enumerate(self.read()):
            exemplars = as_exemplars(self._shown[place]) if self._shown else None
            yield (
                sentence,
                {
                    task: self.prompts.question(
                        task,
                        (sentence,),
                        seed=settings.seed,
                        noise=noise,
                        bounds=settings.length,
                        exemplars=exemplars,
                    )
                    for task in TASKS
                },
            )

    def questions(self) -> Iterator[Any]:
        for _, asked in self.rows():
            yield from asked.values()

    def facts(self, model: str) -> dict[str, Any]:
        prompts = self.prompts.sha256
        return {
            "data": {"path": str(self.path), "sha256": self.sha256},
            "model": model,
            "settings": self.settings.model_dump(mode="json"),
            "prompts_sha256": prompts,
        }


def _write(plan: _Plan, files: Beside, ledger: Ledger, model: str) -> tuple[Tally, bool]:
    tally, decoding = Tally(), plan.settings.decoding()

    def rows(left_out: LeftOut) -> Iterator[dict[str, Any]]:
        complete = complete_rows(plan.rows(), ledger, left_out, model=model, decoding=decoding, tally=tally)
        for sentence, answers in complete:
            positive, negative = (str(answers[task]) for task in TASKS)
            yield {"anchor": sentence, "positive": positive, "negative": negative}

    stands = write_complete(
        files,
        JOB,
        rows,
        columns=COLUMNS,
        facts=plan.facts(model),
        tally=tally,
        none=lambda answers: f"none of {tally.rows} sentences gave a triplet {tally.why_none(answers)}",
    )
    return tally, stands
