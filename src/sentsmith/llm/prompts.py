"""Prompt files: what a language model is asked, and how its answer is read.

A prompt file is YAML: a layout, and for each task its instructions (one is drawn for each sentence), the task that is
its opposite, worked examples, and the rule its answers are read by. Those that ship: ``multicsr`` and ``ranking`` for
general models that follow instructions, and ``nli-lm-8m`` for the small model of that name.

Sentences are data. Each is put on one line, and what has been inserted is never read again for placeholders, so a
sentence that holds ``{input}``, a marker of the layout or an instruction stays a sentence.
"""

from __future__ import annotations

import difflib
import hashlib
import random
import re
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self, get_args

from pydantic import Field, ValidationError, field_validator, model_validator

from sentsmith.errors import InputError, SettingsError
from sentsmith.llm.backend import Prompt
from sentsmith.llm.parsing import LengthBounds, one_line, read_line, read_list, read_score, read_sentence
from sentsmith.llm.questions import Question, Unreadable
from sentsmith.settings import Settings, read_yaml

Noise = Literal["opposite", "reordered", "masked", "truncated", "none"]
"""The second instruction that an answer is steered away from; see :meth:`Prompts.question`."""
NOISES: tuple[Noise, ...] = get_args(Noise)

Reading = Literal["sentence", "line", "list", "score"]
"""How an answer is read: a sentence that is no copy of the input; a line, which may be; as many numbered lines as are
asked for; a score."""

MASK = "[MASK]"
COUNT = "{count}"
"""Stands in the instructions of a list for how many sentences it is to have."""
_MASKED_SHARE = 0.15
_PLACEHOLDER = re.compile(r"\{(\w+)\}")
# Part of a layout → the placeholders it must have, and those it may have.
_PLACEHOLDERS = {
    "prompt": ({"instruction", "exemplars", "inputs"}, set[str]()),
    "exemplar": ({"inputs", "output"}, {"instruction"}),
    "input": ({"input"}, {"number"}),
}


class Template(Settings):
    """How a prompt is laid out; each part holds placeholders in braces."""

    prompt: str = Field(description="The whole: {instruction}, {exemplars}, {inputs}")
    exemplar: str = Field(description="A worked example: {inputs}, {output}, and {instruction} if wanted")
    input: str = Field(description="One input: {input}, and {number} (from 1) if wanted")

    @field_validator("prompt", "exemplar", "input")
    @classmethod
    def _right_placeholders(cls, value: str, info: Any) -> str:
        needed, allowed = _PLACEHOLDERS[info.field_name]
        found = set(_PLACEHOLDER.findall(value))
        for name in sorted(needed - found):
            raise ValueError(f"lacks the placeholder {{{name}}}")
        for name in sorted(found - needed - allowed):
            known = ", ".join(f"{{{other}}}" for other in sorted(needed | allowed))
            raise ValueError(f"has the unknown placeholder {{{name}}}; known here: {known}")
        return value


class Exemplar(Settings):
    """A worked example."""

    inputs: tuple[str, ...]
    output: str


class Task(Settings):
    """What can be asked."""

    instructions: tuple[str, ...] = Field(min_length=1, description="One is drawn for each sentence")
    inputs: int = Field(default=1, ge=1, description="How many sentences it is asked about")
    opposite: str | None = Field(default=None, description="The task whose instructions an answer is steered away from")
    exemplars: tuple[Exemplar, ...] = ()
    parse: Reading = Field(description="How an answer is read")
    template: Template | None = Field(default=None, description="A layout of its own")

    @model_validator(mode="after")
    def _whole(self) -> Self:
        if not all(instruction.strip() for instruction in self.instructions):
            raise ValueError("an instruction is empty")
        if self.parse == "list":
            return self._whole_list()
        for place, exemplar in enumerate(self.exemplars):
            if len(exemplar.inputs) != self.inputs:
                raise ValueError(f"exemplars.{place} has {len(exemplar.inputs)} inputs; the task has {self.inputs}")
            try:
                _reader(self.parse, exemplar.inputs, LengthBounds())(exemplar.output)
            except Unreadable as error:
                raise ValueError(f"exemplars.{place}.output would not be read: {error}") from error
        return self

    def _whole_list(self) -> Self:
        if not all(COUNT in instruction for instruction in self.instructions):
            raise ValueError(f"an instruction does not say how many sentences: write {COUNT} for the number")
        if self.exemplars:
            raise ValueError("a list has no exemplars; show an example in its instruction")
        return self


class Prompts(Settings):
    """A prompt file."""

    template: Template
    tasks: dict[str, Task] = Field(min_length=1)

    @model_validator(mode="after")
    def _opposites(self) -> Self:
        for name, task in self.tasks.items():
            if task.opposite is None:
                continue
            other = self.tasks.get(task.opposite)
            if other is None or other is task:
                known = ", ".join(sorted(set(self.tasks) - {name})) or "none"
                raise ValueError(f"tasks.{name}.opposite: {task.opposite!r} is no other task; there are: {known}")
            if other.inputs != task.inputs:
                raise ValueError(f"tasks.{name}.opposite: {task.opposite!r} is asked about {other.inputs} inputs")
        return self

    @property
    def sha256(self) -> str:
        """The hash of all that the file says, in hex: what a record keeps of it."""
        return hashlib.sha256(self.model_dump_json().encode()).hexdigest()

    def need(self, *tasks: str, name: str | Path) -> Self:
        """Return these prompts if they hold all of ``tasks``.

        Raises:
            SettingsError: One is missing; ``name`` says where.
        """
        for task in tasks:
            if task not in self.tasks:
                raise SettingsError(f"has no task {task!r}; it has: {', '.join(self.tasks)}", path=name)
        return self

    def question(
        self,
        task: str,
        inputs: Sequence[str],
        *,
        seed: int = 0,
        noise: Noise = "none",
        against: Sequence[str] | None = None,
        count: int | None = None,
        bounds: LengthBounds | None = None,
        exemplars: Mapping[str, Sequence[Exemplar]] | None = None,
    ) -> Question:
        """Return the question about some sentences.

        The instruction is drawn by (seed, sentences, task), so it does not depend on the order of the rows.

        Args:
            task: One of :attr:`tasks`.
            inputs: As many sentences as the task has inputs.
            seed: Of the draws.
            noise: What the answer is steered away from: ``opposite``, the same inputs under an instruction of the
                opposite task, with that task's exemplars; ``reordered``, the own instruction with its words shuffled;
                ``masked``, with 15 % of its words masked; ``truncated``, its first half; ``none``, nothing.
            against: Steers the answer away from the same instruction about these other sentences instead; not together
                with a noise.
            count: How many sentences a list is to have; for tasks that are read as one, and only for them.
            bounds: How long a written sentence may be.
            exemplars: Worked examples by task, in place of the file's; a task that is not there has none.

        Raises:
            SettingsError: ``noise`` is ``opposite`` and the task has none.
            ValueError: Another number of inputs, a count for no list or none for one, or ``noise`` and ``against``.
        """
        chosen = self.tasks[task]
        for texts in (inputs, against):
            if texts is not None and len(texts) != chosen.inputs:
                raise ValueError(f"task {task!r} is asked about {chosen.inputs} sentences, not {len(texts)}")
        if (count is not None) != (chosen.parse == "list"):
            raise ValueError(f"task {task!r} is read as a {chosen.parse}; count is {count}")
        given = tuple(map(one_line, inputs))
        instruction = _dice(seed, task, *given).choice(chosen.instructions)
        if count is not None:
            instruction = instruction.replace(COUNT, str(count))
        text = self._render(task, instruction, given, exemplars)
        if against is None:
            other = self._noisy(task, instruction, given, seed, noise, exemplars)
        elif noise == "none":
            other = self._render(task, instruction, tuple(map(one_line, against)), exemplars)
        else:
            raise ValueError(f"an answer is steered away from the noise {noise!r} or from other sentences, not both")
        reader = _reader(chosen.parse, given, bounds or LengthBounds(), count or 0)
        return Question(task=task, given=given, prompt=Prompt(text, other), parse=reader)

    def _noisy(
        self,
        task: str,
        instruction: str,
        given: Sequence[str],
        seed: int,
        noise: Noise,
        exemplars: Mapping[str, Sequence[Exemplar]] | None,
    ) -> str | None:
        """Return the prompt with the noise in place of the instruction; None without a noise."""
        if noise == "none":
            return None
        if noise != "opposite":
            noisy = _NOISY[noise](instruction, _dice(seed, noise, task, *given))
            return self._render(task, noisy, given, exemplars)
        opposite = self.tasks[task].opposite
        if opposite is None:
            raise SettingsError(f"task {task!r} has no opposite in this prompt file; use another noise")
        other = _dice(seed, opposite, *given).choice(self.tasks[opposite].instructions)
        return self._render(opposite, other, given, exemplars)

    def _render(
        self,
        name: str,
        instruction: str,
        given: Sequence[str],
        exemplars: Mapping[str, Sequence[Exemplar]] | None,
    ) -> str:
        task = self.tasks[name]
        layout = task.template or self.template
        shown = task.exemplars if exemplars is None else exemplars.get(name, ())
        worked = "".join(
            _fill(
                layout.exemplar,
                instruction=instruction,
                inputs=_laid_out(layout, exemplar.inputs),
                output=one_line(exemplar.output),
            )
            for exemplar in shown
        )
        return _fill(layout.prompt, instruction=instruction, exemplars=worked, inputs=_laid_out(layout, given))


def load_prompts(name: str | Path) -> Prompts:
    """Return a prompt file's content.

    Args:
        name: A YAML file, or the name of one that ships.

    Raises:
        InputError: No such file, or it is no YAML mapping.
        SettingsError: A key is unknown or missing, or holds a wrong value; names the file and the key.
    """
    path = _find(name)
    values = read_yaml(path)
    try:
        return Prompts.model_validate(values)
    except ValidationError as error:
        raise SettingsError(_explain(error), path=path) from error


def prompt_names() -> list[str]:
    """Return the names of the prompt files that ship."""
    return sorted(path.name.removesuffix(".yaml") for path in _shipped().iterdir() if path.name.endswith(".yaml"))


def _find(name: str | Path) -> Path:
    if Path(name).is_file():
        return Path(name)
    known = prompt_names()
    if str(name) in known:
        return Path(str(_shipped() / f"{name}.yaml"))
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"did you mean {near[0]!r}?" if near else f"prompt files that ship: {', '.join(known)}"
    raise InputError(f"is no file and no prompt file that ships; {hint}", path=name)


def _shipped() -> Any:
    return resources.files("sentsmith") / "prompts"


def _explain(error: ValidationError) -> str:
    first = error.errors()[0]
    key = ".".join(map(str, first["loc"]))
    if first["type"] == "extra_forbidden":
        return f"unknown key {key!r}"
    message = first["msg"].removeprefix("Value error, ")
    return f"key {key!r}: {message}" if key else message


def _fill(layout: str, **values: str) -> str:
    # One pass over the layout alone: what is inserted is not looked at again.
    return _PLACEHOLDER.sub(lambda match: values[match[1]], layout)


def _laid_out(layout: Template, inputs: Sequence[str]) -> str:
    return "".join(
        _fill(layout.input, input=one_line(text), number=str(number)) for number, text in enumerate(inputs, start=1)
    )


def _dice(seed: int, *parts: str) -> random.Random:
    digest = hashlib.sha256(repr((seed, *parts)).encode()).digest()
    return random.Random(int.from_bytes(digest[:8], "big"))


def _reordered(instruction: str, dice: random.Random) -> str:
    words = instruction.split()
    shuffled = words[:]
    while len(set(words)) > 1 and shuffled == words:
        dice.shuffle(shuffled)
    return " ".join(shuffled)


def _masked(instruction: str, dice: random.Random) -> str:
    words = instruction.split()
    for place in dice.sample(range(len(words)), max(1, round(_MASKED_SHARE * len(words)))):
        words[place] = MASK
    return " ".join(words)


def _truncated(instruction: str, _: random.Random) -> str:
    words = instruction.split()
    return " ".join(words[: max(1, len(words) // 2)])


_NOISY: dict[str, Callable[[str, random.Random], str]] = {
    "reordered": _reordered,
    "masked": _masked,
    "truncated": _truncated,
}


def _reader(rule: Reading, given: Sequence[str], bounds: LengthBounds, count: int = 0) -> Callable[[str], str | float]:
    readers: dict[Reading, Callable[[str], str | float]] = {
        "sentence": partial(read_sentence, given=given[0], bounds=bounds),
        "line": partial(read_line, bounds=bounds),
        "list": partial(read_list, count=count, bounds=bounds),
        "score": read_score,
    }
    return readers[rule]
