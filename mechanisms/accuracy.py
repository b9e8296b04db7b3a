"""Accuracy: what a mechanism says of its errors before it has seen any data, as data."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

OUTSIDE = 0.05
"""Probability that a number is outside of the interval of its row."""

WINDOW, RUN = "window", "run"
WITHIN = {WINDOW: " in a window", RUN: " in the whole run", "": ""}


class Limit(NamedTuple):
    """What one person adds to the answers at most: what is beyond it is missing in all of them."""

    option: str  # the argument that sets it; empty if none does
    most: int  # how many count
    thing: str  # what they are, in the singular
    where: str = ""  # "window" or "run"; empty for all that there is

    def __str__(self) -> str:
        return f"{self.most:,} {self.thing}{'s' * (self.most != 1)}{WITHIN[self.where]}"


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How accurate the answers to a question are; computed from public parameters alone."""

    error: float  # in the unit of the question; less is better, and math.inf says that no bound is stated
    failure_probability: float  # with which the statement is wrong, in (0, 1)
    claim: str  # the statement, for people, about what counts
    numbers: Mapping[str, Any] = field(default_factory=dict)  # all that it says, by name, for machines
    limits: tuple[Limit, ...] = ()  # those that may drop something
    note: str = ""  # a sentence on how rows are chosen or clipped

    @property
    def sentence(self) -> str:
        """The statement, and what it is about."""
        return f"{self.claim} Numbers are of what limits retain." if self.limits else self.claim

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values for JSON."""
        limits = [limit._asdict() for limit in self.limits]
        said = {"failure_probability": self.failure_probability, "sentence": self.sentence, "note": self.note}
        return {**self.numbers, **said, "limits": limits}
