"""Budgets and prices, as they are written on a command line."""

from __future__ import annotations

import math

import pytest

from sentsmith.errors import SettingsError
from sentsmith.llm.spending import Budget, Price, parse_budget


@pytest.mark.parametrize(
    ("text", "budget"),
    [
        ("200000", Budget(tokens=200_000)),
        ("200k", Budget(tokens=200_000)),
        ("1.5M", Budget(tokens=1_500_000)),
        ("1.1m", Budget(tokens=1_100_000)),
        (" 2.50usd ", Budget(money=2.5)),
        ("3 USD", Budget(money=3.0)),
    ],
)
def test_budgets_are_read(text, budget):
    assert parse_budget(text) == budget


@pytest.mark.parametrize("text", ["", "0", "-5", "2.5", "ten", "5eur", "1e6", "nan", "inf", "1.0005k", "0usd", "1,000"])
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(SettingsError, match="budget"):
        parse_budget(text)


@pytest.mark.parametrize("value", [-1.0, math.nan, math.inf])
def test_what_is_no_price_is_refused(value):
    with pytest.raises(SettingsError, match="price"):
        Price(1.0, value)
