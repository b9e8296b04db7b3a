"""Attacks on range counts: the exact worst loss of short runs in a tiny universe; broken noise must fall.

If as many nodes as steps have been used, the noise of the nodes follows from the answers. Then the worst privacy loss
is known in closed form: that of the one vector of nodes that explains the difference of the counts.
"""

import itertools
import math

import numpy as np
import pytest
from privstream.mechanisms import RangeCounter, SeededNoise, Updates
from privstream.mechanisms.continual.ranges import IMPULSES, below
from privstream.mechanisms.privacy.accounting import largest_shift

UNIVERSE, STEPS = 2, 10  # an epoch of the tree over time, with two levels of nodes
LOW, HIGH = np.array([1, 1, 2]), np.array([2, 1, 2])  # root and leaves: what is published of each step
WORDS = [(1, True), (1, False), (2, True)]


def used_nodes(mechanism, steps):
    """Return the matrix (steps, nodes) from noises of nodes to those of prefixes, and each node's law."""
    prefixes = [
        {(number, level, position): sign for number, _, level, position, sign, _ in mechanism._nodes(step)}
        for step in range(1, steps + 1)
    ]
    nodes = sorted(set().union(*prefixes))
    matrix = np.array([[prefix.get(node, 0) for node in nodes] for prefix in prefixes])
    return matrix, [mechanism.noise.epochs[node[0]].law for node in nodes]


def streams():
    """Return all streams with one or two updates, each a tuple of (point, inserted) or None."""
    for steps in itertools.combinations_with_replacement(range(STEPS), 2):
        for words in itertools.product(WORDS, repeat=2):
            yield tuple(dict(zip(steps, words, strict=True)).get(step) for step in range(STEPS))


def mechanism_for(delta=0.0):
    """Return a counter; a pure one with epochs of a tree, for two levels of it in a short run."""
    return RangeCounter(epsilon=1.0, delta=delta, universe=UNIVERSE, horizon=STEPS if delta else None)


def true_counts(mechanism, words):
    """Return the counts of root and leaves after each step, shape (steps, 3), as the mechanism keeps them."""
    state, counts = mechanism.initial_state(), []
    for word in words:
        updates = Updates(()) if word is None else Updates([word[0]], [word[1]])
        state = mechanism.update(state, updates)
        counts.append(below(state.points, HIGH + 1) - below(state.points, LOW))
    return np.array(counts)


def worst_shifts(mechanism):
    """Return the L1 and the squared L2 length of the node differences, the largest over all streams and removals."""
    matrix, _ = used_nodes(mechanism, STEPS)
    assert matrix.shape == (STEPS, STEPS)
    solve = np.rint(np.linalg.inv(matrix)).astype(np.int64)
    assert np.array_equal(matrix @ solve, np.eye(STEPS))
    everything = {(None,) * STEPS, *streams()}
    counts = {words: true_counts(mechanism, words) for words in everything}
    longest, squared = 0, 0
    for words, one in counts.items():
        for step in range(STEPS):
            if words[step] is not None:
                moved = solve @ (one - counts[(*words[:step], None, *words[step + 1 :])])
                longest, squared = max(longest, np.abs(moved).sum()), max(squared, (moved**2).sum())
    return int(longest), int(squared)


@pytest.fixture(scope="module")
def shifts():
    """Worst shifts by delta."""
    return {delta: worst_shifts(mechanism_for(delta)) for delta in (0.0, 1e-6)}


def loss(shifts, broken=1.0):
    """Return the worst loss of a pure run at epsilon = 1, with the noise as it is or so much too small."""
    return shifts[0.0][0] / mechanism_for().noise.epochs[0].law.scale * broken


@pytest.mark.slow
def test_noise_is_that_of_the_nodes():
    """Answers of real runs give the nodes' noises back, with their law, and not a law that is 30% wider."""
    mechanism = mechanism_for()
    matrix, laws = used_nodes(mechanism, STEPS)
    words = ((1, True), None, (1, True), (2, True), *[None] * (STEPS - 4))
    exact, found = true_counts(mechanism, words), []
    for seed in range(250):
        state, answers = mechanism.initial_state(), []
        for word in words:
            state = mechanism.update(state, Updates(()) if word is None else Updates([word[0]], [word[1]]))
            answers.append(mechanism.count(state, LOW, HIGH, SeededNoise(seed)))
        found.append(np.linalg.solve(matrix, np.array(answers) - exact))
    drawn = np.rint(np.array(found)).ravel()
    assert np.abs(drawn - np.array(found).ravel()).max() < 1e-9
    spread = 6.5 * math.sqrt(5 / len(drawn))  # relative; the fourth moment of a Laplace law is 6 times the variance's
    assert abs(np.mean(drawn**2) / laws[0].variance - 1) < spread
    assert abs(np.mean(drawn**2) / (1.69 * laws[0].variance) - 1) > spread


@pytest.mark.slow
def test_root_and_leaf_lose_epsilon_together_and_no_more(shifts):
    found = loss(shifts)
    print(f"\n{found:.4f} of 1")
    assert found == pytest.approx(1, abs=1e-9)
    assert found <= 1


@pytest.mark.slow
def test_gaussian_noise_is_for_the_longest_shift(shifts):
    mechanism = mechanism_for(1e-6)
    shift = math.sqrt(shifts[1e-6][1]) / mechanism.noise.epochs[0].law.sigma
    most = largest_shift(1.0, 1e-6)
    print(f"\n{shift / most:.4f} of the largest shift")
    assert 0.8 < shift / most <= 1


class TestBrokenNoiseFalls:
    @pytest.mark.slow
    def test_one_level_of_intervals_forgotten(self, shifts):
        assert loss(shifts, mechanism_for().levels / 1) > 1.4

    def test_duplicates_ignored_with_the_noise_of_counted(self, shifts):
        assert loss(shifts, IMPULSES / 1) > 1.4
