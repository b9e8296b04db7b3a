"""Counts of a finished run: smoothed over all windows, compared, added up; and which rows are shown."""

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import FoundKeys
from privstream.mechanisms.privacy.units import SECOND
from privstream.mechanisms.views.smoothing import rises, smooth
from privstream.transforms.counts.finished import ShownCounts, SmoothFinished
from privstream.transforms.rows import KeyCount, KeySum
from privstream.transforms.timing.steps import Steps

NOISE, LENGTH = 10.0, 60
RISERS = ShownCounts(None, None, True)


def row(item, start, count):
    """Return a row as it comes from the pipeline."""
    return KeyCount(
        *(Timestamp(start), Timestamp(start + LENGTH), item, count, NOISE),
        *(None, 0.0, 0.0, Timestamp(start + LENGTH), False),
    )


def rows_of(counts):
    """Return rows of windows that follow each other, counts (windows, items)."""
    return [row(f"item {i}", t * LENGTH, int(c)) for t, some in enumerate(counts) for i, c in enumerate(some)]


def counts_of(windows=12, items=5, seed=1):
    return np.random.default_rng(seed).integers(0, 300, (windows, items))


def test_each_item_is_smoothed_by_itself_in_any_order():
    counts = counts_of()
    rows = rows_of(counts)
    order = np.random.default_rng(2).permutation(len(rows))
    found = [SmoothFinished(LENGTH * SECOND, NOISE)([rows[i] for i in order])[place] for place in np.argsort(order)]
    for item in range(5):
        expected = smooth(counts[:, [item]], NOISE)
        for t in range(12):
            one = found[5 * t + item]
            assert (one.smoothed, one.lower, one.upper) == tuple(part[t, 0] for part in expected)
    assert SmoothFinished(LENGTH * SECOND, NOISE)([]) == []
    assert all(one.rise is None for one in found)


def test_only_what_surely_rose_is_shown_with_rises():
    counts = np.array([[100, 500, 300], [100, 400, 300], [400, 300, 300], [400, 200, 310]])
    found = RISERS(SmoothFinished(LENGTH * SECOND, NOISE, rising=1)(rows_of(counts)))
    assert [(one.item, one.window_start.micros // SECOND) for one in found] == [("item 0", 120)]
    expected = rises(smooth(counts, NOISE), counts, NOISE, 1)
    assert found[0].rise == expected.differences[2, 0] and found[0].rise_lower == expected.lower[2, 0] > 0
    falls = np.arange(1000, 300, -50)[:, None] * np.ones(8, int)
    assert RISERS(SmoothFinished(LENGTH * SECOND, NOISE, rising=1)(rows_of(falls))) == []


def test_the_top_and_small_numbers_are_decided_by_the_shown_number():
    counts = counts_of()
    every = SmoothFinished(LENGTH * SECOND, NOISE)(rows_of(counts))
    some = ShownCounts(150, 2, False)(every)
    expected = []
    for start in sorted({one.window_start for one in every}):
        of_window = [one for one in every if one.window_start == start and one.smoothed >= 150]
        expected += sorted(of_window, key=lambda one: (-one.smoothed, one.item))[:2]
    assert sorted(some) == sorted(expected)


def test_periods_are_not_compared():
    steps = Steps.of(window=LENGTH, start=0, end=8 * LENGTH, renew_every=4 * LENGTH)
    counts = np.array([[100], [100], [400], [400], [900], [900], [1400], [1400]])
    found = RISERS(SmoothFinished(LENGTH * SECOND, NOISE, rising=1, steps=steps)(rows_of(counts)))
    assert [one.window_start.micros // (LENGTH * SECOND) for one in found] == [2, 6]


@pytest.mark.parametrize("windows", [3, 40])
def test_sums_are_of_as_many_windows_as_an_item_has_and_have_their_own_interval(windows):
    sums = FoundKeys(epsilon=1.0, delta=1e-6, contributions=20, horizon=40, over=windows, max_value=9)
    counts, values = counts_of(40), counts_of(40, seed=4) * 5
    rows = [KeySum(*one, 0, 1.0, None, None, None) for one in rows_of(counts)]
    rows = [one._replace(sum=int(value)) for one, value in zip(rows, values.ravel(), strict=True)]
    found = SmoothFinished(LENGTH * SECOND, 1.0, windows=windows, sums=sums)(rows)
    for place, one in enumerate(found):
        t, item = divmod(place, 5)
        first = max(0, t - windows + 1)
        number = t + 1 - first
        assert one.count == counts[first : t + 1, item].sum() and one.sum == values[first : t + 1, item].sum()
        assert one.smoothed is None and one.count_stddev == pytest.approx(
            sums._summed_noise("count", number).variance(number) ** 0.5
        )
        assert one.lower == max(0, one.lower) <= max(0, one.count) <= one.upper
        assert one.mean is None or one.mean_lower <= one.mean <= one.mean_upper


def test_a_table_is_finished_as_its_rows_are():
    rows = rows_of(counts_of())
    view = SmoothFinished(LENGTH * SECOND, NOISE, rising=2)
    plain = [tuple(v.micros if isinstance(v, Timestamp) else v for v in one) for one in rows]
    table = pa.table(dict(zip(KeyCount._fields, map(list, zip(*plain, strict=True)), strict=True)))
    found = view.in_columns(table).to_pylist()
    expected = view(rows)
    assert expected
    assert [tuple(one.values()) for one in found] == [
        tuple(v.micros if isinstance(v, Timestamp) else v for v in one) for one in expected
    ]
