"""Rules of alerts: public conditions on a number of people."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from privstream.mechanisms import checks

LARGEST = 2**53
"""Whole numbers up to this are exact as floating-point numbers."""


@dataclass(frozen=True, kw_only=True)
class AlertRule:
    """A condition that is tested in every window: at least, or at most, so many people.

    Args:
        name: what the alert is called; rules of one run have distinct names.
        at_least: the rule is met when at least so many people meet it, a whole number, or
        at_most: when at most so many do; one of both must be given.
        items: what is counted are the people with an event of one of these items; None for people with any event.
        clear_below: of a rule with at_least, a number, not above it, below which an alert ends; without it `at_least`.
        clear_above: of a rule with at_most, a number, not below it, above which an alert ends.

    Raises:
        ValueError, TypeError: an argument breaks its rule.

    Example:
        >>> AlertRule(name="flu", at_least=500, items=("fever", "cough")).threshold
        500
    """

    name: str
    at_least: int | None = None
    at_most: int | None = None
    items: tuple[str, ...] | None = None
    clear_below: int | None = None
    clear_above: int | None = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str):
            raise TypeError(f"name of a rule must be text, got {type(self.name).__name__}")
        if not self.name:
            raise ValueError("name of a rule must not be empty")
        if (self.at_least is None) == (self.at_most is None):
            raise ValueError(f"rule {self.name!r} must have one of at_least and at_most")
        for key in ("at_least", "at_most", "clear_below", "clear_above"):
            if getattr(self, key) is not None:
                checks.integer(f"{key} of rule {self.name!r}", getattr(self, key), minimum=0, maximum=LARGEST)
        begins, ends = ("at_least", "clear_below") if self.sign > 0 else ("at_most", "clear_above")
        other = "clear_above" if self.sign > 0 else "clear_below"
        if getattr(self, other) is not None:
            raise ValueError(f"{other} of rule {self.name!r} must not be given with {begins}")
        if self.sign * (self.ends_at - self.threshold) > 0:
            raise ValueError(
                f"{ends} of rule {self.name!r} must be {'<=' if self.sign > 0 else '>='} {begins}, or an alert would "
                f"end before it begins, got {self.ends_at}"
            )
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
    def threshold(self) -> int:
        """The public number to compare with."""
        return self.at_most if self.at_least is None else self.at_least  # type: ignore[return-value]

    @property
    def ends_at(self) -> int:
        """The number beyond which an alert stays."""
        clear = self.clear_below if self.sign > 0 else self.clear_above
        return self.threshold if clear is None else clear

    @property
    def sign(self) -> int:
        """1 for a rule that fires above its threshold, -1 for one that fires below."""
        return -1 if self.at_least is None else 1


def check_rules(rules: Sequence[AlertRule]) -> tuple[AlertRule, ...]:
    """Return rules that can be tested together: at least one, of distinct names."""
    if not isinstance(rules, Collection) or not all(isinstance(rule, AlertRule) for rule in rules):
        raise TypeError("rules must be a sequence of AlertRule")
    if not rules or len({rule.name for rule in rules}) < len(rules):
        raise ValueError("rules must have distinct names, and there must be at least one")
    return tuple(rules)


def describe(rules: Sequence[AlertRule], *others: object) -> bytes:
    """Return bytes that differ for other rules and other public values; a part of the noise's label."""
    return json.dumps([[rule.given for rule in rules], list(others)]).encode()
