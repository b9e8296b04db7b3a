"""Attacks on the sparse vector family: ours must stand, the published broken variants must fall."""

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.selection.sparse_vector import SparseVector

pytestmark = pytest.mark.slow

# A quarter of the noise is convicted with any seed in 2,000 runs of AboveThreshold and in 5,000 of Sparse with one hit.
# Of the noise as it is, an attack on so few hits shows little.

SURE = 10**6  # hits whatever the noise
AT_ONCE = 200

# Neighbouring worlds at threshold 0: in the second one the misses are likelier and the hit after them is too.
BEFORE = np.zeros(9, dtype=np.int64)
AFTER = np.append(np.full(8, -1), 1)


def independent_runs(mechanism, values, thresholds, runs, seed):
    """Return hits, shape (runs, queries), and numbers (0 for misses) of runs made one after the other in one long run.

    A sure hit after each run redraws the threshold, so the next one starts afresh; `mechanism` pays for all hits.
    """
    if runs > AT_ONCE:  # the work of a run grows with the square of its hits
        parts = [
            independent_runs(mechanism, values, thresholds, min(AT_ONCE, runs - first), 10_000 * seed + first)
            for first in range(0, runs, AT_ONCE)
        ]
        return tuple(np.concatenate(part) for part in zip(*parts, strict=True))
    size = len(values) + 1
    queries, bars = np.tile(np.append(values, SURE), runs), np.tile(np.append(thresholds, 0), runs)
    _, answers = mechanism.step(mechanism.initial_state(), queries, SeededNoise(seed), thresholds=bars)
    assert len(answers.hits) == runs * size
    numbers = np.zeros(runs * size)
    if mechanism.publish == "values":
        numbers[answers.hits] = answers.numbers
    return answers.hits.reshape(runs, size)[:, :-1], numbers.reshape(runs, size)[:, :-1]


def extended(mechanism, hits):
    """Return the mechanism with the same noise and money for so many hits."""
    base = SparseVector(epsilon=1.0, max_hits=hits, publish=mechanism.publish)
    epsilon = base.threshold_scale / mechanism.threshold_scale
    longer = SparseVector(epsilon=epsilon, max_hits=hits, publish=mechanism.publish)
    assert longer.threshold_scale == pytest.approx(mechanism.threshold_scale, rel=1e-9)
    if mechanism.publish == "values":
        assert longer.value_scale == pytest.approx(mechanism.value_scale, rel=1e-9)
    return longer


def hit_positions(hits, max_hits):
    """Code the positions of the first `max_hits` hits of each run as one integer."""
    base, code = hits.shape[1] + 1, np.zeros(len(hits), dtype=np.int64)
    left = hits.copy()
    rows = np.arange(len(hits))
    for _ in range(max_hits):
        first = np.where(left.any(axis=1), left.argmax(axis=1), base - 1)
        code = code * base + first
        left[rows, np.minimum(first, base - 2)] = False
    return code


def sparse_outcomes(mechanism, values, runs, seed):
    longer = extended(mechanism, runs * (len(values) + 1))
    hits, _ = independent_runs(longer, values, 0 * values, runs, seed)
    return hit_positions(hits, mechanism.max_hits)


@pytest.mark.parametrize("max_hits", [1, 2])
def test_sparse(max_hits):
    claimed, runs = 1.0 * max_hits, 6_000
    mechanism = SparseVector(epsilon=claimed, max_hits=max_hits)
    weaker = SparseVector(epsilon=4 * claimed, max_hits=max_hits)
    values = [np.tile(world, max_hits) for world in (BEFORE, AFTER)]
    worlds = [sparse_outcomes(mechanism, world, runs, seed) for seed, world in enumerate(values)]
    stands(worlds, claimed)
    stands(worlds, claimed, curve=mechanism.curve)
    falls([sparse_outcomes(weaker, world, runs, 9 + seed) for seed, world in enumerate(values)], claimed)


def test_numeric_sparse():
    claimed, runs = 2.0, 6_000

    def outcomes(mechanism, world, seed):
        longer = extended(mechanism, runs * (len(world) + 1))
        hits, numbers = independent_runs(longer, world, 0 * world, runs, seed)
        first = hit_positions(hits, 1)
        value = np.append(numbers, np.zeros((runs, 1)), axis=1)[np.arange(runs), first]
        bins = np.clip(np.floor(value / 2) + 10, 0, 19).astype(np.int64)
        return np.where(first < len(world), first * 20 + bins, 20 * len(world))

    mechanism, weaker = (SparseVector(epsilon=e, publish="values") for e in (claimed, 4 * claimed))
    worlds = [outcomes(mechanism, BEFORE, 1), outcomes(mechanism, AFTER, 2)]
    stands(worlds, claimed)
    stands(worlds, claimed, curve=mechanism.guarantee.curve)
    falls([outcomes(weaker, BEFORE, 3), outcomes(weaker, AFTER, 4)], claimed)
