"""Counts per key: the rows of the slow reference on every runner, whatever happens on the way."""

import functools
import random
from collections import Counter

import numpy as np
import pyarrow as pa
import pytest
from counts_workloads import (
    BESIDE,
    CONFIGURATIONS,
    ITEMS,
    LISTED,
    ONE_OF_EACH_CHAIN,
    WINDOWS,
    answers,
    exact,
    expected,
    random_events,
    rows_in,
    table_of,
    transform,
)
from event_forms import as_arrow, as_rows, of_elements, run_bounded
from every_runner import one_job
from grids import some_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.transforms import Domain
from privstream.transforms.batches import from_stream
from privstream.transforms.counts.transform import rows_of
from tiny_runner import drive_at_once
from workloads import SECOND, START


@one_job(
    "counts",
    CONFIGURATIONS,
    "window, public",
    "trailing, public",
    "start",
    "start, few",
    "found, more",
    "found, several windows",
    "found, public items",
    elsewhere=ONE_OF_EACH_CHAIN,
)
def test_rows_are_those_of_the_reference(name):
    events = random_events(name, random.Random(5))
    made = transform(name)
    results = yield of_elements(as_arrow(events) if "public" in name else as_rows(events), made)
    rows = expected(made, events)
    assert sorted(rows_in(made, results.elements("rows"))) == rows
    assert results.elements("dead") == []
    assert all((stamp + 1) % made.steps.size == 0 for _, stamp in results.outputs["rows"])
    outputs = [(row, stamp) for one, stamp in results.outputs["rows"] for row in rows_in(made, [one])]
    at_once = {row for row, stamp in outputs if stamp + 1 == row.window_end.micros}
    assert made.domain is None or at_once == {*rows}
    assert results.counters["privstream:events"] == len(events)
    assert results.counters["privstream:counts_published"] == len(rows)
    if made.domain is not None:
        assert len(rows) == WINDOWS * len(LISTED)  # empty windows too
    if made.public_items is not None:
        beside = [row for row in rows if row.item in BESIDE.texts.to_pylist()]
        assert len(beside) == WINDOWS * len(BESIDE)
        assert len(rows) > len(beside) and {*beside} <= at_once


@pytest.mark.parametrize("name", ["found, more", "window, public", "found, several windows"])
def test_over_files_the_view_is_that_of_all_tables(name):
    events, made = random_events(name, random.Random(5)), transform(name, max_value=None).over_files()
    results = run_bounded("fn_api", as_rows(events), made)
    parts = [from_stream(data) for _, data in results.elements("rows")]
    assert len(parts) > 1
    table = made.view(pa.concat_tables(parts, promote_options="default"), None)
    assert table.column_names == list(made.row_type._fields)
    released = rows_of(made.row_type, made.shown.numbers(table_of(expected(made, events)), ended=True))
    assert sorted(rows_of(made.row_type, table)) == sorted(released)


@some_quick("name", ["start", "start, public", "found, more", "found, window limit"], "start")
def test_counts_are_within_their_bounds_whatever_the_mechanism_does(name):
    """The plain answers alone, and bounds that hold but with a probability of 1e-10."""
    made = transform(name, epsilon=40.0)
    events = random_events(name, random.Random(7), 1500)
    found, rows = answers(made, events), expected(made, events)
    assert sorted(rows_in(made, drive_at_once(made, events, random.Random(1)).rows)) == rows
    shown = {}
    for row in rows:
        number = row.window_start.micros // made.steps.size - START // 10
        shown[number, row.item] = row
        assert abs(row.noisy - found.get((number, row.item), 0)) <= 8 * made.mechanism.stddev(number + 1)
    if made.domain is None and "several" not in name and not made.rising:  # found by their counts in one window
        surely = made.mechanism.detection(made.mechanism.horizon or 1, 1e-10)
        large = {place for place, count in found.items() if count >= surely}
        assert large <= shown.keys()
        assert large


PERSON = st.lists(st.tuples(st.sampled_from([*ITEMS, "own"]), st.integers(0, 10 * WINDOWS - 1)), max_size=40)


@functools.cache
def crowd_alone(name):
    """Return a transform, some events, and what is counted of them."""
    made, crowd = transform(name), random_events(name, random.Random(3), 60)
    return made, crowd, exact(drive_at_once(made, crowd, random.Random(1)))


@some_quick("name", ["start, people", *ONE_OF_EACH_CHAIN], "found, more", "start, people")
@given(moves=PERSON)
@settings(max_examples=8, deadline=None)
def test_one_person_moves_counts_by_no_more_than_the_limits(name, moves):
    """What the proof rests on: C units in all, one for a key in a window, one for a key in the run since the start."""
    made, crowd, without = crowd_alone(name)
    person = [("one", item, (START + second) * SECOND) for item, second in moves]
    both = exact(drive_at_once(made, crowd + person, random.Random(1)))
    moved = {place: np.subtract(both[place], without.get(place, (0, 0))) for place in both}
    assert without.keys() <= both.keys()
    assert all(0 <= people <= count <= 1 for count, people in moved.values())
    assert sum(count for count, _ in moved.values()) <= made.mechanism.contributions
    if made.mechanism.over == "start":
        keys = Counter(place[1] for place, (count, _) in moved.items() if count)
        assert max(keys.values(), default=0) <= 1


@pytest.mark.parametrize("over", ["window", "start"])
def test_keys_of_too_few_people_never_appear(over):
    """Noise publishes about one in thirty of the keys that just enough people have, and none of the others."""
    made = transform("found", epsilon=0.5, delta=0.1, max_contributions=1, start=START, end=START + 30, over=over,
                     min_people=3)  # fmt: skip
    events = [
        (f"{item} {i}", f"{people} {item}", (START + i) * SECOND)
        for people in (2, 3)
        for item in range(1500)
        for i in range(people)
    ]
    rows = drive_at_once(made, events, random.Random(1)).rows
    assert not any(row.item.startswith("2") for row in rows)
    assert any(row.item.startswith("3") for row in rows)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["found", "start"])
def test_a_person_with_very_many_keys_and_a_long_key(name):
    made = transform(name)
    huge = "m" * 2**14
    events = [event for event in random_events(name, random.Random(2), 400) if event[2] >= START * SECOND]
    many = [("hostile", f"key {i}", (START + i % 80) * SECOND) for i in range(5_000)]
    large = [(f"u {i}", huge, (START + 5) * SECOND) for i in range(40)]
    results = run_bounded("fn_api", as_arrow(events + many + large, 5000), made)
    rows = expected(made, events + large)
    assert any(row.item == huge for row in rows)
    assert sorted(results.elements("rows")) == rows


def test_sums_of_items_that_are_carried_over_go_on():
    """Others, which are found after a renewal, have sums of what their period has published."""
    events = random_events("found", random.Random(5), 1500)
    one, three = (
        {
            (row.item, row.window_start.micros // SECOND // 10 - START // 10): row
            for row in drive_at_once(transform("found", renew_every=40, **view), events, random.Random(1)).rows
        }
        for view in ({}, {"over": 30})
    )
    assert one.keys() == three.keys()
    whole = 0
    for (item, window), row in three.items():
        known = [one[item, window - back] for back in range(min(3, window + 1)) if (item, window - back) in one]
        sums = np.cumsum([each.noisy for each in known]).tolist()
        windows = len(sums) if row.noisy == sums[-1] else window - 3
        assert row.noisy == sums[windows - 1] and (windows == len(sums) or window in (4, 5))
        assert 0 <= row.lower <= max(0, row.noisy) <= row.upper
        whole += window == 4 and windows == 3
    assert whole


def test_a_public_list_has_noise_of_its_own_and_changes_no_other_run():
    """What is seen without a test in one run is tested in another: they must share no noise."""
    plain, listed, other = (
        transform("found", public_items=items) for items in (None, BESIDE, Domain([*BESIDE.texts.to_pylist(), "more"]))
    )
    label = np.zeros((1, 2), np.uint64)
    words = [made.counting_noise.words(label).tobytes() for made in (plain, listed, other)]
    assert len(set(words)) == 3
    assert words[0] == plain.noise.derive("counts per key", plain.steps.label, "").words(label).tobytes()
    assert plain.mechanism == listed.mechanism, "thresholds and the size of noise stay as they are"
