"""Queries answered from counts with noise: the law of the noise, error bounds, guarantee, snapshots, refusals."""

import numpy as np
import pytest
from privstream.mechanisms.checks import SnapshotError
from privstream.mechanisms.keyed_counts.counted_queries import CountedQueries
from privstream.mechanisms.keyed_counts.keyed_counts import KeyedCounts
from privstream.mechanisms.noise.sources import SeededNoise

SIZE, RUNS = 20, 4000
BUDGETS = [{"epsilon": 1.0}, {"epsilon": 0.3, "delta": 1e-6}, {"epsilon": 1.0, "neighbouring": "replace_one"}]


def noises(made):
    """Return the noise of many data sets, shape (RUNS, SIZE)."""
    true = np.arange(SIZE) * 7
    return np.array([made.release(true, SeededNoise(3).derive(run)).counts - true for run in range(RUNS)])


@pytest.mark.slow
@pytest.mark.parametrize("budget", BUDGETS, ids=str)
def test_noise_is_that_of_one_contribution_and_sums_are_within_their_bounds(budget):
    made = CountedQueries(**budget, domain_size=SIZE)
    found, stddev = noises(made), KeyedCounts(**budget, public_keys=True).stddev(1)
    assert found.std() == pytest.approx(stddev, rel=0.02)
    assert abs(np.corrcoef(found[:, 0], found[:, 1])[0, 1]) < 0.1
    beta, queries = 0.2, [np.ones(1), np.ones(9), np.array([0.5, 0.25, 1.0])]
    bounds = made.errors(queries, queries=3, beta=beta)
    sums = np.stack([found[:, : len(query)] @ query for query in queries], axis=1)
    outside = np.abs(sums) > bounds
    assert outside.any(axis=1).mean() <= beta
    assert (outside.mean(axis=0) > 0).all()
    assert bounds[0] < bounds[2] < bounds[1] <= 3 * bounds[0]


def test_the_bound_of_all_items_is_the_largest_and_grows_with_their_root():
    made = CountedQueries(epsilon=1.0, delta=1e-6, domain_size=10_000)
    one, all_of_them = made.errors([[1.0]], queries=100, beta=0.05)[0], made.accuracy(100, 0.05)
    assert 30 * one < all_of_them <= 101 * one
    assert made.accuracy(1000, 0.05) > all_of_them >= made.errors([np.ones(9999)], queries=100, beta=0.05)[0]


def test_the_guarantee_is_that_of_one_record():
    made = CountedQueries(epsilon=0.7, delta=1e-7, domain_size=3)
    assert (made.guarantee.epsilon, made.guarantee.delta) == (0.7, 1e-7)
    assert made.guarantee.neighbouring == "add_remove"
    replaced = CountedQueries(epsilon=0.7, domain_size=3, neighbouring="replace_one")
    one = CountedQueries(epsilon=0.7, domain_size=3)
    assert replaced.counts.stddev(1) == pytest.approx(2 * one.counts.stddev(1), rel=0.15)


def test_one_record_changes_one_count_and_draws_its_noise_afresh():
    made, noise = CountedQueries(epsilon=1.0, domain_size=5), SeededNoise(1)
    one, again, other = (made.release(counts, noise).counts for counts in ([9] * 5, [9] * 5, [9, 9, 10, 9, 9]))
    assert one.tolist() == again.tolist()
    assert np.flatnonzero(one != other).tolist() in ([2], [])
    with pytest.raises(ValueError, match="read-only"):
        one[0] = 0


def test_snapshots_are_of_these_parameters_alone():
    made = CountedQueries(epsilon=1.0, domain_size=3)
    released = made.release([1, 2, 3], SeededNoise(1))
    assert made.restore(made.snapshot(released)).counts.tolist() == released.counts.tolist()
    with pytest.raises(SnapshotError):
        CountedQueries(epsilon=2.0, domain_size=3).restore(made.snapshot(released))
    with pytest.raises(TypeError, match="counts must be released first"):
        made.initial_state()


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"domain_size": 2**24 + 1}, ValueError, r"domain_size must be <= 2\*\*24"),
    ],
)
def test_bad_parameters(changes, error, message):
    with pytest.raises(error, match=message):
        CountedQueries(**{"epsilon": 1.0, "domain_size": 3} | changes)


def test_counts_of_another_shape_are_refused():
    with pytest.raises(ValueError, match=r"counts must have shape \(3,\), got \(2,\)"):
        CountedQueries(epsilon=1.0, domain_size=3).release([1, 2], SeededNoise(1))
