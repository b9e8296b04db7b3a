"""The engine: steps are numbered, each is handled once and in order, and arrival decides what counts."""

import itertools
import random

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.coders import BytesCoder
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from event_forms import late_of
from every_runner import Streamed, one_job
from examples import example
from hypothesis import given
from hypothesis import strategies as st
from privstream.transforms.batches import Keyed, KeyedBatch, StepKey
from privstream.transforms.people.bounding import CloseWindows, ToClock
from privstream.transforms.timing.step_fn import NO_TIME, ONE_KEY, SEED, STEP, StepFn, WithClock, stepped
from privstream.transforms.timing.steps import END_OF_TIME, MICROS, MILLISECOND, Steps
from tiny_runner import Stage

NAMES = (b"", b"b\x00\xff")


class Tell(StepFn, state="tell"):
    """Emits what each step holds, and a checksum of all steps before it: an order-dependent state."""

    def initial(self, key):
        return [len(key)]  # mutable on purpose: a stale cache would show

    def snapshot(self, state):
        return state[0].to_bytes(8, "big")

    def restore(self, data):
        return [int.from_bytes(data, "big")]

    def step(self, key, step, batches, state):
        state[0] = (state[0] * 31 + step + sum(b"".join(batches))) % 2**61
        return state, [(key, step, tuple(batches), state[0])]


def expected(fn: Tell, records: list[Keyed], names=NAMES, last: int | None = None) -> list:
    """What one walk over all steps gives."""
    rows = []
    for key in names:
        state = fn.initial(key)
        for step in range(fn.steps.first, (fn.steps.end if last is None else last + 1)):
            batches = sorted(r[8:] for k, r in records if k == key and int.from_bytes(r[:8], "big") == step)
            state, found = fn.step(key, step, batches, state)
            rows += found
    return sorted(rows)


def random_records(chance: random.Random, steps: Steps, n: int, names=NAMES) -> list[Keyed]:
    return [
        (chance.choice(names), stepped(chance.randrange(steps.first, steps.end), chance.randbytes(3))) for _ in range(n)
    ]


def steps_of(number: int, *, first: int = 7, **others) -> Steps:
    return Steps(size=MICROS, first=first, end=first + number, **others)


@one_job("rules", [1, 300], 1, 300)
def test_every_step_once_in_order_on_every_runner(windows):
    steps = steps_of(windows, allowed_lateness=2 * MICROS)
    records = random_records(random.Random(3), steps, 40)
    fn = Tell(steps=steps, timer_offset=1)

    def build(pipeline):
        made = pipeline | beam.Create(records).with_output_types(Keyed)
        return made | "Clock" >> WithClock(steps, NAMES) | beam.ParDo(fn)

    results = yield build
    assert sorted(results.elements()) == expected(fn, records)
    stamps = {row[1]: stamp for row, stamp in results.outputs["main"]}
    assert all(stamp == (step + 1) * MICROS - 1 for step, stamp in stamps.items())


class OneStep(beam.DoFn):
    """Sends batches of a step, one event each, to where windows are closed."""

    def process(self, batch):
        (step,), data = STEP.unpack_from(batch), batch[8:]
        yield StepKey(step, 0).to_bytes(), (1, data)


@one_job("a clock", [False, True], runners=["prism"])
def test_a_watermark_that_creeps_and_jumps(unbounded):
    """Every step as the watermark passes; the runner drops what comes later, and an unbounded clock ends with its
    input."""
    steps = Steps(size=MICROS, first=10, end=None if unbounded else 700)
    fn = Tell(steps=steps, timer_offset=1)
    events = test_stream.TestStream(coder=BytesCoder())
    used = []
    marks = [0, 11.5, 11.7, 14, 15, 16, 40, 41, 300, 301, 302.5, 640]
    for before, mark in itertools.pairwise(marks):
        step = max(10, int(before))  # still open: the watermark stands at `before`
        if before in (15, 41):
            step -= 2
        else:
            used.append((ONE_KEY, stepped(step, b"x")))
        events.add_elements([TimestampedValue(stepped(step, b"x"), max(before, 10))])
        events.advance_watermark_to(mark)
    events.advance_watermark_to_infinity()

    def build(source):
        sent = source | beam.ParDo(OneStep()).with_output_types(KeyedBatch)
        closed = sent | CloseWindows(steps) | beam.ParDo(ToClock()).with_output_types(Keyed)
        return closed | "Clock" >> WithClock(steps) | beam.ParDo(fn)

    results = yield Streamed(events, build)
    rows = sorted(results.elements())
    last = rows[-1][1]
    assert rows == expected(fn, used, [ONE_KEY], last)
    assert last == 699 if not unbounded else 639 <= last <= 639 + 2 * 256
    assert late_of(results) == 2


@one_job("rules")
def test_a_batch_that_came_late_by_its_own_timestamp_is_dropped_and_counted():
    steps = steps_of(5, first=0, allowed_lateness=MICROS)
    decision = Timestamp(micros=steps.decision_time(2))
    early = [decision - Duration(micros=MILLISECOND), MIN_TIMESTAMP, NO_TIME, MAX_TIMESTAMP]
    stamps = [(b"early", stamp.micros) for stamp in early] + [(b"late", decision.micros), (b"late", 90 * MICROS)]
    fn = Tell(steps=steps, timer_offset=1)

    def build(pipeline):
        made = pipeline | beam.Create(stamps) | beam.MapTuple(stamped_batch).with_output_types(KeyedBatch)
        closed = made | CloseWindows(steps) | beam.ParDo(ToClock()).with_output_types(Keyed)
        return closed | "Clock" >> WithClock(steps) | beam.ParDo(fn)

    results = yield build
    used = [(ONE_KEY, stepped(2, b"early"))] * len(early)
    assert sorted(results.elements()) == expected(fn, used, [ONE_KEY])
    assert late_of(results) == 2


def stamped_batch(batch: bytes, micros: int) -> TimestampedValue:
    return TimestampedValue((StepKey(2, 0).to_bytes(), (1, batch)), Timestamp(micros=micros))


def test_a_batch_outside_of_the_run_is_refused():
    steps = steps_of(3)
    for step in (6, 10):
        with pytest.raises(ValueError, match=r"^step of a batch must be in the run"):
            Stage(Tell(steps=steps, timer_offset=0), random.Random(1)).feed([(b"", stepped(step, b""))])


@pytest.mark.parametrize("seed", range(12))
def test_bundles_that_fail_timers_in_any_order_and_stale_caches(seed):
    chance = random.Random(seed)
    steps = steps_of(chance.choice([1, 40, 700]), first=chance.randrange(1000), allowed_lateness=500_000)
    records = random_records(chance, steps, 60)
    fn = Tell(steps=steps, timer_offset=2)
    stage = Stage(fn, chance, crashes=0.3, workers=3)
    waiting = list(records)
    if chance.random() < 0.5:  # batches may overtake the seeds
        stage.feed(waiting[:5])
        waiting = waiting[5:]
    stage.feed([(name, SEED) for name in NAMES] * 2)
    watermark = (steps.first + 1) * MICROS
    while watermark < (steps.end + 2) * MICROS:
        urgent = [r for r in waiting if int.from_bytes(r[1][:8], "big") * MICROS <= watermark]
        stage.feed(urgent)
        waiting = [r for r in waiting if r not in urgent]
        stage.advance(watermark)
        watermark += chance.choice([1, 1, 1, 30, 300]) * MICROS
    stage.feed(waiting)
    stage.advance(2**62)
    rows = stage.take()
    assert sorted(rows) == expected(fn, records)
    assert not stage.cells.timers
    assert {name for (_, name), values in stage.cells.states.items() if values} == {"tell_progress"}


@pytest.mark.parametrize("far", [600, 10**9])
def test_what_an_unbounded_clock_does_not_come_to_is_counted_once(far):
    """A watermark that jumps to the end of time says nothing of the steps before it; nothing may vanish unseen."""
    steps = Steps(size=MICROS, first=7, end=None)
    stage = Stage(Tell(steps=steps, timer_offset=0), random.Random(far), crashes=0.2, workers=2)
    records = [
        (b"", stepped(20, b"x")),
        (b"", stepped(far, b"y")),
        (b"", stepped(far, b"y")),
        (b"", stepped(far, b"z")),
    ]
    stage.feed([(b"", SEED), *records])
    stage.advance(END_OF_TIME)
    rows = sorted(stage.take())
    assert stage.counters["behind"] == 3
    assert 255 <= rows[-1][1] < 512
    assert rows == expected(stage.fn, records[:1], [b""], rows[-1][1])
    stage.feed([(b"", stepped(far, b"after the end"))])
    assert stage.take() == [] and stage.counters["behind"] == 4
    assert {name for (_, name), values in stage.cells.states.items() if values} == {"tell_progress"}


MILLIS = 1_000
INT64 = st.integers(-(2**63), 2**63 - 1)


@st.composite
def any_steps(draw):
    size = draw(st.integers(1, 250)) * MILLIS
    first = draw(st.integers(0, 300))
    end = draw(st.none() | st.integers(0, 300))
    origin = draw(st.integers(0, size - 1))
    lateness = draw(st.integers(0, 9)) * MILLIS
    return Steps(size=size, origin=origin, first=first, end=end, allowed_lateness=lateness)


def slow_assign(steps: Steps, times: list[int]) -> list[tuple[int, int]]:
    found = []
    for row, time in enumerate(times):
        step = (time - steps.origin) // steps.size
        while time < steps.origin + step * steps.size + steps.size:
            in_run = step >= steps.first and (steps.end is None or step < steps.end)
            if step >= 0 and in_run and steps.decision_time(step, 10) <= END_OF_TIME:
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
    assert (start.micros - steps.origin, end.micros - start.micros) == (step * steps.size, steps.size)
    assert steps.starting(end.micros) - 1 == step
    decided = steps.decision_time(step, stage)
    assert decided == end.micros + steps.allowed_lateness + stage * MILLIS
    assert steps.latest(decided, stage) == step
    assert steps.latest(decided - 1, stage) == step - 1


WINDOW, LATENESS, PEOPLE = 10, 5, 400
CLOCK = {"start": 0, "end": 2 * WINDOW, "allowed_lateness": LATENESS}


def batch(item: str) -> pa.RecordBatch:
    users = [f"{item}{number}" for number in range(PEOPLE)]
    return pa.RecordBatch.from_pydict({"user": users, "item": [item] * PEOPLE, "time": [5] * PEOPLE})


POINTS = {
    "ranges": {"universe": 500, "queries": [(1, 500)]},
    "predecessors": {"universe": 500, "queries": [450], "epsilon": 900.0},
}
BY_WINDOWS = ["heavy hitters by clock", "counts", "top-k", "alerts", "cardinality", "histogram"]


def points(first: int, arrived: Timestamp) -> TimestampedValue:
    users = [str(point) for point in range(first, first + 100)]
    columns = {"user": users, "item": ["1"] * 100, "time": [5] * 100}
    return TimestampedValue(pa.RecordBatch.from_pydict(columns), arrived)


@one_job("rules", [*POINTS, *BY_WINDOWS], "ranges", "heavy hitters by clock", "histogram", runners=["fn_api"])
def test_what_counts_is_decided_by_when_it_arrives(name):
    made = example(name, **CLOCK, **POINTS.get(name, {}))
    decision = Timestamp(WINDOW + LATENESS)
    early = {1: Timestamp(3), 101: decision - 0.001}
    late = {201: decision + 0.001, 301: Timestamp(100)}
    inputs = {"early": early, "with late": early | late, "all early": early | dict.fromkeys(late, Timestamp(3))}

    def build(pipeline):
        outputs = {}
        for each, arrived in inputs.items():
            stamps = pipeline | each >> beam.Create(list(arrived.items()))
            batches = stamps | f"Stamp {each}" >> beam.MapTuple(points).with_output_types(pa.RecordBatch)
            published = batches | f"Publish {each}" >> made.with_dead_letters()
            outputs |= {each: published.rows, f"letters {each}": published.dead_letters}
        return outputs

    results = yield build
    rows = {each: sorted(results.elements(each)) for each in inputs}
    assert rows["with late"] == rows["early"] != rows["all early"]
    assert not results.elements("letters with late")
