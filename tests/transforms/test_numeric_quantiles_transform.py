"""Quantiles of numbers: the rows of a slow reference on every runner, and what counts of each person."""

import math
from collections import Counter, defaultdict

import apache_beam as beam
import numpy as np
import pytest
from apache_beam.utils.timestamp import Timestamp
from event_forms import of_elements, run_bounded
from every_runner import one_job
from privstream.mechanisms import BinnedStep, KeyedNoise
from privstream.transforms import NumericQuantiles, QuantileEstimate
from privstream.transforms.batches import NO_NAMES, EventBatch, HolderBatch, StepKey
from privstream.transforms.questions.running_stages import BoundValues
from privstream.transforms.timing.step_fn import STEP

KEY = b"a key for tests of quantiles"
SECOND, WINDOW, START, WINDOWS = 1_000_000, 10, 1000, 6
COMMON = {
    "epsilon": 2.0,
    "delta": 1e-6,
    "low": 1,
    "high": 1000,
    "scale": "log",
    "resolution": 40,
    "quantiles": (0.25, 0.5, 0.9),
    "window": WINDOW,
    "start": START,
    "end": START + WINDOWS * WINDOW,
    "max_contributions": 3,
}
CONFIGURATIONS = {
    "person": {},
    "pure": {"delta": 0.0},
    "event": {"unit": "event", "max_contributions": None},
    "gaussian": {"delta": 0.05},
}


def transform(name, **changes):
    return NumericQuantiles(**(COMMON | CONFIGURATIONS[name] | changes), noise=KeyedNoise(KEY))


def random_events(name, number=4000):
    """Return events (user, value, time): of each person at most one in a window."""
    rng = np.random.default_rng(5)
    events = {}
    for _ in range(number):
        user, window = f"user {rng.integers(600)}", int(rng.integers(-1, WINDOWS + 1))
        time = (START + window * WINDOW) * SECOND + int(rng.integers(WINDOW * SECOND))
        events[user, window] = (user, float(np.exp(rng.normal(4, 2))), time)
    return list(events.values())


def as_rows(events):
    return [beam.Row(user=u, value=v, time=Timestamp(micros=t)) for u, v, t in events]


def reference(made, events):
    """Return the rows by plain counting."""
    windows = defaultdict(list)
    for user, value, time in events:
        window = time // SECOND // WINDOW - START // WINDOW
        if 0 <= window < WINDOWS:
            windows[window].append((user, value))
    used, state, rows = Counter(), made.mechanism.initial_state(), []
    noise = made.publishing_noise
    for window in range(WINDOWS):
        counted = windows[window]
        if made.mechanism.unit == "person":
            counted = [each for each in counted if used[each[0]] < made.bound.allowed(window + 1, WINDOWS)]
            used.update(user for user, _ in counted)
        counts = np.zeros(40, np.int64)
        for _, value in counted:
            counts[min(math.floor(40 * math.log(min(max(value, 1), 1000)) / math.log(1000)), 39)] += 1
        state, found = made.mechanism.step(state, BinnedStep(step=window + 1, counts=counts), noise)
        start, end = (Timestamp(START + (window + more) * WINDOW) for more in (0, 1))
        for numbers in zip(found.quantiles, found.estimates, found.lower, found.upper, found.estimates, strict=True):
            rows.append(QuantileEstimate(start, end, *map(float, numbers)))
    return sorted(rows)


@one_job("points", CONFIGURATIONS, "person", "event", elsewhere=["person", "event"])
def test_rows_are_those_of_the_reference(name):
    events = random_events(name)
    made = transform(name)
    results = yield of_elements(as_rows(events), made)
    rows = results.elements("rows")
    assert sorted(rows) == reference(made, events)
    assert len(rows) == 3 * WINDOWS
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])
    first, end = START * SECOND, (START + WINDOWS * WINDOW) * SECOND
    here = [event for event in events if first <= event[2] < end]
    clipped = sum(not 1 <= value <= 1000 for _, value, _ in here)
    assert results.counters["privstream:values_clipped"] == clipped > 0
    assert results.elements("dead") == []


@pytest.mark.slow
def test_a_person_with_very_many_values_counts_as_anybody_does():
    events = random_events("person", 300)
    hostile = "hostile"
    once = [(hostile, 7.0, (START + step * WINDOW) * SECOND) for step in range(3)]
    again = [(hostile, 7.0, time + SECOND * (1 + n % 9)) for _, _, time in once for n in range(500)]
    huge = [("low" * 5000, -1e308, START * SECOND), ("high", 1e308, START * SECOND)]
    made = transform("person")
    results = run_bounded("fn_api", as_rows(events + huge + once + again), made)
    assert sorted(results.elements("rows")) == reference(made, events + huge + once)
    assert results.counters["privstream:values_over_limit"] == len(again)
    assert results.elements("dead") == []


def test_over_files_random_values_of_the_run_count():
    events = random_events("person")
    results = run_bounded("fn_api", as_rows(events), transform("person").over_files())
    first, end = START * SECOND, (START + WINDOWS * WINDOW) * SECOND
    came = Counter(user for user, _, time in events if first <= time < end)
    assert results.counters["privstream:contributions_over_limit"] == sum(max(0, n - 3) for n in came.values()) > 0
    assert results.elements("rows") != reference(transform("person"), events)


def bounded(rows, limit=1):
    """Return what is left of rows (user, item, time), as (user, item)."""
    made = transform("person")
    stage = BoundValues(steps=made.steps, noise=KeyedNoise(KEY), limit=limit, in_parts=False)
    users, items, times = (np.array(column) for column in zip(*rows, strict=True))
    batch = EventBatch(users.astype(np.uint64), items.astype(np.uint64), times.astype(np.int64), NO_NAMES)
    ((_, record),) = stage.bound(StepKey(3, 0), batch)
    left = HolderBatch.read([record[STEP.size :]])
    return sorted(zip(left.users.tolist(), left.items.tolist(), strict=True))


@pytest.mark.parametrize("limit", [1, 4])
def test_each_record_of_a_person_is_as_likely_to_count_as_any_other(limit):
    """Also where nine of ten are equal rows."""
    rows = [(user, 1, 50) for user in range(3000) for _ in range(9)] + [(user, 42, 50) for user in range(3000)]
    left = bounded(rows, limit)
    assert Counter(user for user, _ in left) == dict.fromkeys(range(3000), limit)
    assert abs(sum(item == 42 for _, item in left) - 300 * limit) < 120
