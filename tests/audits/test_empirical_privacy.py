"""The audit toolkit itself: it never claims more than is true, and finds most of what is there."""

import math

import numpy as np
import pytest
from empirical_privacy import lower_delta, lower_epsilon


def randomised_response(epsilon, truth, size, seed):
    lies = np.random.default_rng(seed).random(size) < 1 / (1 + math.exp(epsilon))
    return np.where(lies, 1 - truth, truth)


@pytest.mark.parametrize("epsilon", [0.1, 1.0, 4.0])
def test_randomised_response(epsilon):
    one, other = (randomised_response(epsilon, truth, 400_000, seed=truth) for truth in (0, 1))
    assert 0.6 * epsilon < lower_epsilon(one, other) <= epsilon
    half = epsilon / 2
    true_delta = (math.exp(epsilon) - math.exp(half)) / (1 + math.exp(epsilon))
    assert 0.3 * true_delta < lower_delta(one, other, half) <= true_delta
    assert lower_delta(one, other, epsilon) == 0


def test_a_leak_with_small_probability_is_found_as_delta():
    rng = np.random.default_rng(5)
    one, other = rng.integers(0, 50, 500_000), rng.integers(0, 50, 500_000)
    one[rng.random(500_000) < 0.002] = 77
    assert 0.0008 < lower_delta(one, other, 1.0) <= 0.002
    assert lower_epsilon(one, other) > 2
    assert lower_epsilon(one, other, delta=0.003) < 0.1


def test_equal_worlds_give_no_evidence():
    rng = np.random.default_rng(6)
    one, other = rng.integers(0, 1000, 200_000), rng.integers(0, 1000, 200_000)
    assert lower_epsilon(one, other) == 0
    assert lower_delta(one, other, 0.0) < 0.01
