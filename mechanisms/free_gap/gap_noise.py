"""The noise of the free gap mechanisms."""

import numpy as np
from privstream.mechanisms.noise.continuous import Exponential, Gumbel, Laplace
from privstream.mechanisms.noise.discrete import DiscreteLaplace, Geometric
from privstream.mechanisms.noise.gaps import GapLaw, mean
from privstream.mechanisms.noise.sources import Labels, NoiseSource
from privstream.mechanisms.sparse_vector.hidden_threshold import IntegersOrReals


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
