"""How much noise counts and sums of keys need, and from which noisy count on a key is published."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

import numpy as np
from privstream.mechanisms.keyed_counts.dropped import DROPPED_SHARE, KNOTS
from privstream.mechanisms.noise.correlated import (
    DEVIATIONS,
    BandedFactor,
    BufferedFactor,
    Factor,
)
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from privstream.mechanisms.noise.running import RunningNoise, ToeplitzNoise, TreeNoise, tree_nodes
from privstream.mechanisms.privacy.accounting import (
    SMALLEST_SIGMA,
    SMOOTHING,
    GaussianCurve,
    PrivacyCurve,
    PureDp,
    SlackCurve,
    largest_shift,
)

SHARES = tuple(np.linspace(0.05, 0.95, 37).tolist())
"""Of delta, for the Gaussian noise, that are tried out; the rest is for keys that one person makes known."""

LIST_SHARE = 0.2
"""Of the budget, a squared shift, for the list of different people."""

LARGEST_HORIZON = 1 << 20
_SPARE_BITS = 9  # of the grid beyond sqrt(horizon)
_CORRECTION = 1.0  # most that a correction is off by, in units of the grid: 1/2 by rounding, and what floats round off
_FLOATS = 0.5
_SCALES = 128.0  # no discrete Laplace number ever leaves so many of its scales
EXACT = 2.0**53  # whole floats below it are exact

Law = TypeVar("Law", bound="KeyLaw")


@dataclass(frozen=True, kw_only=True)
class Bounds:
    """What one unit can do, and what is asked: all that noise depends on beside epsilon and delta.

    Attributes:
        since_start: whether answers are about all steps so far, and not about one window each.
        horizon: steps of the run; None only for windows.
        contributions: of one person in all; since the start each to another key.
        largest: value of a contribution to a sum, or None without sums.
        min_people: that a key must have; None if the list of keys is public.
        listed: keys of a person on a list of different people; 0 without one.
        per_window: contributions of one person in one window, or None where there is no limit of its own.
        dropped: whether the share of contributions that limits drop is released: docs/proofs/limits_of_people.md.
    """

    since_start: bool
    horizon: int | None
    contributions: int
    largest: int | None
    min_people: int | None
    listed: int = 0
    per_window: int | None = None
    dropped: bool = False

    @property
    def steps(self) -> int:
        """Steps that noise is correlated over."""
        return (self.horizon or 1) if self.since_start else 1

    def test_share(self, step: int) -> float:
        """Return the part of delta for tests at `step`, which grows as counts do; a window has one test."""
        return 2 * step / (self.steps * (self.steps + 1)) if self.since_start else 1.0

    @property
    def of_counts(self) -> float:
        """The part of the budget, a squared shift, that the share of dropped contributions leaves."""
        return 1 - DROPPED_SHARE if self.dropped else 1.0

    @property
    def values(self) -> tuple[tuple[int, float], ...]:
        """Largest value and share of the budget of counts, and then of sums."""
        share = (1 - LIST_SHARE if self.listed else 1.0) * self.of_counts
        return ((1, share),) if self.largest is None else ((1, share / 2), (self.largest, share / 2))


@dataclass(frozen=True)
class KeyLaw:
    """Noise, thresholds and the privacy curve.

    Attributes:
        noises: of counts, and of sums if there are any.
        curve: all (epsilon, delta) of the run.
        tail: probability per contribution with which a key that one person makes known may be published, at any step;
            None if the list of keys is public.
        bounds: what it is for.
    """

    noises: tuple[RunningNoise, ...]
    curve: PrivacyCurve
    tail: float | None
    bounds: Bounds

    def threshold(self, step: int) -> int | None:
        """Return the least noisy count at which a key is published: docs/proofs/keyed_counts.md, section 4."""
        if self.tail is None:
            return None
        tail = self.tail * self.bounds.test_share(step)
        return (self.bounds.min_people or 1) + self.noises[0].tail_bound(step, tail) + 1


@functools.lru_cache(maxsize=64)
def calibrate(epsilon: float, delta: float, bounds: Bounds) -> KeyLaw:
    """Return the law with the smallest threshold at the last step or, for public keys, the smallest deviation.

    Raises:
        ValueError: no noise that can be drawn is enough.
    """

    def place(law: KeyLaw) -> tuple[int, float]:
        return law.threshold(bounds.steps) or 0, law.noises[0].variance(bounds.steps)

    return best(laws(epsilon, delta, bounds), place)


def best(makers: Iterable[Callable[[], Law]], place: Callable[[Law], Any]) -> Law:
    """Return the law that comes first, of those whose noise can be drawn."""
    found, refused = [], []
    for made in makers:
        try:
            found.append(made())
        except ValueError as error:
            refused.append(error)
    if not found:
        raise refused[-1]
    return min(found, key=place)


def laws(epsilon: float, delta: float, bounds: Bounds) -> Iterator[Callable[[], KeyLaw]]:
    """Return what makes each law that would be enough; it raises a ValueError if its noise cannot be drawn."""
    if not (bounds.listed or bounds.dropped):
        yield partial(_pure, epsilon, delta, bounds)
    if delta == 0 and bounds.since_start:  # noise in a tree is not bound to data: where all noise is, it is not taken
        yield partial(_pure, epsilon, delta, bounds, in_tree=True)
    if delta > 0:
        factor = best_factor(bounds)
        for share in (1.0,) if bounds.min_people is None else SHARES:
            yield partial(_gaussian, epsilon, delta, share, factor, bounds)


def _pure(epsilon: float, delta: float, bounds: Bounds, *, in_tree: bool = False) -> KeyLaw:
    """Return discrete Laplace noise, per window or in a tree; all of delta is for keys that one person makes known."""
    noises: list[RunningNoise] = []
    nodes = tree_nodes(bounds.steps) if in_tree else 1
    for largest, share in bounds.values:
        norm = bounds.contributions * largest * nodes
        law = DiscreteLaplace(math.nextafter(norm / (epsilon * share), math.inf))
        if in_tree:
            noises.append(TreeNoise(bounds.steps, law))
            continue
        if bounds.since_start:
            _check_exact(_SCALES * law.scale * bounds.steps, largest, bounds)
        noises.append(ToeplitzNoise(BandedFactor(bounds.steps, 1), law, 0, _span(bounds)))
    return _with_tail(tuple(noises), PureDp(epsilon), delta, bounds)


def _gaussian(epsilon: float, delta: float, share: float, factor: Factor, bounds: Bounds) -> KeyLaw:
    """Return Gaussian noise that takes this share of delta."""
    shift = largest_shift(epsilon, delta * share)
    noises = tuple(gaussian_noise(shift * math.sqrt(part), factor, largest, bounds) for largest, part in bounds.values)
    return _with_tail(noises, GaussianCurve(shift=shift), delta * (1 - share), bounds)


def _with_tail(noises: tuple[RunningNoise, ...], curve: PrivacyCurve, slack: float, bounds: Bounds) -> KeyLaw:
    """Return the law in which a key that one person makes known is published with a probability of `slack`."""
    if bounds.min_people is None:
        return KeyLaw(noises, curve, None, bounds)
    return KeyLaw(noises, SlackCurve(curve=curve, slack=slack), slack / bounds.contributions, bounds)


def gaussian_noise(shift: float, factor: Factor, largest: int, bounds: Bounds) -> ToeplitzNoise:
    """Return the noise on one answer, of which a change of the data is seen as a shift of so many deviations."""
    if factor.exact and largest == 1:  # so many integers change by 1 each: Theorem 1 of counters.md
        changes = bounds.contributions
        sigma = max(SMALLEST_SIGMA, math.sqrt(changes / shift**2 + SMOOTHING / changes))
        return ToeplitzNoise(factor, DiscreteGaussian(sigma), 0, _span(bounds))
    fraction, norm = 0, largest * l2_norm(factor, bounds) * (1 + 1e-12)
    if not factor.exact:
        spare = _SPARE_BITS + math.ceil(math.log2(factor.horizon) / 2)
        fraction = max(0, spare - largest.bit_length() + 1)
        touched = bounds.contributions * float(factor.levels @ factor.levels)
        norm = math.ldexp(norm, fraction) + 2 * _CORRECTION * math.sqrt(touched)
    sigma = max(SMALLEST_SIGMA, math.sqrt((norm / shift) ** 2 + SMOOTHING))
    if factor.float_error(sigma) > _FLOATS:
        raise ValueError(f"horizon must be shorter for values up to {largest:,}, got {factor.horizon}")
    if bounds.since_start:
        square = max(factor.squares(None).max(), factor.inverse @ factor.inverse)
        _check_exact(DEVIATIONS * 2 * sigma * math.sqrt(square), largest, bounds)
    return ToeplitzNoise(factor, DiscreteGaussian(sigma), fraction, _span(bounds))


def _span(bounds: Bounds) -> int | None:
    """Return of how many steps an answer is the sum, as noise has it: None for all."""
    return None if bounds.since_start else 1


def _check_exact(sums: float, largest: int, bounds: Bounds) -> None:
    """Refuse noise whose sums floats would round: the low bits of published numbers would be those of true ones."""
    if sums >= EXACT:
        raise ValueError(f"max_value must be smaller for noise over {bounds.steps:,} windows, got {largest:,}")


def l2_norm(factor: Factor, bounds: Bounds) -> float:
    """Return how far a change of the data moves R x over all keys, in L2 norm, for values up to 1."""
    return math.sqrt(bounds.contributions * factor.contribution_square(1))


@functools.lru_cache(maxsize=64)
def best_factor(bounds: Bounds) -> Factor:
    """Return the identity for one step, and else the factor of the buffered counter: no banded one has less noise."""
    if bounds.steps > LARGEST_HORIZON:
        raise ValueError(f"horizon must be <= {LARGEST_HORIZON}, got {bounds.steps}")
    return BandedFactor(1, 1) if bounds.steps == 1 else BufferedFactor(bounds.steps)


def limits_told(bounds: Bounds, unit: str, *, lasting: bool = False) -> tuple[str, ...]:
    """Return sentences that say what a unit is limited to, and which items are considered; `lasting`: stay found."""
    if unit == "event":
        found = ["An event counts for one item in one window."]
    else:
        window = "" if bounds.per_window is None else f" {_times(bounds.per_window)} in a window,"
        run = f"{_times(bounds.contributions)} in the whole run"
        found = [f"A person counts {run},{window} and at most once for an item in a window."]
        if bounds.since_start and bounds.contributions > 1:
            found.append("At most 1 of these is for one item.")
    if bounds.listed:
        most = f"at most {bounds.listed:,} items in the whole run, once for each"
        found.append(f"On the list of different people a person counts for {most}.")
    if bounds.dropped:
        found.append(
            f"For the share of contributions that limits drop, at most {KNOTS[-1] * bounds.contributions:,} more per "
            "person are counted as dropped (docs/proofs/limits_of_people.md)."
        )
    if bounds.largest is not None:
        found.append(f"The value that is added for one of them is an integer from 0 to {bounds.largest:,}.")
    if bounds.min_people is not None and bounds.min_people > 1:
        where = "since the start" if bounds.since_start else "in one window" if lasting else "in the window"
        if bounds.listed:
            where += ", or in all windows up to a test of the list of people,"
        what = "found" if lasting else "published"
        found.append(f"Items with fewer than {bounds.min_people:,} {plural(unit)} {where} are never {what}.")
    return tuple(found)


def _times(number: int) -> str:
    return "at most once" if number == 1 else f"at most {number:,} times"


def plural(unit: str) -> str:
    """Return what several units are called."""
    return "events" if unit == "event" else "people"
