"""The minimum and the root of a function of one number, without a library that takes a quarter of a second to load."""

from __future__ import annotations

import math
from collections.abc import Callable

GOLDEN = 0.5 * (3.0 - math.sqrt(5.0))
"""The shorter part of an interval that is cut by the golden section."""

ROOT = math.sqrt(2.2e-16)
"""Of the precision of numbers: nearer to a minimum a function looks constant."""

Point = tuple[float, float]
"""A place, and the value of the function."""

MOST_CALLS = 500
MOST_STEPS = 100

RELATIVE = 8.881784197001252e-16
"""Of a place, that it may be off by, however small the tolerance is."""


def minimum(
    function: Callable[[float], float], low: float, high: float, tolerance: float = 1e-5
) -> tuple[float, float]:
    """Return where a function has a local minimum between two bounds, and the minimum.

    A parabola through the last three points shows where to look next, and the golden section where it does not help.
    All numbers are those of `scipy.optimize.minimize_scalar` with method "bounded", bit for bit: calibrations of noise
    depend on them.

    Args:
        function: continuous, with one local minimum.
        low: the lower bound.
        high: the upper bound.
        tolerance: how far off the place may be.

    Source: Brent, Algorithms for Minimization without Derivatives, 1973, section 5.8.
    """
    best = second = third = low + GOLDEN * (high - low)
    least = less = more = function(best)
    step = before = 0.0
    for _ in range(MOST_CALLS - 1):
        middle = 0.5 * (low + high)
        near = ROOT * abs(best) + tolerance / 3.0
        if abs(best - middle) <= 2.0 * near - 0.5 * (high - low):
            break
        last, before = before, step
        towards = _vertex((best, least), (second, less), (third, more)) if abs(last) > near else None
        if towards is not None and _inside(*towards, low - best, high - best, last):
            step = towards[0] / towards[1]
            if min(best + step - low, high - (best + step)) < 2.0 * near:
                step = near if middle >= best else -near
        else:
            before = (low if best >= middle else high) - best
            step = GOLDEN * before
        place = best + math.copysign(max(abs(step), near), step or 1.0)
        value = function(place)
        if value <= least:
            low, high = (best, high) if place >= best else (low, best)
            third, more, second, less, best, least = second, less, best, least, place, value
            continue
        low, high = (place, high) if place < best else (low, place)
        if value <= less or second == best:
            third, more, second, less = second, less, place, value
        elif value <= more or third in (best, second):
            third, more = place, value
    return best, least


def _vertex(best: Point, second: Point, third: Point) -> tuple[float, float]:
    """Return the way from the best of three points to the lowest of the parabola through them: a fraction."""
    one = (best[0] - second[0]) * (best[1] - third[1])
    other = (best[0] - third[0]) * (best[1] - second[1])
    over = (best[0] - third[0]) * other - (best[0] - second[0]) * one
    below = 2.0 * (other - one)
    return (-over if below > 0.0 else over), abs(below)


def _inside(over: float, below: float, low: float, high: float, last: float) -> bool:
    """Tell whether a way lies within bounds, and is less than half of the one before the last."""
    return abs(over) < abs(0.5 * below * last) and below * low < over < below * high


def root(function: Callable[[float], float], low: float, high: float, tolerance: float) -> float:
    """Return where a continuous function is zero, between two points of which it has different signs.

    A line through two points, or a parabola through three, shows where to look next, and the middle where these do not
    help. All numbers are those of `scipy.optimize.brentq`, bit for bit.

    Args:
        function: continuous.
        low, high: where it has different signs.
        tolerance: how far off the place may be.

    Source: Brent, Algorithms for Minimization without Derivatives, 1973, chapter 4.
    """
    other, now, opposite = (low, function(low)), (high, function(high)), (0.0, 0.0)
    for place, value in (other, now):
        if value == 0:
            return place
    if (other[1] < 0) == (now[1] < 0):
        raise ValueError(f"function must have different signs at {low} and {high}")
    step = before = 0.0
    for _ in range(MOST_STEPS):
        if other[1] != 0 and now[1] != 0 and (other[1] < 0) != (now[1] < 0):
            opposite = other
            step = before = now[0] - other[0]
        if abs(opposite[1]) < abs(now[1]):
            other, now, opposite = now, opposite, now
        near, half = (tolerance + RELATIVE * abs(now[0])) / 2, (opposite[0] - now[0]) / 2
        if now[1] == 0 or abs(half) < near:
            break
        before, last, step = step, before, half
        if abs(last) > near and abs(now[1]) < abs(other[1]):
            towards = _crossing(other, now, opposite)
            if 2 * abs(towards) < min(abs(last), 3 * abs(half) - near):
                step = towards
            else:
                before = half
        else:
            before = half
        other, place = now, now[0] + (step if abs(step) > near else math.copysign(near, half))
        now = place, function(place)
    return now[0]


def _crossing(other: Point, now: Point, opposite: Point) -> float:
    """Return the way from the best of three points to where a curve through them is zero; two of them may be one."""
    if other[0] == opposite[0]:
        return -now[1] * (now[0] - other[0]) / (now[1] - other[1])
    one = (other[1] - now[1]) / (other[0] - now[0])
    two = (opposite[1] - now[1]) / (opposite[0] - now[0])
    return -now[1] * (opposite[1] * two - other[1] * one) / (two * one * (opposite[1] - other[1]))
