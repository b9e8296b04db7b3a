"""Numbers of people as they are shown: smoothed over windows, compared, added up; and which rows are shown."""

import numpy as np
import pyarrow as pa
import pytest
from privstream.mechanisms import FoundKeys
from privstream.mechanisms.privacy.units import SECOND
from privstream.mechanisms.views.counts import ShownCounts
from privstream.mechanisms.views.smoothing import rises, smooth
from privstream.mechanisms.views.tables import meaningful, released_columns
from privstream.transforms.timing.steps import Steps

NOISE, LENGTH = 10.0, 60 * SECOND
WINDOWS = Steps.of(window=60, start=0, end=6000)


def counts_of(windows=12, items=5, seed=1):
    return np.random.default_rng(seed).integers(0, 300, (windows, items))


def table_of(counts, values=None):
    """Return the table of windows that follow each other, counts (windows, items)."""
    t, item = (each.ravel() for each in np.indices(counts.shape))
    columns = {"window_start": t * LENGTH, "window_end": (t + 1) * LENGTH, "item": [f"item {i}" for i in item]}
    columns |= dict.fromkeys(("people", "lower", "upper"), np.zeros(len(t))) | {"noisy": counts.ravel()}
    return pa.table(columns | ({} if values is None else {"value": values.ravel()}))


def shown(**given):
    return ShownCounts(**{"windows": WINDOWS, "stddev": NOISE, "margins": lambda number: 2 * number[None]} | given)


def test_each_item_is_smoothed_by_itself_in_any_order():
    counts = counts_of()
    table = table_of(counts)
    order = np.random.default_rng(2).permutation(len(table))
    found = shown().numbers(table.take(order)).take(np.argsort(order))
    for item in range(5):
        wanted = meaningful(*np.maximum(smooth(counts[:, [item]], NOISE)[..., 0], 0.0))
        for name, column in zip(("people", "lower", "upper"), wanted, strict=True):
            assert found[name].to_pylist()[item::5] == column.tolist()
    assert shown().numbers(table.slice(0, 0)) == table.slice(0, 0)


def test_the_newest_window_is_smoothed_from_the_last_ones_and_an_item_that_is_found_from_its_own():
    counts, start = counts_of(70), 69 * LENGTH
    table = table_of(counts)
    number = table["window_start"].to_numpy() // LENGTH
    late = np.array(table["item"].to_pylist()) == "item 3"
    before = [table.filter(pa.array((number == t) & ~late)) for t in range(69)]
    released = table.filter(pa.array((number == 69) | (late & (number > 60))))
    found = shown().newest(before, released, start).to_pylist()
    assert len(found) == 13 and found == sorted(found, key=lambda row: (row["window_start"], row["item"]))
    for item, since in enumerate((6, 6, 6, 61, 6)):
        wanted = meaningful(*np.maximum(smooth(counts[since:, [item]], NOISE)[..., 0], 0.0))
        rows = [row for row in found if row["item"] == f"item {item}"]
        assert [row["people"] for row in rows] == wanted[0][-len(rows) :].tolist()


def test_only_what_surely_rose_is_shown_with_rises():
    counts = np.array([[100, 500, 300], [100, 400, 300], [400, 300, 300], [400, 200, 310]])
    view = shown(rising=1)
    found = view.chosen(view.numbers(table_of(counts))).to_pylist()
    assert [(one["item"], one["window_start"]) for one in found] == [("item 0", 2 * LENGTH)]
    expected = rises(smooth(counts, NOISE), counts, NOISE, 1)
    assert found[0]["rise"] == pytest.approx(expected[0, 2, 0], abs=0.5) and found[0]["rise_lower"] > 0
    falls = np.arange(1000, 300, -50)[:, None] * np.ones(8, int)
    still = np.random.default_rng(3).normal(200, NOISE, (50, 400)).round()
    for counts in (falls, still):
        assert len(view.chosen(view.numbers(table_of(counts)))) == 0


def test_the_top_and_small_numbers_are_decided_by_the_shown_number():
    every = shown().numbers(table_of(counts_of()))
    some = shown(at_least=150, top=2).chosen(every).to_pylist()
    expected = []
    for start in sorted({*every["window_start"].to_pylist()}):
        of_window = [row for row in every.to_pylist() if row["window_start"] == start and row["people"] >= 150]
        expected += sorted(of_window, key=lambda row: (-row["people"], row["item"]))[:2]
    assert some == expected


def test_periods_are_not_compared():
    steps = Steps.of(window=60, start=0, end=480, renew_every=240)
    counts = np.array([[100], [100], [400], [400], [900], [900], [1400], [1400]])
    view = shown(rising=1, windows=steps)
    found = view.chosen(view.numbers(table_of(counts)))
    assert found["window_start"].to_pylist() == [2 * LENGTH, 6 * LENGTH]


@pytest.mark.parametrize("windows", [3, 40])
def test_sums_are_of_as_many_windows_as_an_item_has_and_have_their_own_interval(windows):
    sums = FoundKeys(epsilon=1.0, delta=1e-6, contributions=20, horizon=40, over=windows, max_value=9)
    counts, values = counts_of(40), counts_of(40, seed=4) * 5
    view = shown(stddev=None, over=windows, margins=sums.margins, max_value=9)
    found = view.numbers(table_of(counts, values)).to_pylist()
    for place, one in enumerate(found):
        t, item = divmod(place, 5)
        first = max(0, t - windows + 1)
        number = t + 1 - first
        noise = sums._noise("count", number).variance(number) ** 0.5
        count, value = (each[first : t + 1, item].sum() for each in (counts, values))
        assert one["noisy"] == count and one["people"] == pytest.approx(count, abs=noise / 20)
        assert one["lower"] == pytest.approx(max(0, count - 1.96 * noise), rel=0.05, abs=1)
        assert one["value"] == pytest.approx(value, rel=0.05) and one["value_lower"] <= value <= one["value_upper"]
        assert one["mean"] is None or abs(one["mean"] - min(9, value / count)) <= one["mean_margin"]


def test_means_and_rounded_numbers_hold_the_truth_as_often_as_they_say():
    """Normal noise; sums of values and counts, large and small against it."""
    rng, number, largest = np.random.default_rng(3), 20_000, 9
    counts, deviation = rng.integers(30, 400, number), 12.3
    values = rng.binomial(counts * largest, rng.uniform(0.02, 0.98, number))
    noisy = np.rint(counts + rng.normal(0, deviation, number)).astype(np.int64)
    noisy_values = np.rint(values + largest * rng.normal(0, deviation, number)).astype(np.int64)
    margins = np.full((2, number), 1.96 * deviation) * [[1], [largest]]
    found = released_columns(np.array([noisy, noisy_values]), margins, largest)
    for name, truth, ends in (
        ("people", counts, ("lower", "upper")),
        ("value", values, ("value_lower", "value_upper")),
    ):
        lower, upper = (found[end] for end in ends)
        assert 0.945 <= np.mean((lower <= truth) & (truth <= upper)) <= 0.965
        number = np.maximum(found[name], 0)  # sums of values are unbiased, and negative at times
        assert np.all((lower <= number) & (number <= upper))
    known = ~np.isnan(found["mean"])
    assert 0.945 <= np.mean((np.abs(found["mean"] - values / counts) <= found["mean_margin"])[known]) <= 0.985
    assert np.array_equal(found["noisy"], noisy) and np.abs(found["people"] - noisy.clip(0)).max() <= deviation / 20
    assert np.array_equal(np.isnan(found["mean_margin"]), ~known) and known.mean() > 0.9
