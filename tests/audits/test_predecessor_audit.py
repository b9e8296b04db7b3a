"""Attacks on the marks of the incremental predecessor: the exact law of when intervals are marked; broken noise falls.

Noises of different intervals are independent, so the losses of the intervals of a point add up: root and leaf alike,
and those of finished and of heavy intervals, if the noises of both are independent too.
"""

import dataclasses

import numpy as np
import pytest
from privstream.mechanisms import IncrementalPredecessor, SeededNoise, Updates
from privstream.mechanisms.continual.predecessor import PredecessorStep, bounds
from privstream.mechanisms.noise.discrete import Geometric

UNIVERSE, WIDE = 2, 256
RUNS = 4_200
"""Power: noise that is 1.3 times as large is accepted with probability 1e-4."""
MISSES = 60


def tree():
    """Return the tree of finished intervals of a mechanism that has no other."""
    return IncrementalPredecessor(epsilon=2.0, universe=UNIVERSE, horizon=100)


def levels_of_a_point(universe, height):
    """Count the dyadic intervals that hold the first point."""
    first, after = bounds(np.arange(1, 2 << height), height)
    return int(np.count_nonzero((first <= 0) & (after > 0)))


def mark_law(made, counts, thresholds):
    """Return the probabilities of a mark at each step, and of none, of an interval with these counts."""
    tau = np.arange(int(60 * made.tau.scale) + 2)
    alive, law = made.tau.pmf(tau), []
    for count, threshold in zip(counts, thresholds, strict=True):
        hit = np.exp(-np.maximum(0, threshold + tau - count + 1) / made.mu.scale)  # Pr[mu > threshold + tau - count]
        law.append((alive * hit).sum())
        alive = alive * (1 - hit)
    return np.array([*law, alive.sum()])


def new_points(sizes):
    """Return for each step points that were in none before."""
    ends = np.cumsum(sizes)
    return [np.arange(end - size, end) + 1 for size, end in zip(sizes, ends, strict=True)]


def worst_loss(made):
    """Return the largest loss of a point: the worst of one interval, times its intervals."""
    steps, threshold = MISSES + 2, 30
    moves = [np.arange(steps) >= first for first in (0, 1, MISSES, steps - 1)]
    moves += [  # until the point is inserted again
        (np.arange(steps) >= first) & (np.arange(steps) < end) for first in (0, 1) for end in (2, MISSES, steps - 1)
    ]
    worst = 0.0
    for low, high in ((0, 20), (20, 30), (30, 30), (36, 36), (40, 60), (50, 50)):
        counts = np.where(np.arange(steps) < MISSES, low, high)
        for move in moves:
            one, other = (mark_law(made, counts + moved, [threshold] * steps) for moved in (0, move))
            judged = np.minimum(one, other) > 1e-11
            worst = max(worst, np.abs(np.log(one[judged] / other[judged])).max())
    return worst * levels_of_a_point(made.universe, made.height)


@pytest.mark.slow
def test_the_law_is_one_and_that_of_the_code():
    mechanism = IncrementalPredecessor(epsilon=9.0, universe=WIDE, horizon=4)
    made, births = mechanism, np.zeros(1, np.int64)
    thresholds = [int(mechanism.thresholds(births, step)[0]) for step in (1, 2, 3)]
    batches = [thresholds[0], 1, 2]
    law = mark_law(made, np.cumsum(batches), thresholds)
    assert law.sum() == pytest.approx(1, abs=1e-9)
    wide = dataclasses.replace(made, epsilon=made.epsilon / 1.6)
    wrong = mark_law(wide, np.cumsum(batches), thresholds)
    marked = np.zeros(4)
    for seed in range(RUNS):
        state, when = mechanism.initial_state(), 3
        for step, points in enumerate(new_points(batches)):
            state, _ = mechanism.step(state, PredecessorStep(Updates(points)), SeededNoise(seed))
            if 1 in state.marked:
                when = step
                break
        marked[when] += 1
    spread = 6.5 * np.sqrt(law * (1 - law) / RUNS)
    print(f"\nmarked {marked / RUNS}, law {law}, wider {wrong}")
    assert np.all(np.abs(marked / RUNS - law) < spread)
    assert np.any(np.abs(marked / RUNS - wrong) > 6.5 * np.sqrt(wrong * (1 - wrong) / RUNS))


def test_root_and_leaf_lose_epsilon_together_and_no_more():
    made = tree()
    found = worst_loss(made)
    print(f"\n{found:.4f} of {made.epsilon}")
    assert 0.75 * made.epsilon < found <= made.epsilon


def test_one_level_of_intervals_forgotten_falls():
    made = tree()
    broken = dataclasses.replace(made, epsilon=made.epsilon * 2)  # epsilon / log2 u for each of log2 u + 1 levels
    found = worst_loss(broken)
    print(f"\nlog2 u levels: {found:.4f} against {made.epsilon}")
    assert found > 1.3 * made.epsilon


class PaysForOne(IncrementalPredecessor):
    """Each of both noises as if it alone had to hide a point."""

    @property
    def mu(self):
        return Geometric((self.height + 1) / self.epsilon)

    tau = mu


def test_a_set_that_pays_for_the_larger_noise_alone_falls():
    """Scales for points that stay, with a point that is inserted again: both thresholds have to move."""
    found = worst_loss(PaysForOne(**dataclasses.asdict(tree())))
    print(f"\nthe larger cost alone: {found:.4f} against 2")
    assert found > 1.2 * 2
