"""Set sizes: the rows of the slow reference on every runner, whatever happens on the way."""

import random

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.utils.timestamp import Timestamp
from cardinality_workloads import (
    CONFIGURATIONS,
    DOORS,
    KEY,
    SECOND,
    START,
    WINDOWS,
    expected,
    limited,
    random_events,
    sizes_with_limits,
    sizes_without_limits,
    transform,
)
from event_forms import as_arrow, as_rows, run_bounded
from every_runner import of_elements, one_job
from grids import some_quick
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.mechanisms.privacy.units import EVENT
from privstream.transforms import SetCardinality
from privstream.transforms.cardinality.set_cardinality import MembershipLog, Stays, last_presence
from privstream.transforms.counts.finished import season
from privstream.transforms.rows import CardinalityEstimate
from window_chain import drive

DAY = 86_400


@one_job(
    "sets",
    CONFIGURATIONS,
    "doors",
    "sessions with ends",
    "visits in streams",
    elsewhere=["doors", "sessions, short", "events in streams", "visits in streams"],
)
def test_rows_are_those_of_the_reference(name):
    events = random_events(name, random.Random(6))
    made = transform(name)
    results = yield of_elements(as_arrow(events) if name in ("doors", "streams") else as_rows(events), made)
    assert sorted(results.elements("rows")) == expected(made, events)
    assert len(results.elements("rows")) == WINDOWS * len(made.rules.streams)
    assert results.elements("dead") == []
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


@one_job("sets in files", ["streams, noise in common", "sessions"], "streams, noise in common", runners=["fn_api"])
def test_rows_of_a_file_have_smoothed_sizes_beside_the_same_others(name):
    """Also where everything starts afresh: noise that windows have in common is another one then."""
    events = random_events(name, random.Random(6))
    made = transform(name, epsilon=1.0, renew_every=150 if name == "sessions" else None)
    finished = made.to_finish()
    results = yield of_elements(as_rows(events), finished)
    unfinished = results.elements("rows")
    assert min(row.estimate for row in unfinished) < 0
    rows = finished.finish(unfinished)
    assert rows == sorted(rows, key=lambda row: (row.window_start, row.stream))
    if name != "sessions":
        assert sorted(row[:5] for row in rows) == [row[:5] for row in expected(made, events)]
    streams = len(made.rules.streams)
    signed = np.array([row.estimate for row in sorted(unfinished, key=lambda row: (row.window_start, row.stream))])
    periods = [slice(0, 15), slice(15, 30), slice(30, 40)] if name == "sessions" else [slice(0, 40)]
    for period in periods:
        part = slice(period.start * streams, period.stop * streams)
        found = made.mechanism.smooth(signed[part].reshape(-1, streams))
        for ends, field in zip(found, ("smoothed", "smoothed_lower", "smoothed_upper"), strict=True):
            assert [getattr(row, field) for row in rows[part]] == ends.ravel().tolist()


def smoothed_days(sizes, seed):
    """Return the rows of days whose sizes have the noise of a run, and the mechanism."""
    made = SetCardinality(
        epsilon=1.0, delta=1e-6, window=DAY, start=0, end=DAY * len(sizes), timeout=DAY, method="direct_counter",
        noise=KeyedNoise(KEY),
    )  # fmt: skip
    mechanism, draw = made.mechanism, np.random.default_rng(seed)
    own, common = mechanism.stddevs
    noisy = np.rint(sizes + draw.normal(0, own, len(sizes)) + draw.normal(0, common)).astype(int)
    rows = [
        CardinalityEstimate("", Timestamp(DAY * day), Timestamp(DAY * (day + 1)), int(size), 99)
        for day, size in enumerate(noisy)
    ]
    return made.to_finish().finish(rows), mechanism, noisy


def test_weekdays_are_kept():
    """Without them, Saturdays were shown far too large; where there are none, nothing changes."""
    usual = np.array([600, 600, 600, 600, 600, 480, 540])
    errors, held, runs = np.zeros(2), [], 2
    for run in range(runs):
        sizes = np.tile(usual, 13)
        rows, mechanism, noisy = smoothed_days(sizes, run)
        numbers, lower, upper = np.array([row[5:] for row in rows]).T
        plain = mechanism.smooth(noisy[:, None]).estimates[:, 0]
        errors += [np.mean(np.square(each - sizes)) / runs for each in (numbers, plain)]
        held.append(np.mean((lower <= sizes) & (sizes <= upper)))
        assert abs(np.mean(numbers[5::7]) - 480) < 4 * mechanism.stddevs[1]
    assert errors[0] < 0.5 * errors[1]
    assert np.mean(held) > 0.93


@pytest.mark.parametrize(("length", "windows"), [(DAY, 28), (DAY, 91), (3600, 168)])
def test_chance_makes_no_season(length, windows):
    """Few cycles are alike by chance: of 28 days that are all alike 41 of 100 runs had a season."""
    draw = np.random.default_rng(1)
    for _ in range(200):
        noisy = 600 + draw.normal(0, 20, windows)
        assert np.all(season(length * SECOND, np.arange(windows), noisy, 20.0).factors == 1)
    rows, mechanism, noisy = smoothed_days(np.full(28, 600), 1)
    assert [row.smoothed for row in rows] == mechanism.smooth(noisy[:, None]).estimates[:, 0].tolist()


def test_weekdays_that_differ_by_themselves_have_wider_intervals():
    differs = np.tile([1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 1.0], (26, 1))
    differs[::2, 5], differs[1::2, 5] = 0.55, 0.85
    found = season(DAY * SECOND, np.arange(182), 10_000 * differs.ravel(), 100.0)
    assert found.factors[5] == pytest.approx(0.72, abs=0.03)
    assert found.apart[5] > 0.15 and np.all(found.apart[:5] < 0.04)
    alike = np.tile([1.0, 1.0, 1.0, 1.0, 1.0, 0.7, 1.0], 26) * 10_000 + np.random.default_rng(1).normal(0, 100, 182)
    assert np.all(season(DAY * SECOND, np.arange(182), alike, 100.0).apart < 0.01)
    rows, _, _ = smoothed_days(np.rint(600 * differs.ravel()), 1)
    widths = np.array([row.smoothed_upper - row.smoothed_lower for row in rows]).reshape(26, 7)
    assert np.median(widths[:, 5]) > 1.5 * np.median(widths[:, :5])


def test_what_is_not_smoothed_is_as_in_a_stream(monkeypatch):
    for name in ("doors", "visits", "entrance only"):
        made = transform(name)
        assert made.to_finish() is made and made.finish is None
    made = transform("sessions")
    assert made.finish is None and made.to_finish().finish([]) == []
    monkeypatch.setattr("privstream.transforms.cardinality.set_cardinality.MOST_WINDOWS", WINDOWS - 1)
    assert made.to_finish() is made


def test_workloads_are_interesting():
    """Sizes move, limits bind, changes are used up: else the tests above would say little."""
    for name in CONFIGURATIONS:
        events = random_events(name, random.Random(6))
        made = transform(name)
        free = sizes_without_limits(made, events)
        assert all(len(set(sizes)) > 4 for sizes in free.values())
        if limited(made):
            assert sizes_with_limits(made, events) != free
        else:
            assert sizes_with_limits(made, events) == free
        rows = expected(made, events)
        assert len({row.estimate for row in rows}) > 1 + (made.mechanism.chosen_mode == "sparse")
        assert (-1 in {row.error_bound for row in rows}) == (name == "doors, used up")


@pytest.mark.slow
def test_a_long_log_is_compacted_and_forgets_who_has_left(monkeypatch):
    monkeypatch.setattr("privstream.transforms.timing.keyed_state.LEAST_COMPACTION", 500)
    monkeypatch.setattr("privstream.transforms.cardinality.set_cardinality.SEGMENT", 3)
    for name in ("doors", "visits in streams", "sessions with ends"):
        chance = random.Random(5)
        events = random_events(name, chance, 600)
        made = transform(name)
        stages = drive(made, events, chance, crashes=0.1)
        assert sorted(stages[-1].outputs) == expected(made, events)
    crowd = [(f"once {i}", "in", (START + 1) * SECOND + i, "") for i in range(2000)]
    crowd += [(f"once {i}", "out", (START + 12) * SECOND + i, "") for i in range(2000)]
    crowd += [("one", "in" if i % 2 else "out", (START + 10 * i) * SECOND, "") for i in range(2, 30)]
    track = drive(transform("doors", shards=1), crowd, random.Random(2), crashes=0.0)[1]
    log = [value for (_, place), values in track.cells.states.items() if place.endswith("log") for value in values]
    assert sum(map(len, log)) < 8000


MOVES = st.lists(
    st.tuples(st.integers(0, 3), st.integers(0, 1), st.integers(0, 5), st.integers(0, 1)), min_size=1, max_size=40
)


@given(MOVES, st.randoms())
def test_the_last_word_of_a_person_depends_on_that_person_alone(rows, chance):
    def said(some):
        if not some:
            return []
        users, streams, times, kinds = np.array(some, np.int64).T
        chosen = last_presence(users.astype(np.uint64), (2 * streams + kinds).astype(np.uint64), times)
        return sorted(some[row] for row in chosen.tolist())

    together = said(rows)
    shuffled = list(rows)
    chance.shuffle(shuffled)
    assert said(shuffled) == together
    assert together == sorted(row for user in range(4) for row in said([r for r in rows if r[0] == user]))
    for user, stream, time, kind in together:
        assert (time, kind) == max((t, k) for u, s, t, k in rows if (u, s) == (user, stream))


@given(st.lists(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 12)), max_size=12), max_size=12))
def test_presences_are_a_dictionary(told):
    presences, wanted = MembershipLog(), {}
    everybody = np.arange(31, dtype=np.uint64)
    for step, pairs in enumerate(told):
        words = {person: max(step, until) for person, until in pairs}
        stays = Stays.of(np.array(list(words), np.uint64), np.array(list(words.values()), np.int64))
        presences = presences.updated(Stays.from_bytes(stays.to_bytes()), step)
        wanted |= words
        found = presences.until(everybody)
        for person in range(31):
            until = wanted.get(person, 0)
            assert found[person] == until or (found[person] <= step and until <= step)
        assert presences.compact(step).keys.tolist() == sorted(p for p, until in wanted.items() if until > step)


PEOPLE = st.lists(
    st.tuples(st.sampled_from(["in", "out", "look"]), st.integers(0, 399), st.integers(0, 1)), max_size=30
)


@pytest.mark.parametrize("name", ["doors", "sessions", "sessions with ends", "entrance only", "events in streams"])
@given(moves=PEOPLE, data=st.data())
@settings(max_examples=60, deadline=None)
def test_one_event_changes_the_size_by_one_over_one_stretch(name, moves, data):
    """What the guarantee for an event rests on: two steps at most, up at one and down at the other."""
    made = transform(name)
    stream = made.rules.streams[0]
    events = [("one", item, (START + second) * SECOND, stream) for item, second, _ in moves]
    if not events:
        return
    left = list(events)
    left.pop(data.draw(st.integers(0, len(events) - 1)))
    one, other = (np.array(sizes_without_limits(made, some)[stream]) for some in (events, left))
    changes = np.diff(one - other, prepend=0)
    assert np.abs(one - other).max() <= 1
    assert sorted(changes[changes != 0].tolist()) in ([], [1], [-1], [-1, 1])


@some_quick("name", ["doors", "streams", "visits", "visits in streams"], "doors", "streams", "visits in streams")
@given(moves=PEOPLE)
@settings(max_examples=25, deadline=None)
def test_one_person_changes_each_size_by_one_at_most(name, moves):
    """In at most `streams_per_person` streams, entering at most `visits_per_person` times, whatever others do."""
    made = transform(name)
    crowd = random_events(name, random.Random(3), 80)
    streams = made.rules.streams
    person = [("one", item, (START + second) * SECOND, streams[-which]) for item, second, which in moves]
    one, other = (sizes_with_limits(made, some) for some in (crowd, crowd + person))
    moved = {stream: np.array(other[stream]) - one[stream] for stream in streams}
    assert all(set(difference.tolist()) <= {0, 1} for difference in moved.values())
    if made.streams_per_person is not None:
        assert sum(map(np.any, moved.values())) <= made.streams_per_person
    if made.mechanism.visits_per_person is not None:
        for difference in moved.values():
            assert np.count_nonzero(np.diff(difference, prepend=0) > 0) <= made.mechanism.visits_per_person


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        ({"enter_values": "in"}, ValueError, "enter_values must be distinct texts, at least one, got 'in'"),
        ({"leave_values": ()}, ValueError, r"leave_values must be distinct texts, at least one, got \(\)"),
        ({"leave_values": (1,)}, TypeError, r"leave_values must be texts"),
        ({"leave_values": ("in",)}, ValueError, "enter_values and leave_values must have nothing in common"),
        ({"leave_values": None}, ValueError, "leave_values or timeout must be given: nobody would ever leave"),
        ({"timeout": 0}, ValueError, "timeout must be > 0 and a whole number of milliseconds, got 0 seconds"),
        ({"timeout": 655_340}, ValueError, "timeout must be < 65534 windows, got 655340 seconds"),
        ({"streams": ("a", "a")}, ValueError, "streams must be distinct texts, at least one"),
        ({"streams_per_person": 1}, ValueError, "streams must be given with streams_per_person"),
        (
            {"streams": ("a",), "streams_per_person": 1, "unit": "event", "max_updates": None, "method": "auto"},
            ValueError,
            "streams_per_person must not be given with unit event",
        ),
        (
            {"method": "sparse"},
            ValueError,
            "method must be one of auto, sparse_counter, direct_counter, visit_counter, ",
        ),
        ({"unit": "people"}, ValueError, "unit must be one of person, event, got 'people'"),
        ({"end": START}, ValueError, "end must leave room for one window after start"),
        ({"shards": 0}, ValueError, "shards must be >= 1, got 0"),
    ],
)
def test_refusals(changes, error, message):
    with pytest.raises(error, match=f"^{message}"):
        transform("doors", **changes)


def test_refusals_when_applied():
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=FnApiRunner"]))
    events = pipeline | beam.Create([("u", "in")])
    with pytest.raises(ValueError, match="end must be given when the input is bounded"):
        _ = events | "Unbounded" >> transform("doors", end=None)
    unbounded = pipeline | test_stream.TestStream().add_elements([("u", "in")])
    with pytest.raises(ValueError, match="delta must be > 0 with method visit_counter when the input is unbounded"):
        _ = unbounded | "Exact" >> transform("visits")


def test_counters_and_bad_rows():
    events = [
        ("a", "in", START * SECOND, ""),
        ("a", "look", START * SECOND, ""),
        ("a", "in", 5, ""),
    ]
    results = run_bounded(
        "fn_api", [*as_rows(events), beam.Row(user="", item="in", time=5, stream="")], transform("doors")
    )
    counters = {name.partition(":")[2]: n for name, n in results.counters.items()}
    assert counters["events"] == 3
    assert counters["events_outside_run"] == counters["events_of_other_values"] == counters["events_malformed"] == 1
    assert counters["estimates_published"] == WINDOWS
    assert [letter.reason for letter in results.elements("dead")] == ["user must not be empty"]


def test_sessions_need_no_item():
    columns = {"user": pa.array(["a", "b"]), "time": pa.array([START, START + 100])}
    made = transform("sessions")
    events = [("a", "x", START * SECOND, ""), ("b", "y", (START + 100) * SECOND, "")]
    rows = run_bounded("fn_api", [pa.RecordBatch.from_pydict(columns)], made).elements("rows")
    assert sorted(rows) == expected(made, events)


def test_guarantee_and_error():
    made = SetCardinality(**{"epsilon": 1.0, "window": 60, "start": 0, "end": 6000, "noise": KeyedNoise(KEY), **DOORS})
    assert made.guarantee.horizon == 100
    assert made.guarantee.epsilon == 1.0
    assert "by their last event" in made.guarantee.paragraph()
    assert made.error(100, 50) == made.mechanism.error(100, 50)
    shared = transform("streams")
    assert "at most 2 streams" in shared.guarantee.paragraph()
    assert shared.mechanism.algorithm.law.scale == pytest.approx(shared.mechanism.horizon / 30)  # half of the budget
    assert transform("events in streams").guarantee.unit == EVENT
