"""How many contributions people have: the noise of the histogram, what follows from it, and the limit."""

import math

import numpy as np
import pytest
from privstream.mechanisms.limits.contributions import (
    MOST_DROPPED,
    WHOLE_NUMBERS,
    ContributionHistogram,
    NoisyHistogram,
)
from privstream.mechanisms.noise.sources import SeededNoise


def histogram_of(counts, scale=1.0, edges=WHOLE_NUMBERS):
    return NoisyHistogram(edges, np.asarray(counts, np.int64), scale)


def people(mean=10.0, number=5_000, seed=1):
    """Heavy-tailed numbers: a tenth of the people have half of all."""
    rng = np.random.default_rng(seed)
    return np.maximum(1, rng.poisson(rng.gamma(0.55, mean / 0.55, number)))


def test_every_number_is_in_one_cell():
    tally = ContributionHistogram(1.0).tally(np.array([0, 1, 2, 5, 6, 7, 65_536, 65_537, 10**9]))
    assert tally.sum() == 9 and tally[[0, 1, 4, 5, -2, -1]].tolist() == [2, 1, 2, 1, 1, 2]


def test_the_same_counts_have_the_same_noise_and_others_have_others():
    made = ContributionHistogram(0.5)
    counts = made.tally(people())
    one, again = (made.release(counts, SeededNoise(1)) for _ in range(2))
    assert np.array_equal(one, again)
    assert len(set((made.release(counts + 1, SeededNoise(1)) - one).tolist())) > 5


def test_noise_alone_shows_nobody_and_suggests_nothing():
    made = ContributionHistogram(0.1)
    seen = 0
    for seed in range(300):
        found = histogram_of(made.release(np.zeros(made.cells, np.int64), SeededNoise(seed)), made.law.scale)
        seen += len(found.seen) > 0
        assert len(found.seen) or found.best_limit(math.sqrt) is None
    assert seen <= 4


def test_people_spread_over_cells_are_seen_together():
    assert histogram_of([0, 7, 7, 7, 7, *[0] * 30]).seen == range(5)
    assert histogram_of([0, 0, 300, 0, 2, *[0] * 30]).seen == range(3)


def test_shares_without_noise_are_those_of_the_people():
    numbers = people()
    found = histogram_of(ContributionHistogram(1.0).tally(numbers), 0.01)
    assert found.people.sum() == pytest.approx(len(numbers))
    for limit in (1, 2, 3, 8, 24, 64):
        dropped = np.maximum(numbers - limit, 0).sum() / numbers.sum()
        assert found.dropped(limit) == pytest.approx(dropped, abs=0.02)


def test_intervals_hold_as_often_as_they_say():
    numbers, made = people(number=3_000), ContributionHistogram(0.2)
    true, held = made.tally(numbers), []
    for seed in range(250):
        found = histogram_of(made.release(true, SeededNoise(seed)), made.law.scale)
        most = found.edges[min(found.seen.stop, len(found.edges)) - 1]
        some = numbers[numbers <= most]  # who can be seen
        for cell in (2, 5, 8):
            share = np.minimum(some, found.edges[cell]).sum() / some.sum()
            part = found.kept(cell)
            held.append(part.lower <= share <= part.upper)
            assert part.lower <= part.share <= part.upper
    assert np.mean(held) > 0.935


def test_the_limit_is_that_with_most_signal_among_those_that_drop_little():
    numbers = people()
    found = histogram_of(ContributionHistogram(1.0).tally(numbers), 0.01)
    best = found.best_limit(math.sqrt)
    worth = {edge: (1 - found.dropped(edge)) / math.sqrt(edge) for edge in WHOLE_NUMBERS if edge <= 64}
    assert found.dropped(best) <= MOST_DROPPED
    assert all(worth[edge] <= worth[best] for edge in worth if found.dropped(edge) <= MOST_DROPPED)
    assert found.dropped(max(edge for edge in WHOLE_NUMBERS if edge < best)) > MOST_DROPPED
