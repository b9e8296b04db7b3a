"""Attacks on range counts: all short streams, and all removals of one update; broken noise must fall."""

import itertools

import numpy as np
import pytest
from privstream.mechanisms import RangeCounter, SeededNoise, Updates
from privstream.mechanisms.continual.ranges import IMPULSES, below
from privstream.mechanisms.noise.running import CompleteTreeNoise
from privstream.mechanisms.privacy.accounting import largest_shift
from scipy import linalg

UNIVERSE, STEPS = 2, 10  # an epoch of a tree over time, with two levels of nodes
RANGES = ((1, 2), (1, 1), (2, 2))
WORDS = [(1, True), (1, False), (2, True)]


def unit_moves(noise, steps):
    """Return how far 1 at each step moves each noised number, in scales or deviations: (numbers, steps)."""
    parts = []
    for _, epoch, _, done in noise.begun(steps):
        if isinstance(epoch, CompleteTreeNoise):
            base = epoch.base
            nodes = sorted({each for t in range(1, done + 1) for each in epoch.nodes(t)})
            held = [[i * base**h <= t < (i + 1) * base**h for t in range(done)] for h, i in nodes]
            parts.append(np.array(held, float) / epoch.law.scale)
        else:
            levels = epoch.factor.levels[None, :done]
            moved = linalg.toeplitz(epoch.factor.coefficients[:done], np.zeros(done)) * levels
            parts.append(moved * 2.0**epoch.fraction / np.sqrt(epoch.law.sigma**2 - 4))
    return linalg.block_diag(*parts)


def streams():
    """Return all streams with at most two updates, each a tuple of (point, inserted) or None."""
    for steps in itertools.combinations_with_replacement(range(STEPS), 2):
        for words in itertools.product(WORDS, repeat=2):
            yield tuple(dict(zip(steps, words, strict=True)).get(step) for step in range(STEPS))


def node_counts(mechanism, words):
    """Return the counts of nodes after each step, (steps, nodes), as the mechanism keeps them."""
    state, counts, nodes = mechanism.initial_state(), [], mechanism.nodes
    for word in words:
        updates = Updates(()) if word is None else Updates([word[0]], [word[1]])
        state, _ = mechanism.step(state, updates, SeededNoise(1))
        counts.append(below(state.points, nodes.ends) - below(state.points, nodes.starts))
    return np.array(counts)


def worst_shifts(mechanism):
    """Return the largest L1 and L2 length of what a removal moves, over all streams, in units of the noise."""
    matrix = unit_moves(mechanism.noise, STEPS)
    everything = {(None,) * STEPS, *streams()}
    counts = {words: node_counts(mechanism, words) for words in everything}
    found = []
    for words, one in counts.items():
        for step in range(STEPS):
            if words[step] is not None:
                other = counts[(*words[:step], None, *words[step + 1 :])]
                moved = matrix @ np.diff(one - other, axis=0, prepend=0)
                found.append((np.abs(moved).sum(), np.sqrt((moved**2).sum())))
    return np.max(found, axis=0)


@pytest.fixture(scope="module")
def shifts():
    """Worst shifts by delta."""
    common = {"epsilon": 1.0, "universe": UNIVERSE, "horizon": None, "ranges": RANGES}
    return {delta: worst_shifts(RangeCounter(**common, delta=delta)) for delta in (0.0, 1e-6)}


@pytest.mark.slow
def test_an_update_loses_epsilon_and_no_more(shifts):
    found = shifts[0.0][0]
    print(f"\n{found:.4f} of 1")
    assert found == pytest.approx(1, abs=1e-9)
    assert found <= 1
    assert found * IMPULSES > 1.4  # noise for one impulse falls


@pytest.mark.slow
def test_gaussian_noise_is_for_the_longest_shift(shifts):
    """Two opposite impulses are as long as the root of 2 of one, or nearly; noise for one falls."""
    found, most = shifts[1e-6][1], largest_shift(1.0, 1e-6)
    print(f"\n{found / most:.4f} of the largest shift")
    assert 0.85 < found / most <= 1
    assert found / most * np.sqrt(IMPULSES) > 1.2
