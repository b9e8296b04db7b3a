"""Attacks on live histograms through all stages: ours must stand, broken ones must fall."""

from dataclasses import fields, replace

import numpy as np
import pytest
from attacks import falls, stands
from live_histogram import Live
from privstream.mechanisms.histograms.histogram_queries import HistogramQueries
from privstream.mechanisms.monitor.holdings import UserCounters
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms import ContinualHistogram, Domain
from privstream.transforms.histograms.categories import LimitRows

pytestmark = pytest.mark.slow

RUNS = 3000
CLAIMED = 2.0
WINDOWS = 4
LIMIT = 2


def histogram(runs, **options):
    """A histogram of one category in each of many streams; each run is a stream."""
    streams = tuple(f"run {i}" for i in range(runs))
    return ContinualHistogram(
        **{"epsilon": CLAIMED, "domain": Domain(["a"]), "window": 1, "start": 0, "end": WINDOWS, "streams": streams,
           "unit": "person", "max_contributions": LIMIT, "method": "direct_counters", "noise": SeededNoise(0)} | options
    )  # fmt: skip


def increments(made, suspects, seed, **options):
    """Return how far each window's growth is above that of the others' rows, (runs, windows).

    The suspect of a run has `suspects` rows in every window, more than may count. In each window as many others have a
    row as the last growth was off: what goes in depends on what came out.
    """
    live, runs = Live(made, seed, **options), len(made.categories.streams)
    before, found, others = np.zeros(runs, np.int64), [], np.zeros(runs, np.int64)
    for window in range(WINDOWS):
        others = np.clip(np.abs(found[-1]), 0, 5) if found else others
        crowd = np.repeat(np.arange(runs), others)
        run = np.concatenate([crowd, np.repeat(np.arange(runs), suspects)])
        names = [f"other {window} {i}" for i in range(len(crowd))] + [f"suspect {i}" for i in run[len(crowd) :]]
        streams = [made.categories.streams[i] for i in run]
        sums = live.window(window, names, ["a"] * len(run), streams)[:, 0]
        found.append(sums - before - others)
        before = sums
    return np.array(found).T


def outcomes(growth):
    """Tell in which windows the growth looks as if the suspect had a row."""
    return (growth >= 1).astype(np.int64) @ (1 << np.arange(WINDOWS))


class ForgetfulLimit(LimitRows):
    """Limits each window by itself."""

    def decode(self, key, segments):
        return UserCounters()


def worlds(made, suspects, **options):
    return [outcomes(increments(made, rows, seed, **options)) for seed, rows in enumerate((0, suspects))]


def test_a_person_with_more_rows_than_may_count_is_hidden():
    stands(worlds(histogram(RUNS, max_per_window=1), 3), CLAIMED, visible=0.5)


def test_all_rows_at_once_are_hidden_too():
    made = histogram(RUNS)
    seen = [np.clip(increments(made, rows, seed)[:, 0], -9, 11) for seed, rows in enumerate((0, 5))]
    stands(seen, CLAIMED, visible=0.5)


def test_limits_that_forget_fall():
    falls(worlds(histogram(2 * RUNS, max_per_window=1), 6, limiter=ForgetfulLimit), CLAIMED)


def test_a_tree_with_noise_for_one_row_falls():
    made = histogram(RUNS, max_per_window=1)
    made._mechanism = replace(made.mechanism, rows_per_unit=None)
    falls(worlds(made, 3), CLAIMED)


class WithoutReset(HistogramQueries):
    """Keeps the counts of an interval that has ended."""

    def run(self, state, matrix, noise):
        after, answers = super().run(state, matrix, noise)
        if after.interval > state.interval:
            after = replace(after, counts=state.counts + matrix.sum(axis=0))
        return after, answers


SURE = 200_000
ROUNDS = 10


def last_anchor(mechanism, suspects, seed):
    """Return how far the last of some sums is above what it would be without noise and without the suspect.

    Every window is sure to end an interval. Each column is a run, with noise of its own and a suspect who has a row in
    the first window. Counts, not events, are fed to the last stage here, for there are many.
    """
    made = anchored_histogram()
    made._mechanism = mechanism
    publish = made.publisher(1, SeededNoise(seed))
    publish.setup()
    state = publish.initial(b"")
    for window in range(ROUNDS):
        matrix = np.full((1, RUNS), SURE + (suspects if window == 0 else 0))
        publish.matrix = lambda first, last, batches, matrix=matrix: matrix
        state, rows = publish.walk(b"", window, window, {}, state)
    half = int(mechanism.partition.unseen(np.array([1]), ROUNDS)[0]) // 2
    reset = type(mechanism) is HistogramQueries
    total = SURE * (ROUNDS if reset else ROUNDS * (ROUNDS + 1) // 2)
    found = np.array([row.estimate for _, row in rows]) - half - total
    return np.clip(found, -20, 30)


def anchored_histogram():
    domain = Domain([f"run {i}" for i in range(RUNS)])
    options = {"method": "anchored_counters", "largest": 100, "end": ROUNDS, "streams": None, "domain": domain}
    return histogram(1, unit="event", max_contributions=None, **options)


@pytest.mark.parametrize("reset", [True, False])
def test_a_partition_must_reset(reset):
    mechanism = anchored_histogram().mechanism
    if not reset:
        mechanism = WithoutReset(
            **{name: getattr(mechanism, name) for name in (each.name for each in fields(mechanism))}
        )
    (stands if reset else falls)([last_anchor(mechanism, rows, seed) for seed, rows in enumerate((0, 1))], CLAIMED)
