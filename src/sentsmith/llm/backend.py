"""What a language model that writes looks like from outside: prompts go in, answers come out, in any order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from pydantic import Field

from sentsmith.errors import SettingsError
from sentsmith.settings import Settings


@dataclass(frozen=True, slots=True)
class Prompt:
    """What the model reads.

    Attributes:
        text: The whole prompt; where the model has a chat template, it is one turn of the user.
        against: A second prompt that the answer is steered by (guided decoding); None steers by nothing.
    """

    text: str
    against: str | None = None


class Decoding(Settings):
    """How the next token is chosen; a request's key depends on all of it."""

    max_new_tokens: int = Field(default=256, ge=1, description="The longest answer, its end sign included")
    temperature: float = Field(
        default=0.0, ge=0.0, description="0 takes the likeliest token; above it, tokens are drawn"
    )
    top_p: float = Field(
        default=1.0, gt=0.0, le=1.0, description="Draw from the likeliest tokens that reach this share"
    )
    seed: int = Field(default=0, ge=0, description="Of the draws, together with the prompt")
    first_weight: float = Field(default=1.0, description="a of a·l(prompt) + b·l(against)")
    second_weight: float = Field(default=0.0, description="b of a·l(prompt) + b·l(against)")
    floor: float = Field(
        default=0.0,
        ge=0.0,
        le=1.0,
        description="Plausibility floor: a token must reach this share of the prompt's likeliest one; 0 is off",
    )


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back.

    Attributes:
        text: The raw answer; "" where there is none.
        finished: Whether it came to its end within the limit.
        prompt_tokens: Read, both prompts together.
        answer_tokens: Written.
        seconds: It took, its share of a batch.
        failure: Why there is no answer (the endpoint failed again and again), in one line; None where there is one.
        lost: The failure is the endpoint's, not this prompt's (a time-out, not a prompt that is too long): another run
            may well be answered, and many of them in a row mean that nobody answers any more.
    """

    text: str
    finished: bool
    prompt_tokens: int
    answer_tokens: int
    seconds: float
    failure: str | None = None
    lost: bool = False


NO_LOGITS = (
    "gives no logits, so its answers cannot be steered by a second instruction; write with --omega 0 (plain "
    "generation), or with a local model; curating and training work with both"
)
"""What is said of a model that cannot guide where it is asked to, after its name."""


class Backend(Protocol):
    """A language model: a local one, or an endpoint."""

    name: str
    """What the ledger knows it by: changes when the weights do, and holds no secret."""
    guides: bool
    """Whether it can answer a prompt that has an ``against``; an endpoint gives no logits and cannot."""
    local: bool
    """Whether it runs here: what it answers costs seconds, and no money."""
    concurrency: int
    """How many requests are answered at a time, each in its own seconds; 1 where seconds are shares of a batch."""

    def answers(self, prompts: Iterable[tuple[str, Prompt]], decoding: Decoding) -> Iterator[list[tuple[str, Answer]]]:
        """Answer prompts, each under a key of the caller's.

        Args:
            prompts: (key, prompt); read lazily, a block ahead at most, so that the caller can stop.
            decoding: The same for all of them.

        Yields:
            (key, answer) of what is finished since the last one, in any order.

        Raises:
            SentsmithError: No prompt would be answered: no such model, a wrong key, nobody listens.
        """
        ...

    def count_tokens(self, texts: Sequence[str]) -> list[int]:
        """Return how many tokens each text has as a prompt, nearly: an endpoint's tokenizer is not known."""
        ...


def guidable(backend: Callable[[], Backend], *, guided: bool, advice: str = NO_LOGITS) -> Backend:
    """Open a model.

    Args:
        backend: Opens it.
        guided: Whether its answers are to be steered.
        advice: What is said, after its name, where they cannot be.

    Raises:
        SettingsError: They are to be, and cannot.
    """
    model = backend()
    if guided and not model.guides:
        raise SettingsError(f"{model.name} {advice}")
    return model
