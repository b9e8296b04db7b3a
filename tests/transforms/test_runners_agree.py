"""The same events give the same rows, bit for bit, on every runner, in any order, bundles, batches and shards."""

import copy
import random
from pathlib import Path

import pytest
import runner_harness
import slow_reference
from apache_beam.testing import test_stream
from apache_beam.utils.timestamp import MIN_TIMESTAMP, Timestamp
from event_forms import as_arrow, as_rows, crowd_at, late_of, of_elements, run_bounded, stamped
from every_runner import of_stream, one_job
from privstream.transforms import ShiftingHeavyHitters
from workloads import COMMON, SECOND, START, random_events, transform

SEED = 5


def with_shards(name: str, shards: int) -> ShiftingHeavyHitters:
    made = copy.copy(transform(name))
    made.shards = shards
    return made


FORMS = {
    "plain": as_rows,
    "many items": as_arrow,
    "known domain": as_rows,
    "status": as_arrow,
    "status, known domain": as_arrow,
}


@one_job("hitters", FORMS, "plain", "status, known domain", elsewhere=[name for name in FORMS if name != "many items"])
def test_rows_are_those_of_the_reference(name):
    events = random_events(name, random.Random(SEED))
    random.Random(SEED + 1).shuffle(events)
    made = with_shards(name, 3 if FORMS[name] is as_rows else 1)
    results = yield of_elements(FORMS[name](events), made)
    assert results.elements("dead") == []
    expected = slow_reference.heavy_hitters(made, events)
    assert expected
    assert sorted(results.elements("rows")) == expected
    assert results.counters["privstream:events"] == len(events)
    assert results.counters["privstream:hits_published"] == len(expected)
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


@pytest.mark.slow
def test_rows_are_the_same_with_two_processes(monkeypatch):
    name = "known domain"  # it has all stages that monitors have
    monkeypatch.setenv("PYTHONPATH", str(Path(runner_harness.__file__).parent))  # for the workers
    events = random_events(name, random.Random(SEED))
    made = with_shards(name, 4)
    two = ("--direct_num_workers=2", "--direct_running_mode=multi_processing")
    results = run_bounded("fn_api", as_rows(events), made, *two)
    assert results.elements("dead") == []
    assert sorted(results.elements("rows")) == slow_reference.heavy_hitters(made, events)


def disorderly(name: str, late: list, chance: random.Random) -> tuple[test_stream.TestStream, list]:
    """Return a stream out of order in which only `late` events are late, and its other events."""
    made = transform(name)
    steps = made.steps
    events = random_events(name, chance)
    watermark, waiting, source = 0, list(events), test_stream.TestStream()
    for end in range(START * SECOND, START * SECOND + 6 * steps.size, steps.size // 2):
        due = [e for e in waiting if (e[2] // steps.size - 1) * steps.size <= end]
        early = [e for e in waiting if e not in due and chance.random() < 0.3]
        waiting = [e for e in waiting if e not in due and e not in early]
        ready = due + early
        chance.shuffle(ready)
        while ready:
            source = source.add_elements([stamped(e) for e in ready[:40]])
            ready = ready[40:]
        watermark = end
        source = source.advance_watermark_to(Timestamp(micros=watermark))
        if end == START * SECOND + 4 * steps.size:
            source = source.add_elements([stamped(e) for e in late])
    return source.add_elements([stamped(e) for e in waiting]).advance_watermark_to_infinity(), events


@one_job(
    "late hitters",
    ["plain", "known domain", "status"],
    runners=["prism"],
)
def test_disorder_changes_nothing_and_late_events_are_dropped(name):
    made = with_shards(name, 2)
    size = made.steps.size
    # A crowd in a window in which others were, and one in a window of its own before everything.
    late = [(f"late {i}", "a", START * SECOND + size + i) for i in range(30)]
    late += [(f"late {i}", "b", START * SECOND + i) for i in range(30)]
    source, events = disorderly(name, late, random.Random(SEED))

    results = yield of_stream(source, made)
    expected = slow_reference.heavy_hitters(made, events)
    assert expected
    assert sorted(results.elements("rows")) == expected
    windows = sum(
        made.steps.first is None or step >= made.steps.first
        for _, _, time in late
        for step in range(time // made.steps.size, (time - size) // made.steps.size, -1)
    )
    assert late_of(results) == windows


@one_job("late hitters", runners=["prism"])
def test_allowed_lateness_holds_a_window_open():
    made = ShiftingHeavyHitters(**{**COMMON, "noise": transform("plain").noise, "allowed_lateness": 5})
    crowd = [(f"user {i}", "a", START * SECOND + 100 + i) for i in range(60)]
    in_time, late = crowd[:40], crowd[40:]
    source = (
        test_stream.TestStream()
        .advance_watermark_to(START + 14.9)
        .add_elements([stamped(event) for event in in_time])
        .advance_watermark_to(START + 15.1)
        .add_elements([stamped(event) for event in late])
        .advance_watermark_to_infinity()
    )

    results = yield of_stream(source, made)
    assert results.elements("rows") == slow_reference.heavy_hitters(made, in_time)
    assert results.elements("rows")
    assert late_of(results) == len(late)


@one_job("late hitters", ["alone", "beside one"], runners=["prism"])
def test_one_persons_event_does_not_decide_whether_late_ones_count(case):
    others = [] if case == "alone" else [("somebody", "a", START * SECOND)]
    crowd = [(f"user {i}", "a", START * SECOND + i) for i in range(60)]
    results = yield of_stream(crowd_at(START + 11, crowd, others), transform("plain"))
    assert results.elements("rows") == []
    assert late_of(results) == len(crowd)


def arrivals(stream: test_stream.TestStream) -> list[tuple[Timestamp, object]]:
    """Return the watermark at which each element comes."""
    now, found = MIN_TIMESTAMP, []
    for event in stream._events:
        if isinstance(event, test_stream.WatermarkEvent):
            now = event.new_watermark
        else:
            found += [(now, each.value) for each in event.timestamped_values]
    return found
