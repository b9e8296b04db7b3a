"""Attacks on histogram queries and flags: ours must stand, broken variants must fall."""

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.continual.histogram import HistogramQueries
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.sources import SeededNoise

pytestmark = pytest.mark.slow

RUNS = 100_000


def rounds_that_hit(with_row, seed, *, reset, rounds=12, runs=RUNS):
    """Return how many of some intervals close at a test that the threshold's noise decides.

    The adversary brings the growth since the interval's start to the threshold, tests once, and ends the interval by a
    sure step. With a reset the row counts in the first interval alone; without, it is in the growth of all.
    """
    mechanism = HistogramQueries(epsilon=2.0 / 0.35, columns=1, mode="anchored", horizon=10**6, largest=100)
    partition, source, hits = mechanism.partition, SeededNoise(seed), np.zeros(runs, np.int64)
    for interval in range(rounds):
        mu, tau = (Geometric(scale).draw(source.derive(i, interval), runs) for i, scale in enumerate(partition.scales))
        hits += (with_row if interval == 0 or not reset else 0) + mu > tau
    return hits


def test_a_partition_without_reset_falls():
    for check, reset in ((stands, True), (falls, False)):
        check([rounds_that_hit(row, seed, reset=reset) for seed, row in enumerate((0, 1))], 2.0)


def whole_runs(mechanism, rows, seed, runs):
    """Return what many runs on the same rows publish."""
    noise = SeededNoise(seed)
    return [whole_run(mechanism, rows, noise.derive(run)) for run in range(runs)]


def whole_run(mechanism, rows, noise):
    """Return what one run publishes."""
    state, published = mechanism.initial_state(), []
    for row in rows:
        state, answers = mechanism.step(state, row, noise)
        published.append(answers)
    return np.array(published)


def anchored_outcomes(epsilon, row, seed, runs):
    """Tell when the first interval ends, and what the counter then says of the column that has the row or not.

    One column is brought to the threshold; the row comes; a test; then the other column passes it by 1. The row makes
    misses less likely, but not the end: the worst case of the proof, and the counter's noise on top.
    """
    mechanism = HistogramQueries(epsilon=epsilon, columns=2, mode="anchored", horizon=10**6, largest=10)
    quiet = mechanism.partition.unseen(1, 0) // 2
    level = mechanism.partition.threshold(1, 0)
    rows = np.array([[level, 0], [row, 0], [0, 0], [0, level + 1]])
    outcomes = []
    for published in whole_runs(mechanism, rows, seed, runs):
        moved = np.any(published != quiet, axis=1)
        end = int(moved.argmax()) if moved.any() else 4
        outcomes.append((end, int(np.clip(published[end, 0] - level, -3, 4)) if end < 4 else 0))
    return outcomes


def flag_outcomes(epsilon, row, seed, runs):
    """Tell when the flag goes up."""
    mechanism = HistogramQueries(epsilon=epsilon, columns=1, thresholds=(400,), horizon=5, mode="paper")
    rows = np.array([[row], [400], [0], [0], [0]])
    return [int(flags.sum()) for flags in whole_runs(mechanism, rows, seed, runs)]


@pytest.mark.parametrize(
    ("outcomes", "claimed", "looked_at", "visible", "runs"),
    [(anchored_outcomes, 4.0, 4.0, 0.3, 4500), (flag_outcomes, 2.0, 16.0, 0.3, 4200)],
)
def test_histograms_and_flags_stand_as_a_whole(outcomes, claimed, looked_at, visible, runs):
    """Worst inputs at the threshold; a part of epsilon shows, and more than it with a twentieth of the noise.

    A flag tells little, and of a small epsilon nothing in few runs; a large one tells whether the attack sees.
    Power: 4,500 runs of sums show 4.8 or more, and 4,200 runs of flags 3.2, give or take 0.2, with a twentieth of the
    noise; as they are, they show 0.98 and, at epsilon 16, 0.9, give or take 0.15.
    """

    def worlds(epsilon, runs):
        return [outcomes(epsilon, row, seed, runs) for seed, row in enumerate((0, 1))]

    seen = worlds(looked_at, runs // 2 if looked_at > claimed else runs)
    stands(seen, looked_at, visible=visible / looked_at)
    stands(seen if looked_at == claimed else worlds(claimed, runs // 4), claimed)
    falls(worlds(20 * claimed, runs), claimed)
