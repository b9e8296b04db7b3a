"""Range counts and predecessor queries as transforms: rows of a slow reference on every runner, whatever happens."""

import random
from dataclasses import replace

import apache_beam as beam
import numpy as np
import runner_harness
from apache_beam.utils.timestamp import Timestamp
from event_forms import as_arrow, as_rows
from every_runner import one_job
from grids import some_quick
from privstream.mechanisms.continual.predecessor import PredecessorStep
from privstream.mechanisms.continual.ranges import Updates
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.batches import NO_NAMES, EventBatch, encode
from privstream.transforms.parameters import BEGIN
from privstream.transforms.parameters import END as END_
from privstream.transforms.questions.running_stages import PredecessorQueries, RangeCounts, updates_of
from privstream.transforms.row_types import NearestPoints, RangeCount

KEY = b"a key for tests of points"
SECOND = 1_000_000
START, END = 1_000, 1_120
UNIVERSE = 300
COMMON = {"universe": UNIVERSE, "window": 10, "start": START, "end": END, "epsilon": 30.0}
DELETES = {"insert_values": ("in",), "delete_values": ("out",)}

CONFIGURATIONS = {
    "ranges": (RangeCounts, {"queries": [(1, UNIVERSE), (5, 9)], **DELETES}),
    "ranges, two": (RangeCounts, {"queries": [(1, 9), (3, 70)], "delta": 1e-6, **DELETES}),
    "ranges gaussian": (RangeCounts, {"delta": 1e-6, "queries": [(1, 10)], **DELETES}),
    "predecessors": (PredecessorQueries, {"queries": [UNIVERSE // 2], "epsilon": 900.0}),
    "predecessors, two": (PredecessorQueries, {"queries": [7, 99], "epsilon": 900.0}),
    "predecessors dynamic": (PredecessorQueries, {"queries": [7], "epsilon": 9000.0, **DELETES}),
}


def transform(name, **changes):
    kind, options = CONFIGURATIONS[name]
    return kind(**{**COMMON, "noise": KeyedNoise(KEY), **options, **changes})


def random_events(name, chance, n=900):
    """Events of which some lie outside of the run, the universe and the actions."""

    def moment():
        return chance.randrange((START - 10) * SECOND, (END + 10) * SECOND)

    events = []
    for _ in range(n):
        point = chance.choice([chance.randint(1, UNIVERSE), chance.randint(40, 60), chance.randint(-5, UNIVERSE + 9)])
        action = chance.choice(["in", "in", "out", "look"])
        events.append((str(point), action, moment()))
        if chance.random() < 0.1:  # another update of the point at the same moment
            events.append((str(point), chance.choice(["in", "out"]), events[-1][2]))
    return events


def batches_of(made, events):
    """Return the updates of each window in order, event by event."""
    windows = [[] for _ in range(made.steps.count)]
    for point, action, time in events:
        step = (time // SECOND - START) // 10
        inserts = action == "in" if made.actions.begin is not None else action not in (made.actions.end or ())
        meant = inserts or action in (made.actions.end or ())
        if 0 <= step < made.steps.count and 1 <= int(point) <= UNIVERSE and meant:
            windows[step].append((time, inserts, int(point)))
    return [sorted(window) for window in windows]


def expected(made, events):
    """Return the rows, from mechanisms that are fed window by window."""
    rows = []
    state = made.mechanism.initial_state()
    noise = made.publishing_noise
    for number, window in enumerate(batches_of(made, events)):
        start, numbers = START + 10 * number, made.queries.tolist()
        updates = Updates(np.array([p for _, _, p in window], np.int64), np.array([i for _, i, _ in window], bool))
        head = Timestamp(start), Timestamp(start + 10)
        if isinstance(made, RangeCounts):
            state, counts = made.mechanism.step(state, updates, noise)
            errors, spreads = made.mechanism.errors(number + 1), made.mechanism.spreads(number + 1, 0.05)
            assert errors.max() <= made.mechanism.error(number + 1)
            found = zip(numbers, counts.tolist(), errors.tolist(), spreads.tolist(), strict=True)
            rows += [RangeCount(*head, *q, c, b, max(0, c - z), max(0, c + z)) for q, c, b, z in found]
            continue
        points = np.array(numbers, np.int64).reshape(-1)
        state, near = made.mechanism.step(state, PredecessorStep(updates, points), noise)
        columns = points, near.predecessors, near.successors, near.distances, near.errors
        rows += [NearestPoints(*head, *each) for each in zip(*(c.tolist() for c in columns), strict=True)]
    return sorted(rows)


def asked(made, elements):
    def build(pipeline):
        return pipeline | "Elements" >> beam.Create(elements) | made.with_dead_letters()

    return build


def run(made, elements):
    return runner_harness.run("fn_api", asked(made, elements))


@one_job(
    "points",
    CONFIGURATIONS,
    "ranges, two",
    "predecessors dynamic",
    elsewhere=["ranges gaussian", "ranges, two", "predecessors, two"],
)
def test_rows_are_those_of_the_reference(name):
    events = random_events(name, random.Random(1))
    made = transform(name)
    elements = as_arrow(events) if "two" not in name else as_rows(events)
    results = yield asked(made, elements)
    rows = expected(made, events)
    assert len(rows) >= 12
    assert sorted(results.elements("rows")) == rows
    assert results.elements("dead") == []
    assert all(stamp == row.window_end.micros - 1 for row, stamp in results.outputs["rows"])


@some_quick("name", ["ranges", "predecessors dynamic", "predecessors"], "ranges", "predecessors")
def test_answers_are_right_where_there_is_no_noise(name):
    events = random_events(name, random.Random(2))
    made = transform(name, epsilon=1e8)
    held: set[int] = set()
    truth = {}
    for number, window in enumerate(batches_of(made, events)):
        for _, inserts, point in window:
            (held.add if inserts else held.discard)(point)
        truth[Timestamp(START + 10 * number)] = set(held)
    rows = run(made, as_arrow(events)).elements("rows")
    assert len(rows) >= 12
    for row in rows:
        members = truth[row.window_start]
        if name == "ranges":
            assert row.estimate == sum(row.low <= point <= row.high for point in members)
        else:
            assert row.predecessor == max((p for p in members if p <= row.query), default=0)
            assert row.successor == min((p for p in members if p >= row.query), default=0)


def test_of_one_moment_an_insertion_comes_last_in_any_order_and_batches():
    columns = np.array([[5, 5, 6, 6], [END_, BEGIN, BEGIN, END_], [9, 9, 3, 4]]).T
    for order in ([0, 1, 2, 3], [3, 2, 1, 0], [1, 3, 0, 2]):
        parts = [EventBatch(*columns[[i]].T.astype(np.uint64), NO_NAMES) for i in order]
        joined = updates_of([encode(replace(part, times=part.times.astype(np.int64))) for part in parts])
        assert joined.points.tolist() == [6, 6, 5, 5]
        assert joined.inserted.tolist() == [True, False, False, True]
