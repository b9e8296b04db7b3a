"""A release as a Gaussian shift and a slack: the currency in which budgets are kept (docs/proofs/budget.md)."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import NamedTuple

import numpy as np
from privstream.mechanisms.privacy.accounting import (
    FUNCTION_ERROR,
    SUM_ERROR,
    TAIL,
    ComposedCurve,
    GaussianCurve,
    PrivacyCurve,
    SlackCurve,
    point_of,
    smallest,
)
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from scipy import special

GRID = 400  # points at which curves without a known shift are compared with a Gaussian one
SLACK = 0.1  # of its delta, that a release without a known shift may have as slack: less hardly costs any shift
UP = 1 + 1e-9  # shifts are rounded up by so much


class Shift(NamedTuple):
    """A pair of laws that dominates a release: it shows the world with probability `slack`, else is N(0, 1), N(mu, 1).

    >>> round(shift_of_point(1.0, 1e-6).mu, 3)
    1.232
    """

    mu: float
    slack: float


def shift_of(guarantee: PrivacyGuarantee) -> Shift:
    """Return a shift and a slack, at most its delta, that dominate what a guarantee promises to its own unit.

    Privacy: docs/proofs/budget.md, section 1.

    Raises:
        ValueError: its curve does not promise its epsilon and delta.
    """
    point, curve = shift_of_point(guarantee.epsilon, guarantee.delta), guarantee.curve
    if curve is None:
        return point
    if curve.delta(guarantee.epsilon) > guarantee.delta * (1 + SUM_ERROR) + TAIL:
        raise ValueError(f"curve must promise delta {guarantee.delta:g} at epsilon {guarantee.epsilon:g}")
    found = _of_curve(curve, guarantee.delta * SLACK)
    return found if found.slack <= guarantee.delta and found.mu <= point.mu else point


def shift_of_point(epsilon: float, delta: float) -> Shift:
    """Return the shift and the slack of whatever is (epsilon, delta)-differentially private."""
    return Shift(max(0.0, 2 * float(-special.ndtri_exp(-float(np.logaddexp(0.0, epsilon)))) * UP), delta)


def _of_curve(curve: PrivacyCurve, slack: float) -> Shift:
    """Return a shift and a slack that dominate a curve; parts that are neither Gaussian nor points may use `slack`."""
    if isinstance(curve, GaussianCurve):
        return Shift(curve.shift * UP, 0.0)
    if (point := point_of(curve)) is not None:
        return shift_of_point(point.at_epsilon, point.at_delta)
    if isinstance(curve, SlackCurve):
        inner = _of_curve(curve.curve, slack - curve.slack)
        rest = 1 - GaussianCurve(shift=inner.mu).delta(0.0) if 0 < inner.mu < math.inf else float(inner.mu == 0)
        return Shift(inner.mu, inner.slack + curve.slack / rest * UP) if rest else Shift(math.inf, 1.0)
    if isinstance(curve, ComposedCurve):
        return added(_of_curve(part, slack / len(curve.curves)) for part in curve.curves)
    return Shift(_least_shift(curve, slack), slack)


def added(shifts: Iterable[Shift]) -> Shift:
    """Return the shift and the slack of all of them together."""
    found = list(shifts)
    return Shift(math.sqrt(math.fsum(mu * mu for mu, _ in found)), math.fsum(slack for _, slack in found))


def _least_shift(curve: PrivacyCurve, slack: float) -> float:
    """Return a shift near the least one of which the Gaussian curve, with a slack, is nowhere below another curve."""
    top = curve.epsilon(slack) if slack > 0 else math.inf
    if not 0 < top < math.inf:
        return math.inf if top else 0.0
    epsilon = np.linspace(0.0, top, GRID)
    # Both curves fall, so that it is enough to compare each point of a grid with the next one.
    needed = (np.array([curve.delta(float(one)) for one in epsilon[:-1]]) - slack) / (1 - slack)

    def dominates(mu: float) -> bool:
        likely, unlikely = special.ndtr(mu / 2 - epsilon / mu), special.log_ndtr(-mu / 2 - epsilon / mu)
        below = likely * (1 - FUNCTION_ERROR) - np.exp(epsilon + unlikely) * (1 + FUNCTION_ERROR)
        return bool(np.all(needed <= below[1:]))

    high = 1.0
    while not dominates(high):
        high *= 2
        if high > 1e3:
            return math.inf
    return smallest(dominates, 0.0, high, 1e-9)
