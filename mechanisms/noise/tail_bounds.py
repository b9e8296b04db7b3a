"""Chernoff bounds for sums of independent integer noises, at one step and over all prefixes of a binary tree."""

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms import checks
from privstream.mechanisms.noise.discrete import DiscreteGaussian, DiscreteLaplace
from scipy import optimize

Floats = NDArray[np.float64]
Law = DiscreteLaplace | DiscreteGaussian


def log_moment(law: Law, rate: float, weights: Floats) -> Floats:
    """Return upper bounds of ln E[e^(rate w X)] for each weight w.

    Exact for the discrete Laplace law; the discrete Gaussian is at most sigma^2-subgaussian (Canonne, Kamath, Steinke
    2020, Corollary 17).
    """
    weights = np.abs(weights)
    if isinstance(law, DiscreteGaussian):
        return 0.5 * (law.sigma * rate * weights) ** 2
    decay = math.exp(-1 / law.scale)
    with np.errstate(over="ignore", divide="ignore", invalid="ignore"):
        product = (1 - decay) ** 2 / ((1 - decay * np.exp(rate * weights)) * (1 - decay * np.exp(-rate * weights)))
    return np.where(rate * weights < 1 / law.scale, np.log(np.maximum(product, 1.0)), np.inf)


def minimal_bound(exponent: Callable[[float], float], law: Law, largest_weight: float, rest: float) -> float:
    """Return the minimum over rates of (exponent(rate) + rest) / rate: where a Chernoff bound reaches e^-rest."""
    if isinstance(law, DiscreteGaussian):
        limits = (-12.0, 8.0)
        unit = 1 / (law.sigma * largest_weight)
    else:
        limits = (-12.0, -1e-9)
        unit = 1 / (law.scale * largest_weight)

    def bound(log_rate: float) -> float:
        rate = unit * math.exp(log_rate)
        return (exponent(rate) + rest) / rate

    found: Any = optimize.minimize_scalar(bound, bounds=limits, method="bounded", options={"xatol": 1e-6})
    return float(found.fun)


def sums_quantile(parts: Sequence[tuple[Law, int]], columns: int, beta: float) -> float:
    """Return z with Pr[|X| > z in any of `columns` columns] <= beta, X the sum of so many noises of each law."""
    rest = math.log(2 * columns / checks.probability("beta", beta))
    widest = max((law for law, _ in parts), key=lambda law: law.variance)

    def exponent(rate: float) -> float:
        return sum(count * float(log_moment(law, rate, np.ones(1))[0]) for law, count in parts)

    return minimal_bound(exponent, widest, 1.0, rest)


def union_quantile(
    law: Law, moments: Callable[[float], Floats], largest_weight: float, steps: int, columns: int, beta: float
) -> float:
    """Return z that no prefix 1 .. `steps` exceeds, in any column, with probability 1 - beta.

    The noise of a prefix has one independent part for each set bit h of its length; `moments(rate)[h]` is its log
    moment. The sum over prefixes of e^(sum over bits of k_h) is a product over levels: no prefix is visited.
    """
    rest = math.log(2 * columns / checks.probability("beta", beta))

    def exponent(rate: float) -> float:
        parts = moments(rate)
        total, above = -math.inf, 0.0  # prefixes that share the leading bits of `steps`, then have a 0 for its 1
        for height in reversed(range(steps.bit_length())):
            if steps >> height & 1:
                below = above + float(np.logaddexp(0.0, parts[:height]).sum())
                total = float(np.logaddexp(total, below))
                above += float(parts[height])
        return float(np.logaddexp(total, above))

    return minimal_bound(exponent, law, largest_weight, rest)
