"""The audit toolkit: it never claims more than is true, finds most of what there is, and takes enough samples."""

import math

import numpy as np
import pytest
from attacks import falls, lower_delta, lower_epsilon, stands
from laws import FALSE_ALARM, MISS, samples_to_tell, trials_to_refute
from privstream.mechanisms.privacy.accounting import PureDp
from scipy import stats


def responses(epsilon, size, seed=1):
    """Codes of randomised response in two worlds, whose order says nothing: what they show is exactly epsilon."""
    lies = np.random.default_rng(seed).random((2, size)) < 1 / (1 + math.exp(epsilon))
    return np.where(lies, [[7], [3]], [[3], [7]])


@pytest.mark.parametrize("epsilon", [0.25, 1.0, 4.0])
def test_randomised_response(epsilon):
    one, other = responses(epsilon, 60_000)
    assert 0.6 * epsilon < lower_epsilon(one, other) <= epsilon
    half = epsilon / 2
    true_delta = (math.exp(epsilon) - math.exp(half)) / (1 + math.exp(epsilon))
    assert 0.3 * true_delta < lower_delta(one, other, half) <= true_delta
    assert lower_delta(one, other, epsilon) == 0


def test_a_leak_with_small_probability_is_found_as_delta():
    rng = np.random.default_rng(5)
    one, other = rng.integers(0, 50, (2, 200_000))
    one[rng.random(len(one)) < 0.002] = 77
    assert 0.0008 < lower_delta(one, other, 1.0) <= 0.002
    assert lower_epsilon(one, other) > 2
    assert lower_epsilon(one, other, delta=0.003) < 0.1


def test_equal_worlds_give_no_evidence():
    one, other = np.random.default_rng(6).integers(0, 1000, (2, 200_000))
    assert lower_epsilon(one, other) == 0
    assert lower_delta(one, other, 0.0) < 0.01


def test_what_stands_does_not_fall():
    worlds = responses(1.0, 5_000)
    stands(worlds, 1.0, visible=0.7)
    stands([list(zip(world, world, strict=True)) for world in worlds.tolist()], 1.0, visible=0.7)
    stands(worlds, 1.0, curve=PureDp(1.0))
    falls(worlds, 0.5)
    falls(worlds, 0.5, delta=0.1)
    for wrong in (
        lambda: stands(worlds, 0.5),
        lambda: stands(worlds, 1.0, visible=1.0),
        lambda: stands(worlds, 0.5, curve=PureDp(0.5)),
        lambda: falls(worlds, 1.0),
        lambda: falls(worlds, 0.5, delta=0.5),
    ):
        with pytest.raises(AssertionError):
            wrong()


def test_numbers_of_samples_are_enough_and_not_many_more():
    """By the laws of the very tests that these numbers are for."""
    draws = samples_to_tell([0.5, 0.5], [0.4, 0.6])
    accepted = np.arange(draws + 1)[
        stats.chi2.sf((np.arange(draws + 1) - draws / 2) ** 2 / (draws / 4), 1) > FALSE_ALARM
    ]
    assert 1e-6 < stats.binom.pmf(accepted, draws, 0.4).sum() < 1.5 * MISS
    trials = trials_to_refute(0.6, 0.1, 1.0)
    one, other = (np.random.default_rng(1).random((2, trials)) < [[0.6], [0.1]]).astype(int)
    assert lower_epsilon(np.tile(one, 2), np.tile(other, 2)) > 1.0
    assert lower_epsilon(one[: trials // 2], other[: trials // 2]) < 1.0
