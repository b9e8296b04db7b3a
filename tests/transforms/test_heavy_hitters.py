"""Heavy hitters: rows of a plain reference by the monitors, and what is surely above a threshold by counts."""

import random

import pyarrow as pa
import pytest
import slow_reference
from event_forms import as_arrow, as_rows, of_elements, run_bounded
from every_runner import one_job
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import KeyedCounts, ShiftingHeavyHitters
from privstream.transforms.batches import from_stream
from privstream.transforms.counts.transform import rows_of
from workloads import SECOND, START, random_events, transform

FORMS = {
    "plain": as_rows,
    "many items": as_arrow,
    "known domain": as_rows,
    "status": as_arrow,
    "status, known domain": as_arrow,
}


@one_job("hitters", FORMS, "plain", "status, known domain", elsewhere=[name for name in FORMS if name != "many items"])
def test_rows_are_those_of_the_reference(name):
    events = random_events(name, random.Random(5))
    random.Random(6).shuffle(events)
    made = transform(name, shards=3 if FORMS[name] is as_rows else 1)
    results = yield of_elements(FORMS[name](events), made)
    expected = slow_reference.heavy_hitters(made, events)
    assert expected
    assert sorted(results.elements("rows")) == expected
    assert results.elements("dead") == []
    assert results.counters["privstream:events"] == len(events)
    assert results.counters["privstream:hits_published"] == len(expected)
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


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
    made = ShiftingHeavyHitters(**RUN, noise=NOISE, threshold=threshold).over_files()
    counts = KeyedCounts(**RUN, noise=NOISE).over_files()
    found, counted = (
        rows_of(one.row_type, one.view(pa.concat_tables([from_stream(data) for _, data in published(one)]), None))
        for one in (made, counts)
    )
    numbers = {(row.item, row.window_start): (row.people, row.lower, row.upper) for row in counted}
    assert found and all((row.people, row.lower, row.upper) == numbers[row.item, row.window_start] for row in found)
    assert all(row.lower >= (threshold or 0) for row in found)
    starts = [(row.window_start.micros // SECOND - START) // 10 for row in found if row.item == "a"]
    assert starts == [0, 1, 2, 4, 5]
    statuses = "started continues continues started continues"
    assert " ".join(row.status for row in found if row.item == "a") == statuses
    assert not any(row.item == "b" for row in found)


def test_a_stream_reports_an_item_from_the_window_in_which_it_is_found():
    made = ShiftingHeavyHitters(**RUN, noise=NOISE)
    found = sorted(published(made), key=lambda row: (row.item, row.window_start))
    first = next(row for row in found if row.item == "c")
    assert first.status == "started" and first.since == first.window_start
    assert [row.since for row in found if row.item == "c"] == [first.since] * len([r for r in found if r.item == "c"])
