"""Heavy hitters: rows of a plain reference by the monitors, and what is surely above a threshold by counts."""

import random

import pytest
import slow_reference
import tiny_runner
from event_forms import as_arrow, run_bounded
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import KeyedCounts, ShiftingHeavyHitters
from privstream.transforms.counted import shown
from privstream.transforms.timing import step_fn
from workloads import CONFIGURATIONS, SECOND, START, random_events, transform

SEEDS = range(2)
QUICK = ("plain", "known domain", "status", "status, known domain")
ENDING = [name for name in CONFIGURATIONS if "no end" not in name]
"""Bounded input needs an end."""


def late_pairs(made, events) -> int:
    """Count the windows of the run that the events would have counted in."""
    steps = made.steps
    return sum(
        1
        for _, _, time in events
        for step in range(time // steps.size, (time - steps.size) // steps.size, -1)
        if (steps.first is None or step >= steps.first) and (steps.end is None or step < steps.end)
    )


def domain_of(made) -> list[str]:
    return [made.domain[place] for place in range(len(made.domain))]


@some_quick("name", ENDING, *QUICK)
def test_rows_are_those_of_the_reference_whatever_fails_and_in_whatever_order_timers_come(name, monkeypatch):
    published = 0
    for seed in SEEDS:
        events = random_events(name, random.Random(seed))
        expected = slow_reference.heavy_hitters(transform(name), events)
        quiet = tiny_runner.drive(transform(name), events, random.Random(seed))
        with monkeypatch.context() as patched:
            patched.setattr(step_fn, "LEAST_COMPACTION", 64)
            patched.setattr(step_fn, "CACHED_KEYS", 2)
            noisy = tiny_runner.drive(transform(name), events, random.Random(seed), crashes=0.3, workers=3)
        assert sorted(quiet.rows) == sorted(noisy.rows) == expected
        assert noisy.counters() == quiet.counters()
        published += len(expected)
    assert published


@some_quick("name", ENDING, *QUICK)
def test_late_events_are_counted_and_dropped_and_change_nothing(name):
    made = transform(name)
    for seed in SEEDS:
        chance = random.Random(seed)
        events = random_events(name, chance)
        watermark = START * SECOND + chance.randint(1, 3) * made.steps.size
        late = [
            (f"late {user}", item, watermark - chance.randint(made.steps.size, 2 * made.steps.size))
            for user, item, _ in random_events(name, chance)
            if made.domain is None or item in domain_of(made)
        ]
        first = [event for event in events if event[2] < watermark]
        chain = tiny_runner.Chain(made, chance, crashes=0.1, workers=2)
        chain.arrive(first)
        chain.advance(watermark)
        chain.arrive(late)
        chain.arrive([event for event in events if event not in first])
        chain.advance(tiny_runner.END)
        assert sorted(chain.rows) == slow_reference.heavy_hitters(made, events)
        assert chain.open.late == late_pairs(made, late)


RUN = {"epsilon": 20.0, "delta": 1e-3, "window": 10, "start": START, "end": START + 60, "max_contributions": 18}
NOISE = KeyedNoise(b"a key for tests, no secret")
CROWDS = {"a": (99, 99, 99, 0, 99, 99), "b": (3, 0, 3, 0, 3, 0), "c": (40, 41, 42, 43, 44, 45)}
EVENTS = [
    (f"user {person}", item, (START + 10 * window) * SECOND + person)
    for item, numbers in CROWDS.items()
    for window, number in enumerate(numbers)
    for person in range(number)
]


def published(made) -> list:
    """Return what a pipeline publishes."""
    return run_bounded("fn_api", as_arrow(EVENTS, 400), made).elements("rows")


@pytest.mark.parametrize("threshold", [None, 30])
def test_by_counts_rows_are_those_counts_that_are_surely_above_the_threshold(threshold):
    """The same noise, and the same interval, as `KeyedCounts` with the same arguments."""
    made = ShiftingHeavyHitters(**RUN, noise=NOISE, threshold=threshold).to_finish()
    counts = KeyedCounts(**RUN, noise=NOISE).to_finish()
    found = made.explained(made.counts.finish(published(made)))
    counted = counts.finish(published(counts))
    numbers = {(row.item, row.window_start): shown(row) for row in counted}
    assert found and all((row.people, row.lower, row.upper) == numbers[row.item, row.window_start] for row in found)
    assert all(row.lower >= (threshold or 0) for row in found)
    starts = [(row.window_start.micros // SECOND - START) // 10 for row in found if row.item == "a"]
    assert starts == [0, 1, 2, 4, 5]
    assert [row.status for row in found if row.item == "a"] == [
        "started",
        "continues",
        "continues",
        "started",
        "continues",
    ]
    assert not any(row.item == "b" for row in found)


def test_a_stream_reports_an_item_from_the_window_in_which_it_is_found():
    made = ShiftingHeavyHitters(**RUN, noise=NOISE)
    found = sorted(published(made), key=lambda row: (row.item, row.window_start))
    first = next(row for row in found if row.item == "c")
    assert first.status == "started" and first.since == first.window_start
    assert [row.since for row in found if row.item == "c"] == [first.since] * len([r for r in found if r.item == "c"])
