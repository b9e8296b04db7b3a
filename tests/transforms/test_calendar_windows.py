"""Windows of a calendar: where they begin, which events lie in them, and what a run over them publishes."""

from __future__ import annotations

import pickle
from datetime import UTC, datetime
from zoneinfo import ZoneInfo

import numpy as np
import pyarrow as pa
import pytest
from event_forms import of_elements
from every_runner import one_job
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.units import PERSON, PrivacyUnit
from privstream.transforms import KeyedCounts, ShiftingHeavyHitters
from privstream.transforms.parameters import BEGIN
from privstream.transforms.questions.cardinality_stages import LastPresence
from privstream.transforms.timing.steps import END_OF_TIME, Calendar, Steps

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
    inside = times >= made.origin
    assert rows.tolist() == np.flatnonzero(inside).tolist()
    for row, step in zip(rows, found.tolist(), strict=True):
        start, end = made.bounds(step)
        assert start.micros <= times[row] < end.micros
        assert made.starting(end.micros) - 1 == step
        due = made.decision_time(step, 2)
        assert made.latest(due, 2) == step
        assert made.latest(due - 1, 2) == step - 1
        assert (due - made.decision_time(0, 2)) % made.grid == 0


def test_labels_tell_calendars_apart_and_survive_a_worker():
    start = seconds(2024, 1, 1)
    end, month = seconds(2025, 1, 1), "1month Europe/Berlin"
    made = steps(month, start, end=end)
    others = [
        steps("1month Europe/Paris", start, end=end),
        steps("2months Europe/Berlin", start, end=end),
        steps(month, start, end=seconds(2024, 12, 1)),
        steps(month, seconds(2024, 2, 1), end=end),
        steps(month, start, end=end, allowed_lateness=60),
        Steps.of(window=made.size / SECOND, start=made.size / SECOND, end=13 * made.size / SECOND),
    ]
    assert len({made.label, *(other.label for other in others)}) == 1 + len(others)
    assert made.starts.tolist() == pickle.loads(pickle.dumps(made)).starts.tolist()


DAY = 86_400


@pytest.mark.parametrize(
    ("window", "more"),
    [
        ("1day", {}),
        ("3days", {}),
        ("1day", {"renew_every": "4days"}),
        ("1week", {"renew_every": "2weeks", "allowed_lateness": 60}),
    ],
)
@given(
    end=st.one_of(st.none(), st.integers(2, 6)),
    moments=st.lists(st.integers(0, 250 * DAY * SECOND), min_size=1, max_size=20),
)
def test_days_in_utc_are_windows_of_one_length(window, more, end, moments):
    """What `Steps` reckons with one length is what it finds in the list of a calendar."""

    def length(text):
        return Calendar.parse(text).length / SECOND if isinstance(text, str) else text

    start = 1000 * DAY  # a moment at which all of these lengths would begin anew does not matter
    until = {} if end is None else {"end": start + 84 * end * DAY}
    found = Steps.of(window=window, start=start, **more, **until)
    fixed = Steps.of(
        window=length(window), start=start, **{name: length(value) for name, value in more.items()}, **until
    )
    first = fixed.first
    times = np.array(moments, np.int64) + (start - 3 * DAY) * SECOND
    rows, steps = found.assign(times)
    others, numbers = fixed.assign(times)
    assert sorted(zip(rows.tolist(), (steps + first).tolist(), strict=True)) == sorted(
        zip(others.tolist(), numbers.tolist(), strict=True)
    )
    assert (found.count, found.renewal) == (fixed.count, fixed.renewal)
    assert (found.starting(times[rows] - 1) + first).tolist() == fixed.starting(times[rows] - 1).tolist()
    assert found.renewals(steps).tolist() == fixed.renewals(steps + first).tolist()
    for step in set(steps.tolist()):
        alike = step + first
        assert found.bounds(step) == fixed.bounds(alike)
        assert found.number(step) == fixed.number(alike)
        if found.last_of_period(step) != END_OF_TIME:  # as for the last period, and without one
            assert found.last_of_period(step) + first == fixed.last_of_period(alike)


def test_the_unit_of_a_period_is_the_same_for_whichever_of_them_a_run_begins_with():
    units = [
        steps("1day Europe/Berlin", seconds(*start), renew_every=every).person_in_period
        for every, start in [
            ("1month", (2024, 1, 1)),
            ("1month", (2025, 6, 1)),
            ("1month", (2024, 1, 15)),
            ("1week", (2024, 1, 1)),
            ("1week", (2024, 7, 22)),
        ]
    ]
    assert units[0] == units[1] and units[3] == units[4]
    assert len({*units}) == 3
    assert str(units[0]) == "one person in one window of 1 month in Europe/Berlin, counted from 1970-01-01"
    assert str(units[3]).endswith("counted from 1970-01-05"), "a Monday"
    assert PrivacyUnit.from_dict(units[0].to_dict()) == units[0]
    hour = PrivacyUnit(what="person", window=3600 * SECOND)
    assert units[0].changes(hour) == 2, "each month has whole hours"
    assert PERSON.changes(units[0]) == 2
    for other in (units[2], PERSON, PrivacyUnit(what="person", window=DAY * SECOND)):
        assert units[0].changes(other) is None
    assert hour.changes(units[0]) is None


NOISE = KeyedNoise(b"a key for tests, known to all...", "calendar")
START = seconds(2024, 3, 29)
"""Clocks change on the third day, which has 23 hours."""

COMMON = {"window": "1day Europe/Berlin", "start": START, "noise": NOISE}
END = seconds(2024, 4, 2)
AMPLE = {"epsilon": 4000, "delta": 1e-4, "max_contributions": 20, "end": END}
OF_DAYS = {
    "counts": lambda: KeyedCounts(**AMPLE, **COMMON),
    "hitters": lambda: ShiftingHeavyHitters(**AMPLE, **COMMON),
    "renewed": lambda: KeyedCounts(**AMPLE, renew_every="2days", **COMMON),
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


@one_job("points", OF_DAYS, "counts", elsewhere=["renewed"])
def test_rows_are_about_days_of_the_calendar(name):
    results = yield of_elements([hourly()], OF_DAYS[name]())
    rows = results.elements("rows")
    begins = {datetime.fromtimestamp(row.window_start.seconds(), BERLIN) for row in rows}
    assert {(begin.day, begin.hour) for begin in begins} == {(29, 0), (30, 0), (31, 0), (1, 0)}
    lengths = {row.window_start: (row.window_end - row.window_start).micros // (3600 * SECOND) for row in rows}
    assert sorted(lengths.values()) == [23, 24, 24, 24]
    found = [(datetime.fromtimestamp(row.window_start.seconds(), BERLIN).day, row.item, row) for row in rows]
    told = {(day, item): row.people for day, item, row in found}
    assert {key: number for key, number in told.items() if number > 10} == pytest.approx(people(), abs=10)


@pytest.mark.parametrize(("window", "zone"), [(86_400, ZoneInfo("UTC")), ("1day Europe/Berlin", BERLIN)])
@pytest.mark.parametrize("day", [(2024, 3, 31), (2024, 6, 1), (2024, 10, 27)])
def test_a_timeout_as_long_as_the_window_keeps_everybody_of_it_and_nobody_else(window, zone, day):
    """Also who comes at its first moment, as dates without a time do, and on days of 23 and of 25 hours."""
    made = steps(window, seconds(*day, zone=zone))
    first, end = made.bounds_micros(made.first)
    for days in (1, 3):
        times = np.array([first, first + 1, end - 1])
        stage = LastPresence(steps=made, timeout=86_400_000_000 * days)
        stays = stage.stays(made.first, np.array([BEGIN] * 3), times)
        assert stays.tolist() == [days] * 3


def test_a_day_that_a_zone_leaves_out_has_no_window() -> None:
    start = datetime(2011, 12, 28, tzinfo=ZoneInfo("Pacific/Apia")).timestamp()  # there was no 30 December
    steps = Steps.of(window="1day Pacific/Apia", start=start)
    ends = [steps.bounds(step)[1] for step in range(6)]
    assert len(set(ends)) == 6
    assert [steps.starting(end.micros) - 1 for end in ends] == list(range(6))
