"""Accuracy: what a mechanism says of its errors before it has seen any data, as data."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from privstream.mechanisms import checks

TOGETHER, EACH = "all of them together", "each alone"
"""Which intervals are right at once."""

OUTSIDE = 0.05
"""Probability that a number is outside of the interval of its row."""


class Limit(NamedTuple):
    """What one person adds to the answers at most: what is beyond it is missing in all of them.

    Attributes:
        option: the argument that sets it; empty if none does.
        text: what counts and what is missing, as a part of a sentence.
        lasting: whether what a person does in one window may be why later windows miss something.
    """

    option: str
    text: str
    lasting: bool = False

    @classmethod
    def at_most(
        cls, option: str, most: int, thing: str, where: str, kept: str, *, unit: str = "person", lasting: bool = False
    ) -> Limit:
        """Return the limit by which so many things of each person, or of another `unit`, count.

        Args:
            option: the argument that sets it; empty if none does.
            most: how many count.
            thing: what they are, in the singular.
            where: within what; empty for the unit itself.
            kept: which ones count: "first", "last", "random" or, in the words of the sentence, others.
            unit: whose they are.
            lasting: as the attribute.

        Example:
            >>> Limit.at_most("items_per_step", 2, "item", "in a window", "last").text
            'each person counts with at most 2 items in a window (items_per_step), the last ones; who has 4 counts \
with half of them'
        """
        plural = f"{thing[:-1]}ies" if thing.endswith("y") else f"{thing}s"
        ones = "ones" if most > 1 else "one"
        known = {"random": "chosen at random", "first": f"the first {ones}", "last": f"the last {ones}"}
        things, part = (plural, "half") if most > 1 else (thing, "one")
        who = "who" if unit == "person" else f"{'an' if unit[0] in 'aeiou' else 'a'} {unit} that"
        parts = [f"each {unit} counts with at most {most:,} {things}", where, f"({option})" if option else ""]
        left = f"{who} has {2 * most:,} counts with {part} of them"
        return cls(option, f"{' '.join(filter(None, parts))}, {known.get(kept, kept)}; {left}", lasting)


NOT_PUBLISHED = "By how much is not published"


@dataclass(frozen=True, kw_only=True)
class Coverage:
    """What the intervals of a question hold, and what limits may keep out of them; from public parameters alone.

    How much limits leave out of real data is not public. So this says what they may leave out.

    Attributes:
        holds: what the intervals hold, in the plural.
        scope: which intervals are right at once with the probability that is stated.
        limits: those that may leave something out; none if nothing can be left out.
        beyond: what may be true where they do.
        more: what else may be true then, as the end of that sentence.
        looks_like: what a limit that is used up in the course of a run can look like.
        note: a sentence on what is published for its noise, and the like; empty if there is nothing to say.
        periods: whether all limits start afresh at public moments.
        allowed: what intervals hold of what limits leave out, where runs publish how much that is; a sentence without
            its stop, true whatever they publish. Empty if they do not.
    """

    holds: str = "the numbers of all usable events"
    scope: str = TOGETHER
    limits: tuple[Limit, ...] = ()
    beyond: str = "the numbers of all people may be larger"
    more: str = ""
    looks_like: str = "a decline"
    note: str = ""
    periods: bool = False
    allowed: str = ""

    @property
    def leaves_out(self) -> str:
        """What limits may leave out, as the end of a sentence and another one, without its stop; empty if nothing."""
        if not self.limits:
            return ""
        later = f", {self.later}" if any(limit.lasting for limit in self.limits) else ""
        texts = "; ".join(limit.text for limit in self.limits)
        if self.allowed:
            return f"{texts}. {self.allowed}"
        return f"{texts}; {self.beyond}{later}{self.more}. {NOT_PUBLISHED}"

    @property
    def later(self) -> str:
        """What a limit that is used up in the course of a run does, as a part of a sentence."""
        if not self.periods:
            return f"most so in later windows, which can look like {self.looks_like}"
        return (
            f"most so in later windows of each period, which can look like {self.looks_like} in it and a rise after it"
        )

    @property
    def of_period(self) -> Coverage:
        """The same where all limits start afresh at public moments."""
        limits = (limit._replace(text=limit.text.replace("the whole run", "one period")) for limit in self.limits)
        scope = f"{self.scope}, in one period" if "together" in self.scope else self.scope
        return replace(self, limits=tuple(limits), scope=scope, periods=True)

    def to_dict(self) -> dict[str, Any]:
        """Return this as plain values for JSON."""
        return {
            "hold": self.holds,
            "scope": self.scope,
            "leave_out": self.leaves_out,
            "allow": self.allowed if self.limits else "",
            "note": self.note,
            "limits": [limit.option for limit in self.limits if limit.option],
        }


@dataclass(frozen=True, kw_only=True)
class Accuracy:
    """How accurate the answers to a question are; computed from public parameters alone.

    Attributes:
        error: the number by which methods are compared, in the unit of the question; less is better, and math.inf says
            that no bound is stated.
        failure_probability: with which the statement is wrong, in (0, 1).
        claim: the statement, for people, about what counts.
        numbers: all that it says, by name, for machines.
        coverage: what counts, and so what intervals hold.
    """

    error: float
    failure_probability: float
    claim: str
    numbers: Mapping[str, Any] = field(default_factory=dict)
    coverage: Coverage = Coverage()

    def __post_init__(self) -> None:
        if self.error != math.inf:
            checks.real("error", self.error)
        checks.probability("failure_probability", self.failure_probability)

    @property
    def confidence(self) -> float:
        """The probability with which the statement is right."""
        return 1.0 - self.failure_probability

    @property
    def sentence(self) -> str:
        """The statement, and what it leaves out."""
        left_out = self.coverage.leaves_out
        about = f"This is about {self.coverage.holds.rstrip(',')}: {left_out}." if left_out else ""
        return " ".join(filter(None, (self.claim, about)))

    def to_dict(self) -> dict[str, Any]:
        """Return the statement as plain values for JSON."""
        return {
            **self.numbers,
            "failure_probability": self.failure_probability,
            "sentence": self.sentence,
            "intervals": self.coverage.to_dict() | {"probability": self.confidence},
        }
