"""The error bounds of rows hold for whole runs, also for batches that cross several thresholds at once."""

import numpy as np
import pytest
from privstream.mechanisms.histograms.histogram_queries import Histogram, HistogramQueries, MaxSum, MinSum
from privstream.mechanisms.noise.sources import SeededNoise
from scipy import stats

RUNS, STEPS, BETA = 150, 40, 0.3
CASES = {
    "direct": {"mode": "direct", "horizon": STEPS},
    "direct, no end": {"mode": "direct"},
    "direct, approximate": {"mode": "direct", "horizon": STEPS, "delta": 1e-6},
    "anchored": {"mode": "anchored", "horizon": STEPS, "largest": 2000, "epsilon": 4.0},
    "anchored, no end": {"mode": "anchored", "largest": 2000, "epsilon": 4.0},
    "anchored extremes": {"mode": "anchored", "queries": (MaxSum(), MinSum()), "largest": 2000, "epsilon": 4.0},
    "paper": {"mode": "paper", "queries": (MaxSum(), MinSum()), "horizon": STEPS, "epsilon": 100.0},
}  # fmt: skip


def counts(seed):
    """Counts of three columns: quiet, with a few large batches."""
    chance = np.random.default_rng(seed)
    return chance.poisson(5, (STEPS, 3)) + (chance.random((STEPS, 3)) < 0.1) * chance.integers(0, 800, (STEPS, 3))


def worst_parts(mechanism, runs):
    """Return, for each of many runs, the largest error as a part of its row's bound."""
    found = []
    for run in range(runs):
        matrix, state, noise = counts(run), mechanism.initial_state(), SeededNoise(run)
        truth, worst = np.zeros((1, 3), np.int64), 0.0
        for number, vector in enumerate(matrix):
            state, answers = mechanism.step(state, vector, noise)
            truth = truth + vector
            true = np.concatenate([query.values(truth)[0] for query in mechanism.queries])
            worst = max(worst, np.abs(answers - true).max() / max(1, mechanism.error_bound(number + 1, state.interval)))
        found.append(worst)
    return np.array(found)


@pytest.mark.parametrize(
    ("name", "runs"), [("direct", 15), *(pytest.param(name, RUNS, marks=pytest.mark.slow) for name in CASES)]
)
def test_bounds_hold_for_whole_runs(name, runs):
    mechanism = HistogramQueries(
        **{"epsilon": 1.0, "columns": 3, "row_columns": 1, "beta": BETA, "queries": (Histogram(),), **CASES[name]}
    )
    parts = worst_parts(mechanism, runs)
    assert (parts > 1).sum() <= stats.binom.isf(1e-10, runs, BETA)
    if name.startswith("direct,") or name == "direct":  # exact quantiles, or nearly: no bound may be far too wide
        assert (parts > 0.6).sum() > runs / 3
    else:
        assert parts.max() > (0.02 if name == "paper" else 0.2)


def test_bounds_grow_with_time_and_intervals_alone():
    endless = HistogramQueries(epsilon=1.0, columns=3, mode="direct")
    bounds = [endless.error_bound(step, step) for step in range(1, 70)]
    assert bounds == sorted(bounds)
    assert [bounds[i] for i in (0, 1, 2, 4, 8, 16)] == sorted({*bounds[:32]})
    ends = HistogramQueries(epsilon=1.0, columns=3, mode="direct", horizon=100)
    assert {ends.error_bound(step, step) for step in (1, 7, 100)} == {ends.counter.error(100, 0.05)}
    anchored = HistogramQueries(epsilon=1.0, columns=3, mode="anchored", horizon=100)
    by_interval = [anchored.error_bound(5, interval) for interval in range(9)]
    assert by_interval == sorted(by_interval)
    assert by_interval[0] < by_interval[-1]
    assert anchored.error_bound(5, 2) == anchored.error_bound(99, 2)
