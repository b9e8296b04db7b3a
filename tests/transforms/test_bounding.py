"""What is kept of a person's events, by window, by run and of their values, depends on that person's events alone."""

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, KeyedCounts
from privstream.transforms.batches import (
    CountBatch,
    EventBatch,
    HolderBatch,
    Names,
    StepKey,
    decode,
    encode,
    in_order,
)
from privstream.transforms.counts.contributions import (
    CountContributions,
    _counted_items,
    add_up,
)
from privstream.transforms.counts.publishing import Keys
from privstream.transforms.people.bound import (
    Bound,
    added_up,
    bound_people,
    draws_of_pairs,
    last_of_each,
    place_in_run,
    sorted_in_groups,
)
from privstream.transforms.people.bounding import BoundAcrossWindows, BoundPerWindow, SplitEvents
from privstream.transforms.timing.clock import STEP
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


@given(EVENTS)
def test_the_last_event_of_each_person(events):
    users, items, times = np.array(events, np.int64).reshape(-1, 3).T
    rows = last_of_each(users, items, times)
    last = {user: min((-time, item) for other, item, time in events if other == user) for user, _, _ in events}
    assert {users[row]: (-times[row], items[row]) for row in rows} == last and len(rows) == len(last)


@given(EVENTS, LIMITS)
def test_keeps_what_the_rule_says(events, limit):
    assert keep(events, limit) == slow_keep(events, limit)


@given(EVENTS, LIMITS, st.randoms())
def test_depends_on_nothing_but_the_persons_own_events(events, limit, chance):
    kept = keep(events, limit)
    shuffled = list(events)
    chance.shuffle(shuffled)
    assert keep(shuffled, limit) == kept
    assert keep(events + events, limit) == kept
    for user in {user for user, _, _ in events}:
        alone = keep([event for event in events if event[0] == user], limit)
        assert alone == [row for row in kept if row[0] == user]


@given(EVENTS, LIMITS)
def test_ranks_number_the_items_of_each_person(events, limit):
    kept = keep(events, limit)
    for user in {user for user, _, _ in events}:
        own = [row for row in kept if row[0] == user]
        assert sorted(rank for _, _, rank in own) == list(range(len(own)))
        assert len({item for _, item, _ in own}) == len(own) <= limit


def test_random_items_are_not_always_the_same():
    events = [(user, item, 0) for user in range(1, 200) for item in range(1, 5)]
    kept = {item for _, item, _ in keep(events, 1)}
    assert kept == {1, 2, 3, 4}


@given(st.lists(st.integers(0, 5), max_size=40), st.randoms())
def test_place_in_run_counts_within_each_person(users, chance):
    order = list(range(len(users)))
    chance.shuffle(order)
    order.sort(key=users.__getitem__)
    place = place_in_run(np.array(users, np.uint64), np.array(order, np.int64))
    seen: dict[int, int] = {}
    for row in order:
        assert place[row] == seen.get(users[row], 0)
        seen[users[row]] = seen.get(users[row], 0) + 1


STEPS = Steps(size=1000, first=0)
TAKING_PART = st.lists(st.tuples(st.integers(0, 4), st.integers(1, 4)), max_size=40)
LIMIT = st.integers(1, 3)


def across(participations) -> BoundAcrossWindows:
    return BoundAcrossWindows(steps=STEPS, timer_offset=2, item_shards=3, participations=participations)


def admitted(taking_part, participations, split=1, *, reload=False) -> set[tuple[int, int]]:
    """Return who is let through: (step, person)."""
    limit = across(participations)
    ledger, log, found = limit.decode(b"", []), [], set()
    for step in sorted({step for step, _ in taking_part}):
        people = np.array(sorted({p for at, p in taking_part if at == step}), np.uint64)
        batches = []
        for part in np.array_split(people, split):
            holdings = HolderBatch(part, part + np.uint64(7), np.zeros(len(part), np.uint16), _names(part))
            batches.append(encode(holdings))
        handled = limit.step(b"", step, batches, ledger)
        for _, data in handled.outputs:
            (at,) = STEP.unpack_from(data)
            found |= {(at, p) for p in decode(HolderBatch, data[STEP.size :]).users.tolist()}
        log += filter(None, [handled.change()])
        ledger = limit.decode(b"", log if step % 2 else limit.encode(handled.state)) if reload else handled.state
        log = log if step % 2 else (limit.encode(handled.state) if reload else log)
    return found


def _names(people: np.ndarray) -> Names:
    texts = [str(person).encode() for person in people.tolist()]
    ends = np.cumsum([0, *map(len, texts)]).astype(np.int64)
    return Names(people + np.uint64(7), ends, np.frombuffer(b"".join(texts), np.uint8))


@given(st.integers(1, 1 << 40), st.integers(1, 64), st.integers(0, 2000), st.integers(0, 1 << 32))
def test_numbers_are_ordered_in_their_groups(groups, bits, size, seed):
    rng = np.random.default_rng(seed)
    group, numbers = rng.integers(groups, size=size), rng.integers(1 << bits, size=size, dtype=np.uint64)
    numbers[: size // 2] &= np.uint64((1 << 24) - 1)  # of these only the last bits differ
    order = sorted_in_groups(group, numbers)
    assert sorted(order) == list(range(size))
    expected = np.lexsort((numbers, group))
    assert group[order].tolist() == group[expected].tolist() and numbers[order].tolist() == numbers[expected].tolist()


@pytest.mark.parametrize("runs", [False, True])
@pytest.mark.parametrize("bits", [2, 10, 30, 63])
def test_the_order_of_numbers_is_stable_of_runs_too(bits, runs):
    rng = np.random.default_rng(5)
    parts = [np.sort(rng.integers(1 << bits, size=size)).astype(np.uint64) for size in (0, 1, 3000, 7)]
    numbers = np.concatenate(parts) if runs else rng.permutation(np.concatenate(parts))
    assert in_order(numbers, runs=runs).tolist() == np.argsort(numbers, kind="stable").tolist()


@given(TAKING_PART, LIMIT, st.integers(1, 3))
def test_the_first_steps_of_each_person_count_whoever_else_there_is(taking_part, participations, split):
    found = admitted(taking_part, participations)
    for person in {person for _, person in taking_part}:
        steps = sorted({step for step, p in taking_part if p == person})
        assert {step for step, p in found if p == person} == set(steps[:participations])
    assert admitted(taking_part, participations, split) == found
    assert admitted(taking_part, participations, split, reload=True) == found


def test_a_cap_above_16_bits_holds():
    limit = across(70_000)
    people = np.array([12], np.uint64)
    before = UserCounters().add(Charges(people, np.array([69_999], np.uint32)))
    ledger = {**limit.decode(b"", []), "participations": before}
    holdings = HolderBatch(people, people, np.zeros(1, np.uint16), _names(people - np.uint64(7)))
    for expected in (1, 0, 0):
        handled = limit.step(b"", 1, [encode(holdings)], ledger)
        assert len(list(handled.outputs)) == expected
        assert bool(handled.change()) == (expected == 1)
        ledger = limit.decode(b"", limit.encode(handled.state))


LARGE = 1 << 40


def integers(*values: int) -> np.ndarray:
    return np.array(values, np.int64)


def hashes(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def test_values_of_one_person_and_item_are_added_up_exactly():
    users, items = hashes(1, 2, 1, 1, 2), hashes(7, 7, 7, 8, 7)
    values = np.array([LARGE, 5, -1, 3, -5], np.float64)
    assert added_up(users, items, values).tolist() == [LARGE - 1, 0, LARGE - 1, 3, 0]
    order = np.array([4, 2, 0, 3, 1])
    assert added_up(users[order], items[order], values[order]).tolist() == [0, LARGE - 1, LARGE - 1, 3, 0]
    assert added_up(users[:0], items[:0], values[:0]).tolist() == []


def test_a_person_has_one_value_of_an_item_in_a_window_the_sum():
    fn = BoundPerWindow(steps=Steps.of(window=10), noise=NOISE, items_per_step=2, item_shards=1)
    batch = EventBatch(hashes(1, 2, 1), hashes(7, 7, 7), integers(0, 1, 2), Names.none(), np.array([4.0, 1.0, 3.0]))
    ((_, found),) = fn.bound(StepKey(0, 0), batch)
    held = decode(HolderBatch, found[STEP.size :])
    assert (held.users.tolist(), held.values.tolist()) == ([1, 2], [7, 1])


def test_joined_counts_add_up_every_column():
    one = CountBatch(hashes(1, 5), integers(2, 3), Names.none(), integers(1, 0), integers(LARGE, -4))
    two = CountBatch(hashes(5, 9), integers(4, 1), Names.none(), integers(4, 1), integers(-LARGE, 7))
    both = add_up(CountBatch.join([one, two]))
    assert both.items.tolist() == [1, 5, 9]
    assert both.counts.tolist() == [2, 7, 1]
    assert both.new.tolist() == [1, 4, 1]
    assert both.sums.tolist() == [LARGE, -LARGE - 4, 7]
    assert CountBatch.join([]).sums is None


def split(users: list[str] | None, values: list[float] | None, **options: object) -> list[tuple[StepKey, EventBatch]]:
    """Return what becomes of events of two items."""
    stage = SplitEvents(steps=Steps.of(window=10), noise=NOISE, shards=2, **options)
    stage.setup()
    columns = {"item": ["tea", "cake", "tea"], "time": pa.array([1, 2, 3])}
    columns |= {} if users is None else {"user": users}
    columns |= {} if values is None else {"value": pa.array(values, pa.float64())}
    return [
        (StepKey.from_bytes(key), decode(EventBatch, data))
        for key, (_, data) in stage.process(pa.record_batch(columns))
    ]


def test_without_users_events_go_by_item():
    assert all(batch.values is None for _, batch in split(["a", "b", "c"], None))
    for key, batch in split(None, [1.0, 2.0, 3.0]):
        assert set((batch.items % np.uint64(2)).tolist()) == {key.shard}


def counted(output: tuple[bytes, bytes]) -> CountBatch:
    return decode(CountBatch, output[1][STEP.size :])


@pytest.mark.parametrize("distinct", [True, False])
def test_who_is_new_to_an_item_is_counted_once(distinct):
    stage = CountContributions(
        steps=Steps.of(window=10, start=0), noise=NOISE, timer_offset=2, bound=Bound(3), distinct=distinct,
        newcomers=True, key_shards=1, limits=(0, 50),
    )  # fmt: skip

    def holders(*pairs: tuple[int, int]) -> bytes:
        users, items = zip(*pairs, strict=True)
        values = integers(*(90 if item == 7 else 5 for item in items))
        ranks = np.zeros(len(users), np.uint16)
        return encode(HolderBatch(hashes(*users), hashes(*items), ranks, Names.none(), values))

    first = stage.step(b"", 0, [holders((1, 7), (2, 7), (2, 8))], stage.decode(b"", []))
    (one,) = map(counted, first.outputs)
    assert [one.items.tolist(), one.counts.tolist(), one.new.tolist()] == [[7, 8], [2, 1], [2, 1]]
    assert one.sums.tolist() == [100, 5]
    restored = stage.decode(b"", [first.change()])
    second = stage.step(b"", 1, [holders((1, 7), (3, 7), (2, 9))], restored)
    (two,) = map(counted, second.outputs)
    again = 0 if distinct else 1
    assert [two.items.tolist(), two.counts.tolist(), two.new.tolist()] == [[7, 9], [1 + again, 1], [1, 1]]
    assert two.sums.tolist() == [50 * (1 + again), 5]
    third = stage.step(b"", 2, [holders((2, 10))], second.state)
    assert list(third.outputs) == [], "a fourth contribution of person 2"


RUN = {"epsilon": 1.0, "window": 10, "start": 0, "end": 40, "noise": NOISE, "domain": Domain(["a", "b"])}


@pytest.mark.parametrize(
    ("over", "delta", "windows", "refused"),
    [("start", 0.0, 1000, True), ("start", 0.0, 4, False), ("start", 1e-6, 1000, False), (20, 0.0, 4, False)],
)
def test_noise_that_is_not_bound_to_the_data_is_refused_without_an_end(over, delta, windows, refused):
    """Noise in a tree, which is the smallest where there are many windows."""
    made = KeyedCounts(**RUN | {"end": 10 * windows}, unit="event", over=over, delta=delta)
    pipeline = beam.Pipeline(options=PipelineOptions(["--runner=PrismRunner", "--streaming"]))
    events = pipeline | test_stream.TestStream().advance_watermark_to_infinity()
    assert not events.is_bounded
    if refused:
        with pytest.raises(
            ValueError, match="delta must be > 0 when the input is unbounded and counts are since the start"
        ):
            _ = events | made
    else:
        _ = events | made


KEYS = st.sampled_from([0, 1, 2, 7, 2**63, 2**64 - 1])


@given(st.lists(st.sets(KEYS), max_size=6))
def test_keys_keep_their_numbers(steps):
    keys, known = Keys.none(), {}
    for step in steps:
        several = sorted(step)
        keys, numbers = keys.with_numbers(np.array(several, np.uint64))
        known |= {key: len(known) + i for i, key in enumerate(key for key in several if key not in known)}
        assert numbers.tolist() == [known[key] for key in several]
        again, same = Keys.of(keys.keys).with_numbers(np.array(several, np.uint64))
        assert again.keys.tolist() == keys.keys.tolist() == list(known) and same.tolist() == numbers.tolist()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_rows_are_counted_as_they_are_added_up(rows):
    items, new = np.array([item for item, _ in rows], np.uint64), np.array([mark for _, mark in rows], bool)
    ones = CountBatch(items, np.ones(len(rows), np.int64), Names.none(), new.astype(np.int64))
    added, counted = add_up(ones), _counted_items(items, Names.none(), new)
    assert counted.items.tolist() == added.items.tolist()
    assert counted.counts.tolist() == added.counts.tolist()
    assert counted.new.tolist() == added.new.tolist()
    assert _counted_items(items, Names.none(), None).new is None
