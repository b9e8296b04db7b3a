"""What runs have cost together: composition over all distinct releases, for each unit by itself."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from privstream.mechanisms.privacy.accounting import compose
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.accounts.ledger import Entry

FINEST_GRID = 1e-4
GRID_POINTS = 200_000
ROUNDING = 1e-9
"""Relative: 0.1 added ten times is 1."""


class Limit(NamedTuple):
    """The largest total that is allowed: with a delta all releases together are within both, else epsilons add up."""

    epsilon: float
    delta: float | None = None


@dataclass(frozen=True, kw_only=True)
class Total:
    """What releases about one unit cost together.

    Attributes:
        unit, neighbouring: what is protected, and how neighbouring inputs differ.
        epsilon, delta: what all releases together promise; delta is the sum of theirs.
        plain_epsilon: the sum of their epsilons, which `epsilon` is never above.
        releases: how many they are.
    """

    unit: str
    neighbouring: str
    epsilon: float
    delta: float
    plain_epsilon: float
    releases: int


def distinct(entries: Iterable[Entry]) -> list[list[Entry]]:
    """Return the entries of each release, in the order of its first one."""
    found: dict[tuple[str, ...], list[Entry]] = {}
    for entry in entries:
        found.setdefault((entry.dataset, *entry.release), []).append(entry)
    return list(found.values())


def totals(entries: Iterable[Entry]) -> list[Total]:
    """Return a total for each unit and neighbouring relation; units differ in kind, and are never added."""
    groups: dict[tuple[str, str], list[PrivacyGuarantee]] = {}
    for release in distinct(entries):
        guarantee = release[0].guarantee
        groups.setdefault((guarantee.unit, guarantee.neighbouring), []).append(guarantee)
    return [total(guarantees) for guarantees in groups.values()]


def total(guarantees: Sequence[PrivacyGuarantee]) -> Total:
    """Return what at least one guarantee of one unit, and all that are with it, come to.

    Privacy: the adaptive composition of all releases, by privacy loss distributions, at the sum of the deltas; at
    delta 0 that is the sum of the epsilons.
    """
    plain = math.fsum(guarantee.epsilon for guarantee in guarantees)
    delta = min(1.0, math.fsum(guarantee.delta for guarantee in guarantees))
    return Total(
        unit=guarantees[0].unit,
        neighbouring=guarantees[0].neighbouring,
        epsilon=min(plain, math.inf if len(guarantees) == 1 else _composed(guarantees, delta)),
        delta=delta,
        plain_epsilon=plain,
        releases=len(guarantees),
    )


def check_limit(limit: Limit, entry: Entry, earlier: Iterable[Entry]) -> None:
    """Refuse a run that would bring the total of its data set, for its unit, above a limit.

    What is compared with the limit never falls when a run is added. The epsilon of a `Total` may, since a delta that a
    run brings along is there for all of them.

    Raises:
        ValueError: it would; says what is spent, what the run costs and what is left.
    """
    new = entry.guarantee
    unit = (new.unit, new.neighbouring)
    own = [release[0].guarantee for release in distinct(one for one in earlier if one.dataset == entry.dataset)]
    own = [guarantee for guarantee in own if (guarantee.unit, guarantee.neighbouring) == unit]
    together = _spent([*own, new], limit.delta)
    if together <= limit.epsilon * (1 + ROUNDING):
        return
    spent = _spent(own, limit.delta)
    at_delta = "" if limit.delta is None else f", by composition at delta {limit.delta:g}"
    raise ValueError(
        f"budget_limit must not be exceeded: data set {entry.dataset!r} has spent epsilon {spent:g} for {new.unit}, "
        f"this run costs epsilon {_spent([new], limit.delta):g}, all together epsilon "
        f"{together:g}{at_delta}; left: epsilon {max(0.0, limit.epsilon - spent):g}"
    )


def _spent(guarantees: Sequence[PrivacyGuarantee], delta: float | None) -> float:
    """Return the epsilon of all releases together at a delta, infinite if there is none; without it the plain sum."""
    plain = math.fsum(guarantee.epsilon for guarantee in guarantees)
    if delta is None:
        return plain
    enough = math.fsum(guarantee.delta for guarantee in guarantees) <= delta * (1 + ROUNDING)
    return min(plain if enough else math.inf, _composed(guarantees, delta))


def _composed(guarantees: Sequence[PrivacyGuarantee], delta: float) -> float:
    """Return the epsilon of the composition at a delta, or infinity if it says nothing there."""
    if not 0 < delta < 1 or not guarantees:
        return math.inf
    plain = math.fsum(guarantee.epsilon for guarantee in guarantees)
    try:
        return compose(*guarantees, delta=delta, interval=max(FINEST_GRID, plain / GRID_POINTS)).epsilon
    except ValueError:  # nothing of delta is left: as for guarantees of one point each
        return math.inf
