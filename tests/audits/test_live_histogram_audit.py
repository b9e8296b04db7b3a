"""Attacks on live histograms through all stages: ours must stand, broken ones must fall."""

from dataclasses import fields, replace

import numpy as np
import pytest
from attacks import falls, stands
from privstream.mechanisms.histograms.histogram_queries import HistogramQueries
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.transforms import ContinualHistogram, Domain

pytestmark = pytest.mark.slow

RUNS = 3000
CLAIMED = 2.0
WINDOWS = 4
LIMIT = 2


def histogram(**options):
    """A histogram of one category."""
    return ContinualHistogram(
        **{"epsilon": CLAIMED, "domain": Domain(["a"]), "window": 1, "start": 0, "end": WINDOWS,
           "unit": "person", "max_contributions": LIMIT, "noise": SeededNoise(0)} | options
    )  # fmt: skip


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
        row = np.full(RUNS, SURE + (suspects if window == 0 else 0))
        publish.counts = lambda batches, row=row: row
        state, rows = publish.step(b"", window, [], state)
    reset = type(mechanism) is HistogramQueries
    total = SURE * (ROUNDS if reset else ROUNDS * (ROUNDS + 1) // 2)
    found = np.array([row.estimate for row in rows]) - total
    return np.clip(found, -20, 30)


def anchored_histogram():
    domain = Domain([f"run {i}" for i in range(RUNS)])
    options = {"largest": 100, "end": ROUNDS, "domain": domain}
    return histogram(unit="event", max_contributions=None, **options)


@pytest.mark.parametrize("reset", [True, False])
def test_a_partition_must_reset(reset):
    mechanism = anchored_histogram().mechanism
    if not reset:
        mechanism = WithoutReset(
            **{name: getattr(mechanism, name) for name in (each.name for each in fields(mechanism))}
        )
    (stands if reset else falls)([last_anchor(mechanism, rows, seed) for seed, rows in enumerate((0, 1))], CLAIMED)
