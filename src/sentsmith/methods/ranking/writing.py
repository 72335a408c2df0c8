"""Writing ranked lists: from each seed sentence on, every sentence a little further from it than the one before.

The paper's way (METHODS.md §6) draws each next token from ``(1+λ)·l(x^(i−1)) − λ·l(x^(i−2))``: one instruction, about
the sentence before and against the sentence before that one, so that the list keeps moving away from where it was.
Beside it stand its two baselines (step by step from one predecessor; a whole list at once) and a control that needs no
language model: words are dropped, exchanged and replaced one by one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal, Self

from pydantic import Field, model_validator

from sentsmith.corpus.datasets import data_hash
from sentsmith.corpus.formats import kind_of
from sentsmith.corpus.reading import read_sentences, rereadable
from sentsmith.errors import InputError, SettingsError
from sentsmith.llm.answering import ask
from sentsmith.llm.backend import Backend, Decoding, guidable
from sentsmith.llm.estimating import Estimate, estimate
from sentsmith.llm.ledger import Ledger
from sentsmith.llm.outputs import AskingSettings, Beside, Written, checked_output
from sentsmith.llm.parsing import LengthBounds
from sentsmith.llm.prompts import Prompts, Reading, load_prompts
from sentsmith.llm.questions import Question
from sentsmith.llm.spending import Budget, Price
from sentsmith.methods.ranking.advancing import Lists, whole
from sentsmith.methods.ranking.corruption import Words, corrupt
from sentsmith.methods.ranking.output import Finished, write_lists
from sentsmith.methods.ranking.seeds import distinct, draw_seeds

JOB = "write rankings"
"""What the record calls it."""
WriterName = Literal["directional", "stepwise", "single-shot", "corruption"]
# What a writer asks, if nothing else is named, and how the prompt file must read the answers.
_ASKED: dict[WriterName, tuple[str, Reading]] = {
    "directional": ("rewrite", "line"),
    "stepwise": ("change", "line"),
    "single-shot": ("list", "list"),
}
_NO_LOGITS = (
    "gives no logits, so a list cannot be steered away from the sentence before the last; write with --direction 0, "
    "--writer stepwise or --writer single-shot, or with a local model"
)


class WritingSettings(AskingSettings):
    """How ranked lists are written."""

    prompts: str = Field(default="ranking", description="Prompt file, or the name of one that ships")
    max_new_tokens: int = Field(
        default=100, ge=1, description="The longest sentence; a list written at once may take that for each of its own"
    )
    limit: int | None = Field(default=None, ge=1, description="Only so many seeds, from the start")
    writer: WriterName = Field(default="directional", description="How lists are written")
    count: int = Field(default=32, ge=1, description="Sentences that follow the seed in each list")
    direction: float = Field(
        default=0.5,
        allow_inf_nan=False,
        description="λ, how strongly a sentence is steered away from the one before the last; 0 writes plainly",
    )
    floor: float = Field(
        default=0.0, ge=0.0, le=1.0, description="Plausibility floor of guided decoding, a share of the likeliest token"
    )
    task: str | None = Field(
        default=None, description="Task of the prompt file; rewrite, change or list, by the writer, if none is named"
    )
    repeats: int = Field(
        default=3, ge=2, description="Drop a list that holds its last sentence, or the one before it, so often"
    )
    min_characters: int = Field(default=3, ge=1, description="The shortest sentence")
    max_characters: int = Field(default=600, ge=1, description="The longest sentence")
    together: int = Field(default=64, ge=1, description="Lists under way at a time")
    clusters: int | None = Field(
        default=None, ge=1, description="Draw seeds from so many clusters; every distinct sentence is one if not given"
    )
    per_cluster: int = Field(default=20, ge=1, description="Seeds drawn from each cluster")
    seed_model: str = Field(default="minilm", description="Model whose vectors are clustered")
    column: str | None = Field(default=None, description="Text column, where the file has several")

    @model_validator(mode="after")
    def _settings_that_need_another(self) -> Self:
        idle: list[tuple[str, str]] = []
        if self.clusters is None:
            idle += [(name, "clusters") for name in ("per_cluster", "seed_model")]
        if self.writer != "directional":
            idle += [("direction", "writer directional")]
        if not self.guided:
            idle += [("floor", "writer directional and a direction other than 0")]
        if not self.stepwise:
            idle += [("together", "writer directional or stepwise")]
        if self.writer == "corruption":
            of_a_model = ("prompts", "task", "max_new_tokens", "temperature", "top_p")
            idle += [
                (name, "a writer that asks a language model")
                for name in (*of_a_model, "min_characters", "max_characters")
            ]
        for name, needed in idle:
            if getattr(self, name) != type(self).model_fields[name].default:
                raise ValueError(f"{name} does nothing without {needed}: drop it, or set {needed}")
        if self.min_characters > self.max_characters:
            raise ValueError(f"min_characters {self.min_characters} is above max_characters {self.max_characters}")
        return self

    @property
    def stepwise(self) -> bool:
        """Whether each sentence is a question of its own."""
        return self.writer in ("directional", "stepwise")

    @property
    def guided(self) -> bool:
        """Whether two prompts speak at each token."""
        return self.writer == "directional" and self.direction != 0.0

    def decoding(self) -> Decoding:
        """Return how answers are decoded: guided by weights (1+λ, −λ)."""
        plain = AskingSettings.decoding(self)
        if not self.stepwise:
            return plain.model_copy(update={"max_new_tokens": self.max_new_tokens * self.count})
        if not self.guided:
            return plain
        weights = {"first_weight": 1.0 + self.direction, "second_weight": -self.direction}
        return plain.model_copy(update={**weights, "floor": self.floor})


def write_rankings(
    sentences: str | Path,
    output: str | Path,
    backend: Callable[[], Backend] | None,
    settings: WritingSettings | None = None,
    *,
    ledger: str | Path | None = None,
    budget: Budget | None = None,
    price: Price | None = None,
    retry_quarantined: bool = False,
    overwrite: bool = False,
    progress: bool = False,
    advance: Callable[[int], None] = lambda _: None,
    expect: Callable[[int], None] = lambda _: None,
) -> Written:
    """Write a list from each seed on; what an earlier run asked is not asked again.

    Rows come in the order of the seeds, with the column ``sentences``: the seed, then ``count`` more. A list of which
    an answer cannot be read, or that repeats itself, is dropped and listed in ``OUT.quarantine.jsonl`` with the reason
    and what was written of it. When the budget is reached, the lists that are whole are written; a later run goes on
    inside the others. Where no list is whole, an output that is there already is left as it was.

    An answer that cannot be read is not asked again by itself: the paper drops the list.

    Args:
        sentences: What :func:`~sentsmith.corpus.reading.read_sentences` reads, standard input (``-``) included.
        output: A ``.jsonl`` or ``.parquet`` file to write, also with ``.gz``.
        backend: Opens the language model; called once the input is known to be good. None for ``corruption``.
        settings: How they are written.
        ledger: Another ledger than ``OUT.ledger.sqlite``; several outputs may share one.
        budget: Where to stop.
        price: What tokens cost.
        retry_quarantined: Ask again what is in quarantine.
        overwrite: Replace an output that is not this job's own.
        progress: Draw a bar while the sentences are embedded, where seeds are drawn from clusters.
        advance: Called with the number of answers since the last call.
        expect: Called once with the number of answers there will be.

    Raises:
        InputError: The sentences cannot be read, or the output cannot be written.
        SettingsError: The prompts lack the task, guidance is asked of a model that cannot be guided, there is no model
            for a writer that asks one, or one for ``corruption``, which asks none.
        SentsmithError: The model fails, or no seed gave a list.
    """
    chosen = settings or WritingSettings()
    _check_backend(backend, chosen)
    files = _checked(output, sentences, ledger, overwrite=overwrite)
    with rereadable(sentences, files.output) as path:
        plan = _Plan(path, chosen, files, progress=progress)
        if backend is None:
            expect(len(plan.seeds))
            return write_lists(files, JOB, _corrupted(plan, advance), plan.facts(None), None)
        expect(plan.answers * len(plan.seeds))
        model = guidable(backend, guided=chosen.guided, advice=_NO_LOGITS)
        with Ledger(files.ledger) as answers:
            lists = plan.lists(answers, model)
            outcome = ask(
                lists.questions(chosen.together, advance),
                model,
                answers,
                lists.decoding,
                retries=0,
                budget=budget,
                price=price,
                retry_quarantined=retry_quarantined,
                advance=advance,
            )
            drafts = (Finished(draft, pending=question is not None) for draft, question in lists.drafts())
            return write_lists(files, JOB, drafts, plan.facts(model.name), outcome)


def estimate_rankings(
    sentences: str | Path,
    output: str | Path,
    backend: Callable[[], Backend],
    settings: WritingSettings | None = None,
    *,
    ledger: str | Path | None = None,
    price: Price | None = None,
    progress: bool = False,
) -> Estimate:
    """Return what :func:`write_rankings` would ask, and about how long that takes and what it costs.

    Steps that are not known yet count like the next one of each list, and no list is foreseen to be dropped; how many
    are dropped already is told.

    Raises:
        InputError: See :func:`write_rankings`, as for the others. An output that exists is no error here.
        SettingsError: Likewise; also if the writer is ``corruption``, which asks nothing.
    """
    chosen = settings or WritingSettings()
    if chosen.writer == "corruption":
        raise SettingsError(
            "the writer 'corruption' asks no language model: there is nothing to estimate, only to write"
        )
    _check_backend(backend, chosen)
    files = _checked(output, sentences, ledger, overwrite=True)
    with rereadable(sentences, files.output) as path:
        plan = _Plan(path, chosen, files, progress=progress)
        model = guidable(backend, guided=chosen.guided, advice=_NO_LOGITS)
        with Ledger(files.ledger) as answers:
            lists = plan.lists(answers, model)

            def of_next_steps() -> Estimate:
                steps = (question for _, question in lists.drafts() if question is not None)
                return estimate(steps, model, answers, lists.decoding, price=price, retries=0)

            if model.local:
                # A model that was never asked is tried, and the lists that it was tried on are a step further then.
                of_next_steps()
            return _of_all_steps(of_next_steps(), lists)


def _of_all_steps(next_steps: Estimate, lists: Lists) -> Estimate:
    known = left = dropped = 0
    for draft, question in lists.drafts():
        known += draft.answers
        dropped += draft.reason is not None
        left += 0 if question is None else lists.way.answers - draft.answers
    times = left / next_steps.requests if next_steps.requests else 0.0
    return replace(
        next_steps,
        requests=left,
        known=known,
        dropped=dropped,
        prompt_tokens=round(next_steps.prompt_tokens * times),
        answer_tokens=round(next_steps.answer_tokens * times),
        seconds=None if next_steps.seconds is None else next_steps.seconds * times,
        money=None if next_steps.money is None else next_steps.money * times,
    )


def _checked(output: str | Path, source: str | Path, ledger: str | Path | None, *, overwrite: bool) -> Beside:
    files = checked_output(output, source, JOB, ledger=ledger, overwrite=overwrite)
    if kind_of(files.output) not in (".jsonl", ".parquet"):
        raise InputError("cannot hold lists of sentences; write .jsonl or .parquet, also with .gz", path=files.output)
    return files


def _check_backend(backend: Callable[[], Backend] | None, settings: WritingSettings) -> None:
    if backend is not None and settings.writer == "corruption":
        raise SettingsError("the writer 'corruption' asks no language model: give none, or name another writer")
    if backend is None and settings.writer != "corruption":
        raise SettingsError(f"the writer {settings.writer!r} asks a language model: give one, or write by corruption")


class _Plan:
    """The seeds, and what is asked about them; a :class:`~sentsmith.methods.ranking.advancing.Way`."""

    def __init__(self, path: Path, settings: WritingSettings, files: Beside, *, progress: bool) -> None:
        self.path, self.settings = path, settings
        self.count = settings.count
        self.answers = settings.count if settings.stepwise else 1
        self.bounds = LengthBounds(min_characters=settings.min_characters, max_characters=settings.max_characters)
        self.prompts: Prompts | None = None
        self.task = ""
        if settings.writer != "corruption":
            self.prompts, self.task = _prompts(settings)
        self.sha256 = data_hash(path)
        # Read to the end before anything is asked: a bad row far below must not stop a run of days.
        self.sentences = list(read_sentences(path, column=settings.column))
        if not self.sentences:
            raise InputError("there is no sentence to write for", path=path)
        self.seeds = self._seeds(files.output, progress=progress)[: settings.limit]

    def _seeds(self, output: Path, *, progress: bool) -> list[str]:
        settings = self.settings
        if settings.clusters is None:
            return distinct(self.sentences)
        return draw_seeds(
            self.sentences,
            clusters=settings.clusters,
            per_cluster=settings.per_cluster,
            model=settings.seed_model,
            seed=settings.seed,
            kept=output.with_name(output.name + ".seeds.json"),
            progress=progress,
        )

    def lists(self, ledger: Ledger, model: Backend) -> Lists:
        return Lists(self.seeds, self, self.settings.repeats, ledger, model.name, self.settings.decoding())

    def question(self, sentences: Sequence[str]) -> Question:
        """Return the question about the last sentence, steered away from the one before it if that is wanted.

        The first step has both conditions the same, so nothing steers it.
        """
        assert self.prompts is not None  # noqa: S101 - a list written without a model asks nothing
        settings = self.settings
        return self.prompts.question(
            self.task,
            sentences[-1:],
            seed=settings.seed,
            against=sentences[-2:][:1] if settings.guided else None,
            count=None if settings.stepwise else settings.count,
            bounds=self.bounds,
        )

    def facts(self, model: str | None) -> dict[str, Any]:
        prompts = None if self.prompts is None else self.prompts.sha256
        return {
            "data": {"path": str(self.path), "sha256": self.sha256},
            "model": model,
            "settings": self.settings.model_dump(mode="json"),
            "prompts_sha256": prompts,
        }


def _prompts(settings: WritingSettings) -> tuple[Prompts, str]:
    """Return the prompts and the task.

    Raises:
        SettingsError: The task is missing, or its answers are not read as this writer needs them.
    """
    usual, reading = _ASKED[settings.writer]
    task = settings.task or usual
    prompts = load_prompts(settings.prompts).need(task, name=settings.prompts)
    found = prompts.tasks[task]
    if found.parse != reading or found.inputs != 1:
        raise SettingsError(
            f"task {task!r} is asked about {found.inputs} sentence(s) and read as a {found.parse}; the writer "
            f"{settings.writer!r} needs one that is asked about 1 and read as a {reading}",
            path=settings.prompts,
        )
    return prompts, task


def _corrupted(plan: _Plan, advance: Callable[[int], None]) -> Iterator[Finished]:
    settings = plan.settings
    words = Words.of(plan.sentences)
    for seed in plan.seeds:
        yield Finished(whole(seed, corrupt(seed, settings.count, words, seed=settings.seed), settings.repeats))
        advance(1)
