"""Predecessors: the walk against the paper's case distinction, thresholds, errors, and hostile inputs."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms import DynamicPredecessor, IncrementalPredecessor, PredecessorStep, SeededNoise, Updates
from privstream.mechanisms.continual.predecessor import NO_POINT, NOTHING, bounds, last_starts
from privstream.mechanisms.continual.ranges import below, history
from privstream.mechanisms.noise.running import best_arity, plain_digits
from privstream.mechanisms.privacy.accounting import largest_shift

EXACT = 1e7  # an epsilon at which all noise is 0


def walk(end, height, finished):
    """Answer for [0, end) as the paper does: the cover until an interval is finished, then the last one in it."""
    cover = [(height - b, (end >> b) - 1) for b in range(height + 1) if end >> b & 1]  # from the end downwards
    at = next(((1 << depth) + place for depth, place in cover if (1 << depth) + place in finished), None)
    if at is None:
        return NOTHING
    while {2 * at, 2 * at + 1} & finished:
        at = 2 * at + 1 if 2 * at + 1 in finished else 2 * at
    return int(bounds(np.array([at]), height)[0][0])


@st.composite
def marks(draw):
    """Draw a height, and a set of intervals that holds with each interval the one above."""
    height = draw(st.integers(0, 4))
    chosen = set(draw(st.lists(st.integers(1, (2 << height) - 1), max_size=8)))
    return height, {n >> i for n in chosen for i in range(n.bit_length())}


@given(tree=marks())
def test_answers_are_those_of_the_walk_of_the_paper(tree):
    height, finished = tree
    size, ends = 1 << height, np.arange(1, (1 << height) + 1)
    first, after = bounds(np.array(sorted(finished), np.int64), height)
    assert last_starts(ends, first, after).tolist() == [walk(end, height, finished) for end in ends.tolist()]
    turned = {3 * (1 << (n.bit_length() - 1)) - 1 - n for n in finished}
    found = last_starts(ends, size - after, size - first)
    assert found.tolist() == [walk(end, height, turned) for end in ends.tolist()]


class TestThresholds:
    def test_they_are_exact_quantiles(self):
        tree = IncrementalPredecessor(epsilon=3.0, universe=1 << 10, horizon=100)
        tau = np.arange(tree.tau.tail_quantile(1e-30))
        for log_failure in (-0.5, -5.0, -30.0):
            k = int(tree.threshold(np.array([log_failure]))[0])
            over = [float((tree.tau.pmf(tau) * np.exp(-(k + d + tau) / tree.mu.scale)).sum()) for d in (0, 1)]
            assert over[1] <= math.exp(log_failure) * (1 + 1e-9)
            if k:
                assert over[0] > math.exp(log_failure) * (1 - 1e-9)

    def test_epsilon_is_spread_over_all_levels(self):
        for universe, levels in ((1, 1), (1000, 11), (1 << 32, 33)):
            tree = IncrementalPredecessor(epsilon=2.0, universe=universe)
            spent = 1 / tree.mu.scale + 1 / tree.tau.scale
            assert 2.0 / levels * (1 - 1e-9) < spent <= 2.0 / levels

    def test_thresholds_rise_with_births_and_steps_and_failures_add_up(self):
        plan = IncrementalPredecessor(epsilon=1.0, universe=1 << 16)
        births, steps = np.arange(2000), np.arange(1, 2001)
        one = plan.thresholds(births, 1)
        assert np.all(np.diff(one) >= 0)
        assert np.all(plan.thresholds(births, 100) > one)
        total = sum(np.exp(plan.log_failure(births, int(step))).sum() for step in steps)
        assert 0.005 < total < 0.05 / 2


def exact_neighbours(members, queries, universe):
    """Return predecessors and successors, 0 for none."""
    before = [max((x for x in members if x <= q), default=0) for q in queries]
    above = [min((x for x in members if x >= q), default=0) for q in queries]
    return before, above


@pytest.mark.parametrize("kind", [IncrementalPredecessor, DynamicPredecessor])
class TestBoth:
    @settings(max_examples=settings.default.max_examples, deadline=None)
    @given(
        universe=st.integers(1, 40),
        data=st.data(),
    )
    def test_without_noise_they_are_right(self, kind, universe, data):
        mechanism = kind(epsilon=EXACT, universe=universe, horizon=9)
        state, members = mechanism.initial_state(), set()
        queries = np.arange(1, universe + 1)
        for _ in range(3):
            points = data.draw(st.lists(st.integers(1, universe), max_size=5))
            if kind is DynamicPredecessor:
                inserted = [data.draw(st.booleans()) for _ in points]
            else:
                inserted = [True] * len(points)
            for point, insertion in zip(points, inserted, strict=True):
                (members.add if insertion else members.discard)(point)
            updates = Updates(np.array(points, np.int64), np.array(inserted, bool))
            state, near = mechanism.step(state, PredecessorStep(updates, queries), SeededNoise(1))
            before, above = exact_neighbours(members, queries.tolist(), universe)
            assert near.predecessors.tolist() == before
            assert near.successors.tolist() == above
            distances = [min((abs(x - q) for x in members), default=-1) for q in queries.tolist()]
            assert near.distances.tolist() == distances

    @pytest.mark.slow
    def test_the_promise_is_kept(self, kind):
        for universe, size, seed in ((1 << 16, 20_000, 1), (100_000, 100_000, 2), (1 << 32, 300_000, 3)):
            mechanism = kind(epsilon=4.0, universe=universe, horizon=12, beta=1e-9)
            rng, noise = np.random.default_rng(seed), SeededNoise(seed)
            state = mechanism.initial_state()
            for _ in range(4):
                queries = rng.integers(1, universe + 1, 300)
                points = np.minimum(universe, 1 + (rng.random(size // 4) ** 2 * universe).astype(np.int64))
                state, near = mechanism.step(state, PredecessorStep(Updates(points), queries), noise)
                held = state.points
                none = near.predecessors == 0
                down = below(held, queries + 1) - below(held, near.predecessors)
                up = below(held, np.where(near.successors == 0, universe, near.successors) + 1) - below(held, queries)
                assert down[~none].min(initial=1) >= 1
                assert up[near.successors > 0].min(initial=1) >= 1
                assert np.all(np.maximum(down, up) <= near.errors)
                assert near.errors.max() <= mechanism.error(state.step)
            assert np.count_nonzero(near.predecessors) > 100


class TestIncremental:
    def test_deletions_are_refused(self):
        mechanism = IncrementalPredecessor(epsilon=1.0, universe=1000)
        with pytest.raises(ValueError, match="updates must be insertions; DynamicPredecessor takes deletions"):
            mechanism.step(mechanism.initial_state(), PredecessorStep(Updates([5, 6], [True, False])), SeededNoise(1))

    def test_errors_of_answers_are_at_most_that_of_any_answer(self):
        mechanism = IncrementalPredecessor(epsilon=8.0, universe=1 << 16)
        state = mechanism.initial_state()
        rng = np.random.default_rng(1)
        for step in range(1, 4):
            given = PredecessorStep(Updates(rng.integers(1, 1 << 16, 8_000)), rng.integers(1, 1 << 16, 60))
            state, near = mechanism.step(state, given, SeededNoise(1))
            errors = near.errors
            assert 1 < errors.min() < errors.max() <= mechanism.error(step)
        assert errors.max() < 0.6 * mechanism.error(3)

    def test_steps_without_points_are_tested_too(self):
        """Nothing that is published tells an empty step from one whose points change nothing."""
        mechanism = IncrementalPredecessor(epsilon=1.0, universe=2, horizon=100)
        state = mechanism.initial_state()
        for _ in range(5):
            state, _ = mechanism.step(state, PredecessorStep(Updates(())), SeededNoise(1))
        assert state.step == 5
        assert state.activated == 1


class TestDynamic:
    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    @pytest.mark.parametrize("horizon", [40, None])
    def test_a_count_is_the_truth_and_the_noise_of_its_nodes(self, delta, horizon):
        """Of those of the prefix of steps, which are all steps once, each bound to the updates up to its end."""
        mechanism = DynamicPredecessor(epsilon=1.0, delta=delta, universe=16, horizon=horizon)
        state, source, digest, digests = mechanism.initial_state(), SeededNoise(7), bytes(16), {0: b""}
        for step in range(1, 30):
            state, _ = mechanism.step(state, PredecessorStep(Updates([step % 16 + 1], [step % 5 > 0])), source)
            was = digests[step - 1][1] if step > 1 else np.zeros(0, np.int64)
            new, gone = (np.setdiff1d(*pair) for pair in ((state.points, was), (was, state.points)))
            digest = history(digest, new, gone)
            digests[step] = digest, state.points
        held = np.zeros(60, np.int64)
        total = np.count_nonzero(state.points <= 8)
        for number, law, level, position, end in mechanism._nodes(29):
            before, tree = sum(mechanism.noise.lengths[:number]), mechanism.noise.epochs[number]
            size = tree.base**level
            held[before + position * size : before + (position + 1) * size] += 1
            assert end == before + (position + 1) * size <= 29
            bound = digests[end][0]
            drawn = law.draw(source.derive("node", number, level, position, bound), np.array([2], np.uint64))
            total += int(drawn[0])
        assert (held[:29].tolist(), held.max()) == ([1] * 29, 1)
        assert mechanism.count(state, np.array([1]), np.array([8]), source).tolist() == [total]

    @pytest.mark.parametrize(("universe", "levels"), [(1, 1), (2, 2), (5, 4), ((1 << 20) + 1, 22)])
    def test_scales(self, universe, levels):
        parameters = {"epsilon": 0.5, "universe": universe, "horizon": 1000}
        assert DynamicPredecessor(**parameters).height + 1 == levels
        (tree,) = DynamicPredecessor(**parameters).noise.epochs
        assert tree.law.scale == pytest.approx(2 * levels * len(plain_digits(best_arity(1000), 1000)) / 0.5)
        (tree,) = DynamicPredecessor(**parameters, delta=1e-6).noise.epochs
        squared = 2 * levels * len(plain_digits(4, 1000)) / largest_shift(0.5, 1e-6) ** 2
        assert tree.law.sigma == pytest.approx(math.sqrt(squared + 4), rel=1e-4)

    def test_large_universes(self):
        mechanism = DynamicPredecessor(epsilon=EXACT, universe=1 << 60, horizon=4)
        points = [1, 1 << 40, (1 << 60) - 1]
        queries = [1 << 39, 1 << 41, 1 << 60]
        _, near = mechanism.step(mechanism.initial_state(), PredecessorStep(Updates(points), queries), SeededNoise(1))
        assert near.predecessors.tolist() == [1, 1 << 40, (1 << 60) - 1]
        assert near.successors.tolist() == [1 << 40, (1 << 60) - 1, 0]


class TestLargeIntervals:
    """Bounds of sets know that an interval has no more points than places."""

    def test_answers_of_dense_points_are_within_bounds(self):
        """Half of all places have points; where they may be counted again, places are no limit."""
        made = IncrementalPredecessor(epsilon=1.0, universe=1 << 14, horizon=8)
        every, asked = (
            np.random.default_rng(4).permutation(np.arange(1, (1 << 14) + 1))[: 1 << 13],
            np.arange(1, 1 << 14, 7),
        )
        largest, narrow = 0.0, []
        for seed in range(10):
            state = made.initial_state()
            for some in np.array_split(every, 8):
                state, near = made.step(state, PredecessorStep(Updates(some), asked), SeededNoise(seed))
            held = state.points
            down = below(held, asked + 1) - below(held, near.predecessors)
            above = np.where(near.successors == NO_POINT, 1 << 14, near.successors)
            seen = np.maximum(down, below(held, above + 1) - below(held, asked))
            largest = max(largest, float((seen / near.errors).max()))
            narrow.append(float(near.errors.mean()))
        assert 0.3 < largest <= 1
        assert max(narrow) < made.error(8)
