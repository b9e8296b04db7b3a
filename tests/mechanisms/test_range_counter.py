"""RangeCounter: covers, nodes, a slow reference, sensitivity, noise and its bounds, hostile inputs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms import RangeCounter, SeededNoise, Updates
from privstream.mechanisms.continual.predecessor import bounds
from privstream.mechanisms.continual.ranges import Nodes, cover, history, updated
from privstream.mechanisms.noise.discrete import NoiseSum, tail_quantile
from privstream.mechanisms.noise.running import sums_noise

EXACT = 1e7  # an epsilon at which all noise is 0
UNIVERSE = 13
BOTH = pytest.mark.parametrize("delta", [0.0, 1e-6])
BATCHES = st.lists(st.lists(st.tuples(st.integers(1, UNIVERSE), st.booleans()), max_size=6), min_size=1, max_size=7)
RANGES = st.lists(st.tuples(st.integers(1, UNIVERSE), st.integers(1, UNIVERSE)).map(sorted).map(tuple), min_size=1)


def updates_of(pairs):
    return Updates(np.array([p for p, _ in pairs], np.int64), np.array([i for _, i in pairs], bool))


def run(mechanism, batches, noise=None):
    """Return the last state and the answers of all steps, (steps, ranges)."""
    state, answers = mechanism.initial_state(), []
    for pairs in batches:
        state, counts = mechanism.step(state, updates_of(pairs), noise or SeededNoise(1))
        answers.append(counts)
    return state, np.array(answers)


def true_counts(ranges, batches):
    """Return the counts after every step, update by update."""
    held, found = set(), []
    for pairs in batches:
        for point, inserted in pairs:
            (held.add if inserted else held.discard)(point)
        found.append([sum(low <= point <= high for point in held) for low, high in ranges])
    return np.array(found)


@pytest.mark.parametrize("universe", [1, 2, 3, 5, 8, 13, 16])
def test_covers_are_partitions_into_few_intervals(universe):
    height = (universe - 1).bit_length()
    ranges = [(a, b) for a in range(universe) for b in range(a + 1, universe + 1)]
    numbers, levels, places, signs = cover(*np.array(ranges).T, 2)
    assert np.all(signs == 1)
    first, after = bounds((np.int64(1) << (height - levels)) + places, height)
    most = 0
    for i, (a, b) in enumerate(ranges):
        rows = np.flatnonzero(numbers == i)
        pieces = sorted(zip(first[rows].tolist(), after[rows].tolist(), strict=True))
        assert [a, *(end for _, end in pieces)] == [*(start for start, _ in pieces), b]
        most = max(most, len(pieces))
    assert most <= max(1, 2 * height - 2)


@given(ranges=RANGES, pure=st.booleans())
def test_ranges_are_sums_of_nodes_and_no_point_is_in_more_than_noise_is_for(ranges, pure):
    low, high = np.array(ranges).T
    nodes = Nodes.of(low, high + 1, pure=pure)
    for number, (first, last) in enumerate(ranges):
        mine, held = np.flatnonzero(nodes.owners == number), np.zeros(UNIVERSE + 2, np.int64)
        assert len(set(nodes.places[mine].tolist())) == len(mine), "their noises are independent"
        for place, sign in zip(nodes.places[mine], nodes.signs[mine], strict=True):
            held[nodes.starts[place] : nodes.ends[place]] += sign
        assert np.flatnonzero(held).tolist() == list(range(first, last + 1)) and held.max() == 1
    held = [np.count_nonzero((nodes.starts <= p) & (p < nodes.ends)) for p in range(1, UNIVERSE + 1)]
    assert max(held) == nodes.overlap


class TestRuns:
    @settings(max_examples=2 * settings.default.max_examples, deadline=None)
    @given(batches=BATCHES, ranges=RANGES)
    def test_without_noise_counts_are_those_of_the_reference(self, batches, ranges):
        mechanism = RangeCounter(epsilon=EXACT, universe=UNIVERSE, ranges=tuple(ranges))
        assert np.array_equal(run(mechanism, batches)[1], true_counts(ranges, batches))

    def test_points_of_a_large_universe_outlive_a_snapshot(self):
        ranges = ((1, 1 << 60), (2, 1 << 60), (1 << 60, 1 << 60), (2, 3))
        mechanism = RangeCounter(epsilon=EXACT, universe=1 << 60, ranges=ranges)
        state, _ = mechanism.step(mechanism.initial_state(), Updates([1, 1 << 59, 1 << 60]), SeededNoise(1))
        restored = mechanism.restore(mechanism.snapshot(state))
        assert mechanism.step(restored, Updates(()), SeededNoise(1))[1].tolist() == [3, 2, 1, 0]

    @BOTH
    @pytest.mark.parametrize("horizon", [30, None])
    def test_the_noise_is_that_of_a_counter_for_each_node(self, delta, horizon):
        """Node after node, by a counter with no other: labels are the node's place, its count and all updates."""
        ranges = ((1, 13), (2, 5), (4, 9), (4, 4))
        mechanism = RangeCounter(epsilon=1.0, delta=delta, universe=UNIVERSE, horizon=horizon, ranges=ranges)
        rng, nodes, noise = np.random.default_rng(3), mechanism.nodes, mechanism.noise
        batches = [[(int(p), bool(p % 3)) for p in rng.integers(1, UNIVERSE + 1, 4)] for _ in range(25)]
        assert noise == sums_noise(1.0, delta, nodes.overlap, 2, horizon, horizon, opposite=True)
        _, answers = run(mechanism, batches)
        source = SeededNoise(1).derive("range counter", mechanism.parameters)
        total = np.zeros(answers.shape, np.int64)
        for place, (start, end) in enumerate(zip(nodes.starts, nodes.ends, strict=True)):
            held, digest, memory = np.zeros(0, np.int64), bytes(16), np.zeros((noise.rows, 1))
            for step, pairs in enumerate(batches, start=1):
                held, new, gone = updated(held, updates_of(pairs), UNIVERSE)
                digest = history(digest, new, gone)
                own = source.derive("history", digest)
                true = np.array([np.count_nonzero((held >= start) & (held < end))])
                noisy = true + noise.advance(memory, step, np.array([place], np.uint64), true, own)
                mine = nodes.places == place
                total[step - 1, nodes.owners[mine]] += nodes.signs[mine] * noisy
        assert np.array_equal(answers, total)

    @BOTH
    def test_noise_is_bound_to_the_history(self, delta):
        ranges = tuple((point, point) for point in range(1, 65))
        mechanism = RangeCounter(epsilon=1.0, delta=delta, universe=64, horizon=100, ranges=ranges)
        batches = [[(i + 1, True)] for i in range(20)]
        changed = [*batches[:12], [(50, True)], *batches[13:]]
        one, two = (run(mechanism, each)[1] - true_counts(ranges, each) for each in (batches, changed))
        assert np.array_equal(one[:12], two[:12])
        assert np.all(np.count_nonzero(one[12:] == two[12:], axis=1) < 20)  # else the difference would be exact


class TestSensitivity:
    @settings(max_examples=2 * settings.default.max_examples, deadline=None)
    @given(batches=BATCHES, ranges=RANGES, data=st.data())
    def test_one_update_moves_each_of_few_nodes_by_one_and_back(self, batches, ranges, data):
        """What noise is for: `overlap` nodes at most change by 1 at one step, and back at a later one."""
        steps = [i for i, pairs in enumerate(batches) if pairs]
        if not steps:
            return
        step = data.draw(st.sampled_from(steps))
        index = data.draw(st.integers(0, len(batches[step]) - 1))
        other = [[*pairs] for pairs in batches]
        del other[step][index]
        nodes = RangeCounter(epsilon=EXACT, universe=UNIVERSE, ranges=tuple(ranges)).nodes
        pairs = list(zip(nodes.starts.tolist(), (nodes.ends - 1).tolist(), strict=True))
        moved = np.diff(true_counts(pairs, batches) - true_counts(pairs, other), axis=0, prepend=0)
        assert np.abs(moved).max() <= 1
        assert np.abs(moved).any(axis=0).sum() <= nodes.overlap
        changed = moved[:, np.abs(moved).any(axis=0)]
        assert np.all(np.abs(changed).sum(axis=0) <= 2)
        assert np.all(np.abs(changed.sum(axis=0)) <= 1)


class TestNoise:
    @BOTH
    @pytest.mark.parametrize("horizon", [60, None])
    def test_variance_and_bounds(self, delta, horizon):
        """Of many ranges of one node each, and of sums of several: no other variance, and as often beyond as stated."""
        singles = tuple((4 * i + 1, 4 * i + 1) for i in range(8_000))
        mechanism = RangeCounter(epsilon=1.0, delta=delta, universe=1 << 20, horizon=horizon, ranges=singles)
        _, answers = run(mechanism, [[]] * 23)
        drawn, expected = answers[-1].astype(float), mechanism.noise.variance(23)
        kurtosis = 3.1 if delta else 9  # at most: 6 above normal for one Laplace, less for sums
        spread = expected * math.sqrt((kurtosis - 1) / len(drawn)) * 6.2  # false alarm below 1e-9
        assert abs(drawn.var() - expected) < spread < 0.3 * expected
        held = np.mean(np.abs(drawn) <= mechanism.spreads(23, 0.2))
        assert 0.8 - 6.2 * math.sqrt(0.16 / len(drawn)) < held < 0.86
        sums = drawn.reshape(-1, 5).sum(axis=1)
        for tail in (0.1, 0.01):
            bound = mechanism.noise.tail_bound(23, tail, 5)
            beyond = np.mean(np.abs(sums) > bound)
            assert beyond < 2 * tail + 6.5 * math.sqrt(2 * tail / len(sums))
            assert np.mean(np.abs(1.6 * sums) > bound) > beyond
        assert np.abs(drawn).max() <= mechanism.errors(23).max() <= mechanism.error(23)

    @pytest.mark.parametrize(
        ("raising", "lowering"),
        [(((9.0, 2),), ((4.0, 3),)), (((7.0, 3),), ((7.0, 3),)), (((3.0, 2), (11.0, 1)), ((3.0, 2), (11.0, 1)))],
    )
    def test_quantiles_of_sums_are_exact(self, raising, lowering):
        """Of geometric noises, and of Laplace noises, which are differences of two."""
        laws, support = [np.ones(1), np.ones(1)], np.arange(1200)
        for side, parts in enumerate((raising, lowering)):
            for scale, number in parts:
                for _ in range(number):
                    one = (1 - math.exp(-1 / scale)) * np.exp(-support / scale)
                    laws[side] = np.convolve(laws[side], one)
        law = np.convolve(laws[0], laws[1][::-1])
        above = np.cumsum(law[::-1])[::-1]
        zero = len(laws[1]) - 1
        for log_beta in (-2.0, -10.0, -24.0):
            sums = (tuple((*one, 1) for one in part) for part in (raising, lowering))
            z = tail_quantile(NoiseSum(*sums), log_beta)
            assert above[zero + z + 1] <= math.exp(log_beta) < above[zero + z]


class TestInputs:
    @pytest.mark.parametrize(
        ("updates", "error", "message"),
        [
            (Updates([0]), ValueError, "points must be in 1 .. 100"),
            (Updates([101]), ValueError, "points must be in 1 .. 100"),
            (Updates([1.5]), TypeError, "points must contain integers, got float64"),
            (Updates([math.nan]), TypeError, "points must contain integers, got float64"),
            (Updates([True]), TypeError, "points must contain integers, got bool"),
            (Updates([[1]]), ValueError, "points must have shape (n,), got (1, 1)"),
            (Updates([1], [True, False]), ValueError, "inserted must have shape (1,) as points, got (2,)"),
            (Updates([1], [1]), TypeError, "inserted must contain truth values, got int64"),
        ],
    )
    def test_updates(self, updates, error, message):
        mechanism = RangeCounter(epsilon=1.0, universe=100, ranges=((1, 9),))
        with pytest.raises(error) as caught:
            mechanism.step(mechanism.initial_state(), updates, SeededNoise(1))
        assert str(caught.value) == message

    @pytest.mark.parametrize("ranges", [(), ((4, 1),), ((0, 1),), ((1, 101),), ((1, 2, 3),), ((1.5, 2),), [(1, 2)]])
    def test_ranges(self, ranges):
        with pytest.raises((ValueError, TypeError), match=r"^ranges"):
            RangeCounter(epsilon=1.0, universe=100, ranges=ranges)

    def test_noise_of_other_ranges_is_another_one(self):
        one, other = (RangeCounter(epsilon=1.0, universe=9, ranges=each) for each in (((1, 4),), ((1, 4), (5, 9))))
        assert one.parameters != other.parameters
