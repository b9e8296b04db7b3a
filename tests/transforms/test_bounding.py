"""What is kept of a person's events, by window, by run and of their values, depends on that person's events alone."""

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.utils.timestamp import Timestamp
from hypothesis import given
from hypothesis import strategies as st
from privstream.mechanisms.monitor.holdings import Charges, UserCounters
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, KeyCount, KeyedCounts, KeySum
from privstream.transforms.batches import (
    CountBatch,
    EventBatch,
    HolderBatch,
    Names,
    StepKey,
    decode,
    distinct_in_order,
    encode,
    in_order,
)
from privstream.transforms.counts.contributions import (
    CountContributions,
    _counted_items,
    add_up,
    joined,
)
from privstream.transforms.counts.finished import LargestCounts
from privstream.transforms.counts.publishing import Keys
from privstream.transforms.events.bound import Bound
from privstream.transforms.events.bounding import (
    BoundAcrossWindows,
    BoundPerWindow,
    LimitCounter,
    Used,
    added_up,
    bound_people,
    draws_of_pairs,
    last_of_each,
    place_in_run,
    sorted_in_groups,
)
from privstream.transforms.events.split_stages import SplitEvents
from privstream.transforms.timing.clock import STEP
from privstream.transforms.timing.steps import Steps

NOISE = KeyedNoise(b"a key for tests, no secret")
EVENTS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 6), st.integers(0, 8)), max_size=60)
LIMITS = st.integers(1, 4)


def keep(events, limit) -> list[tuple[int, int, int, int]]:
    """Return user, item, time and rank of what is kept, sorted."""
    users, items, times = np.array(events, np.int64).reshape(-1, 3).T
    users, items = users.astype(np.uint64), items.astype(np.uint64)
    rows, ranks, left_out = bound_people(
        users, items, times, limit=limit, draws=lambda rows: draws_of_pairs(NOISE, users[rows], items[rows])
    )
    assert ranks.dtype == np.uint16
    still = set(zip(users[rows].tolist(), items[rows].tolist(), strict=True))
    assert left_out == len({(user, item) for user, item, _ in events} - still)
    kept = zip(users[rows].tolist(), items[rows].tolist(), times[rows].tolist(), ranks.tolist(), strict=True)
    return sorted(kept)


@pytest.mark.parametrize(("windows", "quarter"), [(8, 2), (9, 3), (2, 1)])
def test_limits_are_counted_apart_for_the_first_and_the_last_quarter(windows, quarter):
    counter = LimitCounter("items", Steps(size=1_000, first=5, end=5 + windows))
    parts = [counter._parts(5 + number) for number in range(windows)]
    first, last = [1 in part for part in parts], [2 in part for part in parts]
    assert first == [number < quarter for number in range(windows)]
    assert last == first[::-1]
    assert all(part[0] == 0 for part in parts)


def slow_keep(events, limit) -> list[tuple[int, int, int, int]]:
    """Do the same with lists."""
    return sorted(
        row
        for user in {user for user, _, _ in events}
        for row in slow_keep_one(user, [event[1:] for event in events if event[0] == user], limit)
    )


def slow_keep_one(user, events, limit):
    times = {item: min(time for other, time in events if other == item) for item, _ in events}
    lots = {item: int(NOISE.words(np.array([[user, item]], np.uint64))[0, 0, 0]) for item in times}
    kept = sorted(times, key=lots.__getitem__)[:limit]
    return [(user, item, times[item], rank) for rank, item in enumerate(kept)]


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
        assert sorted(rank for _, _, _, rank in own) == list(range(len(own)))
        assert len({item for _, item, _, _ in own}) == len(own) <= limit


def test_random_items_are_not_always_the_same():
    events = [(user, item, 0) for user in range(1, 200) for item in range(1, 5)]
    kept = {item for _, item, _, _ in keep(events, 1)}
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


@given(st.lists(st.integers(0, 20), max_size=40))
def test_distinct_numbers_are_increasing(numbers):
    assert distinct_in_order(np.array(numbers, np.uint64)).tolist() == sorted(set(numbers))


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
    ledger = Used(limit.decode(b"", []).counters | {"participations": before})
    holdings = HolderBatch(people, people, np.zeros(1, np.uint16), _names(people - np.uint64(7)))
    for expected in (1, 0, 0):
        handled = limit.step(b"", 1, [encode(holdings)], ledger)
        assert len(list(handled.outputs)) == expected
        assert bool(handled.change()) == (expected == 1)
        ledger = limit.decode(b"", limit.encode(handled.state))


def test_counting_over_many_steps_does_not_wrap_around():
    charges, counters = Charges.of(np.array([5], np.uint64)), UserCounters()
    for _ in range(17):
        counters = counters.add(charges)
        charges = counters.compact()
    assert counters.charged(np.array([5], np.uint64)).tolist() == [2**16]


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


def test_columns_that_are_not_there_leave_no_trace():
    for batch in (
        EventBatch(hashes(1), hashes(2), integers(3), Names.none()),
        HolderBatch(hashes(1), hashes(2), np.array([0], np.uint16), Names.none()),
        CountBatch(hashes(1), integers(2), Names.none()),
    ):
        assert not any(name in encode(batch) for name in (b"values", b"new", b"sums"))
        found = decode(type(batch), encode(batch))
        assert [getattr(found, name, None) for name in ("values", "new", "sums")] == [None] * 3
    counted = CountBatch(hashes(1), integers(2), Names.none(), integers(1), integers(-9))
    assert decode(CountBatch, encode(counted)).sums.tolist() == [-9]
    events = EventBatch(hashes(1), hashes(2), integers(3), Names.none(), np.array([0.5]))
    assert decode(EventBatch, encode(events)).values.tolist() == [0.5]


def test_joined_counts_add_up_every_column():
    one = CountBatch(hashes(1, 5), integers(2, 3), Names.none(), integers(1, 0), integers(LARGE, -4))
    two = CountBatch(hashes(5, 9), integers(4, 1), Names.none(), integers(4, 1), integers(-LARGE, 7))
    both = joined([one, two])
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


def test_values_are_clipped():
    found = split(["a", "a", "a"], [5.0, -7.0, 99.0], limits=(0, 50))
    assert sorted(value for _, batch in found for value in batch.values.tolist()) == [0.0, 5.0, 50.0]
    found = split(["a", "a", "a"], [0.25, -7.0, 99.0])
    assert sorted(value for _, batch in found for value in batch.values.tolist()) == [-7.0, 0.25, 99.0]


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


def row(item: str, count: int) -> KeyCount:
    return KeyCount(Timestamp(0), Timestamp(10), item, count, count, count, count)


def test_the_largest_and_ties_by_name():
    rows = [row("d", 5), row("a", 5), row("c", 9), row("b", 5)]
    assert [one.item for one in LargestCounts(2)(rows)] == ["c", "a"]
    assert LargestCounts(2)(rows[::-1]) == LargestCounts(2)(rows)
    assert LargestCounts(9).among([]) == []


RUN = {"epsilon": 1.0, "window": 10, "start": 0, "end": 40, "noise": NOISE, "domain": Domain(["a", "b"])}


def test_rows_have_sums_only_where_they_are_asked_for():
    assert KeyedCounts(**RUN, max_contributions=1).row_type is KeyCount
    assert KeyedCounts(**RUN, max_contributions=1, max_value=5).row_type is KeySum
    assert KeySum._fields[: len(KeyCount._fields)] == KeyCount._fields
    assert "value" not in KeyedCounts(**RUN, max_contributions=1).event_fields.required
    assert "user" not in KeyedCounts(**RUN, unit="event", max_value=5).event_fields.required


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
        again, same = Keys(keys.keys).with_numbers(np.array(several, np.uint64))
        assert again.keys.tolist() == keys.keys.tolist() == list(known) and same.tolist() == numbers.tolist()


@given(st.lists(st.sampled_from([0, 1, 2, 1 << 40, (1 << 40) + 1, (1 << 64) - 1]), max_size=20), st.integers(0, 3))
def test_numbers_are_ordered_as_by_a_stable_sort(numbers, times):
    column = np.array(numbers * times, np.uint64)
    assert in_order(column).tolist() == np.argsort(column, kind="stable").tolist()


@given(st.lists(st.tuples(st.integers(0, 5), st.booleans()), max_size=20))
def test_rows_are_counted_as_they_are_added_up(rows):
    items, new = np.array([item for item, _ in rows], np.uint64), np.array([mark for _, mark in rows], bool)
    ones = CountBatch(items, np.ones(len(rows), np.int64), Names.none(), new.astype(np.int64))
    added, counted = add_up(ones), _counted_items(items, Names.none(), new)
    assert counted.items.tolist() == added.items.tolist()
    assert counted.counts.tolist() == added.counts.tolist()
    assert counted.new.tolist() == added.new.tolist()
    assert _counted_items(items, Names.none(), None).new is None
