"""What limits leave out: how much of a window's contributions counts, how many people have used up their limit, and
what counts would be without limits."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.keyed_counts.calibration import Bounds, KeyLaw, best_factor, gaussian_noise
from privstream.mechanisms.keyed_counts.key_noise import ToeplitzNoise
from privstream.mechanisms.keyed_counts.part_told import NORMAL, firmly
from privstream.mechanisms.noise.correlated import BandedFactor
from privstream.mechanisms.noise.discrete import WideGaussian
from privstream.mechanisms.noise.sources import NoiseSource
from privstream.mechanisms.privacy.accounting import SMALLEST_SIGMA, SMOOTHING, GaussianCurve, SlackCurve

LEAST_SHARE = 0.2
"""Where the share that counts may be smaller, with 2.5%, there is no full number: it would be mostly assumed."""
LEAST_SHARE_OF_WINDOWS = 0.6
"""The same where only windows have a limit: who reaches it then has it in every window, and often other items."""

_OF_USED_UP = 0.1  # of what all cost: one person moves the number of people by one, and totals by far more
_OF_KEPT = 0.3  # of the rest: an error of what is left out matters more where little is left out
_TIMES = 3  # what is told of what is left out of a person, as a multiple of the limit; and of a window, of its part
_LEAST_TOLD = 10  # of one window, where it alone has a limit: three times a limit of one item shows no baskets
_DRIFTS = ((0.01, 1.0), (0.03, 2.0), (0.1, 4.0))
"""Standard deviations by which the share may move from window to window, and weights: where noise hides it, it may."""
_STEADY_DRIFTS = ((0.001, 2.0), (0.01, 1.0), (0.03, 1.0), (0.1, 1.0), (0.3, 1.0))
"""The same where random contributions of the whole run count and windows have no limit: the same part of every window
is left out, but for windows in which people come who have more or fewer than others. For these there are large ones."""

_PRIOR = 0.25  # variance of the share before anything is known
DIGITS = 6  # of shares and factors: what machines round off is not seen
KEPT, LEFT_OUT, USED_UP = 0, 1, 2
"""What is told of a window, in this order: two totals of contributions, and people."""

MOST_TOLD = 1024
"""Windows of which that is remembered."""


@dataclass(frozen=True, eq=False)
class Told:
    """What has been told of the windows until now, and what the counter of people remembers.

    Attributes:
        numbers: int64 (3, windows): what counts, what is left out, and how many people have used up their limit until
            then, with noise. Published.
        used_up: how many people that are without noise. Private.
        memory: float64 (rows, 1): of the noise of that counter. Private.
    """

    numbers: Integers
    used_up: int
    memory: Floats

    @property
    def fields(self) -> dict[str, Integers | Floats | int]:
        """All of it, for a snapshot."""
        return {f"told_{name}": column for name, column in vars(self).items()}


NOTHING_TOLD = Told(np.zeros((3, 0), np.int64), 0, np.zeros((0, 1)))


class Shares(NamedTuple):
    """Which part of the contributions counts, window by window; nan where it is not known.

    Attributes:
        estimates: float64 (windows,), in [0, 1].
        stddevs: float64 (windows,).
        came: about how many contributions came in each, float64 (windows,), at least 0.
    """

    estimates: Floats
    stddevs: Floats
    came: Floats

    def shown(self, weight: float) -> Shares:
        """Return the same with so much of what seems left out: the lower ends of intervals stay where they are.

        A share is at most 1, so that noise alone moves it only down. Until totals show that something is left out, an
        estimate of 1 with an interval that reaches as far down is nearer to the truth.

        Privacy: post-processing.

        Args:
            weight: in [0, 1], as of `LeftOutLaw.weight`.
        """
        estimates = np.round(1 - weight * (1 - self.estimates), DIGITS)
        return Shares(estimates, self.stddevs + (estimates - self.estimates) / NORMAL, self.came)

    def of_sums(self, windows: int) -> Shares:
        """Return the same of each window and those before it together, so many in all, or all that there are.

        Their errors are taken to be the same, not independent: where shares are smoothed, most of an error is.
        """
        if windows == 1:
            return self
        weights = np.cumsum([self.came, self.came * self.estimates, self.came * self.stddevs], axis=1)
        weights[:, windows:] -= weights[:, :-windows].copy()
        came = weights[0]
        estimates, stddevs = np.round(weights[1:] / np.maximum(came, 1e-9), DIGITS)
        return Shares(estimates, stddevs, came)


class Clips(NamedTuple):
    """Contributions of one person that are told at most.

    Attributes:
        kept: of those that count, in one window.
        left_out: of those that limits leave out, in one window.
        in_all: of those that limits leave out, in the whole run.
    """

    kept: int
    left_out: int
    in_all: int


@dataclass(frozen=True)
class LeftOutLaw:
    """How the totals of what counts and of what limits leave out are clipped, and the noise of all that is told.

    Attributes:
        clips: what is told of one person at most.
        noises: of what counts, and of what is left out.
        counter: of the people who have used up their limit, since the start; None where only windows have a limit, for
            nobody uses up that.
    """

    clips: Clips
    noises: tuple[ToeplitzNoise, ToeplitzNoise]
    counter: ToeplitzNoise | None

    @classmethod
    def of(cls, law: KeyLaw) -> LeftOutLaw:
        """Return that of a run: docs/proofs/keyed_counts.md, section 12.

        Raises:
            ValueError: its noise cannot be drawn.
        """
        bounds = law.bounds
        curve = law.curve.curve if isinstance(law.curve, SlackCurve) else law.curve
        assert isinstance(curve, GaussianCurve) and bounds.full_share > 0
        clips, alone = clips_of(bounds), limits_windows_alone(bounds)
        of_totals = bounds.full_share * (1.0 if alone else 1 - _OF_USED_UP)
        parts = ((clips.kept * bounds.contributions, _OF_KEPT), (clips.left_out * clips.in_all, 1 - _OF_KEPT))
        kept, left_out = (_noise(curve.shift * math.sqrt(part * of_totals), square, bounds) for square, part in parts)
        if alone:
            return cls(clips, (kept, left_out), None)
        once = replace(bounds, span=None, contributions=1, per_key=1, largest=None, min_people=None, listed=0)
        shift = curve.shift * math.sqrt(bounds.full_share * _OF_USED_UP)
        return cls(clips, (kept, left_out), gaussian_noise(shift, best_factor(once), 1, False, once))

    @property
    def least_share(self) -> float:
        """Where the share that counts may be smaller, with 2.5%, there is no full number."""
        return LEAST_SHARE if self.counter is not None else LEAST_SHARE_OF_WINDOWS

    @property
    def stddevs(self) -> tuple[float, float]:
        """The standard deviations of the noise of both totals."""
        kept, left_out = (math.sqrt(noise.variance(1)) for noise in self.noises)
        return kept, left_out

    def weight(self, left_out: Integers) -> float:
        """Return how much of what seems left out is taken to be so, in [0, 1]: 0 where noise explains all of it.

        It follows from the sum over windows, in standard deviations of its noise: `firmly`.

        Privacy: post-processing.

        Args:
            left_out: noisy totals of what limits leave out, int64 (windows,).
        """
        return float(firmly(float(left_out.sum()) / (self.stddevs[1] * math.sqrt(max(1, len(left_out))))))

    def publish(self, step: int, sums: Integers, told: Told, source: NoiseSource) -> Told:
        """Return what has been told after a step, with noise.

        Args:
            step: 1, 2, .., one after the other.
            sums: of this step, int64 (3,): what counts, what is left out, and how many people used up their limit.
            told: before.
            source: noise of this run, for these numbers alone.
        """
        at, which = np.array([step], np.uint64), np.arange(3, dtype=np.uint64)[:, None]
        noisy = [
            sums[place] + noise.independent(which[place], at, [sums[place : place + 1]], source)[0]
            for place, noise in enumerate(self.noises)
        ]
        used_up, memory, people = told.used_up, told.memory, 0
        if self.counter is not None:
            used_up, memory = told.used_up + int(sums[USED_UP]), np.zeros((self.counter.rows, 1))
            memory[: len(told.memory)] = told.memory
            drawn = self.counter.advance(memory, step, which[USED_UP], [np.array([used_up])], source)
            people = used_up + int(drawn[0])
        numbers = np.array([*noisy, people], np.int64)[:, None]
        return Told(np.concatenate([told.numbers, numbers], axis=1)[:, -MOST_TOLD:], used_up, memory)

    def used_up(self, number: int, step: int) -> tuple[int, int, int] | tuple[None, None, None]:
        """Return how many people have used up their limit, and an interval of 95%, from the noisy number of a step.

        It is None three times where nobody can use up a limit.

        Privacy: post-processing.
        """
        if self.counter is None:
            return None, None, None
        spread = self.counter.tail_bound(step, OUTSIDE / 2)
        lower, found, upper = (max(0, number + side * spread) for side in (-1, 0, 1))
        return found, lower, upper

    def shares(self, totals: Integers, *, steady: bool = False) -> Shares:
        """Return the share that counts in each window, from the noisy totals of windows that follow each other.

        Each share rests on all of these windows, on those after it too. The part that is left out moves from window to
        window by a normal step; some sizes of steps are weighted by their likelihood, large ones more, and small ones
        where it is steady.

        Privacy: post-processing.

        Args:
            totals: noisy totals, int64 (2, windows).
            steady: whether random contributions of all these windows count, as many of a window as there are.
        """
        drifts = _STEADY_DRIFTS if steady else _DRIFTS
        return _smoothed(totals[KEPT].tolist(), totals[LEFT_OUT].tolist(), *self.stddevs, drifts)


def limits_windows_alone(bounds: Bounds) -> bool:
    """Tell whether the limit of the whole run follows from that of each window."""
    return bounds.per_window is not None and bounds.per_window * (bounds.horizon or 1) == bounds.contributions


def clips_of(bounds: Bounds) -> Clips:
    """Return how much of a person is told at most.

    Where only windows have a limit, what it leaves out of a person in one of them can be many times what counts.
    """
    if bounds.per_window is not None and limits_windows_alone(bounds):
        left_out = max(_TIMES * bounds.per_window, _LEAST_TOLD)
        return Clips(bounds.per_window, left_out, left_out * (bounds.horizon or 1))
    in_all = _TIMES * bounds.contributions
    each = min(bounds.contributions, bounds.per_window or -(-in_all // (bounds.horizon or 1)))
    return Clips(each, each, in_all)


def _noise(shift: float, square: int, bounds: Bounds) -> ToeplitzNoise:
    """Return noise of totals that one person moves by a vector whose squares add up to so much."""
    sigma = max(SMALLEST_SIGMA, math.sqrt(bounds.people * square / shift**2 + SMOOTHING) * (1 + 1e-12))
    return ToeplitzNoise(BandedFactor(1, 1), WideGaussian(sigma), 0, 1)


def _smoothed(
    kept: Sequence[float],
    left_out: Sequence[float],
    of_kept: float,
    of_left_out: float,
    drifts: Sequence[tuple[float, float]],
) -> Shares:
    """Return shares: a Kalman filter and smoother of how far the part left out is from its mean, in plain numbers."""
    windows = len(kept)
    came = [a + b for a, b in zip(kept, left_out, strict=True)]
    nothing = np.full(windows, np.nan)
    unsure = math.hypot(of_kept, of_left_out)
    if not windows or sum(came) <= NORMAL * unsure * math.sqrt(windows):
        return Shares(nothing, nothing, np.zeros(windows))
    mean = min(1.0, max(0.0, sum(left_out) / sum(came)))
    activity = _shrunk(came, unsure)
    off = [b - mean * a for a, b in zip(came, left_out, strict=True)]
    noise = ((1 - mean) * of_left_out) ** 2 + (mean * of_kept) ** 2
    found = [_one_drift(off, activity, noise, drift * drift) for drift, _ in drifts]
    best = max(likelihood for likelihood, _, _ in found)
    weights = [prior * math.exp(one[0] - best) for one, (_, prior) in zip(found, drifts, strict=True)]
    total = sum(weights)
    estimates, stddevs = [], []
    for window in range(windows):
        parts = [(weight / total, e[window], v[window]) for weight, (_, e, v) in zip(weights, found, strict=True)]
        level = sum(weight * e for weight, e, _ in parts)
        variance = sum(weight * (v + (e - level) ** 2) for weight, e, v in parts)
        estimates.append(round(min(1.0, max(0.0, 1 - mean - level)), DIGITS))
        stddevs.append(round(math.sqrt(variance), DIGITS))
    return Shares(np.array(estimates), np.array(stddevs), np.array(activity))


def _shrunk(came: Sequence[float], unsure: float) -> list[float]:
    """Return how much came in each window: the less it differs by more than noise, the nearer to the mean of all."""
    windows = len(came)
    mean = sum(came) / windows
    variance = sum((number - mean) ** 2 for number in came) / max(1, windows - 1)
    own = max(0.0, 1 - unsure**2 / variance) if variance > 0 else 0.0
    return [max(0.0, mean + own * (number - mean)) for number in came]


def _one_drift(
    off: Sequence[float], activity: Sequence[float], noise: float, drift: float
) -> tuple[float, list[float], list[float]]:
    """Return the logarithm of the likelihood of one drift, a variance, and levels with their variances."""
    level, variance, likelihood = 0.0, _PRIOR, 0.0
    filtered: list[tuple[float, float]] = []
    for number, times in zip(off, activity, strict=True):
        expected = times * times * variance + noise
        error = number - times * level
        gain = times * variance / expected
        likelihood -= 0.5 * (math.log(expected) + error * error / expected)
        level += gain * error
        variance *= noise / expected
        filtered.append((level, variance))
        variance += drift
    levels, variances = [filtered[-1][0]], [filtered[-1][1]]
    for level, variance in reversed(filtered[:-1]):
        ahead = variance + drift
        back = variance / ahead
        levels.append(level + back * (levels[-1] - level))
        variances.append(variance + back * back * (variances[-1] - ahead))
    return likelihood, levels[::-1], variances[::-1]


class FullCounts(NamedTuple):
    """Numbers as they would be without limits; nan where too small a share of what came may count.

    Attributes:
        estimates, lower, upper: float64 (n,).
    """

    estimates: Floats
    lower: Floats
    upper: Floats


def full_counts(
    counts: Integers | Floats, stddevs: Floats, shares: Floats, of_shares: Floats, least: float = LEAST_SHARE
) -> FullCounts:
    """Return counts divided by the share that counts, with intervals of 95% for the errors of both.

    The intervals are those of Fieller (1954) for a quotient, and are never below what the count alone says, for limits
    add nothing. They rest on what is left out being like what counts.

    Privacy: post-processing.

    Args:
        counts: noisy counts, or smoothed ones, shape (n,).
        stddevs: of their errors.
        shares: the share that counts in the window of each.
        of_shares: their standard deviations.
        least: share below which there is no number.

    Example:
        >>> found = full_counts(np.array([300]), np.array([10.0]), np.array([0.6]), np.array([0.02]))
        >>> [round(float(column[0])) for column in found]
        [500, 454, 550]
    """
    square = NORMAL**2
    slope = np.square(shares) - square * np.square(of_shares)
    known = shares - NORMAL * of_shares >= least
    slope = np.where(known, slope, np.nan)
    middle = counts * shares
    constant = np.square(counts.astype(np.float64)) - square * np.square(stddevs)
    root = np.sqrt(np.maximum(np.square(middle) - slope * constant, 0))
    lower = np.maximum(counts - NORMAL * stddevs, (middle - root) / slope)
    upper = np.maximum(counts + NORMAL * stddevs, (middle + root) / slope)
    estimates = np.where(known, counts / np.where(known, shares, 1.0), np.nan)
    estimates, lower, upper = np.round(np.maximum([estimates, lower, upper], 0), 1)
    return FullCounts(estimates, lower, upper)
