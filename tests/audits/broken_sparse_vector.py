"""Published algorithms that are not private: Lyu, Su, Li (2017), Understanding the Sparse Vector Technique, Figure 1.

Each takes one vector of true answers (threshold 0) and returns the answers of `runs` independent runs, shape
(runs, queries). Queries after the halt are misses.
"""

import numpy as np


def algorithm_3(values, epsilon, max_hits, runs, rng):
    """Roth (2011): a hit publishes the very noisy value that passed the test. NaN is a miss. Infinite epsilon."""
    threshold = rng.laplace(scale=2 / epsilon, size=(runs, 1))
    noisy = values + rng.laplace(scale=2 * max_hits / epsilon, size=(runs, len(values)))
    return np.where(_until(noisy >= threshold, max_hits), noisy, np.nan)


def algorithm_4(values, epsilon, max_hits, runs, rng):
    """Lee and Clifton (2014): query noise does not grow with the number of hits. (1 + 6 max_hits) / 4 epsilon."""
    threshold = rng.laplace(scale=4 / epsilon, size=(runs, 1))
    noisy = values + rng.laplace(scale=4 / (3 * epsilon), size=(runs, len(values)))
    return _until(noisy >= threshold, max_hits)


def algorithm_5(values, epsilon, runs, rng):
    """Stoddard, Chen, Machanavajjhala (2014): no noise on queries, no bound on hits. Infinite epsilon."""
    return values >= rng.laplace(scale=2 / epsilon, size=(runs, 1))


def algorithm_6(values, epsilon, runs, rng):
    """Chen, Xiao, Zhang, Xu (2015): one noisy threshold for any number of hits. Infinite epsilon."""
    threshold = rng.laplace(scale=2 / epsilon, size=(runs, 1))
    return values + rng.laplace(scale=2 / epsilon, size=(runs, len(values))) >= threshold


def sparse_vector(values, epsilon, max_hits, runs, rng):
    """Their Algorithm 1, which is private: the control of the controls."""
    threshold = rng.laplace(scale=2 / epsilon, size=(runs, 1))
    noisy = values + rng.laplace(scale=4 * max_hits / epsilon, size=(runs, len(values)))
    return _until(noisy >= threshold, max_hits)


def _until(hits, max_hits):
    """Return the hits up to and including the `max_hits`-th of each run."""
    return hits & (np.cumsum(hits, axis=1) <= max_hits)
