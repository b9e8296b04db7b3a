"""Means of noisy sums and counts, and their bounds."""

import numpy as np
from privstream.mechanisms.keyed_counts.keyed_counts import means_with_bounds


def test_mean_bounds_cover_all_that_sums_and_counts_allow():
    rng = np.random.default_rng(3)
    for low, high in ((0, 9), (-9, 9)):
        true_counts = rng.integers(1, 60, 20_000)
        true_sums = rng.integers(low * true_counts, high * true_counts + 1)
        sums, counts = true_sums + rng.integers(-40, 41, 20_000), true_counts + rng.integers(-15, 16, 20_000)
        means, bounds = means_with_bounds(sums, counts, sum_bound=40, count_bound=15, low=low, high=high)
        assert np.all(abs(means - true_sums / true_counts) <= bounds + 1e-12)
