"""The public clock handles every step of every stream once, in order, on every runner, whatever the runner does."""

import itertools
import random

import apache_beam as beam
import pytest
from apache_beam.coders import BytesCoder
from apache_beam.testing import test_stream
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Duration, Timestamp
from every_runner import Streamed, one_job
from privstream.mechanisms.checks import SnapshotError
from privstream.transforms.batches import Keyed
from privstream.transforms.timing import clocked, keyed_state
from privstream.transforms.timing.clocked import (
    CHUNK,
    MOST_WINDOWS,
    SEED,
    ClockedSteps,
    SingleSteps,
    WithClock,
    by_clock,
    clock_of,
    on_clocks,
    stepped,
)
from privstream.transforms.timing.on_time import NO_TIME
from privstream.transforms.timing.steps import MICROS, MILLISECOND, Steps
from tiny_runner import Stage

STREAMS = ("", "b\x00\xff")
MANY = (*STREAMS, *(f"stream {number}" for number in range(100)))


class Tell(SingleSteps, state="tell"):
    """Emits what each step holds, and a checksum of all steps before it: an order-dependent state."""

    def initial(self, key):
        return [len(key)]  # mutable on purpose: a stale cache would show

    def snapshot(self, state):
        return state[0].to_bytes(8, "big")

    def restore(self, data):
        return [int.from_bytes(data, "big")]

    def advance(self, key, step, batches, state):
        state[0] = (state[0] * 31 + step + sum(b"".join(batches))) % 2**61
        return state, [(key, step, tuple(batches), state[0])]

    def set_aside(self, key, step, batch):
        self.late.inc()
        yield (key, step, "late", batch)


def expected(fn: Tell, records: list[Keyed], streams=STREAMS, last: int | None = None) -> list:
    """What one walk over all steps gives."""
    rows = []
    for key in (stream.encode() for stream in streams):
        state = fn.initial(key)
        for step in range(fn.steps.first, (fn.steps.end if last is None else last + 1)):
            batches = sorted(r[8:] for k, r in records if k == key and int.from_bytes(r[:8], "big") == step)
            state, found = fn.advance(key, step, batches, state)
            rows += found
    return sorted(rows)


def random_records(chance: random.Random, steps: Steps, n: int, streams=STREAMS) -> list[Keyed]:
    return [
        (chance.choice(streams).encode(), stepped(chance.randrange(steps.first, steps.end), chance.randbytes(3)))
        for _ in range(n)
    ]


def shared(records: list[Keyed]) -> list[Keyed]:
    """The same records, for streams that share clocks; those that come together share a record too."""
    pieces = [records[start : start + 7] for start in range(0, len(records), 7)]
    return [
        record
        for some in pieces
        for record in on_clocks((key.decode(), int.from_bytes(data[:8], "big"), data[8:]) for key, data in some)
    ]


def steps_of(number: int, *, first: int = 7, **others) -> Steps:
    return Steps(size=MICROS, period=MICROS, first=first, end=first + number, **others)


@one_job("rules", [1, 300], 1, 300)
def test_every_step_once_in_order_on_every_runner(windows):
    steps = steps_of(windows, allowed_lateness=2 * MICROS)
    records = random_records(random.Random(3), steps, 40)
    fn = Tell(steps=steps, timer_offset=1)

    def build(pipeline):
        made = pipeline | beam.Create(records).with_output_types(Keyed)
        return made | "Clock" >> WithClock(steps, STREAMS) | beam.ParDo(fn)

    results = yield build
    assert sorted(results.elements()) == expected(fn, records)
    stamps = {row[1]: stamp for row, stamp in results.outputs["main"]}
    assert all(stamp == (step + 1) * MICROS - 1 for step, stamp in stamps.items())


@one_job("rules")
def test_streams_that_share_clocks_are_handled_each_by_itself():
    steps = steps_of(9, allowed_lateness=2 * MICROS)
    records = random_records(random.Random(4), steps, 300, MANY)
    fn = Tell(steps=steps, timer_offset=1, streams=MANY)

    def build(pipeline):
        made = pipeline | beam.Create(shared(records)).with_output_types(Keyed)
        return made | "Clock" >> WithClock(steps, MANY, together=True) | beam.ParDo(fn)

    results = yield build
    assert sorted(results.elements()) == expected(Tell(steps=steps, timer_offset=1), records, MANY)


@one_job("rules")
def test_steps_without_any_event():
    steps = steps_of(20)
    fn = Tell(steps=steps, timer_offset=0)

    def build(pipeline):
        nothing = pipeline | beam.Create([]).with_output_types(Keyed)
        return nothing | "Clock" >> WithClock(steps, STREAMS) | beam.ParDo(fn)

    results = yield build
    assert sorted(results.elements()) == expected(fn, [])


@one_job("a clock", [False, True], runners=["prism"])
def test_a_watermark_that_creeps_and_jumps(endless):
    """Every step as the watermark passes; what comes later is set aside; an endless clock ends with its input."""
    steps = Steps(size=MICROS, period=MICROS, first=10, end=None if endless else 700)
    fn = Tell(steps=steps, timer_offset=0)
    events = test_stream.TestStream(coder=BytesCoder())
    used = []
    marks = [0, 11.5, 11.7, 14, 15, 16, 40, 41, 300, 301, 302.5, 640]
    for before, mark in itertools.pairwise(marks):
        step = max(10, int(before))  # still open: the watermark stands at `before`
        if before in (15, 41):
            step -= 2
        else:
            used.append((b"", stepped(step, b"x")))
        events.add_elements([TimestampedValue(stepped(step, b"x"), max(before, 10))])
        events.advance_watermark_to(mark)
    events.advance_watermark_to_infinity()

    def build(source):
        made = source | beam.Map(under_one_key).with_output_types(Keyed)
        return made | "Clock" >> WithClock(steps, ("",)) | beam.ParDo(fn)

    results = yield Streamed(events, build)
    rows = results.elements()
    late = [row for row in rows if row[2] == "late"]
    rows = sorted(row for row in rows if row[2] != "late")
    assert sorted(row[1] for row in late) == [13, 39]
    last = rows[-1][1]
    assert rows == expected(fn, used, [""], last)
    assert last == 699 if not endless else 639 <= last <= 639 + 2 * 256


@one_job("rules")
def test_a_batch_that_came_late_by_its_own_timestamp_is_set_aside():
    steps = steps_of(5, first=0, allowed_lateness=MICROS)
    decision = steps.decision_time(2, 1)
    early = [decision - Duration(micros=MILLISECOND), MIN_TIMESTAMP, NO_TIME, MAX_TIMESTAMP]
    stamps = [(b"early", stamp.micros) for stamp in early] + [(b"late", (decision + 0).micros), (b"late", 90 * MICROS)]
    fn = Tell(steps=steps, timer_offset=1)

    def build(pipeline):
        made = pipeline | beam.Create(stamps) | beam.MapTuple(stamped_batch).with_output_types(Keyed)
        return made | "Clock" >> WithClock(steps, ("",)) | beam.ParDo(fn)

    results = yield build
    rows = results.elements()
    assert [row[3] for row in rows if row[2] == "late"] == [b"late"] * 2
    used = [(b"", stepped(2, b"early"))] * len(early)
    assert sorted(row for row in rows if row[2] != "late") == expected(fn, used, [""])


def stamped_batch(batch: bytes, micros: int) -> TimestampedValue:
    return TimestampedValue((b"", stepped(2, batch)), Timestamp(micros=micros))


def under_one_key(record: bytes) -> Keyed:
    return b"", record


def test_bounded_input_needs_an_end_and_all_input_a_start():
    with pytest.raises(ValueError, match=r"^start must be given"):
        WithClock(Steps(size=1, period=1), ("",))
    with pytest.raises(ValueError, match=r"^start must be given"):
        Tell(steps=Steps(size=1, period=1), timer_offset=0)
    records = beam.Pipeline() | beam.Create([]).with_output_types(Keyed)
    with pytest.raises(ValueError, match=r"^end must be given when the input is bounded"):
        _ = records | WithClock(Steps(size=1, period=1, first=0), ("",))


def test_bounded_input_has_no_absurd_number_of_windows():
    pipeline = beam.Pipeline()
    bounded = pipeline | beam.Create([]).with_output_types(Keyed)
    endless = pipeline | test_stream.TestStream(coder=BytesCoder())
    too_many = steps_of(MOST_WINDOWS + 1)
    _ = bounded | "Most" >> WithClock(steps_of(MOST_WINDOWS), ("",))
    _ = endless | "Runs for long" >> WithClock(too_many, ("",))
    with pytest.raises(ValueError, match=r"^end must be at most 1,048,576 windows after start, got 1,048,577 windows"):
        _ = bounded | "Too many" >> WithClock(too_many, ("",))


def test_a_batch_outside_of_the_run_is_refused():
    steps = steps_of(3)
    for step in (6, 10):
        with pytest.raises(ValueError, match=r"^step of a batch must be in the run"):
            Stage(Tell(steps=steps, timer_offset=0), random.Random(1)).feed([(b"", stepped(step, b""))])


@pytest.mark.parametrize("together", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_bundles_that_fail_timers_in_any_order_and_stale_caches(seed, together, monkeypatch):
    chance = random.Random(seed)
    monkeypatch.setattr(clocked, "CLOCKS", 2)
    monkeypatch.setattr(clocked, "SEGMENT_BYTES", chance.choice([1, 20, 1000]))
    streams = MANY[: chance.randrange(1, 7)] if together else STREAMS
    monkeypatch.setattr(keyed_state, "PART_BYTES", chance.choice([1, 100, keyed_state.PART_BYTES]))
    steps = steps_of(chance.choice([1, 40, 700]), first=chance.randrange(1000), allowed_lateness=500_000)
    records = random_records(chance, steps, 60, streams)
    fn = Tell(steps=steps, timer_offset=2, streams=streams if together else None)
    stage = Stage(fn, chance, crashes=0.3, workers=3)
    waiting = shared(records) if together else list(records)
    if chance.random() < 0.5:  # batches may overtake the seeds
        stage.feed(waiting[:5])
        waiting = waiting[5:]
    stage.feed([(name.encode(), SEED) for name in (by_clock(streams) if together else streams)] * 2)
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
    assert not [row for row in rows if row[2] == "late"]
    assert sorted(rows) == expected(fn, records, streams)
    assert not stage.cells.timers
    assert {name for (_, name), values in stage.cells.states.items() if values} == {"tell_progress"}


def test_a_step_that_was_handled_takes_nothing_more():
    steps = steps_of(50)
    stage = Stage(Tell(steps=steps, timer_offset=0), random.Random(5), crashes=0.2, workers=2)
    stage.feed([(b"", SEED)])
    stage.advance(steps.decision_time(20).micros)
    stage.feed([(b"", stepped(20, b"x")), (b"", stepped(21, b"y"))])
    stage.advance(2**62)
    rows = stage.take()
    assert (b"", 20, "late", b"x") in rows
    assert sorted(row for row in rows if row[2] != "late") == expected(stage.fn, [(b"", stepped(21, b"y"))], [""])


def test_late_batches_of_streams_that_share_a_clock_are_set_aside_one_by_one(monkeypatch):
    monkeypatch.setattr(clocked, "CLOCKS", 1)
    steps = steps_of(50)
    stage = Stage(Tell(steps=steps, timer_offset=0, streams=("a", "b")), random.Random(5))
    stage.feed([(clock_of("a").encode(), SEED)])
    stage.advance(steps.decision_time(20).micros)
    stage.feed(on_clocks([("a", 20, b"x"), ("b", 20, b"y"), ("a", 20, b"x")]))
    late = [row for row in stage.take() if row[2] == "late"]
    assert sorted(late) == [(b"a", 20, "late", b"x"), (b"a", 20, "late", b"x"), (b"b", 20, "late", b"y")]


def test_state_of_an_earlier_version_or_of_other_streams_is_refused():
    stage = Tell(steps=steps_of(5), timer_offset=0, streams=("a",))
    with pytest.raises(SnapshotError, match="state must be of clocks that streams share"):
        stage.keys.stage.decode(b"a", [])
    with pytest.raises(SnapshotError):
        stage.keys.stage.decode(clock_of("a").encode(), [stage.snapshot([3])])
    (log,) = stage.keys.stage.encode({b"a": [3]})
    assert stage.keys.stage.decode(clock_of("a").encode(), [log]) == {b"a": [3]}
    name = next(name for name in MANY if name != "a" and clock_of(name) == clock_of("a"))
    with pytest.raises(SnapshotError, match="state must be of a run with the same streams"):
        Tell(steps=steps_of(5), timer_offset=0, streams=(name,)).keys.stage.decode(clock_of("a").encode(), [log])
    more = Tell(steps=steps_of(5), timer_offset=0, streams=("a", name)).keys.stage
    assert set(more.decode(clock_of("a").encode(), [])) == {b"a", name.encode()}
    with pytest.raises(SnapshotError, match="state must be of a run with the same streams"):
        more.decode(clock_of("a").encode(), [log])


def test_a_jump_over_many_windows_takes_few_calls():
    steps = steps_of(100_000, first=12_345)
    stage = Stage(Tell(steps=steps, timer_offset=0), random.Random(5))
    calls = []
    commit = stage._commit
    stage._commit = lambda *args, **kwargs: (calls.append(1), commit(*args, **kwargs))
    stage.feed([(b"", SEED)])
    stage.advance(2**62)
    assert len(stage.take()) == 100_000
    assert len(calls) < 100


def test_a_stage_that_handles_no_steps_cannot_be_made():
    class Idle(ClockedSteps):
        def set_aside(self, key, step, batch):
            yield step

    with pytest.raises(TypeError, match="walk"):
        Idle(steps=steps_of(1), timer_offset=0)


def test_walks_are_cut_into_chunks():
    class Wide(Tell):
        def walk(self, key, first, last, batches, state):
            assert last - first < CHUNK
            return super().walk(key, first, last, batches, state)

    fn = Wide(steps=steps_of(3 * CHUNK), timer_offset=0)
    stage = Stage(Tell(steps=fn.steps, timer_offset=0), random.Random(2))
    stage.workers = [fn]
    stage.feed([(b"", SEED)])
    stage.advance(2**62)
    assert sorted(stage.take()) == expected(fn, [], [""])
