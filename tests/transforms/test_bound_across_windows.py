"""Limits on people over the whole run: functions of each person's own events, of any length of run."""

from collections import defaultdict

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.batches import HolderBatch, InStreams, Names, StepKey, group_of
from privstream.transforms.events.bounding import BoundAcrossWindows, Used
from privstream.transforms.timing.steps import Steps

NOISE = KeyedNoise(b"a key for tests, no secret")
STEPS = Steps(size=1000, period=1000)
TAKING_PART = st.lists(st.tuples(st.integers(0, 4), st.sampled_from("rst"), st.integers(1, 4)), max_size=40)
LIMIT = st.none() | st.integers(1, 3)


def admitted(taking_part, participations, streams, split=1, *, reload=False) -> set[tuple[int, str, int]]:
    """Return who is let through: (step, stream, person)."""
    limit = BoundAcrossWindows(
        steps=STEPS, noise=NOISE, timer_offset=2, item_shards=3, participations=participations, streams=streams
    )
    ledger, log, found = limit.decode(b"", []), [], set()
    for step in sorted({step for step, _, _ in taking_part}):
        batches = []
        for stream in sorted({s for at, s, _ in taking_part if at == step}, reverse=bool(split % 2)):
            people = np.array(sorted({p for at, s, p in taking_part if (at, s) == (step, stream)}), np.uint64)
            for part in np.array_split(people, split):
                holdings = HolderBatch(part, part + np.uint64(7), np.zeros(len(part), np.uint16), _names(part))
                batches.append((StepKey(group_of(stream), step, 0), InStreams.of(stream, holdings)))
        handled = limit.handle(b"", step, batches, ledger)
        for key, data in handled.outputs:
            step_key = StepKey.from_bytes(key)
            for stream, held in InStreams.from_bytes(HolderBatch, data).each():
                assert step_key.stream == group_of(stream)
                found |= {(step_key.step, stream, p) for p in held.users.tolist()}
        log += [] if handled.segment is None else [handled.segment]
        ledger = limit.decode(b"", log if step % 2 else limit.encode(handled.state)) if reload else handled.state
        log = log if step % 2 else (limit.encode(handled.state) if reload else log)
    return found


def _names(people: np.ndarray) -> Names:
    texts = [str(person).encode() for person in people.tolist()]
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return Names(people + np.uint64(7), ends, np.frombuffer(b"".join(texts), np.uint8))


@given(TAKING_PART, LIMIT, LIMIT)
def test_nobody_takes_part_too_often(taking_part, participations, streams):
    found = admitted(taking_part, participations, streams)
    assert found <= set(taking_part)
    times, joined = defaultdict(int), defaultdict(set)
    for _, stream, person in found:
        times[person] += 1
        joined[person].add(stream)
    for _, _, person in taking_part:
        assert participations is None or times[person] <= participations
        assert streams is None or len(joined[person]) <= streams
    if participations is None and streams is None:
        assert found == set(taking_part)


@given(TAKING_PART, LIMIT, LIMIT, st.integers(1, 3))
def test_depends_on_nothing_but_the_persons_own_events(taking_part, participations, streams, split):
    found = admitted(taking_part, participations, streams)
    assert admitted(taking_part, participations, streams, split) == found
    assert admitted(taking_part, participations, streams, split, reload=True) == found
    for person in {person for _, _, person in taking_part}:
        own = [row for row in taking_part if row[2] == person]
        assert admitted(own, participations, streams) == {row for row in found if row[2] == person}


@given(TAKING_PART, st.integers(1, 3))
@settings(max_examples=50)
def test_the_first_steps_count(taking_part, participations):
    found = admitted([row for row in taking_part if row[1] == "r"], participations, None)
    for person in {person for _, _, person in taking_part}:
        steps = sorted({step for step, stream, p in taking_part if (stream, p) == ("r", person)})
        assert {step for step, _, p in found if p == person} == set(steps[:participations])


def test_a_cap_above_16_bits_holds():
    limit = BoundAcrossWindows(steps=STEPS, noise=NOISE, timer_offset=2, item_shards=1, participations=70_000)
    people = np.array([12], np.uint64)
    before = UserCounters().add(Charges(people, np.array([69_999], np.uint32)))
    ledger = Used(limit.decode(b"", []).counters | {"participations": before})
    holdings = HolderBatch(people, people, np.zeros(1, np.uint16), _names(people - np.uint64(7)))
    for expected in (1, 0, 0):
        handled = limit.handle(b"", 1, [(StepKey("", 1, 0), InStreams.of("", holdings))], ledger)
        assert len(list(handled.outputs)) == expected
        assert (handled.segment is None) == (expected == 0)
        ledger = limit.decode(b"", limit.encode(handled.state))


def test_counting_over_many_steps_does_not_wrap_around():
    limit = BoundAcrossWindows(steps=STEPS, noise=NOISE, timer_offset=2, item_shards=1, participations=100_000)
    _, charged = limit._admit(np.array([5], np.uint64), np.array([9], np.uint64), limit.decode(b"", []))
    charges = charged["participations"]
    counters = UserCounters()
    for _ in range(17):
        counters = counters.add(charges)
        charges = counters.compact()
    assert counters.charged(np.array([5], np.uint64)).tolist() == [2**16]
