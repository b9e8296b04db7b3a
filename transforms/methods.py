"""Which method answers a question: the one that is asked for, or the best one that can, by what a user gets to see."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, Protocol, TypeVar

import numpy as np
from privstream.mechanisms import checks
from privstream.mechanisms.keyed_counts.found_keys import LASTING, OTHERS
from scipy import special

AUTO = "auto"

FEW_HITS = 4
"""Times that a person is charged at most where nobody says it, by methods that charge people."""

USUAL_CONTRIBUTIONS = 100
"""Of a person to counts or quantiles where nobody says how many."""

USUAL_ITEMS, MOST_USUAL_ITEMS = 4, 10
"""Items of a person in a window where nobody says how many, from and to."""

EVEN, LIKELY = 0.5, 0.95
"""Probabilities with which an item is to be reported."""

WITHOUT_COUNTS = 1.25
"""By so much a method must be better that has no count in every row."""

Mechanism = TypeVar("Mechanism")


class Reporting(Protocol):
    """A method that reports items of many people, as it is compared with others."""

    @property
    def counts_every_row(self) -> bool:
        """Whether each of its rows has a count."""

    @property
    def may_stop(self) -> bool:
        """Whether it may come to an end, or items may fade while people still have them."""

    def people_needed(self, windows: int, probability: float, *, others: bool = False) -> float:
        """Return how many people an item needs in each of so many windows: the same ones, or others in each.

        With this probability it is then reported in at least half of them, wherever they lie. math.inf if the same
        people cannot carry it that long.
        """


def usual_items(windows: int) -> int:
    """Return how many items of a person count in each of so many windows of a file: about a hundred in all of them."""
    return max(USUAL_ITEMS, min(MOST_USUAL_ITEMS, USUAL_CONTRIBUTIONS // windows))


def durations(windows: int | None) -> tuple[int, ...]:
    """Return how long items may last, in windows, of so many windows that there are; None if that is not known."""
    return tuple(lasting for lasting in LASTING if windows is None or lasting <= windows)


def worth(method: Reporting, windows: int | None) -> float:
    """Return what "auto" wants little of among methods that do not stop: the people that items need to be reported.

    The number is the mean logarithm over items that last 1, 4, 16, .. windows, of people with whom the chance is even:
    the same people in all of them, and other ones in each, which count alike.

    *Privacy*: a function of public parameters.

    Source: docs/decisions/0025-methods-by-what-a-user-sees.md.
    """
    handicap = 1.0 if method.counts_every_row else WITHOUT_COUNTS
    needed = [
        max(1.0, method.people_needed(lasting, EVEN, others=others))
        for lasting in durations(windows)
        for others in (False, True)
    ]
    return math.fsum(math.log(handicap * people) for people in needed) / len(needed)


def needed(method: Reporting, windows: int | None) -> dict[str, int | None]:
    """Return the people that items need, for statements of accuracy: `needed_in_4`, an even chance, and `likely_in_4`,
    95%; None where the same people cannot carry them that long. Where it makes a difference for any of them that other
    people have an item in each window, also `needed_by_others_in_4` and `likely_by_others_in_4`.
    """
    found: list[dict[str, int | None]] = []
    for others in (False, True):
        of_these: dict[str, int | None] = {}
        for name, probability in (("needed", EVEN), ("likely", LIKELY)):
            for lasting in durations(windows):
                people = method.people_needed(lasting, probability, others=others)
                of_these[f"{name}_in_{lasting}"] = round(people) if people < math.inf else None
        found.append(of_these)
    same, changing = found
    by_others = {} if changing == same else {name.replace("_in_", f"{OTHERS}_in_"): n for name, n in changing.items()}
    return same | by_others


def chance_of_half(windows: int, probability: float) -> float:
    """Return the chance of each of so many independent tests with which at least half of them pass, so probably."""
    half = -(-windows // 2)
    return float(special.betaincinv(half, windows - half + 1, probability))


def least_people(chance: Callable[[np.ndarray], np.ndarray], wanted: float) -> float:
    """Return with how many people a chance, which rises with their number, is as large as it is wanted to be."""
    low, high = 0.0, 1.0
    while chance(np.array([high]))[0] < wanted and high < 2.0**62:
        low, high = high, 2 * high
    while high - low > 1e-3 * max(1.0, low):
        middle = (low + high) / 2
        low, high = (middle, high) if chance(np.array([middle]))[0] < wanted else (low, middle)
    return high


def choose_method(
    method: str,
    makers: Mapping[str, Callable[[], Mechanism]],
    error: Callable[[Mechanism], Any],
    may_stop: Callable[[Mechanism], bool] = lambda made: False,
) -> tuple[str, Mechanism]:
    """Return a method's name and its mechanism.

    *Privacy*: the choice depends on public parameters alone.

    Args:
        method: one of the names, or "auto" for the one with the least error; the first of several that are equal.
        makers: what makes the mechanism of each method; raises a ValueError where its parameters do not allow it.
        error: of a mechanism, in the unit of the question, or several things by which methods are ordered; may raise a
            ValueError, too.
        may_stop: tells whether "auto" takes a mechanism only where no other one can answer; else nothing is calibrated
            to find its error.

    Raises:
        ValueError: there is no such method, or it cannot answer with these parameters; with "auto", none can.
    """
    if checks.one_of("method", method, (AUTO, *makers)) != AUTO:
        return method, makers[method]()
    made: dict[str, Mechanism] = {}
    reasons: dict[str, ValueError] = {}
    for name, make in makers.items():
        try:
            made[name] = make()
        except ValueError as reason:
            reasons[name] = reason
    for last in (False, True):
        errors: dict[str, Any] = {}
        for name in [name for name, mechanism in made.items() if may_stop(mechanism) is last]:
            try:
                errors[name] = error(made[name])
            except ValueError as reason:
                reasons[name] = reason
        if errors:
            best = min(errors, key=errors.__getitem__)
            return best, made[best]
    raise next(reasons[name] for name in makers)
