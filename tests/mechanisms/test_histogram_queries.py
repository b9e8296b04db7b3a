"""Histogram queries and flags: queries, slow references, error bounds, the published figures, refusals."""

import math

import numpy as np
import pytest
from grids import some_quick
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.continual.histogram import HistogramQueries, bound_labels
from privstream.mechanisms.continual.queries import Histogram, MaxSum, MinSum, Monotone, Quantile, TopK
from privstream.mechanisms.noise.discrete import Geometric
from privstream.mechanisms.noise.running import sums_noise
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.privacy.guarantee import GIVEN_FUNCTIONS
from scipy import stats

FALSE_ALARM = 1e-10


QUERIES = (Histogram(), MaxSum(), MinSum(), Quantile(0.5), TopK(3))
OWN = (Monotone(lambda sums: np.sort(sums, axis=1)[:, -2], "second"), Monotone(lambda sums: sums.mean(axis=1), "mean"))
"""Of real values is the mean alone."""

VECTORS = st.lists(st.integers(-1000, 1000), min_size=6, max_size=6).map(lambda values: np.array([values]))
MODES = ("anchored", "paper")


class TestQueries:
    @given(one=VECTORS, other=VECTORS)
    def test_queries_are_monotone_and_lipschitz(self, one, other):
        for query in QUERIES + OWN:
            low, high = np.minimum(one, other), np.maximum(one, other)
            difference = query.values(high) - query.values(low)
            assert np.all(difference >= 0)
            assert np.all(difference <= (high - low).max())
            assert np.all(np.abs(query.values(one) - query.values(other)) <= np.abs(one - other).max())
            assert np.all(query.values(0 * one) == 0)

    @given(VECTORS)
    def test_values(self, sums):
        ordered = np.sort(sums[0])
        assert MaxSum().values(sums).tolist() == [[ordered[-1]]]
        assert MinSum().values(sums).tolist() == [[ordered[0]]]
        for q, rank in ((0.01, 1), (1 / 6, 1), (0.5, 3), (0.51, 4), (1.0, 6)):
            assert Quantile(q).values(sums).tolist() == [[ordered[rank - 1]]]
        assert TopK(4).values(sums)[0].tolist() == ordered[::-1][:4].tolist()

    def test_the_guarantee_rests_on_functions_of_the_caller(self):
        for some, rests in ((OWN, True), (QUERIES, False)):
            assert (GIVEN_FUNCTIONS in mechanism("anchored", queries=some).guarantee.caveats) == rests


def mechanism(mode, **changes):
    options = {"epsilon": 4.0, "columns": 6, "queries": QUERIES + OWN, "mode": mode, "horizon": 2000, "largest": 2000}
    return HistogramQueries(**(options | changes))


def run(tested, rows, noise, state=None):
    """Return the last state, and what is published after every step."""
    state, published = state or tested.initial_state(), []
    for row in rows:
        state, answers = tested.step(state, row, noise)
        published.append(answers)
    return state, np.array(published)


def all_values(queries, sums):
    """Return the values of all queries, for sums of many steps."""
    return np.concatenate([query.values(sums) for query in queries], axis=1)


class Sums:
    """The noisy sums of a mechanism, published again and again."""

    def __init__(self, tested, source):
        self.noise, self.source, self.number = tested.partition.noise, source.derive("sums"), 0
        self.totals = np.zeros(tested.columns, np.int64)
        self.memory = np.zeros((self.noise.rows, tested.columns))

    def publish(self, counts):
        self.totals, self.number = self.totals + counts, self.number + 1
        keys = np.arange(len(counts), dtype=np.uint64)
        return self.totals + self.noise.advance(self.memory, self.number, keys, self.totals, self.source)


def stream(steps, columns=6, seed=0, most=12):
    """Rows in batches, some steps empty, one very large."""
    rows = np.random.default_rng(seed).integers(0, most, (steps, columns))
    rows[::7] = 0
    rows[steps // 2] = 5000
    return rows


class TestRuns:
    def test_anchored_reference(self):
        tested = mechanism("anchored", epsilon=8.0)
        rows, noise = stream(400, most=30), SeededNoise(6)
        state, published = run(tested, rows, noise)
        partition, source = tested.partition, tested._source(noise)
        s, c, interval, sums = np.zeros(6, np.int64), np.zeros(6, np.int64), 0, Sums(tested, source)
        ends = 0
        for step, row in enumerate(rows, start=1):
            c = c + row
            growth = all_values(tested.queries, (s + c)[None, :]) - all_values(tested.queries, s[None, :])
            draws = source.derive("interval", interval, s.tobytes())
            mu_law, tau_law = map(Geometric, partition.scales)
            tau = tau_law.draw(draws.derive("anchored tau"), np.array([interval], np.uint64))[0]
            label = bound_labels(draws.derive("anchored mu"), np.array([step]), np.array([float(growth.max())]))
            mu = mu_law.draw(draws.derive("anchored mu"), label)[0]
            ended = growth.max() + mu > partition.threshold(step, interval) + tau
            if ended:
                s = sums.publish(c)
                c, interval, ends = np.zeros(6, np.int64), interval + 1, ends + 1
            half = 0 if ended else partition.unseen(step, interval) // 2
            expected = [query.values(s[None, :])[0] + half for query in tested.queries]
            assert np.array_equal(published[step - 1], np.concatenate(expected))
        assert state.interval == ends > 3

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_paper_reference(self, delta):
        """Algorithm 2, line by line."""
        tested = mechanism("paper", delta=delta, epsilon=2.5, queries=(TopK(2), MinSum()))
        rows, noise = stream(600, most=60), SeededNoise(7)
        final, published = run(tested, rows, noise)
        p, source = tested.partition, tested._source(noise)
        s, c, anchor = (np.zeros(6, np.int64) for _ in range(3))
        j, sums, crossed = 1, Sums(tested, source), 0
        base = np.zeros(3)  # the thresholds less K
        out = np.zeros(3, np.int64)
        for t, row in enumerate(rows, start=1):
            c, s = c + row, s + row
            q = all_values(tested.queries, s[None, :])[0]
            draws = source.derive("interval", j - 1, anchor.tobytes())
            test = p.test(t, j - 1, float((q - base).max()), draws)
            if np.any(q - test > base + p.rise(t, j)):
                anchor = sums.publish(c)
                gamma = draws.derive("paper gamma", t)
                drawn = p.gamma.draw(gamma, bound_labels(gamma, np.arange(3), q))
                close = q + drawn > base + p.rise(t, j) - p.margin(t, j)
                crossed += close.sum()
                base = np.where(close, base + p.rise(t, j), base)
                j += 1
                s, c = anchor, np.zeros(6, np.int64)
                out = all_values(tested.queries, s[None, :])[0]
            assert np.array_equal(published[t - 1], out), t
        assert final.interval == j - 1 >= 2
        assert crossed >= 2

    @pytest.mark.parametrize("mode", ["anchored", "paper"])
    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_a_run_that_is_repeated_with_other_data_draws_other_noise(self, mode, delta):
        """From the first step on at which the data differ, in every column whose sum differs: no exact difference."""
        tested = mechanism(mode, delta=delta, epsilon=2.5, queries=(Histogram(),), horizon=None)
        rows, noise, half = stream(300, most=60), SeededNoise(8), 150
        other = rows.copy()
        other[half, :3] += [1, 50, 400]
        _, first = run(tested, rows, noise)
        _, second = run(tested, other, noise)
        assert np.array_equal(first[:half], second[:half])
        renewed = half + np.flatnonzero(np.any(first[half:] != second[half:], axis=1))
        differences = (second - first)[renewed]
        assert len(renewed) > 10
        assert np.mean(differences[:, :3] == [1, 50, 400]) < 0.2


def worst_end(partition, moves):
    """Return the largest log ratio of the probabilities of miss, hit between worlds whose growth differs by `moves`."""
    tau = np.arange(400)
    mu_scale, tau_scale = partition.scales
    likely = Geometric(tau_scale).pmf(tau)
    decay = math.exp(-1 / mu_scale)

    def end(miss, hit):
        """Return Pr[mu_1 <= tau - miss, mu_2 > tau - hit], growth being counted from the threshold."""
        above = [decay ** np.maximum(0, tau - growth + 1.0) for growth in (miss, hit)]
        return float(likely @ ((1 - above[0]) * above[1]))

    levels = range(-12, 13)
    ends = {(miss, hit): end(miss, hit) for miss in range(-15, 16) for hit in range(-15, 16)}
    return max(
        abs(math.log(ends[miss, hit] / ends[miss + a, hit + b]))
        for miss in levels
        for hit in levels
        for a in moves
        for b in moves
    )


EPSILON = 2.0 / 0.35
"""With 2 of it for tests."""


class TestBudget:
    def test_scales_spend_what_the_counter_leaves(self):
        tested = mechanism("anchored", epsilon=1.0)
        spent = sum(1 / scale for scale in tested.partition.scales)
        assert spent == pytest.approx(0.35, rel=1e-9)
        assert spent <= 0.35 + 1e-12
        one = sums_noise(0.65, 0.0, 6, 1, tested.partition.intervals, tested.horizon)
        assert tested.partition.noise == one

    def test_ends_of_intervals_cost_what_the_proof_says(self):
        """Exact probabilities of all ends of short intervals, for growth near the threshold, in neighbouring worlds."""
        tested = mechanism("anchored", epsilon=EPSILON)
        assert worst_end(tested.partition, (0, 1)) == pytest.approx(2.0, rel=0.02)
        assert worst_end(tested.partition, (0, 1)) <= 2.0 + 1e-9

    def test_a_person_with_several_rows_in_an_interval(self):
        """All rows in one interval, or any part of them, cost no more than epsilon_2; noise for one row would."""
        options = {"epsilon": EPSILON}
        tested = mechanism("anchored", rows_per_unit=3, **options)
        moves = range(4)
        assert 1.6 < worst_end(tested.partition, moves) <= 2.0 + 1e-9
        assert worst_end(mechanism("anchored", **options).partition, moves) > 4.0
        assert "one person" in tested.guarantee.paragraph()

    @pytest.mark.parametrize("delta", [0.0, 1e-6])
    def test_paper_noise_pays_for_all_moves(self, delta):
        moves = 5
        options = {"epsilon": 2.0, "delta": delta}
        flags = {"columns": 2, "thresholds": (5, 5), "mode": "paper"}
        for one, many in (
            (mechanism("paper", **options), mechanism("paper", rows_per_unit=5, **options)),
            (HistogramQueries(**options, **flags), HistogramQueries(rows_per_unit=5, **options, **flags)),
        ):
            assert many.partition.gamma.variance == pytest.approx(moves**2 * one.partition.gamma.variance, rel=0.01)
            for step in range(1, 9):
                less, more = (p.test(step, 0, 0.0, SeededNoise(1)) for p in (one.partition, many.partition))
                assert abs(more - moves * less) <= 2 * moves  # rounded noise
            for bound in ("mu_bound", "tau_bound", "gamma_bound"):
                less, more = (float(getattr(made.partition, bound)(3)) for made in (one, many))
                assert moves * less - moves / 2 <= more <= moves * less * (1 + 1e-9)
            assert many.partition.noise.variance(1) >= 20 * one.partition.noise.variance(1)


class TestErrors:
    @pytest.mark.parametrize(("delta", "horizon"), [(0.0, None), (1e-6, 1500)])
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.slow
    def test_errors_hold(self, mode, delta, horizon):
        """Over whole runs of batches (of single rows in mode paper, as its lemmas ask)."""
        tested = mechanism(mode, delta=delta, horizon=horizon, epsilon=2.0)
        failures, runs = 0, 8  # all of them would have to fail for a false alarm
        for seed in range(runs):
            rows = stream(1500, seed=seed, most=2 if mode == "paper" else 12)
            if mode == "paper":
                rows = np.minimum(rows, 1)
            sums = np.cumsum(rows, axis=0)
            _, published = run(tested, rows, SeededNoise(seed))
            bound = tested.error(int(sums.max()))
            failures += int(np.abs(published - all_values(tested.queries, sums)).max() > bound)
        assert stats.binom.sf(failures - 1, runs, tested.beta) > FALSE_ALARM


class TestFlags:
    def test_reference(self):
        """Algorithm 9, line by line; flags stay up."""
        tested = HistogramQueries(epsilon=2.0, columns=4, thresholds=(900, 3000, 3010, 10**6), mode="paper")
        rows, noise = stream(800, columns=4, most=20), SeededNoise(3)
        final, flags = run(tested, rows, noise)
        p, source = tested.partition, tested._source(noise)
        s, c, j, sums = np.zeros(4, np.int64), np.zeros(4, np.int64), 1, Sums(tested, source)
        levels, anchor = np.array(tested.thresholds, float), np.zeros(4, np.int64)
        for t, row in enumerate(rows, start=1):
            c, s = c + row, s + row
            draws = source.derive("interval", j - 1, anchor.tobytes())
            if np.any(s - p.test(t, j - 1, float((s - levels).max()), draws) > levels):
                anchor = sums.publish(c)
                gamma = draws.derive("paper gamma", t)
                drawn = p.gamma.draw(gamma, bound_labels(gamma, np.arange(4), s))
                levels = np.where(s + drawn > levels - p.margin(t, j), np.inf, levels)
                s, c, j = anchor, np.zeros(4, np.int64), j + 1
            assert np.array_equal(flags[t - 1], levels == np.inf)
        assert np.all(flags[1:] >= flags[:-1])
        assert flags[-1].tolist() == [True, True, True, False]
        assert final.interval == j - 1

    @some_quick("delta", [0.0, 1e-6])
    @pytest.mark.parametrize("mode", MODES)
    @pytest.mark.slow
    def test_errors_hold(self, delta, mode):
        runs, failures = 8, 0
        for seed in range(runs):
            given = {"columns": 3, "thresholds": (2000, 2500, 3500), "horizon": 1000, "mode": mode}
            tested = HistogramQueries(epsilon=2.0, delta=delta, **given)
            rows = np.random.default_rng(seed).integers(0, 10, (1000, 3))
            rows[:, 0] = 5
            sums = np.cumsum(rows, axis=0)
            _, flags = run(tested, rows, SeededNoise(seed))
            bound = tested.error_bound(1000, 3) if mode == "paper" else tested.error(5000, 1000)
            early = flags & (sums < np.array(tested.thresholds) - bound)
            late = ~flags & (sums > np.array(tested.thresholds) + bound)
            failures += int(early.any() or late.any())
            assert flags[-1, 0]
        assert stats.binom.sf(failures - 1, runs, 0.05) > FALSE_ALARM
