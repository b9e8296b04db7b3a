"""What stands in a plan for public lists of which only the length is known: without Beam."""

from functools import cache

from privstream.pipelines.questions.option_types import any_names
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.events.domain import Domain

FAR = 2**40
"""A threshold that noise does not meet."""


@cache
def any_domain(number: int) -> Domain:
    """Return a list of so many items."""
    return Domain(any_names(number))


@cache
def any_rules(number: int) -> tuple[AlertRule, ...]:
    """Return so many rules; their thresholds are not known, and so large that noise does not meet them."""
    return tuple(AlertRule(name=name, at_least=FAR) for name in any_names(number))
