"""What runs have cost together: for each unit, the composition of all releases that promise something to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import NamedTuple

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.pipelines.accounts.entries import Entry

FINEST_GRID = 1e-4
GRID_POINTS = 200_000
MOST_RUNS = 10_000
"""More runs than this are not counted."""

ROUNDING = 1e-9
"""Relative: 0.1 added ten times is 1."""


DAY = 86_400 * 1_000_000
EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
Reach = tuple[float, float]
"""The first and the last period of a run, by their numbers."""


class Limit(NamedTuple):
    """The largest total that is allowed: with a delta all releases together are within both, else epsilons add up.

    With a period, such as "year", all releases together that are about the time of the same period.
    """

    epsilon: float
    delta: float | None = None
    period: str | None = None

    def in_words(self) -> str:
        """Return the limit as people read it."""
        delta = " as plain sum" if self.delta is None else f", delta {self.delta:g}"
        return f"epsilon {self.epsilon:g}{delta}{'' if self.period is None else f' for each {self.period}'}"

    def left(self, total: Total) -> float:
        """Return the epsilon that is left of the limit for one unit; 0 if nothing is, or if the deltas are spent."""
        charges = [charge for charge in total.charges if charge is not None]
        return max(0.0, self.epsilon - spent(charges, self.delta))


class Left(NamedTuple):
    """What a limit leaves to one unit, of one of its periods, or of all time if it has none."""

    period: str | None
    unit: PrivacyUnit
    neighbouring: str
    epsilon: float


@dataclass(frozen=True, kw_only=True)
class Total:
    """What releases cost one unit together.

    Attributes:
        unit, neighbouring: what is protected, and how neighbouring inputs differ.
        charges: what each release promises to this unit; None for those that promise nothing to it.
        epsilon, delta: what those that promise something promise together; delta is the sum of theirs.
        plain_epsilon: the sum of their epsilons, which `epsilon` is never above.
    """

    unit: PrivacyUnit
    neighbouring: str
    charges: tuple[PrivacyGuarantee | None, ...]
    epsilon: float
    delta: float
    plain_epsilon: float

    @property
    def releases(self) -> int:
        """Number of releases that promise something to this unit."""
        return len(self.charges) - self.silent

    @property
    def silent(self) -> int:
        """Number of releases that promise nothing to this unit: whatever they reveal about it is not in the total."""
        return self.charges.count(None)


def distinct(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return the entries of each release, in the order of its first one."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.dataset, *entry.release), []).append(entry)
    return list(found.values())


def totals(entries: Iterable[Entry]) -> list[Total]:
    """Return a total for each unit and neighbouring relation that a release names."""
    guarantees = [release[0].guarantee for release in distinct(entries)]
    return [total(guarantees, *unit) for unit in units(guarantees)]


def left_of(limit: Limit, entries: Iterable[Entry]) -> Iterator[Left]:
    """Yield what is left of a limit, for each unit and period in which a run begins."""
    first = [release[0] for release in distinct(entries)]
    for period, about in [(None, first)] if limit.period is None else fullest(limit.period, first):
        for found in totals(about):
            yield Left(period, found.unit, found.neighbouring, limit.left(found))


def total(guarantees: Sequence[PrivacyGuarantee], unit: PrivacyUnit, neighbouring: str) -> Total:
    """Return what guarantees come to for one unit, to which at least one of them promises something.

    Privacy: the adaptive composition of all of these, by privacy loss distributions, at the sum of the deltas; at
    delta 0 that is the sum of the epsilons.
    """
    charges = tuple(guarantee.about(unit, neighbouring) for guarantee in guarantees)
    found = [charge for charge in charges if charge is not None]
    plain = math.fsum(charge.epsilon for charge in found)
    delta = min(1.0, _deltas(found))
    return Total(
        unit=unit,
        neighbouring=neighbouring,
        charges=charges,
        epsilon=min(plain, math.inf if len(found) == 1 else _composed(found, delta)),
        delta=delta,
        plain_epsilon=plain,
    )


def check_limit(limit: Limit, entry: Entry, earlier: Iterable[Entry], word: str = "budget_limit") -> None:
    """Refuse a run that would bring a total of its data set, for a unit that it promises something to, above a limit.

    What is compared with the limit never falls when a run is added. The epsilon of a `Total` may, since a delta that a
    run brings along is there for all of them. A limit by period is kept for every period that the run is about; a run
    of which that is not known is about all of them.

    Raises:
        ValueError: it would; says what is spent, what the run costs and what is left.
    """
    own = [release[0] for release in distinct(one for one in earlier if one.dataset == entry.dataset)]
    if limit.period is None:
        return _check(limit, entry, own, f"{word} must not be exceeded: data set {entry.dataset!r} has spent")
    for name, about in fullest(limit.period, [entry, *own], reach(limit.period, entry)):
        rule = f"{word} must not be exceeded: data set {entry.dataset!r} has in {name} spent"
        _check(limit, entry, [one for one in about if one is not entry], rule)


def _check(limit: Limit, entry: Entry, own: Sequence[Entry], rule: str) -> None:
    """Refuse a run that releases do not leave enough for."""
    guarantees = [one.guarantee for one in own]
    asked = units([entry.guarantee, *guarantees])
    for unit, neighbouring in asked:
        who = f"{unit}, neighbours by {neighbouring}" if len({name for _, name in asked}) > 1 else str(unit)
        cost = entry.guarantee.about(unit, neighbouring)
        before = [charge for one in guarantees if (charge := one.about(unit, neighbouring)) is not None]
        if cost is None or _keeps(limit, together := spent([*before, cost], limit.delta)):
            continue
        if limit.delta is not None and together == math.inf:  # no epsilon is enough at the limit's delta
            raise ValueError(
                f"{rule} delta {_deltas(before):g} for {who}, this run costs delta {cost.delta:g}, all together delta "
                f"{_deltas([*before, cost]):g}; left: delta {max(0.0, limit.delta - _deltas(before)):g}"
            )
        already = spent(before, limit.delta)
        at_delta = "" if limit.delta is None else f", by composition at delta {limit.delta:g}"
        raise ValueError(
            f"{rule} epsilon {already:g} for {who}, this run costs epsilon {spent([cost], limit.delta):g}, all "
            f"together epsilon {together:g}{at_delta}; left: epsilon {max(0.0, limit.epsilon - already):g}"
        )


def most_runs(limit: Limit, guarantee: PrivacyGuarantee, earlier: Sequence[PrivacyGuarantee]) -> int:
    """Return how many runs of a guarantee a limit allows after earlier ones; at most `MOST_RUNS`.

    The composition that `check_limit` compares with the limit, of so many equal runs; it never falls with their number.
    """
    return min(_most_runs(limit, guarantee, earlier, *unit) for unit in units([guarantee, *earlier]))


def _most_runs(
    limit: Limit, guarantee: PrivacyGuarantee, earlier: Sequence[PrivacyGuarantee], unit: PrivacyUnit, neighbouring: str
) -> int:
    """Return how many runs are allowed for one unit."""
    cost = guarantee.about(unit, neighbouring)
    if cost is None:
        return MOST_RUNS
    before = [charge for one in earlier if (charge := one.about(unit, neighbouring)) is not None]

    def fit(number: int) -> bool:
        return number == 0 or _keeps(limit, spent([*before, *[cost] * number], limit.delta))

    least, more = 0, 1
    while more <= MOST_RUNS and fit(more):
        least, more = more, 2 * more
    if more > MOST_RUNS and fit(MOST_RUNS):
        return MOST_RUNS
    more = min(more, MOST_RUNS)
    while more - least > 1:
        middle = (least + more) // 2
        least, more = (middle, more) if fit(middle) else (least, middle)
    return least


def _keeps(limit: Limit, epsilon: float) -> bool:
    """Tell whether an epsilon is within a limit."""
    return epsilon <= limit.epsilon * (1 + ROUNDING)


def units(guarantees: Iterable[PrivacyGuarantee]) -> list[tuple[PrivacyUnit, str]]:
    """Return all units and neighbouring relations that guarantees name, each once, in order; and what they share.

    Persons in different windows have in common what a person sends in the longest window that divides all of them and
    the distances of their starts: to that every one of these guarantees promises something. Two calendars are different
    windows also where both are made of the same ones, such as days: a month has no promise for a year, nor a year for
    a month.
    """
    named = list(dict.fromkeys((guarantee.unit, guarantee.neighbouring) for guarantee in guarantees))
    in_windows = {unit for unit, _ in named if unit.window is not None}
    windows = {(unit.window, unit.origin) for unit in in_windows if unit.window is not None}
    if len(in_windows) > 1:
        one = min(windows)[1]
        length = math.gcd(*(part for window, origin in windows for part in (window, origin - one)))
        shared = PrivacyUnit(what="person", window=length, origin=one % length)
        named += [(shared, neighbouring) for unit, neighbouring in named if unit.window is not None]
    return list(dict.fromkeys(named))


def spent(charges: Sequence[PrivacyGuarantee], delta: float | None) -> float:
    """Return the epsilon of all releases together at a delta, infinite if there is none; without it the plain sum."""
    plain = math.fsum(charge.epsilon for charge in charges)
    if delta is None:
        return plain
    enough = _deltas(charges) <= delta * (1 + ROUNDING)
    return min(plain if enough else math.inf, _composed(charges, delta))


def _deltas(charges: Sequence[PrivacyGuarantee]) -> float:
    """Return the sum of the deltas of releases."""
    return math.fsum(charge.delta for charge in charges)


def _composed(charges: Sequence[PrivacyGuarantee], delta: float) -> float:
    """Return the epsilon of the composition at a delta, or infinity if it says nothing there."""
    if not 0 < delta < 1 or not charges:
        return math.inf
    interval = max(FINEST_GRID, math.fsum(charge.epsilon for charge in charges) / GRID_POINTS)
    try:
        return charges[0].compose(*charges[1:], delta=delta, interval=interval).epsilon
    except ValueError:  # nothing of delta is left: as for guarantees of one point each
        return math.inf


def name_of(length: str, number: float) -> str:
    """Return what a period is called.

    >>> name_of("year", 2026), name_of("month", 24313), name_of("30d", 682)
    ('2026', '2026-02', '30 days from 2026-01-07')
    """
    if not math.isfinite(number):
        return "any time"
    if length == "year":
        return f"{number:.0f}"
    if length == "month":
        return f"{number // 12:.0f}-{number % 12 + 1:02.0f}"
    days = int(length[:-1])
    return f"{days} days from {(EPOCH + timedelta(days=int(number) * days)).date().isoformat()}"


def reach(length: str, entry: Entry) -> Reach:
    """Return the numbers of the first and the last period that a run is about; infinite where that is not known."""
    first = -math.inf if entry.begin is None else _period_number(length, entry.begin)
    return first, math.inf if entry.end is None else _period_number(length, entry.end - 1)


def fullest(
    length: str, entries: Sequence[Entry], within: Reach = (-math.inf, math.inf)
) -> Iterator[tuple[str, list[Entry]]]:
    """Give periods, each with the entries that are about it, so that no other period has more of them.

    Entries begin in all of these periods, or before `within` does: what is about another one is about one of these.
    """
    reaches = [reach(length, entry) for entry in entries]
    for number in sorted(
        {max(first, within[0]) for first, last in reaches if last >= within[0] and first <= within[1]}
    ):
        about = [one for one, (first, last) in zip(entries, reaches, strict=True) if first <= number <= last]
        yield name_of(length, number), about


def _period_number(length: str, micros: int) -> int:
    """Return the number of the period of a time: years, months since the year 0, or steps of days since 1970."""
    moment = EPOCH + timedelta(microseconds=micros)
    if length == "year":
        return moment.year
    if length == "month":
        return 12 * moment.year + moment.month - 1
    return micros // (int(length[:-1]) * DAY)
