"""What runs have cost together: for each unit, the composition of all releases that promise something to it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.pipelines.accounts.ledger import Entry

FINEST_GRID = 1e-4
GRID_POINTS = 200_000
ROUNDING = 1e-9
"""Relative: 0.1 added ten times is 1."""


class Limit(NamedTuple):
    """The largest total that is allowed: with a delta all releases together are within both, else epsilons add up."""

    epsilon: float
    delta: float | None = None

    def left(self, spent: Total) -> float:
        """Return the epsilon that is left of the limit for one unit; 0 if nothing is, or if the deltas are spent."""
        charges = [charge for charge in spent.charges if charge is not None]
        return max(0.0, self.epsilon - _spent(charges, self.delta))


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
    return [total(guarantees, *unit) for unit in _units(guarantees)]


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


def check_limit(limit: Limit, entry: Entry, earlier: Iterable[Entry]) -> None:
    """Refuse a run that would bring a total of its data set, for a unit that it promises something to, above a limit.

    What is compared with the limit never falls when a run is added. The epsilon of a `Total` may, since a delta that a
    run brings along is there for all of them.

    Raises:
        ValueError: it would; says what is spent, what the run costs and what is left.
    """
    own = [release[0].guarantee for release in distinct(one for one in earlier if one.dataset == entry.dataset)]
    for unit, neighbouring in _units([entry.guarantee, *own]):
        cost = entry.guarantee.about(unit, neighbouring)
        before = [charge for one in own if (charge := one.about(unit, neighbouring)) is not None]
        if cost is None or (together := _spent([*before, cost], limit.delta)) <= limit.epsilon * (1 + ROUNDING):
            continue
        rule = f"budget_limit must not be exceeded: data set {entry.dataset!r} has spent"
        if limit.delta is not None and together == math.inf:  # no epsilon is enough at the limit's delta
            raise ValueError(
                f"{rule} delta {_deltas(before):g} for {unit}, this run costs delta {cost.delta:g}, all together delta "
                f"{_deltas([*before, cost]):g}; left: delta {max(0.0, limit.delta - _deltas(before)):g}"
            )
        spent = _spent(before, limit.delta)
        at_delta = "" if limit.delta is None else f", by composition at delta {limit.delta:g}"
        raise ValueError(
            f"{rule} epsilon {spent:g} for {unit}, this run costs epsilon {_spent([cost], limit.delta):g}, all "
            f"together epsilon {together:g}{at_delta}; left: epsilon {max(0.0, limit.epsilon - spent):g}"
        )


def _units(guarantees: Iterable[PrivacyGuarantee]) -> list[tuple[PrivacyUnit, str]]:
    """Return all units and neighbouring relations that guarantees name, each once, in order; and what they share.

    Persons in different windows have in common what a person sends in the longest window that divides all of them and
    the distances of their starts: to that every one of these guarantees promises something.
    """
    named = list(dict.fromkeys((guarantee.unit, guarantee.neighbouring) for guarantee in guarantees))
    windows = {(unit.window, unit.origin) for unit, _ in named if unit.window is not None}
    if len(windows) > 1:
        one = min(windows)[1]
        length = math.gcd(*(part for window, origin in windows for part in (window, origin - one)))
        shared = PrivacyUnit(what="person", window=length, origin=one % length)
        named += [(shared, neighbouring) for unit, neighbouring in named if unit.window is not None]
    return list(dict.fromkeys(named))


def _spent(charges: Sequence[PrivacyGuarantee], delta: float | None) -> float:
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
