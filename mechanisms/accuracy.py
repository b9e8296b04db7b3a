"""Accuracy: what a mechanism says of its errors before it has seen any data, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from privstream.mechanisms import checks


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How accurate the answers to a question are; computed from public parameters alone.

    Attributes:
        error: the number by which methods are compared, in the unit of the question; less is better, and math.inf says
            that no bound is stated.
        failure_probability: with which the statement is wrong, in (0, 1).
        sentence: the statement, for people.
        numbers: all that it says, by name, for machines.

    Raises:
        ValueError, TypeError: a field breaks its rule.
    """

    error: float
    failure_probability: float
    sentence: str
    numbers: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.error != math.inf:
            checks.real("error", self.error)
        checks.probability("failure_probability", self.failure_probability)

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values for JSON."""
        return {**self.numbers, "failure_probability": self.failure_probability, "sentence": self.sentence}
