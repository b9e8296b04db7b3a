"""Windows of a calendar: where they begin, which events lie in them, and what a run over them publishes."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime, timedelta
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from apache_beam.transforms.window import GlobalWindow
from apache_beam.utils.timestamp import Timestamp
from every_runner import of_elements, one_job
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    Domain,
    KeyedCounts,
    SetCardinality,
    ShiftingHeavyHitters,
    TopKWithGap,
)
from privstream.transforms.alerts.threshold_tests import NEVER, Runs
from privstream.transforms.timing.calendar import Calendar, iso
from privstream.transforms.timing.steps import END_OF_TIME, CalendarSteps, Steps

SECOND = 1_000_000
BERLIN = ZoneInfo("Europe/Berlin")


def seconds(*parts: int, zone: ZoneInfo = BERLIN) -> float:
    return datetime(*parts, tzinfo=zone).timestamp()


def steps(window: str, start: float, **more: float) -> Steps:
    return Steps.of(window=window, start=start, **more)


@pytest.mark.parametrize(
    ("window", "start", "begin"),
    [
        ("1month Europe/Berlin", (2024, 1, 1), [(2024, month, 1) for month in range(1, 13)]),
        ("3months Europe/Berlin", (2024, 8, 15), [(2024, 8, 15), (2024, 11, 15), (2025, 2, 15)]),
        ("1week Europe/Berlin", (2024, 3, 25), [(2024, 3, 25), (2024, 4, 1), (2024, 4, 8)]),
        ("1day Europe/Berlin", (2024, 3, 30), [(2024, 3, 30), (2024, 3, 31), (2024, 4, 1)]),
        ("1year Europe/Berlin", (2023, 2, 28), [(2023, 2, 28), (2024, 2, 28), (2025, 2, 28)]),
    ],
)  # fmt: skip
def test_windows_begin_with_days_of_a_calendar(window, start, begin):
    made = steps(window, seconds(*start))
    assert [made.bounds(number)[0].seconds() for number in range(len(begin))] == [seconds(*day) for day in begin]
    assert made.bounds(1)[1] == made.bounds(2)[0]


def test_days_on_which_clocks_change_have_23_and_25_hours():
    made = steps("1day Europe/Berlin", seconds(2024, 1, 1), end=seconds(2025, 1, 1))
    hours = np.diff(made.starts) // (3600 * SECOND)
    assert made.count == 366
    assert np.unique(hours, return_counts=True)[0].tolist() == [23, 24, 25]
    assert np.unique(hours, return_counts=True)[1].tolist() == [1, 364, 1]
    assert made.grid == 3600 * SECOND


def test_a_day_without_midnight_begins_when_clocks_leave_it_out():
    """In Cairo midnight of 26 April 2024 was one o'clock."""
    cairo = ZoneInfo("Africa/Cairo")
    made = steps("1day Africa/Cairo", seconds(2024, 4, 25, zone=cairo))
    begins = datetime.fromtimestamp(made.bounds(1)[0].seconds(), cairo)
    assert (begins.day, begins.hour) == (26, 1)
    assert made.bounds(2)[0].seconds() - made.bounds(1)[0].seconds() == 23 * 3600


@given(
    window=st.sampled_from(("1day Europe/Berlin", "2days America/New_York", "1month Asia/Kolkata", "1year UTC")),
    moments=st.lists(st.integers(0, 4_000_000_000 * SECOND), min_size=1, max_size=20),
    lateness=st.sampled_from((0, 3_600)),
)  # fmt: skip
def test_each_event_lies_in_the_one_window_that_holds_it(window, moments, lateness):
    zone = ZoneInfo(window.split()[1])
    made = steps(window, seconds(1999, 12, 1, zone=zone), allowed_lateness=lateness)
    times = np.array(moments, np.int64)
    rows, found = made.assign(times)
    inside = times >= made.start
    assert rows.tolist() == np.flatnonzero(inside).tolist()
    for row, step in zip(rows, found.tolist(), strict=True):
        start, end = made.bounds(step)
        assert start.micros <= times[row] < end.micros
        assert made.ending(end) == step
        due = made.decision_time(step, 2).micros
        assert made.latest(due, 2) == step
        assert made.latest(due - 1, 2) == step - 1
        assert (due - made.decision_time(0, 2).micros) % made.grid == 0


def test_steps_beyond_the_calendar_follow_each_other():
    made = steps("1month", seconds(2024, 1, 1, zone=UTC), end=seconds(2024, 3, 1, zone=UTC))
    for step in (-3, -1, 0, 1, 2, 5):
        assert made.latest(made.bounds(step)[1].micros) == step
        assert made.latest(made.bounds(step)[1].micros - 1) == step - 1
    rows, found = made.assign(np.array([made.start - 1, made.start, made.until - 1, made.until]))
    assert (rows.tolist(), found.tolist()) == ([1, 2], [0, 1])
    assert made.latest(END_OF_TIME) > 1_000


def test_windows_are_counted_from_the_start_or_end_there():
    start = seconds(2024, 1, 1)
    assert steps("1month Europe/Berlin", start, windows=12) == steps(
        "1month Europe/Berlin", start, end=seconds(2025, 1, 1)
    )


def test_labels_tell_calendars_apart_and_survive_a_worker():
    start = seconds(2024, 1, 1)
    made = steps("1month Europe/Berlin", start, windows=12)
    others = [
        steps("1month Europe/Paris", start, windows=12),
        steps("2months Europe/Berlin", start, windows=12),
        steps("1month Europe/Berlin", start, windows=11),
        steps("1month Europe/Berlin", seconds(2024, 2, 1), windows=12),
        steps("1month Europe/Berlin", start, windows=12, allowed_lateness=60),
        Steps.of(window=made.size / SECOND, start=made.size / SECOND, end=13 * made.size / SECOND),
    ]
    assert len({made.label, *(other.label for other in others)}) == 1 + len(others)
    assert made.starts.tolist() == pickle.loads(pickle.dumps(made)).starts.tolist()
    assert b"starts" not in pickle.dumps(made)


@pytest.mark.parametrize(
    ("window", "given", "rule"),
    [
        ("1month", {}, "start must be given"),
        ("0months", {"start": 0}, "a text of whole days, weeks, months or years of a calendar"),
        ("1fortnight", {"start": 0}, "a text of whole days"),
        ("1month Europe/Nowhere", {"start": 0}, "time_zone must be an IANA time zone"),
        ("1month Europe/Berlin", {"start": 0}, "start must be where a day begins in Europe/Berlin, such as 1969"),
        ("1month", {"start": 30 * 86_400}, "start must be one of the first 28 days of a month, got day 31"),
        ("1month", {"start": 0, "end": 86_400}, "end must be where a window of 1 month in UTC ends, such as 1970"),
        ("1month", {"start": 0, "end": 0}, "end must leave room"),
        ("1month", {"start": 0, "end": 31 * 86_400, "windows": 1}, "windows must not be given with end"),
        ("1month", {"start": 0, "windows": 0}, "windows must be"),
        ("1month", {"start": 0, "renew_every": 86_400}, "renew_every must not be given with windows of a calendar"),
        ("1month", {"start": 0, "period": 86_400}, "period must not be given with windows of a calendar"),
    ],
)  # fmt: skip
def test_what_is_no_window_of_a_calendar_is_refused(window, given, rule):
    with pytest.raises(ValueError, match=rule):
        Steps.of(window=window, **given)


def test_calendar_texts():
    assert str(Calendar.parse("12months")) == "12 months in UTC"
    assert isinstance(Steps.of(window="1day", start=0), CalendarSteps)
    assert timedelta(microseconds=Calendar.parse("4years").length) == timedelta(days=1461 - 0.03)


NOISE = KeyedNoise(b"a key for tests, known to all...", "calendar")
START, DAYS = seconds(2024, 3, 29), 4
"""Clocks change on the third day, which has 23 hours."""

COMMON = {"window": "1day Europe/Berlin", "start": START, "noise": NOISE}
END = seconds(2024, 4, 2)
OF_DAYS = {
    "counts": lambda: KeyedCounts(epsilon=400, delta=1e-4, max_contributions=DAYS, end=END, **COMMON),
    "hitters": lambda: ShiftingHeavyHitters(epsilon=400, delta=1e-4, horizon=DAYS, method="counts", **COMMON),
    "top-k": lambda: TopKWithGap(epsilon=400, delta=1e-4, end=END, top=2, **COMMON),
}


def hourly() -> pa.RecordBatch:
    """Events of each hour: of each person an item that changes with the day in Berlin, by every quarter of an hour."""
    moments = np.arange(START, END, 900)
    days = [datetime.fromtimestamp(moment, BERLIN).day % 2 for moment in moments.tolist()]
    users = [f"user {place % 60}" for place in range(len(moments))]
    items = [f"item {day}" if place % 3 else "always" for place, day in enumerate(days)]
    times = pa.array((moments * SECOND).astype(np.int64), pa.timestamp("us"))
    return pa.RecordBatch.from_arrays([pa.array(users), pa.array(items), times], ["user", "item", "time"])


def people() -> dict[tuple[int, str], int]:
    """Return how many people have each item on each day in Berlin."""
    batch, found = hourly(), set()
    for user, item, time in zip(*(column.to_pylist() for column in batch.columns), strict=True):
        found.add((time.replace(tzinfo=UTC).astimezone(BERLIN).day, item, user))
    days = [(day, item) for day, item, _ in found]
    return {key: days.count(key) for key in days}


@one_job("calendar windows", OF_DAYS, "counts")
def test_rows_are_about_days_of_the_calendar(name):
    results = yield of_elements([hourly()], OF_DAYS[name]())
    rows = results.elements("rows")
    begins = {datetime.fromtimestamp(row.window_start.seconds(), BERLIN) for row in rows}
    assert {(begin.day, begin.hour) for begin in begins} == {(29, 0), (30, 0), (31, 0), (1, 0)}
    lengths = {row.window_start: (row.window_end - row.window_start).micros // (3600 * SECOND) for row in rows}
    assert sorted(lengths.values()) == [23, 24, 24, 24]
    number = "estimate" if name == "top-k" else "count"
    told = {
        (datetime.fromtimestamp(row.window_start.seconds(), BERLIN).day, row.item): round(getattr(row, number))
        for row in rows
        if getattr(row, number) > 1
    }
    assert told == people()


@pytest.mark.parametrize(
    "make",
    [
        lambda: TopKWithGap(epsilon=1, end=END, top=1, domain=Domain(["a", "b"]), unit="person_in_window", **COMMON),
        lambda: SetCardinality(epsilon=1, end=END, timeout=60, max_updates=1, **COMMON),
    ],
)
def test_what_needs_windows_of_one_length_is_refused(make):
    with pytest.raises(ValueError, match="with windows of a calendar"):
        make()


def test_an_alert_in_the_first_window_of_a_calendar_starts_there() -> None:
    """Its steps count from 0, and one before it there was none."""
    never, one = np.full((1, 1), NEVER, np.int64), np.array([0])
    first = Runs((), never, never).alerted(one, one, 0)
    assert first.since.tolist() == [[0]]
    assert first.alerted(one, one, 1).since.tolist() == [[0]] and first.alerted(one, one, 2).since.tolist() == [[2]]


def test_a_day_that_a_zone_leaves_out_has_no_window() -> None:
    start = datetime(2011, 12, 28, tzinfo=ZoneInfo("Pacific/Apia")).timestamp()  # there was no 30 December
    steps = Steps.of(window="1day Pacific/Apia", start=start, windows=6)
    ends = [steps.bounds(step)[1] for step in range(6)]
    assert len(set(ends)) == 6
    assert [steps.ending(end) for end in ends] == list(range(6))


def test_moments_are_those_of_beam() -> None:
    """Windows reckon without Beam: the last moment of a timer, and how moments are written, are the same."""
    assert int(GlobalWindow().max_timestamp().micros) == END_OF_TIME
    for micros in (0, 1, -5, 1_500_000, 1_704_067_200_000_000, 1_704_067_200_000_001):
        assert iso(micros) == Timestamp(micros=micros).to_rfc3339()
