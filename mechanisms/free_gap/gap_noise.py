"""The noise of the free gap mechanisms: its laws and its checks."""

from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from privstream.mechanisms import checks
from privstream.mechanisms.noise.continuous import Exponential, Gumbel, Laplace
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric
from privstream.mechanisms.noise.gaps import GapLaw, mean
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.privacy.units import PrivacyUnit
from privstream.mechanisms.sparse_vector.hidden_threshold import HiddenThreshold, IntegersOrReals, check_shared
from privstream.mechanisms.sparse_vector.hit_mechanism import UNIT

LAWS = ("exponential", "laplace")


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


def vector(values: ArrayLike, *, integer: bool) -> IntegersOrReals:
    """Return the values of queries as a fresh array of integers or real numbers."""
    return HiddenThreshold(scale=1.0, max_hits=1, integer=integer).vector(values)


def check_parameters(mechanism: Any, threshold: float, *scales: float) -> None:
    """Check the parameters that all free gap mechanisms on queries have, and the noise scales that they give."""
    checks.one_of("noise_law", mechanism.noise_law, LAWS)
    for scale in scales:
        check_shared(threshold, mechanism.integer, mechanism.neighbouring, scale)
    check_monotone(mechanism.monotone, mechanism.neighbouring)


def unit(monotone: bool) -> PrivacyUnit:
    """Return what a guarantee on queries protects."""
    return replace(UNIT, same_direction=monotone)


def check_monotone(monotone: bool, neighbouring: str) -> None:
    """Check that queries are called monotone only where they can be."""
    if not isinstance(monotone, bool):
        raise TypeError(f"monotone must be True or False, got {type(monotone).__name__}")
    if monotone and neighbouring == "replace_one":
        raise ValueError("monotone must be False for replace_one: one count may grow while another one shrinks")


def upper_deviation(law: GapLaw, beta: float) -> float:
    """Return how far noise exceeds its mean with probability at most beta."""
    return law.tail_quantile(beta) - mean(law)


def lower_deviation(law: GapLaw, beta: float) -> float:
    """Return how far noise falls below its mean with probability at most beta."""
    return mean(law) if isinstance(law, Geometric | Exponential) else law.tail_quantile(beta)
