"""What a model of the noise makes of whole transcripts: how far one person moves them, in units of that noise.

Without a model, thousands of trials cannot bound epsilon at a delta of 1e-6, nor see noise that is 15% too small. With
one they can. Models of noise say that answers are sums over people, so that a crowd of `people` moves them so many
times as far as one, with noise that does not depend on the data: normal noise with any correlation, or independent
discrete Laplace noise in each number. The model of hidden tests is that of the clock: a test is missed with probability
e^-H, and each person multiplies H by the same factor, so that a crowd multiplies it by a power of that factor. If noise
is what the model says, the bounds hold with the probability that is stated.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import Literal, NamedTuple

import numpy as np
from privstream.mechanisms.arrays import Floats
from privstream.mechanisms.monitor.clock import ClockCurve
from privstream.mechanisms.monitor.status import StatusCurve
from privstream.mechanisms.privacy.accounting import (
    GaussianCurve,
    PointCurve,
    PrivacyCurve,
    PureDp,
    SlackCurve,
    largest_shift,
)
from scipy import stats

Law = Literal["Gaussian", "Laplace", "clock"]

CHOOSING = 4
"""One part in so many of the trials chooses events, or says where to look; the others are measured."""

INTERVAL = 0.05
"""`measured` is the lower end of an interval that misses the truth so often."""

LESS_NOISE = 0.85
"""The control of a fit has so much of the noise that is claimed; it must be refuted."""

CROWDED = 20
"""One trial in so many has the crowd. What it moves is seen in few trials, as the crowd is large; how large the noise
is, which is the same without it, takes many. Of tests it is every second trial."""

TESTED = 0.15, 3.5
"""H of a hidden test without the crowd and with it: so its factor is known best."""

_SEEN = 30.0  # deviations of the noise by which a crowd moves the transcript
_TRIALS_PER_NUMBER = 20  # so many are enough to know how the noise of numbers goes together
_TOUCHED = 0.3  # of the largest shift of a number: what moves less is left out


def law_of(curve: PrivacyCurve) -> Law | None:
    """Return the noise that a privacy curve is that of; None if it is of other tests, or of several mechanisms."""
    inner = _inner(curve)
    if isinstance(inner, GaussianCurve):
        return "Gaussian"
    if isinstance(inner, ClockCurve | StatusCurve):
        return "clock"
    return "Laplace" if isinstance(inner, PureDp) else None


def _inner(curve: PrivacyCurve) -> PrivacyCurve:
    """Return a curve without its slack."""
    return curve.curve if isinstance(curve, SlackCurve) else curve


def one_in(curve: PrivacyCurve) -> int:
    """Return in which part of the trials the crowd is: one in so many."""
    return 2 if law_of(curve) == "clock" else CROWDED


def crowd_size(curve: PrivacyCurve, numbers: int) -> int:
    """Return how many people at once are seen clearly, in so many numbers that each of them moves by 1."""
    inner = _inner(curve)
    if isinstance(inner, GaussianCurve):
        return math.ceil(_SEEN / inner.shift)
    if isinstance(inner, ClockCurve | StatusCurve):
        return math.ceil(math.log(TESTED[1] / TESTED[0]) / inner.eta)
    assert isinstance(inner, PointCurve)
    return math.ceil(_SEEN * math.sqrt(numbers) / inner.at_epsilon)


def with_less_noise(epsilon: float, delta: float) -> float:
    """Return the epsilon at which noise is `LESS_NOISE` times that of this budget: Laplace noise if delta is 0."""
    if delta == 0:
        return epsilon / LESS_NOISE
    return GaussianCurve(shift=largest_shift(epsilon, delta) / LESS_NOISE).epsilon(delta)


class Fit(NamedTuple):
    """What the transcripts of a crowd say of one of its people, if noise is as the model says.

    Attributes:
        law: of the noise, in the model.
        measured: lower end of the 95% interval of the epsilon that there is at the claimed delta.
        least: a lower bound of it that is wrong as rarely as those of an audit.
    """

    law: Law
    measured: float
    least: float


def fit(
    one: Floats, other: Floats, people: int, curve: PrivacyCurve, delta: float, wrong: float, *, apart: bool = False
) -> Fit:
    """Return what transcripts with and without a crowd say.

    Args:
        one: with the crowd, (trials, numbers). Of hidden tests: 1 where one is passed, else 0.
        other: without it, (trials, numbers).
        people: in the crowd; all of them send the same.
        curve: what is claimed, of Gaussian or Laplace noise, or of hidden tests.
        delta: that is claimed.
        wrong: probability with which `least` may be too large.
        apart: whether the model says that normal noise is independent in each number. Then its deviation is known as
            well as all of them together say, and a person who moves one number more is seen.
    """
    law = law_of(curve)
    assert law is not None
    if law == "clock":
        bound: Callable[[float], float] = partial(_clock, one, other)
        return Fit(law, *(_epsilon(curve, delta, bound(w) / people) for w in (INTERVAL / 2, wrong)))
    choosing, measuring = zip(*(np.split(each, [len(each) // CHOOSING]) for each in (one, other)), strict=True)
    first, second = measuring
    if law == "Gaussian":
        bound = partial(_gaussian, *(each @ _directions(*choosing) for each in measuring))
        if apart:
            bound = partial(_larger, bound, partial(_independent, first, second, _apart(*choosing)))
    else:
        bound = partial(_laplace, first, second, _touched(*choosing))
    measured, least = (_epsilon(curve, delta, bound(w) / people) for w in (INTERVAL / 2, wrong))
    return Fit(law, measured, least)


def _epsilon(curve: PrivacyCurve, delta: float, found: float) -> float:
    """Return the epsilon at delta of a curve whose noise shows so much of one person: a shift, eta, or an epsilon."""
    if found <= 0:
        return 0.0
    inner = _inner(curve)
    seen: PrivacyCurve
    if isinstance(inner, ClockCurve | StatusCurve):
        seen = replace(inner, eta=found)
    elif isinstance(inner, GaussianCurve):
        seen = GaussianCurve(shift=found)
    else:
        return found
    return (replace(curve, curve=seen) if isinstance(curve, SlackCurve) else seen).epsilon(delta)


def _directions(one: Floats, other: Floats) -> Floats:
    """Return the weights by which normal transcripts are told apart best (Fisher's), where there are trials enough to
    know how the noise of numbers goes together; else as if it were independent.
    """
    off = np.concatenate([each - each.mean(axis=0) for each in (one, other)])
    if off.shape[1] * _TRIALS_PER_NUMBER > len(off):
        return _apart(one, other)
    difference = one.mean(axis=0) - other.mean(axis=0)
    scale = np.sqrt(np.maximum(np.mean(off**2, axis=0), np.finfo(float).tiny))
    alike = (off / scale).T @ (off / scale) / len(off)
    return np.asarray(np.linalg.lstsq(alike, difference / scale, rcond=1e-9)[0] / scale)


def _apart(one: Floats, other: Floats) -> Floats:
    """Return the weights by which normal transcripts are told apart best if noise is independent in each number."""
    variances = np.maximum((_squares(one) + _squares(other)) / (len(one) + len(other)), np.finfo(float).tiny)
    return np.asarray((one.mean(axis=0) - other.mean(axis=0)) / variances)


def _squares(transcripts: Floats) -> Floats:
    """Return the sums of squares around the mean of each number."""
    return np.asarray(np.sum((transcripts - transcripts.mean(axis=0)) ** 2, axis=0))


def _larger(one: Callable[[float], float], other: Callable[[float], float], wrong: float) -> float:
    """Return the larger of two lower bounds."""
    return max(one(wrong / 2), other(wrong / 2))


def _gaussian(one: Floats, other: Floats, wrong: float) -> float:
    """Return a lower bound of the shift between the normal laws of two scores, in deviations."""
    free = len(one) + len(other) - 2
    square = float(_squares(one) + _squares(other)) / free
    moved = float(one.mean() - other.mean())
    return _shift(moved, square * (1 / len(one) + 1 / len(other)), square, free, wrong)


def _independent(one: Floats, other: Floats, weights: Floats, wrong: float) -> float:
    """Return a lower bound of the same shift, where noise is independent in each number.

    The variance of the score is the sum of those of numbers, by weights: as if it were known from so many more trials
    (Satterthwaite 1946).
    """
    free = len(one) + len(other) - 2
    parts = weights**2 * (_squares(one) + _squares(other)) / free
    square = float(parts.sum())
    known = free * square**2 / max(float(parts @ parts), np.finfo(float).tiny)
    moved = float((one.mean(axis=0) - other.mean(axis=0)) @ weights)
    return _shift(moved, square * (1 / len(one) + 1 / len(other)), square, max(known, 1.0), wrong)


def _shift(moved: float, variance: float, square: float, known: float, wrong: float) -> float:
    """Return a lower bound of a distance in deviations, by the normal law of a mean beside a deviation.

    That is the usual one of the noncentral law of Student, and on the safe side where it is the deviation that errs.

    Args:
        moved: the difference of two means.
        variance: of that difference.
        square: of the deviation.
        known: from so many degrees of freedom.
        wrong: probability with which the bound may be too large.
    """
    square = max(square, np.finfo(float).tiny)
    found = moved / math.sqrt(square)
    error = math.sqrt(variance / square + found**2 / (2 * known))
    return found * (1 - 1 / (4 * known)) - float(stats.norm.isf(wrong)) * error


def _clock(one: Floats, other: Floats, wrong: float) -> float:
    """Return a lower bound of the logarithm of the factor of a crowd, of hidden tests that are alike.

    Both probabilities are bounded by Clopper and Pearson (1934).
    """
    passed = float(stats.beta.ppf(wrong / 2, max(one.sum(), 1), one.size - one.sum() + 1)) if one.any() else 0.0
    others = float(stats.beta.isf(wrong / 2, other.sum() + 1, max(other.size - other.sum(), 1)))
    if not 0 < passed < 1 or not 0 < others < 1:
        return 0.0
    return math.log(-math.log1p(-passed)) - math.log(-math.log1p(-others))


def _touched(one: Floats, other: Floats) -> Floats:
    """Return by number the sign of its shift, or 0 where a crowd hardly moves it."""
    shifts = one.mean(axis=0) - other.mean(axis=0)
    return np.asarray(np.where(np.abs(shifts) >= _TOUCHED * np.abs(shifts).max(), np.sign(shifts), 0.0))


def _off(transcripts: Floats) -> Floats:
    """Return how far numbers are from their medians."""
    return np.asarray(np.abs(transcripts - np.median(transcripts, axis=0)))


def _rates(off: Floats) -> tuple[Floats, Floats]:
    """Return the inverse scales of discrete Laplace noise, and their variances, (numbers,).

    The mean absolute value m of such noise of scale b is 1 / sinh(1 / b).
    """
    means = np.maximum(np.mean(off, axis=0), 1e-9)
    return np.arcsinh(1 / means), np.var(off, axis=0) / len(off) / (means**2 * (means**2 + 1))


def _laplace(one: Floats, other: Floats, weights: Floats, wrong: float) -> float:
    """Return a lower bound of the sum of shifts, each in scales of its noise, by the normal law of means."""
    shifts = (one.mean(axis=0) - other.mean(axis=0)) * weights
    variances = np.var(one, axis=0) / len(one) + np.var(other, axis=0) / len(other)
    rates, errors = _rates(np.concatenate([_off(one), _off(other)]))
    touched = weights != 0
    total = float(shifts[touched] @ rates[touched])
    variance = float(variances[touched] @ rates[touched] ** 2 + shifts[touched] ** 2 @ errors[touched])
    return total - float(stats.norm.isf(wrong)) * math.sqrt(variance)
