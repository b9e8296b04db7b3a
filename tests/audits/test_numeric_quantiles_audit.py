"""Exact privacy of the noisy counts behind quantiles of numbers, and variants that must fail."""

import itertools
import math

import numpy as np
import pytest
from privstream.mechanisms import KeyedCounts, NumericQuantiles
from privstream.mechanisms.keyed_counts.calibration import l2_norm
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from scipy import stats

EPSILON, DELTA = 1.0, 1e-4
VALUES = {"epsilon": EPSILON, "delta": DELTA, "low": 0, "high": 8, "resolution": 16}


def moves(mechanism):
    """Return how the nodes differ, per step, for all lives of a person (or two, for replacing), (lives, steps, nodes).

    A life is so many values in different steps; all lives in the first steps are tried.
    """
    tree, values = mechanism.tree, mechanism.contributions
    columns = [tree.counts(row) for row in np.eye(tree.bins, dtype=np.int64)]
    lives = [np.array(life) for life in itertools.product(columns, repeat=values)]
    if mechanism.neighbouring == "add_remove":
        return np.array(lives)
    return np.array([one - other for one in lives for other in lives])


def divergence(law, changes):
    """Return the exact delta at EPSILON of so many independent integers that are moved by 1 each."""
    if isinstance(law, DiscreteLaplace):  # each one says one of two things
        upwards = float(law.pmf(np.arange(0, 3000)).sum())
        number = np.arange(changes + 1)
        loss = (2 * number - changes) / law.scale
        return float(stats.binom.pmf(number, changes, upwards) @ np.maximum(0, -np.expm1(EPSILON - loss)))
    pmf = one = law.pmf(np.arange(-400, 401))
    for _ in range(changes - 1):
        pmf = np.convolve(pmf, one)  # the sum says all
    shifted = np.concatenate([np.zeros(changes), pmf[:-changes]])
    return float(np.maximum(0, shifted - math.exp(EPSILON) * pmf).sum())


@pytest.mark.parametrize("neighbouring", ["add_remove", "replace_one"])
@pytest.mark.parametrize("contributions", [1, 2])
def test_all_lives_stay_within_delta_and_forgotten_levels_are_seen(contributions, neighbouring):
    """Negative control: noise for `contributions` nodes, while a value is in one node of each level."""
    mechanism = NumericQuantiles(**VALUES, contributions=contributions, neighbouring=neighbouring)
    changes = int(np.abs(moves(mechanism)).sum(axis=(1, 2)).max())
    persons = 2 if neighbouring == "replace_one" else 1
    assert changes == persons * contributions * mechanism.tree.levels > persons * contributions
    stated = {"delta": DELTA, "public_keys": True, "neighbouring": neighbouring, "contributions": contributions}
    forgetful = KeyedCounts(epsilon=EPSILON, **stated)
    assert divergence(one_law(mechanism.counts), changes) <= DELTA * 1.001
    assert divergence(one_law(forgetful), changes) > 20 * DELTA


def one_law(counts):
    """Return the law of the noise of a node in a window."""
    law = counts.law.noises[0].law
    return law.digits[0] if hasattr(law, "digits") else law


@pytest.mark.parametrize("unit", ["event", "person"])
def test_pure_noise_covers_all_levels_and_forgotten_levels_are_seen(unit):
    mechanism = NumericQuantiles(**(VALUES | {"delta": 0.0, "resolution": 30}), unit=unit)
    changes = np.abs(moves(mechanism)).sum(axis=(1, 2)).max()
    assert changes == mechanism.tree.levels > 1
    assert changes / mechanism.counts.law.noises[0].law.scale <= EPSILON
    forgetful = KeyedCounts(epsilon=EPSILON, public_keys=True)
    assert changes / forgetful.law.noises[0].law.scale > 1.9 * EPSILON


@pytest.mark.parametrize("over", ["start", 3])
def test_no_values_move_answers_over_windows_further_than_stated(over):
    """All ways for one person to have 3 values, in 3 of 5 steps; claims without levels, or for other keys, are off."""
    mechanism = NumericQuantiles(**(VALUES | {"resolution": 9}), over=over, horizon=5, contributions=3)
    factor, bounds = mechanism.counts.law.noises[0].factor, mechanism.counts.bounds
    column = factor.coefficients
    toeplitz = np.stack([np.concatenate([np.zeros(s), column[: 5 - s]]) for s in range(5)], axis=1)
    assert mechanism.tree.levels > 1
    worst = 0.0
    for steps in itertools.combinations(range(5), 3):
        for life in moves(mechanism):
            given = np.zeros((5, mechanism.tree.nodes))
            given[list(steps)] = life
            worst = max(worst, float(np.linalg.norm(toeplitz @ given)))
    stated = l2_norm(factor, False, bounds)
    assert 0.99 * stated <= worst <= stated * (1 + 1e-9)
    without_levels = KeyedCounts(epsilon=EPSILON, delta=DELTA, over=over, horizon=5, contributions=3, public_keys=True)
    assert worst > 1.2 * l2_norm(factor, without_levels.bounds)
