"""What counts for a window is decided by when a batch arrived, so that a replay decides it the same way."""

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from every_runner import one_job
from examples import example
from privstream.transforms.timing.on_time import NO_TIME
from runner_harness import run

WINDOW, LATENESS, PEOPLE = 10, 5, 400
CLOCK = {"start": 0, "end": 2 * WINDOW, "allowed_lateness": LATENESS}


def batch(item: str) -> pa.RecordBatch:
    users = [f"{item}{number}" for number in range(PEOPLE)]
    return pa.RecordBatch.from_pydict({"user": users, "item": [item] * PEOPLE, "time": [5] * PEOPLE})


def arriving(arrived: dict[str, Timestamp]):
    def build(pipeline):
        batches = (
            pipeline | beam.Create(list(arrived.items())) | beam.MapTuple(stamped).with_output_types(pa.RecordBatch)
        )
        published = batches | example("heavy hitters by clock", **CLOCK, epsilon=4.0).with_dead_letters()
        return {"rows": published.rows | beam.Map(item_of), "letters": published.dead_letters | beam.Map(reason_of)}

    return build


def stamped(item: str, timestamp: Timestamp) -> TimestampedValue:
    return TimestampedValue(batch(item), timestamp)


def item_of(row) -> str:
    return row.item


def reason_of(letter) -> str:
    return letter.reason


@one_job("rules")
def test_a_batch_counts_if_it_arrived_before_the_decision():
    decision = Timestamp(WINDOW + LATENESS)
    arrived = {"early": Timestamp(3), "last": decision - 0.001, "late": decision, "later": Timestamp(100)}
    results = yield arriving(arrived)
    assert set(results.elements("rows")) == {"early", "last"}
    assert results.elements("letters")


@pytest.mark.parametrize("timestamp", [MIN_TIMESTAMP, NO_TIME, MAX_TIMESTAMP], ids=["first", "no", "last"])
def test_a_timestamp_that_says_nothing_decides_nothing(timestamp):
    results = run("fn_api", arriving({"item": timestamp}))
    assert results.elements("rows") == ["item"]
    assert not results.elements("letters")


POINTS = {
    "ranges": {"universe": 500, "standing": [(1, 500)]},
    "predecessors": {"universe": 500, "standing": [450], "epsilon": 900.0},
}
BY_WINDOWS = ["counts", "top-k", "alerts", "cardinality", "histogram"]


def points(first: int, arrived: Timestamp) -> TimestampedValue:
    users = [str(point) for point in range(first, first + 100)]
    columns = {"user": users, "item": ["1"] * 100, "time": [5] * 100}
    return TimestampedValue(pa.RecordBatch.from_pydict(columns), arrived)


@one_job("rules", POINTS, "ranges")
def test_updates_of_a_clocked_stage_count_if_they_arrived_before_the_decision(name):
    yield from check_that_arrival_decides(example(name, **CLOCK, **POINTS[name]))


@one_job("rules", BY_WINDOWS, "cardinality", "histogram", runners=["fn_api"])
def test_all_that_goes_by_windows_is_decided_so(name):
    yield from check_that_arrival_decides(example(name, **CLOCK))


def check_that_arrival_decides(made: beam.PTransform):
    decision = Timestamp(WINDOW + LATENESS)
    early = {1: Timestamp(3), 101: decision - 0.001}
    late = {201: decision + 0.001, 301: Timestamp(100)}
    inputs = {"early": early, "with late": early | late, "all early": early | dict.fromkeys(late, Timestamp(3))}

    def build(pipeline):
        outputs = {}
        for name, arrived in inputs.items():
            stamps = pipeline | name >> beam.Create(list(arrived.items()))
            batches = stamps | f"Stamp {name}" >> beam.MapTuple(points).with_output_types(pa.RecordBatch)
            published = batches | f"Publish {name}" >> made.with_dead_letters()
            outputs |= {name: published.rows, f"letters {name}": published.dead_letters}
        return outputs

    results = yield build
    rows = {name: sorted(results.elements(name)) for name in inputs}
    assert rows["with late"] == rows["early"] != rows["all early"]
    assert results.elements("letters with late") and not results.elements("letters all early")
