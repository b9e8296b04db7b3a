"""Intervals of a row by itself: the law of its noise is held in 95% of all cases, and not much more often."""

from functools import partial

import numpy as np
import pytest
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.counters.continual_counter import TreeCounter
from privstream.mechanisms.counters.toeplitz import BufferedToeplitzCounter, UnknownHorizonCounter
from privstream.mechanisms.noise.sources import SeededNoise
from privstream.mechanisms.points.dynamic_points import Updates
from privstream.mechanisms.points.range_counter import RangeCounter

DRAWS = 4000
MOST = 0.0715
"""Of 4,000 draws of which 5% are outside so many are, but with probability 1e-9; of a law 1 / 0.7 as wide 17% are."""

LEAST = 0.02
LEVELS = 8
Found = tuple[np.ndarray, float]
"""Errors of answers to independent questions, and their spread."""


def counted(kind: type, step: int, **parameters: object) -> Found:
    counter = kind(columns=DRAWS, row_columns=1, **parameters)
    _, sums = counter.run(counter.initial_state(), np.zeros((step, DRAWS), np.int64), SeededNoise(3))
    return sums[-1], counter.spread(step, OUTSIDE)


def ranges(steps: int, **parameters: object) -> Found:
    """Ranges of one shape beside each other, which have no dyadic interval in common."""
    counter = RangeCounter(universe=DRAWS * LEVELS, **parameters)
    state = counter.initial_state()
    for _ in range(steps):
        state = counter.update(state, Updates(np.zeros(0, np.int64), np.zeros(0, bool)))
    low = np.arange(DRAWS) * LEVELS + 2
    spreads = counter.spreads(steps, low, low + 5, OUTSIDE)
    assert len(set(spreads.tolist())) == 1
    return counter.count(state, low, low + 5, SeededNoise(4)), spreads[0]


CASES = {
    "wide tree": partial(counted, TreeCounter, 14, epsilon=1.0, horizon=100),
    "binary tree, Gaussian": partial(counted, TreeCounter, 7, epsilon=1.0, delta=1e-6, horizon=100),
    "correlated noise": partial(counted, BufferedToeplitzCounter, 9, epsilon=1.0, delta=1e-6, horizon=100),
    "no end": partial(counted, UnknownHorizonCounter, 13, epsilon=1.0),
    "no end, Gaussian": partial(counted, UnknownHorizonCounter, 20, epsilon=1.0, delta=1e-6),
    "ranges": partial(ranges, 5, epsilon=1.0, horizon=24),
    "ranges, Gaussian": partial(ranges, 7, epsilon=1.0, delta=1e-6, horizon=24),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_within_its_interval_as_often_as_is_said(name: str) -> None:
    errors, spread = CASES[name]()
    assert LEAST < (np.abs(errors) > spread).mean() < MOST
    assert (np.abs(errors / 0.7) > spread).mean() > 0.1, "more noise than is claimed is noticed"
