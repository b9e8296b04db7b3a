"""Smooths published counts over windows: local levels with known noise, averaged over how they move."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pyarrow as pa
from numpy.typing import ArrayLike
from privstream.mechanisms.arrays import Floats, Integers
from privstream.mechanisms.views.tables import NORMAL, meaningful, with_columns

LOOKBACK = 64
"""Windows from which numbers of a streaming run are smoothed."""

DAY = 86_400 * 1_000_000
WEEK = 7 * DAY

MOST_RISING = LOOKBACK - 1
"""Windows to look back for what rose."""

WITHOUT_MODEL = 2.12  # deviations of the noise of its count that an interval reaches beyond it at most
DIGITS = 1

_LOPSIDED = 2.5  # times as long one side of an interval may be as the other, so that windows are averaged
_FAR = 3.0  # deviations of the noise of its count that a number is away from it at most
_MODELS = [(drift, scatter) for drift in (0.0, 0.05, 0.2, 0.7, 2.0) for scatter in (0.0, 0.3, 1.0, 4.0, 16.0, 64.0)]
_BREAK = 25.0  # a square this many times its variance begins a new level
_SWITCH = 0.005  # probability that another model takes over in a window
_UNKNOWN = 1e6  # variance of a level of which nothing is known
_TOGETHER = 1 << 20  # numbers of all models at a time
_LEAST_STDDEV = 1e-6
_CYCLES = 3  # periods without which there is no rhythm
_OF_ANY = 10  # keys that may move in any way, apart from those from which it is learned how keys move
_ALONE = 1.1  # times as wide intervals are where one series alone shows how it moves
_ROUNDS, _LEARNED = 2, 0.8  # of learning, and which part of the prior is learned


def smooth(counts: ArrayLike, stddev: ArrayLike, alike: bool = False) -> Floats:
    """Return the numbers without noise of counts, and the ends of their 95% intervals, (3, windows, keys).

    Each is made of the windows before and after it; nan where there is no count. One that lies outside of the interval
    of its own count has an interval that contains that one, too; far outside, the count itself is the number.

    Accuracy: intervals hold 93 to 100% of steady, drifting, jumping, bursting and weekly series, on the mean; of a
    single window that stands out by 4 deviations or more 90%, by 3 some 70%, by 2 some 45%.

    Counts are nan where a key has none; `stddev` is that of their noise, of all or of each. With `alike` it is learned
    from all keys together how they move (empirical Bayes): numbers of a key depend on the others then.
    """
    noisy = np.asarray(counts, np.float64)
    spreads = np.broadcast_to(np.maximum(_LEAST_STDDEV, np.asarray(stddev, np.float64)), noisy.shape)
    estimates, half = _averaged(noisy, spreads, alike)
    reach = NORMAL * spreads
    smoothed, own = (np.array([number, number - by, number + by]) for number, by in ((estimates, half), (noisy, reach)))
    found = _apart(smoothed, own)
    found[1:] = np.maximum(found[1:], 0)
    return np.asarray(np.round(found, DIGITS))


def _averaged(noisy: Floats, spreads: Floats, alike: bool) -> tuple[Floats, Floats]:
    """Return estimates and half widths of 95% intervals, (windows, keys)."""
    if not noisy.size:
        return noisy, noisy
    noise, size = float(np.median(spreads)), max(1, _TOGETHER // (len(_MODELS) * len(noisy)))
    pieces = [slice(first, first + size) for first in range(0, noisy.shape[1], size)]
    parts = [_smooth(noisy[:, one] / noise, np.square(spreads[:, one] / noise), alike) for one in pieces]
    estimates, half = (noise * np.concatenate(part, axis=1) for part in zip(*parts, strict=True))
    return estimates, np.minimum(half, np.abs(estimates - noisy) + WITHOUT_MODEL * spreads)


def _apart(smoothed: Floats, own: Floats) -> Floats:
    """Return numbers and ends, (3, ..), of intervals that contain those of the window alone where both do not agree."""
    off = np.abs(smoothed[0] - own[0])
    outside = (smoothed[0] < own[1]) | (smoothed[0] > own[2])
    far = outside & (off > _FAR / NORMAL * np.maximum(own[2] - own[0], own[0] - own[1]))
    lower, upper = np.minimum(smoothed[1], own[1]), np.maximum(smoothed[2], own[2])
    hull = np.array([np.where(far, own[0], smoothed[0]), lower, upper])
    return np.where(outside, hull, smoothed)


def _smooth(counts: Floats, noise: Floats, alike: bool) -> tuple[Floats, Floats]:
    """Return estimates and half widths, in usual deviations of the noise, of which `noise` has the variances.

    Fixed-interval smoothers, averaged over models.
    """
    windows, keys = counts.shape
    seen, counts = ~np.isnan(counts), np.nan_to_num(counts)
    drift, scatter = (np.array(column)[:, None] for column in zip(*_MODELS, strict=True))
    drift, shape = np.square(drift), (windows, len(_MODELS), keys)
    mean, variance, likely = (np.empty(shape) for _ in range(3))
    fresh = np.zeros(shape, bool)
    level, unsure = np.zeros(shape[1:]), np.full(shape[1:], _UNKNOWN)
    for t in range(windows):
        unsure = unsure + drift
        spread = unsure + scatter + noise[t]
        off = np.square(counts[t] - level) / spread
        fresh[t] = (off > _BREAK) & seen[t]
        likely[t] = np.where(seen[t], np.exp(-0.5 * np.minimum(off, 60)) / np.sqrt(spread), 1.0)
        unsure = np.where(fresh[t], _UNKNOWN, unsure)
        gain = np.where(seen[t], unsure / (unsure + scatter + noise[t]), 0.0)
        level, unsure = level + gain * (counts[t] - level), unsure * (1 - gain)
        mean[t], variance[t] = level, unsure
    for t in range(windows - 2, -1, -1):  # backwards, but not across a new level
        gain = np.where(fresh[t + 1], 0.0, variance[t] / (variance[t] + drift + 1e-300))
        ahead = variance[t] + drift
        mean[t] += gain * (mean[t + 1] - mean[t])
        variance[t] += np.square(gain) * (variance[t + 1] - ahead)
    any_of = np.full((len(_MODELS), 1), 1 / len(_MODELS))
    weights = _weights(likely, any_of)
    for _ in range(_ROUNDS if alike else 0):
        of_key = (weights * seen[:, None]).sum(axis=0) / np.maximum(1, seen.sum(axis=0))
        known = of_key.sum(axis=1, keepdims=True) + _OF_ANY * any_of
        weights = _weights(likely, _LEARNED * known / known.sum() + (1 - _LEARNED) * any_of)
    own = scatter / (noise[:, None] + scatter)
    found = mean + own * (counts[:, None] - mean)
    errors = variance * np.square(1 - own) + own * noise[:, None]
    estimates = (weights * found).sum(axis=1)
    spread = np.sqrt((weights * (errors + np.square(found - estimates[:, None]))).sum(axis=1))
    return np.where(seen, estimates, np.nan), np.where(seen, NORMAL * spread, np.nan)


def _weights(likely: Floats, prior: Floats) -> Floats:
    """Return the probability of each model in each window: another one takes over as if drawn from the prior."""
    weights, before, after = np.empty_like(likely), prior, np.ones(likely.shape[1:])
    for t in range(len(likely)):
        weights[t] = before * likely[t] + 1e-300
        before = (1 - _SWITCH) * weights[t] / weights[t].sum(axis=0) + _SWITCH * prior
    for t in range(len(likely) - 1, -1, -1):
        weights[t] *= after
        after = after * likely[t] + 1e-300
        after = (1 - _SWITCH) * after + _SWITCH * (prior * after).sum(axis=0)
        after /= after.sum(axis=0)
    weights /= weights.sum(axis=1, keepdims=True)
    return weights


def rises(smoothed: Floats, counts: ArrayLike, stddev: float, back: int) -> Floats:
    """Return by how much smoothed numbers are above those `back` windows before, and the ends of 95% intervals.

    All are of shape (3, windows, keys), but for the counts of one number for each; nan where there is none.
    Errors of both ends are added as if independent: intervals are too wide rather than too narrow, but never wider
    than the noise of the difference of both counts says. No number is below 0, so that none rose by more than it has.
    """
    noisy = np.asarray(counts, np.float64)
    found = np.full((3, *noisy.shape), np.nan)
    if back < len(noisy):
        known = np.maximum(smoothed, 0.0)
        (now, low, high), (past, past_low, past_high) = known[:, back:], known[:, :-back]
        difference = now - past
        most = np.abs(difference - (noisy[back:] - noisy[:-back])) + NORMAL * np.sqrt(2) * stddev
        down, up = np.hypot(now - low, past_high - past), np.hypot(high - now, past - past_low)
        found[:, back:] = difference, difference - np.minimum(down, most), difference + np.minimum(up, most)
        found[1] = np.minimum(found[1], known[1])
    return np.asarray(np.round(found, DIGITS))


def smooth_row(estimates: ArrayLike, lower: ArrayLike, upper: ArrayLike, period: int = 0) -> Floats:
    """Return one number for each window, and the ends of their intervals, (3, windows), smoothed by what these say.

    What numbers have in common in each period, such as a day of hours, is taken away before and added again after. A
    number keeps its own interval where that is narrower.

    95% intervals say how large the noise is; `period` is how many windows may repeat themselves, or 0.
    """
    number, low, high = (np.asarray(each, np.float64) for each in (estimates, lower, upper))
    stddev = np.maximum(np.maximum(high - number, number - low) / NORMAL, _LEAST_STDDEV)  # ends may be cut off at 0
    common, unsure = _rhythm(number, period)
    estimate, half = (each[:, 0] for each in _averaged((number - common)[:, None], stddev[:, None], alike=False))
    reach = np.hypot(_ALONE * half, NORMAL * unsure * np.median(stddev))
    own, estimate = np.array([number, low, high]), estimate + common
    smoothed = np.array([estimate, estimate - reach, estimate + reach])
    return _apart(np.where(2 * reach > high - low, own, smoothed), own)


def _rhythm(numbers: Floats, period: int) -> tuple[Floats, Floats]:
    """Return the level of each period times a shape that all have, and its noise in deviations of that of a number.

    Noise moves a product of unit vectors u and v, to first order, by a variance of u^2 + v^2 where they meet.
    Zeros where there are fewer than three periods, or numbers are nearer to their neighbours than to that.
    """
    cycles = len(numbers) // period if period > 1 else 0
    if cycles >= _CYCLES:
        shape = np.linalg.svd(numbers[: cycles * period].reshape(cycles, period), full_matrices=False)[2][0]
        shapes = np.resize(shape, len(numbers))
        starts = np.arange(0, len(numbers), period)
        squares = np.add.reduceat(np.square(shapes), starts)
        levels = np.add.reduceat(numbers * shapes, starts) / squares
        of_level, squares = (np.repeat(each, period)[: len(numbers)] for each in (levels, squares))
        common = shapes * of_level
        if np.square(numbers - common).sum() < np.square(np.diff(numbers)).sum() / 2:
            return common, np.sqrt(np.square(of_level) / np.square(levels[:cycles]).sum() + np.square(shapes) / squares)
    return np.zeros(len(numbers)), np.zeros(len(numbers))


@dataclass(frozen=True)
class SmoothedWindows:
    """What is shown of one number of each window of a run that has ended, or of several that a column tells apart."""

    shown: str  # column with the number that is shown; `noisy` has that of the window alone
    by: str = ""  # column that tells numbers of a window apart; empty where there is one
    logarithmic: bool = False  # whether numbers are smoothed as logarithms
    length: int = 0  # of a window, in microseconds: hours repeat themselves by days, and days by weeks
    ends: tuple[float, float] = (-np.inf, np.inf)  # of the range of all numbers

    @property
    def period(self) -> int:
        """Windows after which numbers may repeat themselves; 0 for none."""
        whole = WEEK if self.length == DAY else DAY
        return whole // self.length if self.length and whole % self.length == 0 else 0

    def __call__(self, table: pa.Table) -> pa.Table:
        """Return the same rows; those of which windows say too little to be averaged stay as they are.

        These have no interval, or one that reaches an end of the range or is far from symmetric: their errors are on
        one side, and do not average out.
        """
        names = self.shown, "lower", "upper"
        found = np.array([table[name].to_numpy() for name in names], np.float64)
        released = np.array([table["noisy"].to_numpy(), *found[1:]], np.float64)
        numbers = np.log(released) if self.logarithmic else released
        sides = np.abs(numbers[1:] - numbers[0])
        averaged = (released[1] > self.ends[0]) & (released[2] < self.ends[1])
        averaged &= (sides.max(axis=0) <= _LOPSIDED * sides.min(axis=0)) | (not self.by)
        starts = table["window_start"].to_numpy()
        whose = table[self.by].to_numpy() if self.by else np.zeros(len(table))
        order = np.argsort(starts, kind="stable")
        order = order[~np.isnan(released[:, order]).any(axis=0)]
        for one in np.unique(whose):
            rows = order[whose[order] == one]
            if not len(rows):
                continue
            number, lower, upper = numbers[:, rows]
            made = smooth_row(number, lower, upper, self.period)
            made = np.exp(made) if self.logarithmic else np.maximum(made, min(lower.min(), 0.0))
            found[:, rows] = np.where(averaged[rows], meaningful(*made).clip(*self.ends), found[:, rows])
        if self.by:
            _rising(found, np.lexsort((whose, starts)), starts)
        return with_columns(table, dict(zip(names, found, strict=True)))


def _rising(found: Floats, order: Integers, starts: Integers) -> None:
    """Let numbers and ends of one window not fall, in an order of rows by window; ends only move outwards."""
    for rows in np.split(order, np.flatnonzero(np.diff(starts[order])) + 1):
        number, lower, upper = found[:, rows]
        lower = np.minimum.accumulate(lower[::-1])[::-1]
        found[:, rows] = np.maximum.accumulate(number), lower, np.maximum.accumulate(upper)
