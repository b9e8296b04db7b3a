"""RangeCounter: geometry, exact scales, noise, errors, consistency, and everything that could go wrong with inputs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms import RangeCounter, RangeStep, SeededNoise, Updates
from privstream.mechanisms.continual.ranges import (
    IMPULSES,
    bounds,
    cover,
    longest_cover,
    tree_height,
    updated,
)
from privstream.mechanisms.noise.discrete import DiscreteLaplace
from privstream.mechanisms.noise.running import best_base, tree_nodes
from privstream.mechanisms.noise.tails import NoiseSum
from privstream.mechanisms.privacy.accounting import largest_shift
from scipy import stats

EXACT = 1e7  # an epsilon at which all noise is 0


def run(mechanism, batches, noise=None):
    """Return the state after steps of (points, inserted)."""
    state = mechanism.initial_state()
    for points, inserted in batches:
        state = mechanism.update(state, Updates(np.array(points, np.int64), np.array(inserted, bool)))
    return state


def reference(batches):
    """Return the weights of points after the updates, one by one."""
    weights: dict[int, int] = {}
    for points, inserted in batches:
        for point, insertion in zip(points, inserted, strict=True):
            weights[point] = int(insertion)
    return weights


UNIVERSE = 13
BATCHES = st.lists(
    st.lists(st.tuples(st.integers(1, UNIVERSE), st.booleans()), max_size=6).map(
        lambda pairs: ([p for p, _ in pairs], [i for _, i in pairs])
    ),
    min_size=1,
    max_size=7,
)


class TestGeometry:
    @pytest.mark.parametrize("universe", [1, 2, 3, 5, 8, 13, 16])
    def test_covers_are_partitions_into_few_intervals(self, universe):
        height = tree_height(universe)
        ranges = [(a, b) for a in range(universe) for b in range(a + 1, universe + 1)]
        starts, ends = np.array(ranges).T
        numbers, levels, places = cover(starts, ends, 2)
        intervals = (np.int64(1) << (height - levels)) + places
        first, after = bounds(intervals, height)
        most = 0
        for i, (a, b) in enumerate(ranges):
            rows = np.flatnonzero(numbers == i)
            pieces = sorted(zip(first[rows].tolist(), after[rows].tolist(), strict=True))
            assert [a, *(end for _, end in pieces)] == [*(start for start, _ in pieces), b]
            most = max(most, len(pieces))
        assert most <= longest_cover(height)
        if universe == 16:
            assert most == longest_cover(height) == 6

    @pytest.mark.parametrize("universe", [1, 2, 3, 5, 8, 13, 16, 1000])
    def test_a_point_is_in_one_more_interval_than_log_universe(self, universe):
        levels = math.ceil(math.log2(universe)) + 1
        numbers = np.arange(1, 2 << tree_height(universe))
        first, after = bounds(numbers, tree_height(universe))
        for point in {0, universe // 2, universe - 1}:
            assert np.count_nonzero((first <= point) & (point < after)) == levels
        assert RangeCounter(epsilon=1.0, universe=universe).levels == levels


class TestPoints:
    @settings(max_examples=2 * settings.default.max_examples, deadline=None)
    @given(batches=BATCHES)
    def test_without_noise_counts_are_those_of_the_reference(self, batches):
        mechanism = RangeCounter(epsilon=EXACT, universe=UNIVERSE)
        weights = reference(batches)
        ranges = [(a, b) for a in range(1, UNIVERSE + 1) for b in range(a, UNIVERSE + 1)]
        low, high = np.array(ranges).T
        counts = mechanism.count(run(mechanism, batches), low, high, SeededNoise(1))
        assert counts.tolist() == [sum(weights.get(x, 0) for x in range(a, b + 1)) for a, b in ranges]

    def test_snapshots_keep_points_of_a_large_universe(self):
        mechanism = RangeCounter(epsilon=EXACT, universe=1 << 60)
        points = np.array([1, 1 << 59, 1 << 60])
        state = mechanism.restore(mechanism.snapshot(run(mechanism, [(points, [True] * 3)])))
        counts = mechanism.count(state, [1, 2, 1 << 60, 2], [1 << 60, 1 << 60, 1 << 60, 3], SeededNoise(1))
        assert counts.tolist() == [3, 2, 1, 0]


def node_sums(batches, mechanism, steps):
    """Return the sums of all (dyadic interval, interval of steps) that any prefix uses."""
    held, series = np.zeros(0, np.int64), []
    height = mechanism.levels - 1
    first, after = bounds(np.arange(1, 2 << height), height)
    for points, inserted in batches:
        held, new, gone = updated(held, Updates(np.array(points, np.int64), np.array(inserted, bool)), UNIVERSE)
        moved, weights = np.append(new, gone), np.repeat([1, -1], [len(new), len(gone)])
        series.append([int(weights[(moved > a) & (moved <= b)].sum()) for a, b in zip(first, after, strict=True)])
    table = np.array(series)
    (tree,) = mechanism.noise.epochs
    base = 2 if mechanism.delta else best_base(steps)
    used = {(level, position) for step in range(1, steps + 1) for level, position, _ in tree.nodes(step)}
    return {
        (level, position): table[position * base**level : (position + 1) * base**level].sum(axis=0)
        for level, position in used
    }


def nodes_of_a_step(mechanism):
    """Return in how many nodes over time a step is."""
    return mechanism.horizon.bit_length() if mechanism.delta else tree_nodes(mechanism.horizon)


class TestSensitivity:
    """What one update moves, by brute force over neighbouring inputs."""

    @settings(max_examples=2 * settings.default.max_examples, deadline=None)
    @given(batches=BATCHES, data=st.data(), delta=st.booleans())
    def test_one_update_moves_no_more_than_the_noise_is_scaled_for(self, batches, data, delta):
        mechanism = RangeCounter(epsilon=1.0, delta=1e-6 if delta else 0.0, universe=UNIVERSE, horizon=7)
        steps = [i for i, (points, _) in enumerate(batches) if points]
        if not steps:
            return
        step = data.draw(st.sampled_from(steps))
        index = data.draw(st.integers(0, len(batches[step][0]) - 1))
        other = [([*points], [*inserted]) for points, inserted in batches]
        del other[step][0][index], other[step][1][index]
        one = node_sums(batches, mechanism, 7)
        two = node_sums(other, mechanism, 7)
        moved = np.concatenate([np.abs(one[node] - two[node]) for node in one])
        assert moved.max(initial=0) <= 1
        assert moved.sum() <= IMPULSES * mechanism.levels * nodes_of_a_step(mechanism)

    def test_fewer_levels_or_impulses_would_not_do(self):
        mechanism = RangeCounter(epsilon=1.0, universe=UNIVERSE, horizon=7)
        nothing = ([], [])
        # Without the first insertion the second counts; so both steps change, in all levels of both trees.
        batches = [([5], [True]), nothing, nothing, ([5], [True]), nothing, nothing, nothing]
        one = node_sums(batches, mechanism, 7)
        two = node_sums([nothing, *batches[1:]], mechanism, 7)
        moved = sum(np.abs(one[node] - two[node]).sum() for node in one)
        height = nodes_of_a_step(mechanism)
        assert moved > mechanism.levels * height  # one impulse would be too few
        assert moved > 2 * (mechanism.levels - 1) * height  # log2 of the universe, too

    @pytest.mark.parametrize(("universe", "levels"), [(1, 1), (2, 2), (5, 4), (1 << 20, 21), ((1 << 20) + 1, 22)])
    def test_scales(self, universe, levels):
        parameters = {"epsilon": 0.5, "universe": universe, "horizon": 1024}
        (tree,) = RangeCounter(**parameters).noise.epochs
        assert tree.law.scale == pytest.approx(2 * levels * 3 / 0.5)
        (tree,) = RangeCounter(**parameters, delta=1e-6).noise.epochs
        squared = 2 * levels * 11 / largest_shift(0.5, 1e-6) ** 2
        assert tree.law.sigma == pytest.approx(math.sqrt(squared + 4), rel=1e-4)


class TestNoise:
    def test_a_count_is_the_truth_and_the_noise_of_its_nodes(self):
        mechanism = RangeCounter(epsilon=1.0, universe=16, horizon=40)
        key = SeededNoise(7)
        state = run(mechanism, [([3, 9], [True, True])] * 17)
        (tree,), total = mechanism.noise.epochs, 1
        source = key.derive("range counter", mechanism.parameters)
        for level, position, sign in tree.nodes(17):
            drawn = tree.law.draw(source.derive("node", 0, level, position, b""), np.array([2], np.uint64))
            total += sign * int(drawn[0])
        assert mechanism.count(state, [1], [8], key).tolist() == [total]

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    @pytest.mark.parametrize("horizon", [500, None])
    def test_variance(self, delta, horizon):
        mechanism = RangeCounter(epsilon=1.0, delta=delta, universe=1 << 20, horizon=horizon)
        state = run(mechanism, [([], [])] * 23)
        low = 1 + 4 * np.arange(40_000)  # intervals of level 2, each alone
        drawn = mechanism.count(state, low, low + 3, SeededNoise(11)).astype(float)
        expected = mechanism.noise.variance(23)
        kurtosis = 3 if delta else 9  # at most: 6 above normal for one Laplace, less for sums
        spread = expected * math.sqrt((kurtosis - 1) / len(drawn)) * 6.2  # false alarm below 1e-9
        assert abs(drawn.var() - expected) < spread < 0.3 * expected
        assert abs(drawn.mean()) < 6.2 * math.sqrt(expected / len(drawn))

    def test_the_law_of_one_node(self):
        mechanism = RangeCounter(epsilon=1.0, universe=1 << 20, horizon=1)
        state = run(mechanism, [([], [])])
        point = np.arange(1, 200_001)
        drawn = mechanism.count(state, point, point, SeededNoise(3))
        scale = 2 * 21 / 1.0
        edges = np.arange(-120, 121, 20)

        counts = np.bincount(np.searchsorted(edges, drawn, side="left"), minlength=len(edges) + 1)

        def expected(law_scale):
            support = np.arange(-20_000, 20_001)
            places = np.searchsorted(edges, support, side="left")
            return np.bincount(places, DiscreteLaplace(law_scale).pmf(support), minlength=len(edges) + 1)

        def chi_square(law_scale):
            mean = expected(law_scale) * len(drawn)
            return float(((counts - mean) ** 2 / mean).sum())

        limit = stats.chi2.isf(1e-9, len(edges))
        assert chi_square(scale) < limit
        assert chi_square(1.3 * scale) > limit
        assert chi_square(scale / 1.3) > limit

    def test_asking_again_or_together_changes_nothing(self):
        mechanism = RangeCounter(epsilon=1.0, delta=1e-6, universe=1000)
        state = run(mechanism, [([5, 600], [True, True])] * 9)
        low, high = np.array([1, 7, 500]), np.array([1000, 700, 501])
        together = mechanism.count(state, low, high, SeededNoise(1))
        alone = [int(mechanism.count(state, [a], [b], SeededNoise(1))[0]) for a, b in zip(low, high, strict=True)]
        assert together.tolist() == alone

    def test_gaussian_noise_is_bound_to_the_history(self):
        mechanism = RangeCounter(epsilon=1.0, delta=1e-6, universe=64, horizon=100)
        batches = [([i + 1], [True]) for i in range(20)]
        changed = [*batches[:12], ([50], [True]), *batches[13:]]
        low = np.arange(1, 65)
        for steps in range(1, 21):
            one = run(mechanism, batches[:steps])
            two = run(mechanism, changed[:steps])
            noise = [
                mechanism.count(state, low, low, SeededNoise(5)) - np.isin(low, state.points) for state in (one, two)
            ]
            if steps <= 12:
                assert np.array_equal(*noise)
            else:
                assert np.count_nonzero(noise[0] == noise[1]) < 20  # else the difference of the data would be exact


@pytest.mark.parametrize("delta", [0.0, 1e-6])
def test_prefixes_are_partitions_of_all_steps(delta):
    mechanism = RangeCounter(epsilon=1.0, delta=delta, universe=16)
    for step in (1, 9, 10, 11, 24, 157, 158, 3000, 10**6):
        parts = [
            (2 if delta else best_base(mechanism.noise.lengths[n[0]])) ** n[2] * n[4] for n in mechanism._nodes(step)
        ]
        assert sum(parts) == step


class TestError:
    @pytest.mark.parametrize("parts", [[(7.0, 3)], [(3.0, 2), (11.0, 1)]])
    def test_sums_are_exact(self, parts):
        law = np.ones(1)
        reach = 3000
        for scale, number in parts:
            for _ in range(number):
                law = np.convolve(law, DiscreteLaplace(scale).pmf(np.arange(-reach, reach + 1)))
        middle = len(law) // 2
        above = np.cumsum(law[::-1])[::-1]  # Pr[sum >= index - middle]
        for log_beta in (-1.0, -5.0, -20.0):
            z = NoiseSum.laplace(parts).quantile(log_beta)
            assert above[middle + z + 1] <= math.exp(log_beta) < above[middle + z]

    def test_sums_of_geometrics(self):
        noises = NoiseSum(((9.0, 2),), ((4.0, 3),))
        support = np.arange(2000)
        up, down = (1 - math.exp(-1 / 9)) * np.exp(-support / 9), (1 - math.exp(-1 / 4)) * np.exp(-support / 4)
        law = np.convolve(np.convolve(up, up), np.convolve(np.convolve(down, down), down)[::-1])
        above = np.cumsum(law[::-1])[::-1]
        zero = 3 * 1999
        for log_beta in (-2.0, -10.0, -24.0):
            z = noises.quantile(log_beta)
            assert above[zero + z + 1] <= math.exp(log_beta) < above[zero + z]

    @pytest.mark.slow
    def test_answers_of_a_range_pass_its_error_as_often_as_stated(self):
        """One answer each of many runs; noise that is wider by 30% would pass it too often."""
        mechanism = RangeCounter(epsilon=1.0, universe=64, horizon=40)
        state = run(mechanism, [([], [])] * 11)
        low, high = [2, 2, 1], [63, 3, 64]
        bounds = mechanism.errors_at(11, low, high, 0.2, answers=1, every_step=False)
        answers = np.array([mechanism.count(state, low, high, SeededNoise(seed)) for seed in range(2500)])
        for passed in (np.abs(answers) > bounds).mean(axis=0):
            assert 0.1 < passed < 0.2 + 6.5 * math.sqrt(0.16 / 2500)
        wider = np.abs(np.rint(1.3 * answers)) > bounds
        assert np.any(wider.mean(axis=0) > 0.2 + 6.5 * math.sqrt(0.16 / 2500))


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
        mechanism = RangeCounter(epsilon=1.0, universe=100)
        with pytest.raises(error) as caught:
            mechanism.step(mechanism.initial_state(), RangeStep(updates), SeededNoise(1))
        assert str(caught.value) == message


class TestKnownRanges:
    @settings(max_examples=settings.default.max_examples, deadline=None)
    @given(
        batches=BATCHES,
        ranges=st.lists(st.tuples(st.integers(1, UNIVERSE), st.integers(1, UNIVERSE)), min_size=1, max_size=6),
        delta=st.sampled_from([0.0, 1e-6]),
    )
    def test_without_noise_counts_are_those_of_the_reference(self, batches, ranges, delta):
        asked = tuple((min(pair), max(pair)) for pair in ranges)
        mechanism = RangeCounter(epsilon=EXACT, universe=UNIVERSE, asked=asked)
        weights = reference(batches)
        counts = mechanism.count(run(mechanism, batches), *zip(*asked, strict=True), SeededNoise(1))
        assert counts.tolist() == [sum(weights.get(x, 0) for x in range(a, b + 1)) for a, b in asked]
        noisy = RangeCounter(epsilon=1.0, delta=delta, universe=UNIVERSE, horizon=4, asked=asked)
        first, after = (np.array(column) for column in zip(*asked, strict=True))
        numbers, _ = noisy._cover(first, after + 1)
        assert np.bincount(numbers).max() == noisy._cells.most

    def test_other_ranges_are_refused(self):
        mechanism = RangeCounter(epsilon=1.0, universe=9, asked=((1, 4), (2, 4)))
        state = run(mechanism, [([1], [True])])
        assert len(mechanism.count(state, [2, 1, 2], [4, 4, 4], SeededNoise(1))) == 3
        for low, high in ((1, 3), (2, 9), (4, 4)):
            with pytest.raises(ValueError, match="ranges that are asked"):
                mechanism.count(state, [low], [high], SeededNoise(1))
        with pytest.raises(ValueError, match="high must be >= low"):
            RangeCounter(epsilon=1.0, universe=9, asked=((4, 1),))

    def test_noise_of_other_ranges_is_another_one(self):
        one, other = (RangeCounter(epsilon=1.0, universe=9, asked=asked) for asked in (((1, 4),), ((1, 4), (5, 9))))
        again = RangeCounter(epsilon=1.0, universe=9, asked=((5, 9), (1, 4), (1, 4)))
        assert len({one.parameters, other.parameters}) == 2
        assert again.parameters == other.parameters

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    @pytest.mark.parametrize("number", [1, 4, 40])
    def test_no_point_is_in_more_nodes_than_noise_is_for(self, number, delta):
        ends = np.sort(np.random.default_rng(number).integers(1, 101, (number, 2)), axis=1)
        made = RangeCounter(epsilon=1.0, delta=delta, universe=100, asked=tuple(map(tuple, ends.tolist())))
        cells = made._cells
        _, nodes = made._cover(ends[:, 0], ends[:, 1] + 1)
        held = np.zeros(101, np.int64)
        for node in np.unique(nodes).tolist():
            size = cells.base ** (node >> 32)
            first = (node & 0xFFFFFFFF) * size
            held[cells.edges[first] : cells.edges[min(first + size, len(cells.edges) - 1)]] += 1
        assert held.max() == cells.overlap == made.levels
