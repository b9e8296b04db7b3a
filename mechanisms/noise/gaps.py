"""The noise of gaps: its laws, the difference of two noises, and how far it may be above its mean."""

import math

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.noise.continuous import Exponential, Gumbel, Laplace
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy.accounting import smallest

IntegersOrReals = NDArray[np.int64] | NDArray[np.float64]
GapLaw = Exponential | Laplace | Geometric | DiscreteLaplace


def mean(law: GapLaw) -> float:
    """Return the mean of a noise law."""
    return law.mean if isinstance(law, Geometric | Exponential) else 0.0


def excess_quantile(query: GapLaw, threshold: GapLaw, beta: float) -> float:
    """Return the least t, rounded up, such that a gap exceeds the truth by more than t with probability <= beta.

    The error of a gap is the query's noise minus the threshold's, each less its mean.
    """
    checks.probability("beta", beta)
    if type(query) is not type(threshold):
        raise TypeError(f"laws must be of one kind, got {type(query).__name__} and {type(threshold).__name__}")
    reach = 2 * (query.scale + threshold.scale) * (2 - math.log(min(beta, 1 - beta))) + 2

    def accept(x: float) -> bool:
        return difference_tail(query, threshold, x) <= beta

    if isinstance(query, Geometric | DiscreteLaplace):
        low, high = -math.ceil(reach), math.ceil(reach)
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if accept(middle) else (middle, high)
        return high - mean(query) + mean(threshold)
    return smallest(lambda x: accept(x - reach), 0.0, 2 * reach) - reach - mean(query) + mean(threshold)


def difference_tail(query: GapLaw, threshold: GapLaw, x: float) -> float:
    """Return Pr[A - B > x] for the noise A of a query and B of a threshold, at an integer x if they are integers."""
    if isinstance(query, Geometric | Exponential):
        return _one_sided_tail(query, threshold, x)
    if isinstance(query, Laplace):
        tail = _laplace_tail(1 / query.scale, 1 / threshold.scale, abs(x))
        return tail if x >= 0 else 1 - tail
    start = x + 1 if x >= 0 else -x
    tail = _discrete_laplace_tail(1 / query.scale, 1 / threshold.scale, start)
    return tail if x >= 0 else 1 - tail


def _one_sided_tail(query: GapLaw, threshold: GapLaw, x: float) -> float:
    a, c = query.scale, threshold.scale
    if isinstance(query, Exponential):
        return a / (a + c) * math.exp(-x / a) if x >= 0 else 1 - c / (a + c) * math.exp(x / c)
    # Geometric: Pr[A - B >= m] = (1 - q)/(1 - pq) p^m and Pr[A - B <= -m] = (1 - p)/(1 - pq) q^m for m >= 0.
    total = -math.expm1(-1 / a - 1 / c)
    if x >= 0:
        return math.expm1(-1 / c) / -total * math.exp(-(x + 1) / a)
    return 1 - math.expm1(-1 / a) / -total * math.exp(x / c)


def _laplace_tail(a: float, c: float, x: float) -> float:
    """Return Pr[A - B > x], x >= 0, for Laplace variables of scales 1/a and 1/c; stable where a and c are close."""
    difference = c - a
    if difference < 0:
        return _laplace_tail(c, a, x)
    relative = -math.expm1(-difference * x) / difference if difference else x
    return math.exp(-a * x) * (0.5 + a * a * relative / (2 * (a + c)))


def _discrete_laplace_tail(a: float, c: float, m: float) -> float:
    """Return Pr[A - B >= m], m >= 0, for discrete Laplace variables of scales 1/a and 1/c (docs/proofs/free_gap.md)."""
    if c < a:
        return _discrete_laplace_tail(c, a, m)
    p, q, p1, q1 = math.exp(-a), math.exp(-c), -math.expm1(-a), -math.expm1(-c)
    relative = math.expm1(-(c - a) * (m + 1)) / math.expm1(-(c - a)) if c > a else m + 1
    # 1 + p + q - p^2 - p q - q^2, without cancellation for large scales.
    mixed = p1 * (1 + p) + (p + q) * q1
    first = p * mixed / (1 + p) / (1 + q)
    second = p1**2 * relative / (1 + q)
    return math.exp(-a * m) * (first + second) / -math.expm1(-a - c)


def make_law(name: str, scale: float, *, integer: bool) -> GapLaw:
    """Return the noise of that name for real numbers, or its discrete analogue for integers."""
    if name == "exponential":
        return Geometric(scale) if integer else Exponential(scale)
    return DiscreteLaplace(scale) if integer else Laplace(scale)


def noisy(values: IntegersOrReals, law: GapLaw | Gumbel, labels: Labels, noise: NoiseSource) -> IntegersOrReals:
    """Return values with noise that depends on label and value: see `NoiseSource.bind`."""
    # Adding 0 makes one zero of the two floating-point ones.
    bound = noise.derive("value").bind(labels, (values + 0).view(np.int64))
    total: IntegersOrReals = np.add(values, law.draw(noise.derive("noise"), bound))
    return total


def upper_deviation(law: GapLaw, beta: float) -> float:
    """Return how far noise exceeds its mean with probability at most beta."""
    return law.tail_quantile(beta) - mean(law)


def lower_deviation(law: GapLaw, beta: float) -> float:
    """Return how far noise falls below its mean with probability at most beta."""
    return mean(law) if isinstance(law, Geometric | Exponential) else law.tail_quantile(beta)
