"""Rules of alerts: public conditions on a count or a measurement."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.mechanisms import checks

LARGEST = 2**53
"""Whole numbers up to this are exact as floating-point numbers."""

LONGEST = 1000
"""So many windows may a rule be about: sums of so many numbers, each up to `LARGEST`, fit into 64 bits."""


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """A condition that is tested in every window: at least, or at most, so many.

    Args:
        name: what the alert is called; rules of one run have distinct names.
        at_least: the alert fires when the value is at least this, or
        at_most: when it is at most this; one of both must be given.
        items: what is counted are the people with an event of one of these items; None for people with any event.
        until: with the method "status", the number at which an alert ends: at most `at_least`, or at least `at_most`.
            None: the same number.
        windows: with the method "counts", the number of windows in a row, the tested one and those before it, over
            which the mean number of people is compared, 1 to 1,000. So "3" asks whether there were so many on average
            over three windows, and not in each of them. The noise of a mean over n windows is smaller by sqrt(n).

    Raises:
        ValueError, TypeError: an argument breaks its rule.

    Example:
        >>> AlertRule(name="flu", at_least=500, items=("fever", "cough")).threshold
        500
    """

    name: str
    at_least: float | None = None
    at_most: float | None = None
    items: tuple[str, ...] | None = None
    until: float | None = None
    windows: int = 1

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name of a rule must be text, got {type(self.name).__name__}")
        if not self.name:
            raise ValueError("name of a rule must not be empty")
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"rule {self.name!r} must have one of at_least and at_most")
        checks.real(f"threshold of rule {self.name!r}", self.threshold)
        if self.until is not None and self.sign * checks.real(f"until of rule {self.name!r}", self.until) > (
            self.sign * self.threshold
        ):
            beyond = "at_least, or an alert would end before it starts" if self.sign > 0 else "at_most"
            raise ValueError(
                f"until of rule {self.name!r} must be {'<=' if self.sign > 0 else '>='} {beyond}, got {self.until}"
            )
        checks.integer(f"windows of rule {self.name!r}", self.windows, minimum=1, maximum=LONGEST)
        if self.items is None:
            return
        if isinstance(self.items, str) or not all(isinstance(item, str) for item in self.items):
            raise TypeError(f"items of rule {self.name!r} must be texts")
        object.__setattr__(self, "items", tuple(self.items))
        if not self.items or "" in self.items or len(set(self.items)) < len(self.items):
            raise ValueError(f"items of rule {self.name!r} must be distinct, at least one, none of them empty")

    @classmethod
    def from_fields(cls, fields: Mapping[str, Any]) -> AlertRule:
        """Make a rule of what is written of it: fields by name, items as a list."""
        names = tuple(field.name for field in dataclasses.fields(cls))
        unknown = sorted(set(fields) - set(names))
        if unknown:
            raise ValueError(f"fields must be {', '.join(names)}, got {', '.join(map(repr, unknown))}")
        if "name" not in fields:
            raise ValueError("rule must have a name")
        items = fields.get("items")
        if items is not None and not isinstance(items, list | tuple):
            raise TypeError("items must be a list")
        return cls(**{**fields, "items": None if items is None else tuple(items)})

    @property
    def given(self) -> dict[str, Any]:
        """The fields that are not as they are by default, by name."""
        values = {field.name: (getattr(self, field.name), field.default) for field in dataclasses.fields(self)}
        return {name: value for name, (value, default) in values.items() if value != default}

    @property
    def threshold(self) -> float:
        """The public value to compare with."""
        return self.at_most if self.at_least is None else self.at_least  # type: ignore[return-value]

    @property
    def sign(self) -> int:
        """1 for a rule that fires above its threshold, -1 for one that fires below."""
        return -1 if self.at_least is None else 1


def check_rules(rules: Sequence[AlertRule], *, counts: bool) -> tuple[AlertRule, ...]:
    """Return rules that can be tested together.

    Args:
        rules: at least one, of distinct names.
        counts: whether they are about counts of people; thresholds must then be integers. Otherwise they are about
            measurements, and name no items.
    """
    if not isinstance(rules, Collection) or not all(isinstance(rule, AlertRule) for rule in rules):
        raise TypeError("rules must be a sequence of AlertRule")
    if not rules or len({rule.name for rule in rules}) < len(rules):
        raise ValueError("rules must have distinct names, and there must be at least one")
    for rule in rules:
        if abs(rule.threshold) > LARGEST:
            raise ValueError(f"threshold of rule {rule.name!r} must be between -2**53 and 2**53, got {rule.threshold}")
        if counts:
            checks.integer(f"threshold of rule {rule.name!r}", rule.threshold, minimum=0)
            if rule.until is not None:
                checks.integer(f"until of rule {rule.name!r}", rule.until, minimum=0, maximum=LARGEST)
        elif rule.items is not None:
            raise ValueError(f"rule {rule.name!r} must name no items: it is about a measurement")
        elif rule.until is not None:
            raise ValueError(f"rule {rule.name!r} must have no until: it is about a measurement")
        elif rule.windows > 1:
            raise ValueError(f"rule {rule.name!r} must have no windows: it is about a measurement")
    return tuple(rules)


def describe(rules: Sequence[AlertRule], *others: object) -> bytes:
    """Return bytes that differ for other rules and other public values; a part of the noise's label."""
    described = [[r.name, r.sign, float(r.threshold), r.items, *_described(r)] for r in rules]
    return json.dumps([described, list(others)]).encode()


def _described(rule: AlertRule) -> list[object]:
    """Return what a rule has beside its threshold; labels of rules without it stay as they are."""
    until: list[object] = [] if rule.until is None else [float(rule.until)]
    return until + ([{"windows": rule.windows}] if rule.windows > 1 else [])


OFTEN = 0.5
"""Rules are named from so many alerts of nobody in a run on: with fewer, most runs with nobody have none."""

NAMED = 3
"""So many rules are named; of others it is said how many they are."""

LIKELIEST, EIGHTHS = 0.499, 320
"""Probabilities are looked for among 320 from 2^-40 up to this one, each 2^(1/8) times the one below it."""


@dataclass(frozen=True)
class FalseAlerts:
    """Alerts to be expected of a rule in a run with nobody at all.

    Attributes:
        rule: the rule, which has `at_least`.
        probability: with which noise alone meets it in one test.
        tests: of the rule in the run.
        quiet: windows after an alert in which it is not tested.
        enough: the least threshold with which fewer than `OFTEN` alerts are to be expected.
    """

    rule: AlertRule
    probability: float
    tests: int
    quiet: int
    enough: int

    @property
    def expected(self) -> float:
        """How many windows have an alert, on average."""
        return self.tests * self.probability / (1 + self.quiet * self.probability)

    @property
    def often(self) -> str:
        """The same in words, as the end of a sentence."""
        return f"rule {self.rule.name!r} in about {_number(self.expected)} of {self.tests:,} tests"

    @property
    def instead(self) -> str:
        """The threshold that would do, as a part of a sentence."""
        return f"rule {self.rule.name!r} at_least {self.enough:,} (and not {self.rule.threshold:,})"


def false_alerts(
    rules: Sequence[AlertRule], enough: Callable[[float, int], int], tests: Callable[[AlertRule], int], quiet: int
) -> tuple[FalseAlerts, ...]:
    """Return the rules with at_least that noise alone meets `OFTEN` or more times in a run with nobody.

    Of rules with at_most nothing is said: with nobody at all they are met in truth.

    Args:
        rules: all of them.
        enough: the least threshold that noise alone meets in one test with at most some probability, below 0.5, of a
            rule about so many windows.
        tests: of a rule in the whole run.
        quiet: windows after an alert in which its rule is not tested.
    """
    found = []
    for rule in (rule for rule in rules if rule.sign > 0):
        number = tests(rule)
        rarely = OFTEN / max(1.0, number - OFTEN * quiet)  # so often in one test makes `OFTEN` in all
        least = enough(min(rarely, LIKELIEST), rule.windows)
        if rule.threshold < least:
            found.append(FalseAlerts(rule, _probability(rule, enough), number, quiet, least))
    return tuple(found)


def in_words(found: Sequence[FalseAlerts]) -> str:
    """Say how many alerts of nobody there will be, as a sentence after a space; empty if there are none to speak of."""
    if not found:
        return ""
    return f" With nobody at all, noise alone is to meet {_listed([each.often for each in found])}."


def advice_on(found: Sequence[FalseAlerts], several: bool) -> str:
    """Say what would help.

    Args:
        found: the rules that noise alone meets.
        several: whether a mean over several windows is a way out.
    """
    if not found:
        return ""
    mean = ', a mean over several windows ("windows": n in the rule)' if several else ""
    return (
        f"some alerts will be noise alone, as if nobody were there: thresholds must be farther from zero. Enough would "
        f"be {_listed([each.instead for each in found])}. A larger --epsilon, longer windows{mean} or fewer windows in "
        "the run allow smaller ones."
    )


def _probability(rule: AlertRule, enough: Callable[[float, int], int]) -> float:
    """Return with which probability noise alone meets a rule in one test, up to `LIKELIEST`, to a tenth of itself."""
    low, high = 0, EIGHTHS  # powers, of which the last one that the threshold is enough for is wanted
    while high - low > 1:
        middle = (low + high) // 2
        fits = rule.threshold >= enough(LIKELIEST * 2 ** (-middle / 8), rule.windows)
        low, high = (middle, high) if fits else (low, middle)
    return float(LIKELIEST * 2.0 ** (-low / 8))


def _listed(parts: Sequence[str]) -> str:
    """Join parts, the last ones as a number."""
    others = len(parts) - NAMED
    return "; ".join([*parts[:NAMED], *([f"{others:,} other rules likewise"] if others > 0 else [])])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 2 else f"{value:.1f}"
