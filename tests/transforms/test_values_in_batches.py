"""Values on their way to sums: clipped, added up by person and item, exact in any order, and none where unread."""

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pytest
from apache_beam.options.pipeline_options import PipelineOptions
from apache_beam.testing import test_stream
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import Domain, KeyCount, KeyedCounts, KeySum
from privstream.transforms.batches import CountBatch, EventBatch, HolderBatch, InStreams, Names, StepKey, decode, encode
from privstream.transforms.counts.contributions import CountContributions
from privstream.transforms.counts.largest import LargestCounts
from privstream.transforms.counts.stream_counts import joined, unsealed_counts
from privstream.transforms.events.bounding import added_up
from privstream.transforms.events.split import SplitEvents
from privstream.transforms.timing.steps import Steps

NOISE = KeyedNoise(b"a key for tests, no secret")
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
    both = joined([InStreams.of("s", one), InStreams.of("s", two)]).batch
    assert both.items.tolist() == [1, 5, 9]
    assert both.counts.tolist() == [2, 7, 1]
    assert both.new.tolist() == [1, 4, 1]
    assert both.sums.tolist() == [LARGE, -LARGE - 4, 7]
    assert CountBatch.join([]).sums is None


def split(users: list[str] | None, values: list[float] | None, **options: object) -> list[tuple[StepKey, EventBatch]]:
    """Return what becomes of events of two items."""
    stage = SplitEvents(steps=Steps.of(window=10), noise=NOISE, shards=2, **options)
    stage.setup()
    columns = {"item": ["tea", "cake", "tea"], "time": pa.array([1, 2, 3]), "stream": [""] * 3}
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
    return unsealed_counts(output[1]).batch


@pytest.mark.parametrize("distinct", [True, False])
def test_who_is_new_to_an_item_is_counted_once(distinct):
    stage = CountContributions(
        steps=Steps.of(window=10), noise=NOISE, timer_offset=2, contributions=3, distinct=distinct, newcomers=True,
        key_shards=1, limits=(0, 50),
    )  # fmt: skip

    def holders(*pairs: tuple[int, int]) -> InStreams[HolderBatch]:
        users, items = zip(*pairs, strict=True)
        values = integers(*(90 if item == 7 else 5 for item in items))
        held = HolderBatch(hashes(*users), hashes(*items), np.zeros(len(users), np.uint16), Names.none(), values)
        return InStreams.of("", held)

    first = stage.handle(b"", 0, [(StepKey("", 0, 0), holders((1, 7), (2, 7), (2, 8)))], stage.decode(b"", []))
    (one,) = map(counted, first.outputs)
    assert [one.items.tolist(), one.counts.tolist(), one.new.tolist()] == [[7, 8], [2, 1], [2, 1]]
    assert one.sums.tolist() == [100, 5]
    restored = stage.decode(b"", [first.segment])
    second = stage.handle(b"", 1, [(StepKey("", 1, 0), holders((1, 7), (3, 7), (2, 9)))], restored)
    (two,) = map(counted, second.outputs)
    again = 0 if distinct else 1
    assert [two.items.tolist(), two.counts.tolist(), two.new.tolist()] == [[7, 9], [1 + again, 1], [1, 1]]
    assert two.sums.tolist() == [50 * (1 + again), 5]
    third = stage.handle(b"", 2, [(StepKey("", 2, 0), holders((2, 10)))], second.state)
    assert list(third.outputs) == [], "a fourth contribution of person 2"


def row(item: str, count: int, stream: str = "") -> KeyCount:
    return KeyCount(
        stream, Timestamp(0), Timestamp(10), item, count, 1.0, 5, count, count, None, None, None, Timestamp(10), False
    )


def test_the_largest_of_each_stream_and_ties_by_name():
    rows = [row("d", 5), row("a", 5), row("c", 9), row("b", 5), row("z", 1, "other")]
    assert [(one.stream, one.item) for one in LargestCounts(2)(rows)] == [("", "c"), ("", "a"), ("other", "z")]
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
