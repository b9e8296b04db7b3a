"""Windows as numbered steps."""

import math

import numpy as np
import pytest
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from privstream.transforms.timing.steps import END_OF_TIME, MICROS, Steps

MILLIS = 1_000
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def any_steps(draw):
    period = draw(st.integers(1, 50)) * MILLIS
    size = period + draw(st.integers(0, 200)) * MILLIS
    first = draw(st.none() | st.integers(0, 300))
    end = draw(st.none() | st.integers(0, 300))
    origin = draw(st.integers(0, period - 1))
    lateness = draw(st.integers(0, 9)) * MILLIS
    return Steps(size=size, period=period, origin=origin, first=first, end=end, allowed_lateness=lateness)


def slow_assign(steps: Steps, times: list[int]) -> list[tuple[int, int]]:
    found = []
    for row, time in enumerate(times):
        step = (time - steps.origin) // steps.period
        while time < steps.origin + step * steps.period + steps.size:
            in_run = (steps.first is None or step >= steps.first) and (steps.end is None or step < steps.end)
            if step >= 0 and in_run and steps.decision_time(step, 10).micros <= END_OF_TIME:
                found.append((row, step))
            step -= 1
    return sorted(found)


@given(any_steps(), st.lists(st.integers(-100 * MILLIS, 20_000 * MILLIS) | INT64, max_size=20))
def test_assign_gives_every_window_of_the_run_that_holds_the_event(steps, times):
    rows, numbers = steps.assign(np.array(times, np.int64))
    assert rows.dtype.kind == numbers.dtype.kind == "i"
    assert sorted(zip(rows.tolist(), numbers.tolist(), strict=True)) == slow_assign(steps, times)


@given(any_steps(), st.integers(0, 10**9), st.integers(0, 9))
def test_bounds_and_decision_times_fit_together(steps, step, stage):
    start, end = steps.bounds(step)
    assert (start.micros - steps.origin, end.micros - start.micros) == (step * steps.period, steps.size)
    assert steps.ending(end) == step
    assert steps.last_moment(step).micros == end.micros - 1
    decided = steps.decision_time(step, stage)
    assert decided.micros == end.micros + steps.allowed_lateness + stage * MILLIS
    assert steps.latest(decided.micros, stage) == step
    assert steps.latest(decided.micros - 1, stage) == step - 1


@given(st.integers(1, 10**6), st.integers(1, 10**6), st.integers(0, 10**9), st.integers(0, 10**3))
def test_of_takes_seconds_and_counts_windows_from_the_start(window, period, start, further):
    window, period = max(window, period) / 1000, min(window, period) / 1000
    begin = start / 1000
    end = begin + window + further * period
    steps = Steps.of(window=window, period=period, start=begin, end=end)
    assert (steps.size, steps.period) == (round(window * MICROS), round(period * MICROS))
    assert steps.bounds(steps.first)[0] == Timestamp(micros=round(begin * MICROS))
    assert (steps.end - steps.first, steps.bounds(steps.end - 1)[1].micros) == (further + 1, round(end * MICROS))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"window": 0}, "window must be > 0"),
        ({"window": -1}, "window must be > 0"),
        ({"window": math.nan}, "window must be finite"),
        ({"window": math.inf}, "window must be finite"),
        ({"window": 0.0005}, "window must be > 0 and a whole number of milliseconds"),
        ({"window": 10, "period": 0}, "period must be > 0"),
        ({"window": 10, "period": 11}, "period must be <= window, got 11 > 10"),
        ({"window": 10, "start": 5.0001}, "start must be >= 0 and a whole number of milliseconds, got 5.0001"),
        ({"window": 10, "start": -10}, "start must be >= 0"),
        ({"window": 10, "start": 20, "end": 29}, "end must leave room for one window after start"),
        (
            {"window": 86_400, "start": 3_600, "end": 3_600 + 27 * 86_400 + 23 * 3_600},
            "end must be where a window ends: one ends 23 hours before it, the next one 1 hour after it",
        ),
        (
            {"window": 10, "period": 4, "start": 2, "end": 15},
            "one ends 3 seconds before it, the next one 1 second after",
        ),
        ({"window": 10, "end": 29}, "end must be where a window ends: one ends 9 seconds before it"),
        ({"window": 10, "allowed_lateness": -1}, "allowed_lateness must be >= 0"),
    ],
)
def test_bad_windows_are_refused(arguments, message):
    with pytest.raises(ValueError, match=message):
        Steps.of(**arguments)


def test_windows_must_be_numbers():
    with pytest.raises(TypeError, match="window must be"):
        Steps.of(window="10")
