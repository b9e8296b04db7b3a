"""What releases have cost together, and the filter that keeps them within a limit (docs/proofs/budget.md)."""

from __future__ import annotations

import math
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from privstream.mechanisms.privacy.accounting import GaussianCurve
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee, Shift, added
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.pipelines.accounts.entries import Contents, Cost, Entry, Limit

SHARES = (1.0, 0.75, 0.5, 0.25)
"""Of a limit's delta, for slacks; the rest is for the Gaussian shifts."""

NEARLY = 0.95
MOST_RUNS = 10_000
"""More runs than this are not counted."""

ROUNDING = 1 + 1e-9
"""0.1 added ten times is 1."""


@dataclass(frozen=True)
class Filter:
    """Keeps releases within a limit, also where each was chosen after the results of those before.

    Attributes:
        slack: the part of its delta that deltas and slacks may use up; the rest is for the Gaussian shifts.
    """

    limit: Limit
    slack: float

    @classmethod
    def of(cls, limit: Limit, first: Cost) -> Filter:
        """Return the filter whose parts suit the first release, which nobody chose after seeing results.

        Of those under which nearly as many runs like the first one fit as can, it leaves the most to slacks.
        """
        filters = [cls(limit, share * limit.delta) for share in SHARES]
        fitting = [one.more([], first) for one in filters]
        return next(one for one, many in zip(filters, fitting, strict=True) if many >= NEARLY * max(fitting))

    def keeps(self, costs: Sequence[Cost]) -> bool:
        """Tell whether releases, in the order in which they were made, are within the limit.

        Privacy: docs/proofs/budget.md, Theorem 2.
        """
        return self.spent(costs) <= self.limit.epsilon * ROUNDING

    def spent(self, costs: Sequence[Cost]) -> float:
        """Return the epsilon that releases use of the limit, by sums or by shifts; infinity if deltas are spent."""
        plain = deltas = slacks = 0.0
        within = True
        for cost in costs:
            plain, deltas = plain + cost.epsilon, deltas + cost.delta
            within = within and self._affords(deltas) and plain <= self.limit.epsilon * ROUNDING
            slacks += cost.delta if within else cost.slack
        by_sum = plain if self._affords(deltas) else math.inf
        by_shift = _epsilon_of(costs, self.limit.delta - self.slack) if self._affords(slacks) else math.inf
        return min(by_sum, by_shift)

    def more(self, costs: Sequence[Cost], cost: Cost) -> int:
        """Return how many more equal releases fit; at most `MOST_RUNS`."""
        numbers = range(1, MOST_RUNS + 1)
        return bisect_left(numbers, True, key=lambda number: not self.keeps([*costs, *[cost] * number]))

    def _affords(self, slack: float) -> bool:
        return slack <= self.slack * ROUNDING


def _epsilon_of(costs: Sequence[Cost], delta: float) -> float:
    """Return the epsilon of the shifts of releases together at a delta, without their slacks."""
    shift = added(Shift(cost.mu, cost.slack) for cost in costs).mu
    if shift == 0:
        return 0.0
    return GaussianCurve(shift=shift).epsilon(delta) if 0 < delta < 1 else math.inf


@dataclass(frozen=True, kw_only=True)
class Standing:
    """What all releases about a data set cost one unit together.

    Attributes:
        costs: of each release that promises something to it, in the order in which they were made.
        silent: how many others there are: what these reveal about the unit is in no total.
    """

    unit: PrivacyUnit
    costs: tuple[Cost, ...]
    silent: int
    limit: Limit | None

    @cached_property
    def filter(self) -> Filter | None:
        """What keeps the limit, if there is one and a release."""
        return None if self.limit is None or not self.costs else Filter.of(self.limit, self.costs[0])

    @property
    def delta(self) -> float:
        """The delta at which `epsilon` is stated: that of the limit, or the sum of all deltas."""
        return min(1.0, math.fsum(cost.delta for cost in self.costs)) if self.limit is None else self.limit.delta

    @cached_property
    def epsilon(self) -> float:
        """What is spent; without a limit for releases that nobody chose after seeing results."""
        if self.filter is not None:
            return self.filter.spent(self.costs)
        slack = math.fsum(cost.slack for cost in self.costs)
        return min(math.fsum(cost.epsilon for cost in self.costs), _epsilon_of(self.costs, self.delta - slack))

    @property
    def left(self) -> float | None:
        """The epsilon that is left of the limit."""
        return None if self.limit is None else max(0.0, self.limit.epsilon - self.epsilon)

    @property
    def kept(self) -> bool:
        """Whether the limit is kept, or there is none."""
        return self.filter is None or self.filter.keeps(self.costs)

    def more(self, cost: Cost) -> int | None:
        """Return how many more equal releases fit into the limit; None without one."""
        if self.limit is None:
            return None
        return (self.filter or Filter.of(self.limit, cost)).more(self.costs, cost)


def distinct(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return the entries of each release, in the order of its first one: a repetition costs nothing."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.dataset, *entry.release), []).append(entry)
    return list(found.values())


def standings(entries: Iterable[Entry], limit: Limit | None) -> Iterator[Standing]:
    """Yield what the runs about one data set come to, for each unit that they name."""
    firsts = [release[0] for release in distinct(entries)]
    for unit in units(firsts):
        costs = [entry.about(unit) for entry in firsts]
        promised = tuple(cost for cost in costs if cost is not None)
        yield Standing(unit=unit, costs=promised, silent=len(costs) - len(promised), limit=limit)


def standings_of(contents: Contents, dataset: str) -> list[Standing]:
    """Return what the runs about a data set have cost each unit that they name."""
    return list(standings(contents.about(dataset), contents.limits.get(dataset)))


def standing_of(contents: Contents, dataset: str, promised: PrivacyGuarantee | Entry) -> Standing | None:
    """Return what the runs about a data set have cost the unit of a promise."""
    return next((each for each in standings_of(contents, dataset) if each.unit == promised.unit), None)


def check_limit(limit: Limit, entry: Entry, earlier: Sequence[Entry]) -> None:
    """Refuse a run that would bring its data set past a limit, for a unit that the run promises something to."""
    for found in standings([*earlier, entry], limit):
        cost = entry.about(found.unit)
        if cost is None or found.kept:
            continue
        before = replace(found, costs=found.costs[:-1])
        raise ValueError(
            f"the limit of data set {entry.dataset!r} must not be exceeded: of {limit.in_words()} epsilon "
            f"{before.epsilon:.4g} is spent for {found.unit}, and this run costs "
            f"epsilon {cost.epsilon:.4g}, delta {cost.delta:.3g}"
        )


def units(entries: Iterable[Entry]) -> list[PrivacyUnit]:
    """Return all units that runs name, each once, in order; and what they share.

    Persons in different windows have in common what a person sends in the longest window that divides all of them and
    the distances of their starts: to that every one of these runs promises something. Two calendars are different
    windows also where both are made of the same ones, such as days.
    """
    named = list(dict.fromkeys(entry.unit for entry in entries))
    in_windows = {unit for unit in named if unit.window is not None}
    windows = {(unit.window, unit.origin) for unit in in_windows if unit.window is not None}
    if len(in_windows) > 1:
        one = min(windows)[1]
        length = math.gcd(*(part for window, origin in windows for part in (window, origin - one)))
        shared = PrivacyUnit(what="person", window=length, origin=one % length)
        named.append(shared)
    return list(dict.fromkeys(named))
