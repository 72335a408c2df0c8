"""One question to a language model, and the key that its answer is found under again."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass

from sentsmith.llm.backend import Decoding, Prompt


class Unreadable(ValueError):  # noqa: N818  (it says what the answer is)
    """An answer is not what was asked for. The message is the reason; a detail, if any, stands after ``": "``."""


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked about one row.

    Attributes:
        task: What for: ``entailment``, ``score`` …
        given: The texts of the corpus that it is about, for whoever reads the ledger.
        prompt: What the model reads.
        parse: Turns the raw answer into a value, or raises :class:`Unreadable`.
    """

    task: str
    given: tuple[str, ...]
    prompt: Prompt
    parse: Callable[[str], str | float]


def key_of(question: Question, model: str, decoding: Decoding) -> str:
    """Return the sha256 (hex) of the prompts, the task, the texts, the model and how the next token is chosen.

    Where nothing is drawn, ``seed`` and ``top_p`` choose nothing, and the key does not depend on them.
    """
    unused = {"seed", "top_p"} if decoding.temperature == 0 else set()
    parts = [
        question.prompt.text,
        question.prompt.against,
        question.task,
        question.given,
        model,
        decoding.model_dump(mode="json", exclude=unused),
    ]
    # ASCII: half of a surrogate pair, which JSON can hold and UTF-8 cannot, has a key too.
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode("ascii")).hexdigest()
