"""Alerts of a finished file, by smoothed numbers: what a slow reference gives, what is better, and what bounds mean."""

import math
import random
import re

import numpy as np
import pytest
from alert_workloads import KEY, RULES, random_events, transform
from event_forms import as_rows, run_bounded
from privstream.mechanisms.noise.sources import KeyedNoise, SeededNoise
from privstream.mechanisms.smoothing import LocalLevel, steady_part
from privstream.transforms import AlertRule, SparseVectorAlerts
from privstream.transforms.alerts.count_tests import undecided
from privstream.transforms.counts.finished import SmoothFinished
from scipy import stats

DAY = 86_400
HELD = stats.norm.isf(0.025)


def made(windows, *rules, **given):
    options = {"epsilon": 1.0, "delta": 1e-6, "window": DAY, "start": 0, "end": DAY * windows, "method": "counts"}
    return SparseVectorAlerts(**options | {"rules": rules, "noise": KeyedNoise(KEY)} | given)


def with_noise(alerts, numbers, seed):
    """Return counts of one rule with the noise of a run, int64 (windows,), by the laws of the code in another way."""
    own, common = alerts.counted.stddevs_apart
    draw = np.random.default_rng(seed)
    return np.rint(numbers + draw.normal(0, own, len(numbers)) + draw.normal(0, common)).astype(np.int64)


def decided(alerts, counts):
    """Return the rows of noisy counts (windows, rules)."""
    rules, steps = alerts.plan.rules, alerts.steps
    cells = np.broadcast_to(np.reshape(counts, (len(counts), -1)), (len(counts), len(rules)))
    rows = [
        undecided(steps, step, "", rule, number)
        for step, numbers in enumerate(cells.tolist())
        for rule, number in zip(rules, numbers, strict=True)
    ]
    return alerts.finish(rows[::-1])


def windows_of(rows):
    return [row.window_start.micros // (DAY * 1_000_000) for row in rows]


LAWS = [
    ({}, 1),
    ({}, 5),
    ({"neighbouring": "replace_one"}, 1),
    ({"delta": 0.0}, 1),
    pytest.param({"delta": 0.0}, 5, marks=pytest.mark.slow),
    ({"epsilon": 20.0}, 1),
]


@pytest.mark.parametrize(("given", "windows"), LAWS)
def test_of_the_alerts_of_any_number_few_have_a_wrong_bound(given, windows):
    """Also of one that is far from its threshold, of whose alerts the bound for a single test is mostly wrong."""
    counted = made(24, AlertRule(name="many", at_least=10_000, windows=windows), **given).counted
    tests, (_, common) = 40_000, counted.stddevs_apart
    draws = [counted.noisy(b"", step, np.zeros(tests, np.int64), SeededNoise(1)) for step in range(windows)]
    if common:  # each test is one of a run of its own
        draws.append(np.random.default_rng(2).normal(0, common * windows, tests) - sum(draws).mean())
    noise = np.rint(sum(draws)).astype(np.int64)
    stddev = windows * counted.stddev(windows)
    for missed in (-1.0, 0.0, 1.0, 2.0):
        gaps = noise - math.ceil(missed * stddev)
        alerts = gaps[gaps >= 0]
        wrong = np.mean(counted.lower_bounds(alerts, windows) > -math.ceil(missed * stddev))
        assert wrong < 0.05 + 6 * math.sqrt(0.05 / len(alerts))
        if missed <= 0 and stddev > 5:
            assert wrong > 0.02, "bounds are no lower than they must be"
    if stddev > 5:
        alone = alerts - counted._tail_bound(0.05, windows)
        assert np.mean(alone > -math.ceil(2 * stddev)) > 0.3, "so it is without looking at the alerts alone"
    far = counted.lower_bounds(np.array([0, math.ceil(5 * stddev)]), windows)
    assert far[0] == -np.inf and 2 * stddev < far[1] < 4 * stddev, "what is just passed says nothing"


def test_numbers_are_smoothed_held_near_their_own_and_compared():
    """Rules of one window and of several, with a season of weekdays, in the order of windows."""
    rules = (
        AlertRule(name="day", at_least=240),
        AlertRule(name="few", at_most=150),
        AlertRule(name="days", at_least=220, windows=3),
    )
    alerts = made(42, *rules).to_finish()
    numbers = np.tile([200, 210, 205, 260, 200, 120, 90], 6) + np.repeat([0, 0, 0, 60, 60, 0], 7)
    counts = np.stack([with_noise(alerts, numbers, seed) for seed in range(3)], axis=1)
    counts[20] += 2_000
    counts[:, 2] = counts[:, 0]
    rows = decided(alerts, counts)
    own, common = alerts.counted.stddevs_apart
    assert common > 0
    starts = np.arange(42) * DAY * 1_000_000
    for number, (rule, length) in enumerate(zip(rules, (1, 1, 3), strict=True)):
        level = SmoothFinished(DAY * 1_000_000, own, windows=length, common=common).of_series(counts, starts)
        smoothed, lower, upper = level[..., number] / length
        found, since, expected = {row.window_start.micros: row for row in rows if row.rule == rule.name}, {}, []
        for window in range(length - 1, 42):
            mean = counts[window + 1 - length : window + 1, number].mean()
            moved = 2.12 * own / math.sqrt(length)
            held = min(max(smoothed[window], mean - moved), mean + moved)
            if rule.sign * (round(held, 1) - rule.threshold) < 0:
                continue
            since[window] = since.get(window - 1, window)
            expected.append(window)
            row = found[int(starts[window])]
            assert row.estimate == pytest.approx(mean)
            assert row.smoothed == pytest.approx(held, abs=0.06)
            assert row.gap == pytest.approx(rule.sign * (row.smoothed - rule.threshold))
            farther = abs(held - smoothed[window])
            reach = math.hypot(upper[window] - smoothed[window], HELD * common) + farther
            assert row.smoothed_upper == pytest.approx(held + reach, abs=0.06)
            reach = math.hypot(smoothed[window] - lower[window], HELD * common) + farther
            assert row.smoothed_lower == pytest.approx(max(0, held - reach), abs=0.06)
            assert row.since.micros == starts[since[window]]
            assert row.status == ("started" if since[window] == window else "continues")
            if row.gap_lower_bound is not None:
                assert row.gap_lower_bound <= row.gap - 1.6 * row.gap_stddev
        assert windows_of(found.values()) == expected
        assert expected, rule.name
    assert rows == sorted(rows, key=lambda row: (row.window_start, [rule.name for rule in rules].index(row.rule)))


def test_a_quiet_rule_and_a_new_period():
    numbers = np.full(12, 4_000)
    alerts = made(12, AlertRule(name="many", at_least=100), quiet=2).to_finish()
    assert windows_of(decided(alerts, numbers)) == [0, 3, 6, 9]
    renewed = made(12, AlertRule(name="many", at_least=100, windows=2), quiet=2, renew_every=6 * DAY).to_finish()
    assert windows_of(decided(renewed, numbers)) == [1, 4, 7, 10], "a period has no window before its first"


def test_streams_and_runs_without_alerts():
    finished = made(4, AlertRule(name="many", at_least=100), streams=("s", "t")).to_finish()
    rows = [
        undecided(finished.steps, step, stream, finished.plan.rules[0], 4_000 * (stream == "t"))
        for stream in ("s", "t")
        for step in range(4)
    ]
    assert {row.stream for row in finished.finish(rows)} == {"t"}
    assert finished.finish([]) == []
    assert decided(made(4, AlertRule(name="many", at_least=10**6)).to_finish(), np.zeros(4)) == []


def test_what_decides_by_itself_is_as_in_a_stream(monkeypatch):
    stream = made(12, *RULES)
    assert stream.finish is None and stream.to_finish().finish is not None
    for other in ({"method": "status"}, {"method": "sparse_vector"}, {"end": None, "renew_every": 7 * DAY}):
        alerts = made(12, *RULES, **other)
        assert alerts.to_finish() is alerts and alerts.finish is None
    monkeypatch.setattr("privstream.transforms.alerts.parameters.MOST_SMOOTHED", 12 * len(RULES) - 1)
    assert stream.to_finish() is stream


@pytest.mark.slow
def test_the_rows_of_a_run_are_made_of_the_counts_that_a_stream_has():
    """Counts have the same noise, so that a run over a file is the run of a stream with these events."""
    alerts = transform("counts")
    events = as_rows(random_events("counts", random.Random(6)))
    stream = {row[:4]: row.estimate for row in run_bounded("fn_api", events, alerts).elements("rows")}
    finished = alerts.to_finish()
    every = run_bounded("fn_api", events, finished).elements("rows")
    assert len(every) == 12 * 3
    counts = {row[:4]: row.estimate for row in every}
    assert stream and stream.items() <= counts.items()
    rows = finished.finish(every)
    assert rows and all(row.estimate == counts[row[:4]] and row.smoothed >= row.threshold for row in rows)


def right(alerts, numbers, runs, threshold):
    """Return which part of windows is decided rightly, by smoothed and by own numbers."""
    found = np.zeros(2)
    for run in range(runs):
        counts = with_noise(alerts, numbers, run)
        smoothed = np.isin(np.arange(len(numbers)), windows_of(decided(alerts, counts)))
        found += [np.mean(each == (numbers >= threshold)) for each in (smoothed, counts >= threshold)]
    return found / runs


@pytest.mark.parametrize(
    ("numbers", "threshold", "better"),
    [
        (np.full(52, 300), 310, 0.15),
        (np.full(52, 310), 300, 0.15),
        (np.rint(np.linspace(200, 400, 52)), 300, 0.02),
        (np.repeat([200, 350, 200], [20, 12, 20]), 275, 0.0),
    ],
)
def test_steady_rising_and_jumping_numbers_are_decided_better(numbers, threshold, better):
    alerts = made(52, AlertRule(name="many", at_least=threshold), window=7 * DAY, end=7 * DAY * 52).to_finish()
    alerts.steps = made(52, AlertRule(name="many", at_least=threshold)).steps  # windows are days in `windows_of`
    smoothed, own = right(alerts, numbers, 6, threshold)
    assert smoothed >= own + better


@pytest.mark.parametrize("windows", [13, 52])
def test_it_is_foretold_how_near_to_a_threshold_one_cannot_tell(windows):
    """Numbers so far from the threshold are wrong in a tenth of windows, and so are steady ones that are smoothed."""
    stream = made(windows, AlertRule(name="many", at_least=1_000))
    finished = stream.to_finish()
    (own,), (still, alone) = (
        [int(each.replace(",", "")) for each in re.findall(r"[\d,]*\d", alerts.counted.near)]
        for alerts in (stream, finished)
    )
    assert still < own < alone
    stddev, (apart, common) = stream.counted.stddev(), stream.counted.stddevs_apart
    assert stats.norm.sf((own - 0.5) / stddev) == pytest.approx(0.1, abs=0.015)
    draw, level = np.random.default_rng(3), LocalLevel(apart)
    smoothed = level.smooth(1_000 - still + draw.normal(0, apart, (windows, 400))).estimates
    wrong = np.mean(smoothed + draw.normal(0, common, 400) >= 1_000)
    assert 0.05 < wrong < 0.15
    burst = np.full((windows, 400), 1_000.0 - 5 * apart)
    burst[windows // 2] = 1_000 + alone
    noisy = burst + draw.normal(0, apart, (windows, 400)) + draw.normal(0, common, 400)
    held = np.maximum(level.smooth(noisy).estimates, noisy - finished.counted.moved())[windows // 2]
    assert np.mean(held < 1_000) < 0.15
    assert stream.counted.near in stream.accuracy.sentence and finished.counted.near in finished.accuracy.sentence


def test_false_alerts_of_nobody_are_foretold():
    """By smoothed numbers far fewer than by those of the windows."""
    alerts = made(52, AlertRule(name="many", at_least=30))
    (by_own,), finished = alerts.false_alerts, alerts.to_finish()
    (foretold,) = made(52, AlertRule(name="many", at_least=14)).to_finish().false_alerts
    assert finished.false_alerts == () or finished.false_alerts[0].expected < by_own.expected / 10
    apart, common = finished.counted.stddevs_apart
    draw, level = np.random.default_rng(3), LocalLevel(apart)
    noisy = draw.normal(0, apart, (52, 400))
    smoothed = np.maximum(level.smooth(noisy).estimates, noisy - finished.counted.moved())
    found = 52 * np.mean(smoothed + draw.normal(0, common, 400) >= 14)
    assert foretold.expected / 2 < found < 2 * foretold.expected


def test_margins_hold_whatever_the_model_says():
    alerts = made(30, AlertRule(name="many", at_least=1_000))
    finished, (own, _) = alerts.to_finish(), alerts.counted.stddevs_apart
    assert finished.margin() == alerts.margin() + 2.12 * own
    numbers = np.zeros(30, np.int64)
    numbers[7] = 1_000 + math.ceil(2.12 * own)  # as its noise has it
    assert windows_of(decided(finished, numbers)) == [7]


def test_the_part_of_noise_that_is_left_of_steady_numbers():
    assert steady_part(1) == pytest.approx(1.0, abs=0.01)
    assert steady_part(100, 100) == pytest.approx(0.11, abs=0.02)
    parts = [steady_part(windows) for windows in (1, 2, 8, 52, 200)]
    assert parts == sorted(parts, reverse=True)
    found = LocalLevel(20.0).smooth(500 + np.random.default_rng(1).normal(0, 20, (52, 400))).estimates.std()
    assert found == pytest.approx(20 * steady_part(52), rel=0.25)
