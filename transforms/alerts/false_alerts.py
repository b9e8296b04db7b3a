"""Alerts of nobody: how often noise alone meets a rule where there are no people at all; by public parameters alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from privstream.transforms.alerts.rules import AlertRule

OFTEN = 0.5
"""Rules are named from so many alerts of nobody in a run on: with fewer, most runs with nobody have none."""

NAMED = 3
"""So many rules are named; of others it is said how many they are."""

LARGEST, EIGHTHS = 0.499, 320
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
        least = enough(min(rarely, LARGEST), rule.windows)
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
    """Return with which probability noise alone meets a rule in one test, up to `LARGEST`, to a tenth of itself."""
    low, high = 0, EIGHTHS  # powers, of which the last one that the threshold is enough for is wanted
    while high - low > 1:
        middle = (low + high) // 2
        fits = rule.threshold >= enough(LARGEST * 2 ** (-middle / 8), rule.windows)
        low, high = (middle, high) if fits else (low, middle)
    return float(LARGEST * 2.0 ** (-low / 8))


def _listed(parts: Sequence[str]) -> str:
    """Join parts, the last ones as a number."""
    others = len(parts) - NAMED
    return "; ".join([*parts[:NAMED], *([f"{others:,} other rules likewise"] if others > 0 else [])])


def _number(value: float) -> str:
    return f"{value:,.0f}" if value >= 2 else f"{value:.1f}"
