"""Intervals of a row by itself: the law of its noise is held in 95% of all cases, and not much more often."""

from functools import partial

import numpy as np
import pytest
from privstream.mechanisms.accuracy import OUTSIDE
from privstream.mechanisms.continual.ranges import RangeCounter, Updates
from privstream.mechanisms.noise.running import sums_noise
from privstream.mechanisms.noise.sources import SeededNoise

DRAWS = 4000
MOST = 0.0715
"""Of 4,000 draws of which 5% are outside so many are, but with probability 1e-9; of a law 1 / 0.7 as wide 17% are."""

LEAST = 0.02
LEVELS = 8
Found = tuple[np.ndarray, float]
"""Errors of answers to independent questions, and their spread."""


def sums(step: int, delta: float, expected: int | None = None) -> Found:
    noise = sums_noise(1.0, delta, 1, 1, expected)
    memory, keys = np.zeros((noise.rows, DRAWS)), np.arange(DRAWS, dtype=np.uint64)
    for number in range(1, step + 1):
        drawn = noise.advance(memory, number, keys, np.zeros(DRAWS, np.int64), SeededNoise(3))
    return drawn, noise.tail_bound(step, OUTSIDE / 2)


def ranges(steps: int, **parameters: object) -> Found:
    """Ranges beside each other, each the sum of two nodes, of which one has an answer too."""
    low = np.arange(DRAWS) * LEVELS + 2
    asked = tuple(
        (first, last) for reach in (5, 2) for first, last in zip(low.tolist(), (low + reach).tolist(), strict=True)
    )
    counter = RangeCounter(universe=DRAWS * LEVELS, ranges=asked, **parameters)
    state = counter.initial_state()
    for _ in range(steps):
        state, counts = counter.step(state, Updates(()), SeededNoise(4))
    spreads = counter.spreads(steps, OUTSIDE)[:DRAWS]
    assert len(set(spreads.tolist())) == 1
    return counts[:DRAWS], spreads[0]


CASES = {
    "tree": partial(sums, 14, 0.0, 100),
    "tree, in the second epoch": partial(sums, 13, 0.0),
    "correlated noise": partial(sums, 9, 1e-6, 100),
    "ranges": partial(ranges, 5, epsilon=1.0, horizon=24),
    "ranges, Gaussian": partial(ranges, 7, epsilon=1.0, delta=1e-6, horizon=24),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row_is_within_its_interval_as_often_as_is_said(name: str) -> None:
    errors, spread = CASES[name]()
    assert LEAST < (np.abs(errors) > spread).mean() < MOST
    assert (np.abs(errors / 0.7) > spread).mean() > 0.1, "more noise than is claimed is noticed"
