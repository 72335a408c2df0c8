"""All that it takes to ask a language model: questions, their answers, what it would cost, what it may cost."""

from sentsmith.llm.answering import Outcome, ask
from sentsmith.llm.estimating import Estimate, estimate
from sentsmith.llm.questions import Question, Unreadable, key_of
from sentsmith.llm.spending import Budget, Price, parse_budget

__all__ = [
    "Budget",
    "Estimate",
    "Outcome",
    "Price",
    "Question",
    "Unreadable",
    "ask",
    "estimate",
    "key_of",
    "parse_budget",
]
