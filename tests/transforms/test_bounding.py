"""What is kept of a person's events, by window, by run and of their values, depends on that person's events alone."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.mechanism import UserCounters
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms.batches import NO_NAMES, CountBatch, EventBatch, HolderBatch, StepKey, encode
from privstream.transforms.counts.contributions import CountContributions
from privstream.transforms.parameters import Bound
from privstream.transforms.people.bounding import BoundPerWindow, LimitWindows, add_counts, bound_people, draws_of_pairs
from privstream.transforms.timing.step_fn import STEP
from privstream.transforms.timing.steps import Steps

NOISE = KeyedNoise(b"a key for tests, no secret")
EVENTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 8)), max_size=60)

LIMITS = st.integers(1, 4)


def keep(events, limit) -> list[tuple[int, int, int]]:
    """Return user, item and rank of what is kept, sorted."""
    users, items = np.array([event[:2] for event in events], np.uint64).reshape(-1, 2).T
    kept = []
    for ranked in (False, True):
        rows, ranks, dropped = bound_people(
            users, items, limit=limit, ranked=ranked,
            draws=lambda rows: draws_of_pairs(NOISE, users[rows], items[rows]),
        )  # fmt: skip
        kept.append(sorted(zip(users[rows].tolist(), items[rows].tolist(), strict=True)))
        assert ranks.dtype == np.uint16 and (ranked or not ranks.any())
        assert dropped == len({event[:2] for event in events} - set(kept[-1]))
    assert kept[0] == kept[1]
    return sorted(zip(users[rows].tolist(), items[rows].tolist(), ranks.tolist(), strict=True))


def slow_keep(events, limit) -> list[tuple[int, int, int]]:
    """Do the same with lists."""
    kept = []
    for user in {user for user, _, _ in events}:
        items = {item for other, item, _ in events if other == user}
        lots = {item: int(NOISE.words(np.array([[user, item]], np.uint64))[0, 0, 0]) for item in items}
        kept += [(user, item, rank) for rank, item in enumerate(sorted(items, key=lots.__getitem__)[:limit])]
    return sorted(kept)


@given(EVENTS, LIMITS)
def test_keeps_what_the_rule_says(events, limit):
    assert keep(events, limit) == slow_keep(events, limit)


STEPS = Steps(size=1000, first=0)
TAKING_PART = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=40)
LIMIT = st.integers(1, 3)


def across(limit: int) -> LimitWindows:
    return LimitWindows(steps=STEPS, timer_offset=2, limit=limit)


def holders(people: np.ndarray) -> bytes:
    return encode(HolderBatch(people, people + np.uint64(7), np.zeros(len(people), np.uint16), NO_NAMES))


def admitted(taking_part, participations, split=1, *, reload=False) -> set[tuple[int, int]]:
    """Return who is let through: (step, person)."""
    limit = across(participations)
    state, log, found = limit.decode([]), [], set()
    for step in sorted({step for step, _ in taking_part}):
        people = np.array(sorted({p for at, p in taking_part if at == step}), np.uint64)
        handled = limit.step(b"", step, [holders(part) for part in np.array_split(people, split)], state)
        for _, data in handled.outputs:
            (at,) = STEP.unpack_from(data)
            counts = add_counts([data[STEP.size :]], 12)
            assert counts.max() == 1
            found |= {(at, item - 7) for item in np.flatnonzero(counts).tolist()}
        log += filter(None, [handled.change()])
        state = limit.decode(log if step % 2 else limit.encode(handled.state)) if reload else handled.state
        log = log if step % 2 else (limit.encode(handled.state) if reload else log)
    return found


@given(TAKING_PART, LIMIT, st.integers(1, 3))
def test_the_first_steps_of_each_person_count_whoever_else_there_is(taking_part, participations, split):
    found = admitted(taking_part, participations)
    for person in {person for _, person in taking_part}:
        steps = sorted({step for step, p in taking_part if p == person})
        assert {step for step, p in found if p == person} == set(steps[:participations])
    assert admitted(taking_part, participations, split) == found
    assert admitted(taking_part, participations, split, reload=True) == found


def test_a_person_with_several_items_in_a_step_is_charged_once_for_it():
    limit, state, people = across(2), UserCounters(), np.array([3, 3, 4], np.uint64)
    batch = encode(HolderBatch(people, np.arange(3, dtype=np.uint64), np.zeros(3, np.uint16), NO_NAMES))
    for expected in (3, 3, 0):
        handled = limit.step(b"", 1, [batch], state)
        assert sum(add_counts([data[STEP.size :]], 3).sum() for _, data in handled.outputs) == expected
        state = handled.state


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def hashes(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_a_person_has_one_value_of_an_item_in_a_window_the_sum():
    fn = BoundPerWindow(steps=Steps.of(window=10, start=0), noise=NOISE, items_per_step=2)
    batch = EventBatch(hashes(1, 2, 1), hashes(7, 7, 7), integers(0, 1, 2), NO_NAMES, np.array([4.0, 1.0, 3.0]))
    ((_, found),) = fn.bound(StepKey(0, 0), batch)
    held = HolderBatch.read([found[STEP.size :]])
    assert (held.users.tolist(), held.values.tolist()) == ([1, 2], [7, 1])


def counted(output: tuple[bytes, bytes]) -> CountBatch:
    return CountBatch.read([output[1][STEP.size :]])


@pytest.mark.parametrize("distinct", [True, False])
def test_values_of_what_counts_are_clipped(distinct):
    stage = CountContributions(
        steps=Steps.of(window=10, start=0), noise=NOISE, timer_offset=2, bound=Bound(3), distinct=distinct,
        key_shards=1, max_value=50,
    )  # fmt: skip

    def holders(*pairs: tuple[int, int]) -> bytes:
        users, items = zip(*pairs, strict=True)
        values = integers(*(90 if item == 7 else 5 for item in items))
        ranks = np.zeros(len(users), np.uint16)
        return encode(HolderBatch(hashes(*users), hashes(*items), ranks, NO_NAMES, values))

    first = stage.step(b"", 0, [holders((1, 7), (2, 7), (2, 8))], stage.decode([]))
    (one,) = map(counted, first.outputs)
    assert [one.items.tolist(), one.counts.tolist()] == [[7, 8], [2, 1]]
    assert one.sums.tolist() == [100, 5]
    restored = stage.decode([first.change()])
    second = stage.step(b"", 1, [holders((1, 7), (3, 7), (2, 9))], restored)
    (two,) = map(counted, second.outputs)
    again = 0 if distinct else 1
    assert [two.items.tolist(), two.sums.tolist()] == [[7, 9], [50 * (1 + again), 5]]
