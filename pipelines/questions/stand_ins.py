"""What stands for lists in plans, where their size alone is known."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.events.domain import Domain

MOST_NAMES = 10_000_000
FAR = 2**40


def names(number: int) -> tuple[str, ...]:
    """Return so many distinct names."""
    if number > MOST_NAMES:
        raise ValueError(f"must be <= {MOST_NAMES}, got {number}")
    return tuple(map(str, range(number)))


@cache
def domain(number: int) -> Domain:
    """Return a list of so many items."""
    return Domain(names(number))


@cache
def rules(number: int) -> tuple[AlertRule, ...]:
    """Return so many rules; their thresholds are not known, and so large that noise does not meet them."""
    return tuple(AlertRule(name=name, at_least=FAR) for name in names(number))


STAND_INS: Mapping[str, Callable[[int], Any]] = {
    "Domain": domain,
    "tuple[AlertRule, ...]": rules,
    "tuple[str, ...]": names,
}
"""By the type of the argument."""
