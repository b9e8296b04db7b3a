"""What is asked of a histogram, by name: `histogram`, `max`, `min`, `median`, `quantile:0.9`, `top:5`."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np
from privstream.mechanisms.histograms.histogram_queries import (
    Histogram,
    HistogramQuery,
    MaxSum,
    MinSum,
    Monotone,
    Quantile,
    TopK,
)

_PLAIN: dict[str, HistogramQuery] = {
    "histogram": Histogram(),
    "max": MaxSum(),
    "min": MinSum(),
    "median": Quantile(0.5),
}
RULE = "queries must be among histogram, max, min, median, quantile:Q, top:K"


@dataclass(frozen=True)
class Question:
    """A query and its name."""

    name: str
    query: HistogramQuery

    @property
    def by_category(self) -> bool:
        """Whether what is asked for are counts of certain categories, so that all of them must be watched."""
        return isinstance(self.query, Histogram | TopK)

    def answer(self, counts: np.ndarray) -> tuple[Sequence[int], np.ndarray]:
        """Return, from estimates of all counts, the categories (-1 for none) and the numbers to publish."""
        if isinstance(self.query, Histogram):
            return range(len(counts)), counts
        if isinstance(self.query, TopK):
            largest = np.argsort(-counts, kind="stable")[: self.query.k]
            return largest.tolist(), counts[largest]
        return (-1,), self.query.values(counts[None, :])[0]


def questions(asked: Sequence[str | Monotone], columns: int) -> tuple[Question, ...]:
    """Return what is asked for.

    Raises:
        ValueError: a query is unknown, out of range or asked twice.
    """
    if isinstance(asked, str) or not isinstance(asked, Collection) or not asked:
        raise ValueError("queries must be a tuple of at least one query")
    found = []
    for each in asked:
        question = Question(each.name, each) if isinstance(each, Monotone) else Question(each, _named(each, columns))
        question.query.check(columns)
        found.append(question)
    names = [question.name for question in found]
    if len(set(names)) < len(names):
        raise ValueError(f"queries must be distinct, got {', '.join(names)}")
    return tuple(found)


def _named(text: str, columns: int) -> HistogramQuery:
    if not isinstance(text, str):
        raise TypeError(f"queries must be texts or Monotone functions, got {type(text).__name__}")
    if text in _PLAIN:
        return _PLAIN[text]
    name, _, parameter = text.partition(":")
    try:
        number = {"quantile": float, "top": int}[name](parameter)
    except (KeyError, ValueError):
        raise ValueError(f"{RULE}, got {text!r}") from None
    if name == "quantile":
        if not 0 < number <= 1:
            raise ValueError(f"quantile:Q must have Q in (0, 1], got {text}")
        return Quantile(number)
    if not 1 <= number <= columns:
        raise ValueError(f"top:K must have K from 1 to {columns}, the number of categories, got {text}")
    return TopK(int(number))


def watched(asked: tuple[Question, ...]) -> list[tuple[HistogramQuery, ...]]:
    """Return which queries a mechanism may watch to answer what is asked: all counts, or these numbers alone.

    No number asked for changes by more than the counts do. So they follow from estimates of all counts,
    with the same error.
    """
    choices: list[tuple[HistogramQuery, ...]] = [(Histogram(),)]
    if not any(question.by_category for question in asked):
        choices.append(tuple(question.query for question in asked))
    return choices
