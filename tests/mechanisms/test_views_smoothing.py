"""The smoother of published counts: coverage and error on simulated series, and what it must never do."""

import numpy as np
import pyarrow as pa
import pytest
from privstream.mechanisms.views.smoothing import DAY, WITHOUT_MODEL, SmoothedWindows, rises, smooth, smooth_row
from privstream.mechanisms.views.tables import NORMAL

WINDOWS, KEYS = 52, 200


def simulated(kind, rng):
    t, base = np.arange(WINDOWS)[:, None], rng.uniform(50, 400, KEYS)[None]
    at = rng.integers(1, WINDOWS, KEYS)[None]
    return {
        "steady": base + 0 * t,
        "drift": np.maximum(0, base + np.cumsum(rng.normal(0, 8, (WINDOWS, KEYS)), axis=0)),
        "jump": base + np.where(t >= at, rng.uniform(50, 300, KEYS)[None], 0),
        "burst": base + np.where((t >= at) & (t < at + 2), rng.uniform(50, 400, KEYS)[None], 0),
        "weekly": base * (1 + 0.3 * np.isin(t % 7, (5, 6))),
    }[kind]


@pytest.mark.parametrize("alike", [False, True])
@pytest.mark.parametrize("stddev", [13.0, 66.0])
@pytest.mark.parametrize("kind", ["steady", "drift", "jump", "burst", "weekly"])
def test_intervals_hold_and_errors_are_not_those_of_counts(kind, stddev, alike):
    rng = np.random.default_rng(7)
    true = simulated(kind, rng)
    noisy = np.rint(true + rng.normal(0, stddev, true.shape))
    found = smooth(noisy, stddev, alike)
    assert np.mean((found[1] <= true) & (true <= found[2])) > 0.9
    error = np.sqrt(np.mean(np.square(found[0] - true))) / stddev
    assert error < (0.3 if kind == "steady" else 0.95)
    last = smooth(noisy[:-1], stddev, alike)
    assert np.mean((last[1] <= true[:-1]) & (true[:-1] <= last[2])) > 0.9


@pytest.mark.parametrize("level", [0.0, 150.0])
def test_a_single_window_that_stands_out_is_in_its_interval(level):
    rng, stddev = np.random.default_rng(3), 20.0
    for deviations, least in ((3, 0.6), (4, 0.85), (5, 0.9), (8, 0.88), (13, 0.9), (20, 0.9), (30, 0.9)):
        true = np.full((28, 400), level)
        true[14] += deviations * stddev
        number, lower, upper = smooth(np.rint(true + rng.normal(0, stddev, true.shape)), stddev)
        assert np.mean((lower[14] <= true[14]) & (true[14] <= upper[14])) > least
        assert np.mean((lower <= true) & (true <= upper)) > 0.95
        assert deviations < 13 or abs(np.mean(number[14] - true[14])) < stddev


def test_quantiles_of_a_window_do_not_fall_and_those_that_say_little_are_not_averaged():
    """The upper quantile has an interval up to the end of the range, far from the truth, in each window."""
    rng, windows = np.random.default_rng(4), 14
    rows = {name: [] for name in ("window_start", "quantile", "value", "noisy", "lower", "upper")}
    for window in range(windows):
        middle = 100 + rng.normal(0, 60)
        for quantile, number, ends in ((0.5, middle, (middle - 120, middle + 120)), (0.9, 60.0, (30, 1000))):
            values = (window * DAY, quantile, number, number, *ends)
            for name, value in zip(rows, values, strict=True):
                rows[name].append(value)
    shown = SmoothedWindows("value", "quantile", False, DAY, (-1000.0, 1000.0))(pa.table(rows)).to_pydict()
    value, lower, upper = (np.array(shown[name]).reshape(windows, 2) for name in ("value", "lower", "upper"))
    for each in (value, lower, upper):
        assert np.all(np.diff(each, axis=1) >= 0)
    assert np.all(lower[:, 1] == 30) and np.all(upper[:, 1] == 1000), "the ends of such a window stay as they are"
    assert np.std(value[:, 0]) < 40, "medians are averaged"


def test_gaps_and_ends():
    noisy = np.array([[np.nan, 5.0], [100.0, np.nan], [110.0, -300.0]])
    found = smooth(noisy, 10.0)
    estimates, lower, upper = found
    assert np.array_equal(np.isnan(estimates), np.isnan(noisy))
    known = ~np.isnan(noisy)
    assert np.all(lower[known] >= 0) and np.all(upper[known] >= lower[known])
    reach = np.abs(estimates - noisy) + WITHOUT_MODEL * 10 + 0.1
    assert np.all((upper - estimates)[known] <= reach[known] + 300)
    assert smooth(np.zeros((3, 0)), 1.0).shape == (3, 3, 0)
    alone = [smooth(noisy[:, [i]], 10.0)[0, 2, 0] for i in (0, 1)]
    assert alone == estimates[2].tolist(), "keys are independent"


@pytest.mark.parametrize("stddev", [13.0, 66.0])
@pytest.mark.parametrize("kind", ["drift", "jump", "burst", "weekly"])
def test_keys_that_move_unlike_the_others_keep_their_intervals(kind, stddev):
    rng = np.random.default_rng(7)
    true = simulated("steady", rng)
    few = slice(0, KEYS // 10)
    true[:, few] = simulated(kind, rng)[:, few]
    noisy = np.rint(true + rng.normal(0, stddev, true.shape))
    found = smooth(noisy, stddev, alike=True)
    inside = (found[1] <= true) & (true <= found[2])
    assert np.mean(inside[:, few]) > (0.8 if kind == "weekly" else 0.9) and np.mean(inside) > 0.94
    alone = smooth(noisy, stddev)
    widths = [np.median((one[2] - one[1])[:, KEYS // 10 :]) for one in (found, alone)]
    assert widths[0] < 0.85 * widths[1], "steady keys gain by each other"


def test_rises_are_known_where_both_windows_are_and_hold_the_truth():
    rng = np.random.default_rng(1)
    true = simulated("jump", rng)
    noisy = np.rint(true + rng.normal(0, 20, true.shape))
    found, lower, upper = rises(smooth(noisy, 20.0), noisy, 20.0, 3)
    assert np.isnan(found[:3]).all() and not np.isnan(found[3:]).any()
    change = true[3:] - true[:-3]
    assert np.mean((lower[3:] <= change) & (change <= upper[3:])) > 0.94
    assert np.mean(lower[3:][change == 0] > 0) < 0.02
    assert np.mean(lower[3:][change > 120] > 0) > 0.9
    assert np.isnan(rises(smooth(noisy[:2], 20.0), noisy[:2], 20.0, 3)[1]).all()


def test_what_may_be_nothing_has_not_surely_risen():
    """The noise of a window before may be far below 0, and no number is."""
    noisy = np.rint(np.random.default_rng(2).normal(0, 20, (12, 20_000)))
    known = smooth(noisy, 20.0)
    lower = rises(known, noisy, 20.0, 1)[1]
    assert np.all(lower[1:] <= np.maximum(known[1, 1:], 0))
    assert np.mean(lower[1:] > 0) < 0.002


@pytest.mark.parametrize(("period", "least"), [(24, 0.6), (0, 1.0)])
def test_one_number_of_each_window_keeps_its_days(period, least):
    """Days of hours with a sharp rise, among them days on which nearly nobody comes."""
    rng = np.random.default_rng(5)
    true = np.outer(
        rng.choice([2000.0, 150.0], 20), np.where((np.arange(24) > 8) & (np.arange(24) < 17), 1, 0.02)
    ).ravel()
    off, held, wider = [], [], []
    for _ in range(20):
        noisy = true + rng.normal(0, 60, len(true))
        found = smooth_row(noisy, noisy - 60 * NORMAL, noisy + 60 * NORMAL, period)
        off.append(np.sqrt(np.mean(np.square(found[0] - true))) / 60)
        held.append(np.mean((found[1] <= true) & (true <= found[2])))
        wider.append(np.max(found[2] - found[1]) / (2 * NORMAL * 60))
    assert np.mean(off) < least
    assert np.mean(held) > 0.9
    assert np.max(wider) < 2
