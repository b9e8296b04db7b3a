"""Attacks on online multiplicative weights: it must stand, and without noise on tests or values it must fall."""

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.selection.multiplicative_weights import LinearQueries, OnlineMultiplicativeWeights

pytestmark = pytest.mark.slow

QUERIES = 6
BROKEN_RUNS = 600
"""Power: each mistake makes the worlds all but disjoint: 500 tested runs of each show 2.9, give or take 0.04."""
# One record more or less; the first test has the threshold 10 (0.5 + 0.85), rounded up to 14.
WORLDS = (np.array([13, 0]), np.array([14, 0]))


def outcomes(mechanism, counts, seed, runs):
    """Code which answers were measured, and the sum of the measured values."""
    given = LinearQueries(counts, np.tile([1, 0], (QUERIES, 1)))
    codes = []
    for run in range(runs):
        _, answers = mechanism.step(mechanism.initial_state(), given, SeededNoise(seed).derive(run))
        measured = np.zeros(QUERIES, dtype=np.int64)
        measured[: len(answers.values)] = answers.measured
        total = np.clip(answers.values[answers.measured].sum() - 13 * measured.sum() + 8, 0, 15)
        codes.append(int(measured @ 2 ** np.arange(QUERIES)) * 16 + int(total))
    return np.array(codes)


def worlds(claimed, seed, runs, **scales):
    mechanism = OnlineMultiplicativeWeights(epsilon=claimed, domain_size=2, records=10, alpha=0.85)
    assert mechanism.max_updates == 4
    mechanism.tests.__dict__.update(scales)
    return [outcomes(mechanism, counts, seed + world, runs) for world, counts in enumerate(WORLDS)]


def test_online_multiplicative_weights():
    """With a large epsilon, where so few updates tell anything at all."""
    stands(worlds(16.0, 1, 3_000), 16.0, visible=0.2 / 16)


def test_measured_values_without_noise_of_their_own_are_caught():
    """Noise in the choice of what is measured does not cover the measurement."""
    falls(worlds(2.0, 3, BROKEN_RUNS, value_scale=1e-3), 2.0)


def test_tests_with_too_little_noise_are_caught():
    """The noise of a test must cover all updates that the run may make."""
    falls(worlds(2.0, 5, BROKEN_RUNS, threshold_scale=8 / 200), 2.0)
