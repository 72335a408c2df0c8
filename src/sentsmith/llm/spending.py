"""What answers cost, and a bound on it that they never pass.

What counts is what an answer says that it took. An endpoint may bill attempts that end in a time-out or a broken answer
too; nobody says how much, and it is not in here.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

from sentsmith.errors import SettingsError

_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*(k|m|usd)?", re.IGNORECASE)
_FACTORS = {"": 1, "k": 1_000, "m": 1_000_000}


@dataclass(frozen=True, slots=True)
class Price:
    """Money per million tokens.

    Attributes:
        prompt: For those that are read.
        answer: For those that are written.
    """

    prompt: float
    answer: float

    def __post_init__(self) -> None:
        for value in (self.prompt, self.answer):
            if not (math.isfinite(value) and value >= 0):
                raise SettingsError(f"price {value:g} per million tokens: must be 0 or more")

    def of(self, prompt_tokens: float, answer_tokens: float) -> float:
        """Return what so many tokens cost."""
        return (self.prompt * prompt_tokens + self.answer * answer_tokens) / 1e6


@dataclass(frozen=True, slots=True)
class Budget:
    """What a run may use; None is no bound.

    Attributes:
        tokens: Read and written together.
        money: In the currency of the price.
    """

    tokens: int | None = None
    money: float | None = None


def parse_budget(text: str) -> Budget:
    """Read a budget: ``200000``, ``200k`` or ``1.5M`` tokens, or money: ``2.50usd``.

    Raises:
        SettingsError: It is none of these, or nothing.
    """
    match = _BUDGET.fullmatch(text.strip())
    number = 0.0 if match is None else float(match[1])
    if match is None or number == 0:
        raise SettingsError(f"budget {text!r}: give tokens (200000, 200k, 1.5M) or money (2.50usd), more than nothing")
    unit = (match[2] or "").lower()
    if unit == "usd":
        return Budget(money=number)
    # Rounded first: 1.1M is no whole number of tokens in binary.
    tokens = round(number * _FACTORS[unit], 6)
    if tokens != int(tokens):
        raise SettingsError(f"budget {text!r}: tokens are whole; for money, write {text.strip()}usd")
    return Budget(tokens=int(tokens))


class Spending:
    """What was used, and what the requests under way may still use, against a budget.

    Args:
        budget: None bounds nothing.
        price: Needed where the budget is money.

    Raises:
        SettingsError: The budget is money and there is no price.
    """

    def __init__(self, budget: Budget | None, price: Price | None) -> None:
        self._budget = budget or Budget()
        self.price = price
        if self._budget.money is not None and price is None:
            raise SettingsError(
                "a budget in money needs the price of a million prompt tokens and of a million answer tokens"
            )
        self.prompt_tokens = 0
        self.answer_tokens = 0
        self._reserved: dict[str, tuple[int, int]] = {}

    @property
    def bounded(self) -> bool:
        """Whether there is a budget at all."""
        return self._budget != Budget()

    @property
    def money(self) -> float | None:
        """Spent; None without a price."""
        return None if self.price is None else self.price.of(self.prompt_tokens, self.answer_tokens)

    @property
    def under_way(self) -> bool:
        """Whether something is reserved that may turn out to cost less."""
        return bool(self._reserved)

    def reserve(self, key: str, prompt_tokens: int, answer_tokens: int) -> bool:
        """Set aside the most that a request can use; False, and nothing set aside, where the budget has no room."""
        read = self.prompt_tokens + prompt_tokens + sum(prompt for prompt, _ in self._reserved.values())
        written = self.answer_tokens + answer_tokens + sum(answer for _, answer in self._reserved.values())
        if self._budget.tokens is not None and read + written > self._budget.tokens:
            return False
        # The last cent is not lost to the binary fractions of the sum.
        money = None if self._budget.money is None else self._budget.money * (1 + 1e-9)
        if money is not None and self.price is not None and self.price.of(read, written) > money:
            return False
        self._reserved[key] = (prompt_tokens, answer_tokens)
        return True

    def settle(self, key: str, prompt_tokens: int, answer_tokens: int) -> float | None:
        """Book what a request did use, and return its price."""
        self._reserved.pop(key, None)
        self.prompt_tokens += prompt_tokens
        self.answer_tokens += answer_tokens
        return None if self.price is None else self.price.of(prompt_tokens, answer_tokens)
