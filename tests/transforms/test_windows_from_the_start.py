"""Windows are counted from the start, wherever it is: weeks from Monday, days from midnight of a time zone."""

import apache_beam as beam
import pytest
from apache_beam.utils.timestamp import Timestamp
from event_forms import run_bounded
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    ContinualHistogram,
    Domain,
    KeyedCounts,
    SetCardinality,
    ShiftingHeavyHitters,
    SparseVectorAlerts,
)
from privstream.transforms.alerts.rules import AlertRule

WEEK = 7 * 86_400
MONDAY = 1_704_063_600  # 2024-01-01T00:00:00+01:00; windows that are counted from 1970 begin on a Thursday, UTC
PEOPLE, WEEKS = 300, 3
NOISE = KeyedNoise(b"a key for tests of windows that have a start")
COMMON = {"epsilon": 50.0, "window": WEEK, "start": MONDAY, "noise": NOISE}
END = {"end": MONDAY + WEEKS * WEEK}
PRIVATE = {"delta": 1e-6, "max_hits": 9}
RULES = [AlertRule(name="many", at_least=200)]
DOMAIN = Domain(["first", "last"])
TRANSFORMS = {
    "counts": KeyedCounts(**COMMON, **END, delta=1e-6, max_contributions=6),
    "counts since the start": KeyedCounts(**COMMON, **END, delta=1e-6, max_contributions=6, over="start"),
    "counts of a list": KeyedCounts(**COMMON, **END, domain=DOMAIN, max_contributions=6),
    "hitters by status": ShiftingHeavyHitters(
        **COMMON, **PRIVATE, horizon=WEEKS, items_per_step=2, method="status", count_share=0.5
    ),
    "hitters by clock": ShiftingHeavyHitters(**COMMON, **PRIVATE, horizon=WEEKS, items_per_step=2, method="clock"),
    "hitters in sliding windows": ShiftingHeavyHitters(
        **COMMON, **PRIVATE, period=WEEK, horizon=WEEKS, items_per_step=2, method="counts"
    ),
    "histogram": ContinualHistogram(**COMMON, **END, domain=DOMAIN, queries=("histogram",)),
    "people": SetCardinality(**COMMON, **END, timeout=86_400.0, max_updates=2 * PEOPLE),
    "alerts": SparseVectorAlerts(**COMMON, **END, rules=RULES, min_alerts=5, method="sparse_vector"),
}


def events() -> list[beam.Row]:
    """In each week one item in its first second, and another one in its last."""
    found = []
    for week in range(WEEKS):
        for item, second in (("first", 0), ("last", WEEK - 1)):
            time = Timestamp(MONDAY + week * WEEK + second)
            found += [beam.Row(user=f"user {person}", item=item, time=time) for person in range(PEOPLE)]
    return found


@pytest.mark.parametrize("name", TRANSFORMS)
def test_windows_begin_at_the_start_and_have_all_that_lies_in_them(name):
    results = run_bounded("fn_api", events(), TRANSFORMS[name])
    starts = [Timestamp(MONDAY + week * WEEK) for week in range(WEEKS)]
    rows = results.elements("rows")
    assert sorted({row.window_start for row in rows}) == starts
    assert {row.window_end.micros - row.window_start.micros for row in rows} == {WEEK * 1_000_000}
    assert results.elements("dead") == []
    for row in rows:
        if name.startswith(("counts", "hitters")) and row.count_stddev:
            assert abs(row.count - PEOPLE) < 60
        if name == "people":
            assert abs(row.estimate - PEOPLE) < 60, "who came in the last second of a week is still there"


def test_other_starts_have_other_noise():
    """The same windows would be numbered alike, one second later."""
    one, other = (
        KeyedCounts(**COMMON | {"start": MONDAY + second}, horizon=WEEKS, delta=1e-6, max_contributions=6)
        for second in (0, 1)
    )
    assert one.steps.first == other.steps.first
    assert one.steps.label != other.steps.label


def test_windows_of_whole_units_keep_their_noise():
    aligned = KeyedCounts(**COMMON | {"start": 2817 * WEEK}, horizon=WEEKS, delta=1e-6, max_contributions=6)
    assert aligned.steps.label == f"{WEEK * 1_000_000} 2817 {2817 + WEEKS} 0"


def test_events_before_the_start_are_in_no_window():
    early = [row for row in events() if row.item == "last"]
    made = KeyedCounts(**COMMON | {"start": MONDAY + 2 * WEEK}, horizon=1, delta=1e-6, max_contributions=6)
    rows = run_bounded("fn_api", early, made).elements("rows")
    assert [row.window_start for row in rows] == [Timestamp(MONDAY + 2 * WEEK)]
