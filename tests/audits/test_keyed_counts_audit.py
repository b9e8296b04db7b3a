"""Exact privacy of counts per key: contributions one by one, both directions, and variants that must fail."""

import math

import numpy as np
import pytest
from privstream.mechanisms import KeyedCounts
from privstream.mechanisms.noise.correlated import BufferedFactor
from privstream.mechanisms.noise.discrete import DiscreteGaussian
from privstream.mechanisms.privacy.accounting import gaussian_sigma, largest_shift

EPSILON, DELTA = 1.0, 1e-3


def noise_of(law):
    reach = math.ceil(9 * math.sqrt(law.variance)) + 12
    return np.arange(-reach, reach + 1)


def shared(law, threshold, others):
    """Return masses without and with u of what is published about a key that `others` people have anyway."""
    noise = noise_of(law)
    found = np.zeros((2, len(noise) + 2))  # the last place: unpublished
    for more in (0, 1):
        values = others + more + noise
        places = np.where(values >= threshold, values - others - noise[0], len(noise) + 1)
        np.add.at(found[more], places, law.pmf(noise))
    return found


def bare(law, threshold, people):
    """Return masses without and with u: unpublished, published."""
    noise = noise_of(law)
    tail = float(law.pmf(noise)[people + noise >= threshold].sum())
    return np.array([[1.0, 0.0], [1 - tail, tail]])


def value(kinds, looks, swapped=False):
    """Return the largest divergence that an adversary reaches who chooses each contribution by what was seen.

    By backward induction over the logarithm of the likelihood ratio, with u against without; `swapped`: of the world
    without u from the one with u.
    """
    grid = np.linspace(-10, 10, 4001)
    ahead = np.maximum(0, -np.expm1(EPSILON + grid) if swapped else -np.expm1(EPSILON - grid))
    for _ in range(looks):
        ahead = np.max([_after(masses, grid, ahead, swapped) for masses in kinds], axis=0)
    return float(np.interp(0.0, grid, ahead))


def _after(masses, grid, ahead, swapped):
    """Return the expectation, in the world that is told from the other, of what follows one look."""
    total = np.zeros_like(ahead)
    for q, p in masses.T[masses.any(axis=0)]:
        one, other = (q, p) if swapped else (p, q)
        if one > 0:
            total += one * (np.interp(grid + math.log(p / q), grid, ahead) if other > 0 else 1.0)
    return total


def kinds_of(law, threshold, people):
    return [bare(law, threshold, people), shared(law, threshold, people), shared(law, threshold, threshold + 200)]


@pytest.mark.parametrize("people", [1, 3])
@pytest.mark.parametrize("contributions", [1, 3, 6])
def test_adaptive_contributions_per_window_stay_within_delta(contributions, people):
    fields = {"over": "start", "contributions": contributions, "min_people": people}
    mechanism = KeyedCounts(epsilon=EPSILON, delta=DELTA, **fields)
    kinds = kinds_of(mechanism.law.noises[0].law, mechanism.threshold(1), people)
    forwards, backwards = (value(kinds, contributions, swapped=swapped) for swapped in (False, True))
    assert max(forwards, backwards) <= DELTA * 1.001
    assert forwards > 0.5 * DELTA


@pytest.mark.parametrize("contributions", [3, 6])
def test_bare_keys_that_are_not_charged_are_seen(contributions):
    """Negative control: all of delta is for the Gaussian noise, and thresholds are where noise hides nothing."""
    law = DiscreteGaussian(gaussian_sigma(largest_shift(EPSILON, DELTA), math.sqrt(contributions), contributions))
    free = kinds_of(law, 1 + law.tail_quantile(0.01) + 1, 1)
    assert value(free, contributions) > 10 * DELTA
    assert value(free[1:], contributions) <= DELTA * 1.001


def test_no_choice_of_steps_moves_answers_further_than_stated():
    """Three people are counted for three keys, each at any of 7 steps."""
    mechanism = KeyedCounts(epsilon=EPSILON, delta=1e-6, over="start", horizon=7, contributions=3, public_keys=True)
    noise = mechanism.law.noises[0]
    shift = largest_shift(EPSILON, 1e-6)
    moved = [noise.shifts(np.where(np.arange(7) >= start, 1.0, 0.0)) for start in range(7)]
    most = math.sqrt(3 * max(float(one @ one) for one in moved))
    deviation = math.sqrt(noise.law.sigma**2 - 4) / 2**noise.fraction
    assert 0.97 * shift < most / deviation <= shift


@pytest.mark.parametrize("horizon", [2, 9, 64, 500])
def test_levels_make_no_column_longer_than_the_first_and_larger_ones_would(horizon):
    """The second half is the negative control: the next level would move answers further than is paid for."""
    factor = BufferedFactor(horizon)
    norms = np.sqrt(np.cumsum(factor.coefficients**2))
    assert np.all(factor.levels * norms[::-1] <= norms[-1] * (1 + 1e-9))
    assert np.all((factor.levels + 1 / 32) * norms[::-1] > norms[-1])
    assert factor.levels[0] == 1 and np.all(np.diff(factor.levels) >= 0)
