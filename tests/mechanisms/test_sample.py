"""What a run would show of public data, against plain Python."""

from collections import defaultdict

import numpy as np
import pytest
from privstream.mechanisms import FoundKeys, SeededNoise
from privstream.mechanisms.limits.sample import Sample


def random_sample(seed=1, people=60, items=15, windows=9, number=1_500):
    """Random contributions, in the order in which they count."""
    rng = np.random.default_rng(seed)
    rows = {
        (int(window), int(user), int(item))
        for window, user, item in zip(
            rng.integers(0, windows, number),
            rng.integers(0, people, number),
            rng.zipf(1.5, number) % items,
            strict=True,
        )
    }
    ordered = sorted(rows, key=lambda row: (row[0], hash(row) % 1_000))
    window, user, item = (np.array(column, np.int64) for column in zip(*ordered, strict=True))
    return Sample(user, item, window, windows)


@pytest.mark.parametrize("selection", ["first", "spread"])
@pytest.mark.parametrize("limit", [1, 7, 20])
def test_what_counts_is_that_of_plain_python(limit, selection):
    sample = random_sample()
    used, expected = defaultdict(int), []
    for user, window in zip(sample.users.tolist(), sample.windows.tolist(), strict=True):
        allowed = -(-limit * (window + 1) // sample.count) if selection == "spread" else limit
        expected.append(used[user] < allowed)
        used[user] += expected[-1]
    assert sample.counted(limit, selection).tolist() == expected


def test_random_ones_are_as_many_and_no_earlier_than_others():
    sample = random_sample(people=400, number=20_000)
    chosen, first = sample.counted(10), sample.counted(10, "first")
    people = [np.bincount(sample.users[marks], minlength=400).tolist() for marks in (chosen, first)]
    assert people[0] == people[1]
    kept = sample.kept(chosen)
    assert kept.first == pytest.approx(kept.last, abs=0.06)  # four standard deviations
    assert sample.kept(first).first > kept.first + 0.2


def test_shares_are_those_of_quarters():
    sample = random_sample()
    counted = sample.counted(10, "first")
    kept = sample.kept(counted)
    assert kept.all == counted.mean()
    assert kept.first == counted[sample.windows < 3].mean()
    assert kept.last == counted[sample.windows >= 6].mean()
    assert kept.first > kept.last


def test_with_much_epsilon_all_is_shown_and_with_little_nothing():
    sample = random_sample(people=400, number=8_000)
    counted = sample.counted(1_000)
    results = [
        sample.shown(FoundKeys(epsilon=epsilon, delta=1e-6, horizon=9, contributions=135), counted, SeededNoise(1))
        for epsilon in (400.0, 0.01)
    ]
    assert results[0].found == 1.0
    assert results[0].ranked > 0.8  # some are nearly equal
    assert results[0].count_error < 0.1
    assert results[1].found < 0.5


def test_what_is_left_out_is_an_error():
    sample = random_sample(people=400, number=8_000)
    made = FoundKeys(epsilon=400.0, delta=1e-6, horizon=9, contributions=135)
    error = sample.shown(made, sample.counted(5), SeededNoise(1)).count_error
    lost = 1 - sample.kept(sample.counted(5)).all
    assert error == pytest.approx(lost, abs=0.15)
    assert error > 0.3


def test_a_list_counts_the_first_items_of_a_person():
    sample = random_sample()
    counted = sample.counted(12)
    marks = sample._listed(counted, 3)
    seen = defaultdict(list)
    expected = []
    for user, item, counts in zip(sample.users.tolist(), sample.items.tolist(), counted.tolist(), strict=True):
        expected.append(counts and item not in seen[user] and len(seen[user]) < 3)
        if counts and item not in seen[user]:
            seen[user].append(item)
    assert marks.tolist() == expected


def test_nothing_shows_nothing():
    nobody = np.zeros(0, np.int64)
    sample = Sample(nobody, nobody, nobody, 4)
    counted = sample.counted(3)
    assert np.isnan(sample.kept(counted).all)
    made = FoundKeys(epsilon=1.0, delta=1e-6, horizon=4, contributions=3)
    assert np.isnan(sample.shown(made, counted, SeededNoise(1)).found)


@pytest.mark.parametrize(
    ("columns", "count", "message"),
    [
        (([0], [0], [0, 1]), 2, "users, items and windows must have one shape"),
        (([0, 0], [0, 0], [1, 0]), 2, "windows must increase, from 0 to count - 1"),
        (([0], [0], [2]), 2, "windows must increase, from 0 to count - 1"),
        (([0], [0], [0]), 0, "count must be >= 1, got 0"),
    ],
)
def test_mistakes_are_named(columns, count, message):
    with pytest.raises(ValueError, match=message):
        Sample(*(np.array(column, np.int64) for column in columns), count)
