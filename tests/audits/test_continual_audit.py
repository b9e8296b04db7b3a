"""Attacks on continual counters and histogram queries: ours must stand, under-noised ones must fall."""

from functools import cached_property

import numpy as np
import pytest
from empirical_privacy import lower_delta, lower_epsilon
from privstream.mechanisms.binary_tree import BinaryTreeCounter
from privstream.mechanisms.bottom_up_tree import BottomUpTreeCounter
from privstream.mechanisms.buffered_toeplitz import BufferedToeplitzCounter
from privstream.mechanisms.continual_counter import node_law
from privstream.mechanisms.kary_tree import KaryTreeCounter
from privstream.mechanisms.noise import SeededNoise
from privstream.mechanisms.square_root_toeplitz import SquareRootToeplitzCounter, square_root
from privstream.mechanisms.unknown_horizon import UnknownHorizonCounter
from privstream.mechanisms.wide_gaussian import WideGaussian

pytestmark = pytest.mark.slow

RUNS = 100_000


class OneLevelTree(BinaryTreeCounter):
    """Noise for one node, though a row is in as many as there are levels."""

    @cached_property
    def law(self):
        return node_law(self.epsilon, self.delta, self.touched)


class WithoutSensitivity(SquareRootToeplitzCounter):
    """Noise z for sensitivity 1, though R spreads a row over all later steps."""

    @cached_property
    def law(self):
        return WideGaussian(super().law.sigma / self.column_norm)


def adaptive_noise(kind, epsilon, delta, horizon, row, seed, **options):
    """Return what the adversary sees, less its own rows, in RUNS independent runs: (steps, RUNS).

    It adds as many rows as the last sum was off, so that its inputs depend on what was published. The world has one row
    more at the first step, or not.
    """
    if delta:
        counter = kind(epsilon=epsilon, delta=delta, horizon=horizon, columns=RUNS, row_columns=1, **options)
    else:
        counter = kind(epsilon=epsilon * RUNS, horizon=horizon, columns=RUNS, **options)
    state, left, known = counter.initial_state(), [], np.zeros(RUNS, np.int64)
    for step in range(horizon):
        chosen = np.clip(np.abs(left[-1]), 0, 10) if left else known
        known = known + chosen
        state, sums = counter.step(state, chosen + (row if step == 0 else 0), SeededNoise(seed))
        left.append(sums - known)
    return np.array(left)


def tree_outcomes(kind, epsilon, row, seed, horizon=7, delta=0.0, **options):
    """Code how many of the nodes that begin at the first step look as if they held one row more."""
    counter_noise = adaptive_noise(kind, epsilon, delta, horizon, row, seed, **options)
    ends = [1 << height for height in range(horizon.bit_length())]
    return sum((counter_noise[end - 1] >= 1).astype(np.int64) for end in ends)


@pytest.mark.parametrize("kind", [BinaryTreeCounter, BottomUpTreeCounter])
def test_trees_stand(kind):
    claimed = 1.0
    found = lower_epsilon(*(tree_outcomes(kind, claimed, row, seed) for seed, row in enumerate((0, 1))))
    print(f"\n{kind.__name__}: {found:.3f} of {claimed}")
    assert 0.2 * claimed < found <= claimed


def test_a_tree_with_noise_for_one_level_falls():
    claimed = 1.0
    found = lower_epsilon(*(tree_outcomes(OneLevelTree, claimed, row, seed) for seed, row in enumerate((0, 1))))
    print(f"\none level: {found:.3f} against {claimed} claimed")
    assert found > 1.5 * claimed


@pytest.mark.parametrize("kind", [KaryTreeCounter, UnknownHorizonCounter])
def test_kary_trees_stand(kind):
    """Steps 1 and 3, 4, 7 .. end nodes that hold the row, or lie to the left of one that does."""
    claimed, horizon = 1.0, 12

    def outcomes(kind, row, seed, epsilon):
        options = {"base": 5} if kind is KaryTreeCounter else {}
        noise = adaptive_noise(kind, epsilon, 0.0, horizon, row, seed, **options)
        high, low = noise[4] >= 1, noise[0] >= 1  # a node of five steps, and one of one step
        between = noise[2] - noise[4] >= 0
        return high.astype(np.int64) * 4 + low * 2 + between

    found = lower_epsilon(*(outcomes(kind, row, seed, claimed) for seed, row in enumerate((0, 1))))
    print(f"\n{kind.__name__}: {found:.3f} of {claimed}")
    assert 0.2 * claimed < found <= claimed
    found = lower_epsilon(*(outcomes(kind, row, 7 + seed, 3 * claimed) for seed, row in enumerate((0, 1))))
    assert found > claimed


def toeplitz_outcomes(kind, epsilon, delta, row, seed, horizon=12):
    """Code the statistic of the likelihood ratio test, from what is published."""
    noise = adaptive_noise(kind, epsilon, delta, horizon, row, seed).astype(float)
    increments = np.diff(noise, axis=0, prepend=0.0)
    root = square_root(horizon)
    z = np.array([root[t::-1] @ increments[: t + 1] for t in range(horizon)])
    return np.clip(np.rint(root @ z / 2) + 100, 0, 200).astype(np.int64)


@pytest.mark.parametrize("kind", [SquareRootToeplitzCounter, BufferedToeplitzCounter, BinaryTreeCounter])
def test_gaussian_counters_stay_below_their_curve(kind):
    claimed, delta = 1.0, 0.01
    one, other = (toeplitz_outcomes(kind, claimed, delta, row, seed) for seed, row in enumerate((0, 1)))
    curve = kind(epsilon=claimed, delta=delta, horizon=12).curve
    for epsilon in (0.0, 0.25, 0.5, claimed):
        found = lower_delta(one, other, epsilon)
        print(f"\n{kind.__name__}, epsilon {epsilon}: {found:.4f} of {curve.delta(epsilon):.4f}")
        assert found <= curve.delta(epsilon)
        assert found > 0.4 * curve.delta(0.0) or epsilon or kind is BinaryTreeCounter


def test_a_toeplitz_counter_without_sensitivity_falls():
    claimed, delta = 1.0, 0.01
    worlds = (toeplitz_outcomes(WithoutSensitivity, claimed, delta, row, seed) for seed, row in enumerate((0, 1)))
    found = lower_delta(*worlds, claimed)
    print(f"\nwithout sensitivity: delta {found:.4f} against {delta} claimed")
    assert found > 1.5 * delta
