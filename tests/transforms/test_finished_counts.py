"""Counts of a finished run: smoothed over all windows, compared, added up; and which rows are shown."""

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import FoundKeys
from privstream.mechanisms.keyed_counts.key_table import KeyedRows
from privstream.mechanisms.privacy.units import SECOND
from privstream.mechanisms.views.digits import meaningful
from privstream.mechanisms.views.smoothing import rises, smooth
from privstream.transforms.counts.finished import ShownCounts, SmoothFinished, unsmoothed_columns
from privstream.transforms.row_types import KeyCount, KeyRise, KeySum
from privstream.transforms.timing.steps import Steps

NOISE, LENGTH = 10.0, 60
RISERS = ShownCounts(None, None, True)


def row(item, start, count):
    """Return a row as it comes from the pipeline."""
    return KeyCount(Timestamp(start), Timestamp(start + LENGTH), item, 0.0, 0.0, 0.0, count)


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
            shown = meaningful(*(np.maximum(part[t, 0], 0.0) for part in expected))
            assert (one.people, one.lower, one.upper) == tuple(shown)
    assert SmoothFinished(LENGTH * SECOND, NOISE)([]) == []


def test_only_what_surely_rose_is_shown_with_rises():
    counts = np.array([[100, 500, 300], [100, 400, 300], [400, 300, 300], [400, 200, 310]])
    found = RISERS(SmoothFinished(LENGTH * SECOND, NOISE, rising=1)(rows_of(counts)))
    assert [(one.item, one.window_start.micros // SECOND) for one in found] == [("item 0", 120)]
    expected = rises(smooth(counts, NOISE), counts, NOISE, 1)
    assert found[0].rise == pytest.approx(expected.differences[2, 0], abs=0.5) and found[0].rise_lower > 0
    falls = np.arange(1000, 300, -50)[:, None] * np.ones(8, int)
    assert RISERS(SmoothFinished(LENGTH * SECOND, NOISE, rising=1)(rows_of(falls))) == []


def test_the_top_and_small_numbers_are_decided_by_the_shown_number():
    counts = counts_of()
    every = SmoothFinished(LENGTH * SECOND, NOISE)(rows_of(counts))
    some = ShownCounts(150, 2, False)(every)
    expected = []
    for start in sorted({one.window_start for one in every}):
        of_window = [one for one in every if one.window_start == start and one.people >= 150]
        expected += sorted(of_window, key=lambda one: (-one.people, one.item))[:2]
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
    rows = [KeySum(*one, 0, 0.0, 0.0, None, None) for one in rows_of(counts)]
    rows = [one._replace(value=int(value)) for one, value in zip(rows, values.ravel(), strict=True)]
    found = SmoothFinished(LENGTH * SECOND, 1.0, windows=windows, sums=sums)(rows)
    for place, one in enumerate(found):
        t, item = divmod(place, 5)
        first = max(0, t - windows + 1)
        number = t + 1 - first
        noise = sums._noise("count", number).variance(number) ** 0.5
        count, value = (each[first : t + 1, item].sum() for each in (counts, values))
        assert one.noisy == count and one.people == pytest.approx(count, abs=noise / 20)
        assert one.lower == pytest.approx(max(0, count - 1.96 * noise), rel=0.05, abs=1)
        assert one.value == pytest.approx(value, rel=0.05) and one.value_lower <= value <= one.value_upper
        assert one.mean is None or abs(one.mean - min(9, value / count)) <= one.mean_margin


def test_a_table_is_finished_as_its_rows_are():
    rows = rows_of(counts_of())
    view = SmoothFinished(LENGTH * SECOND, NOISE, rising=2)
    plain = [tuple(v.micros if isinstance(v, Timestamp) else v for v in one) for one in rows]
    plain = [(*one, None, None, None) for one in plain]
    table = pa.table(dict(zip(KeyRise._fields, map(list, zip(*plain, strict=True)), strict=True)))
    found = view.in_columns(table).to_pylist()
    expected = view(rows)
    assert expected
    assert [tuple(one.values()) for one in found] == [
        tuple(v.micros if isinstance(v, Timestamp) else v for v in one) for one in expected
    ]


def test_means_and_rounded_numbers_hold_the_truth_as_often_as_they_say():
    """Normal noise; sums of values and counts, large and small against it."""
    rng, number, largest = np.random.default_rng(3), 20_000, 9
    counts, deviation = rng.integers(30, 400, number), 12.3
    values = rng.binomial(counts * largest, rng.uniform(0.02, 0.98, number))
    noisy = np.rint(counts + rng.normal(0, deviation, number)).astype(np.int64)
    noisy_values = np.rint(values + largest * rng.normal(0, deviation, number)).astype(np.int64)
    margins = {"count_margin": 1.96 * deviation, "sum_margin": largest * 1.96 * deviation}
    rows = KeyedRows(step=1, keys=np.arange(number), counts=noisy, sums=noisy_values, **margins)
    found = unsmoothed_columns(rows, largest)
    for shown, truth, numbers in (
        ("people", counts, ("lower", "upper")),
        ("value", values, ("value_lower", "value_upper")),
    ):
        lower, upper = (found[name] for name in numbers)
        assert 0.945 <= np.mean((lower <= truth) & (truth <= upper)) <= 0.965
        assert np.all((lower <= found[shown].clip(0)) & (found[shown] <= upper))
    known = ~np.isnan(found["mean"])
    assert 0.945 <= np.mean((np.abs(found["mean"] - values / counts) <= found["mean_margin"])[known]) <= 0.985
    assert np.array_equal(found["noisy"], noisy) and np.abs(found["people"] - noisy.clip(0)).max() <= deviation / 20
    assert np.array_equal(np.isnan(found["mean_margin"]), ~known) and known.mean() > 0.9
