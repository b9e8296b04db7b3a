"""The largest of noisy counts: errors that hold for whatever counts, and a noise that binds to the data."""

import numpy as np
import pytest
from privstream.mechanisms.keyed_counts.counted_top_k import CountedTopK
from privstream.mechanisms.noise.sources import SeededNoise

RUNS = 400
BUDGET = {"epsilon": 1.0, "size": 50, "top": 5, "releases": 12, "items_per_release": 2}


@pytest.mark.parametrize("delta", [0.0, 1e-6])
@pytest.mark.parametrize("spread", [0, 20])
def test_errors_are_as_rare_as_is_said(delta, spread):
    """With equal counts noise alone decides who leads, and estimates of leaders are all too large."""
    made, beta, source = CountedTopK(**BUDGET, delta=delta), 0.2, SeededNoise(3)
    counts, wrong, worse = np.arange(50) * spread + 1000, 0, 0
    for run in range(RUNS):
        found = made.release(counts, source.derive(run), beta)
        assert set(found.error_bounds) == {made.measure_error(beta)}
        wrong += bool(np.any(np.abs(found.estimates - counts[found.indices]) > found.error_bounds))
        left_out = np.delete(counts, found.indices).max()
        worse += left_out - counts[found.indices].min() > made.selection_error(50, beta)
    assert wrong <= RUNS * beta
    assert worse <= RUNS * beta
    assert wrong >= RUNS * beta / 20  # half of beta, that too little noise would make a mistake, is for the other side


def test_rows_are_in_order_and_gaps_are_between_neighbours():
    found = CountedTopK(**BUDGET, delta=1e-6).release(np.arange(50) * 300, SeededNoise(4))
    assert found.indices.tolist() == [49, 48, 47, 46, 45]
    assert np.array_equal(found.gaps[:-1], -np.diff(found.estimates))
    assert all(abs(found.gaps - 300) < 200)


def test_the_same_data_repeat_the_answer_and_other_data_draw_other_noise():
    made, noise = CountedTopK(**BUDGET), SeededNoise(5)
    counts = np.arange(50) * 10_000
    one, again, other = (made.release(each, noise) for each in (counts, counts, counts + 1))
    assert np.array_equal(one.estimates, again.estimates)
    assert not np.any(one.estimates + 1 == other.estimates)


def test_the_noise_is_that_of_all_releases_and_all_items_of_a_person():
    one = CountedTopK(**BUDGET, delta=1e-6)
    for changes in ({"releases": 24}, {"items_per_release": 4}, {"neighbouring": "replace_one"}):
        other = CountedTopK(**BUDGET | changes, delta=1e-6)
        assert other.estimate_variance == pytest.approx(2 * one.estimate_variance, rel=0.01)
    assert CountedTopK(**BUDGET | {"top": 1, "size": 9}, delta=1e-6).estimate_variance == one.estimate_variance


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"size": 5}, "size must be > top 5, got 5"),
    ],
)
def test_bad_parameters(changes, message):
    with pytest.raises(ValueError, match=message):
        CountedTopK(**BUDGET | changes)


def test_counts_of_another_length_are_refused():
    with pytest.raises(ValueError, match=r"counts must have shape \(50,\), got \(49,\)"):
        CountedTopK(**BUDGET).release(np.zeros(49, np.int64), SeededNoise(6))
