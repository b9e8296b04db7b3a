"""What counts for a window is decided by when a batch arrived, so that a replay decides it the same way."""

import apache_beam as beam
import pyarrow as pa
import pytest
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import MAX_TIMESTAMP, MIN_TIMESTAMP, Timestamp
from grids import some_quick
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    AlertRule,
    ContinualHistogram,
    Domain,
    KeyedCounts,
    PredecessorQueries,
    RangeCounts,
    SetCardinality,
    ShiftingHeavyHitters,
    SparseVectorAlerts,
    TopKWithGap,
)
from privstream.transforms.timing.on_time_markers import NO_TIME
from runner_harness import on_every_runner, run

WINDOW, LATENESS, PEOPLE = 10, 5, 400
HITTERS = ShiftingHeavyHitters(
    epsilon=4,
    delta=1e-6,
    max_hits=2,
    horizon=4,
    window=WINDOW,
    allowed_lateness=LATENESS,
    method="clock",
    noise=KeyedNoise(bytes(range(32)), "arrival"),
)


def batch(item: str) -> pa.RecordBatch:
    users = [f"{item}{number}" for number in range(PEOPLE)]
    return pa.RecordBatch.from_pydict({"user": users, "item": [item] * PEOPLE, "time": [5] * PEOPLE})


def found(runner: str, arrived: dict[str, Timestamp]) -> tuple[set[str], int]:
    def build(pipeline):
        batches = (
            pipeline | beam.Create(list(arrived.items())) | beam.MapTuple(stamped).with_output_types(pa.RecordBatch)
        )
        published = batches | HITTERS.with_dead_letters()
        return {"rows": published.rows | beam.Map(item_of), "letters": published.dead_letters | beam.Map(reason_of)}

    results = run(runner, build)
    return set(results.elements("rows")), len(results.elements("letters"))


def stamped(item: str, timestamp: Timestamp) -> TimestampedValue:
    return TimestampedValue(batch(item), timestamp)


def item_of(row) -> str:
    return row.item


def reason_of(letter) -> str:
    return letter.reason


@on_every_runner
def test_a_batch_counts_if_it_arrived_before_the_decision(runner):
    decision = Timestamp(WINDOW + LATENESS)
    arrived = {"early": Timestamp(3), "last": decision - 0.001, "late": decision, "later": Timestamp(100)}
    items, letters = found(runner, arrived)
    assert items == {"early", "last"}
    assert letters > 0


@pytest.mark.parametrize("timestamp", [MIN_TIMESTAMP, NO_TIME, MAX_TIMESTAMP], ids=["first", "no", "last"])
def test_a_timestamp_that_says_nothing_decides_nothing(timestamp):
    assert found("fn_api", {"item": timestamp}) == ({"item"}, 0)


POINTS = {"universe": 500, "window": WINDOW, "start": 0, "end": 2 * WINDOW, "allowed_lateness": LATENESS}
WINDOWS = {name: POINTS[name] for name in ("window", "start", "end", "allowed_lateness")}
NOISE = {"noise": KeyedNoise(bytes(range(32)), "arrival")}
ON_A_CLOCK = {
    "ranges": RangeCounts(**POINTS, epsilon=50, standing=[(1, 500)], noise=KeyedNoise(bytes(range(32)), "arrival")),
    "predecessor": PredecessorQueries(
        **POINTS, epsilon=900, standing=[450], noise=KeyedNoise(bytes(range(32)), "arrival")
    ),
}
OTHERS = {
    "counts": KeyedCounts(**WINDOWS, **NOISE, epsilon=50, delta=1e-3, max_contributions=1),
    "top-k": TopKWithGap(**WINDOWS, **NOISE, epsilon=50, domain=Domain(["in", "out"]), top=1),
    "alerts": SparseVectorAlerts(**WINDOWS, **NOISE, epsilon=50, rules=[AlertRule(name="many", at_least=100)]),
    "cardinality": SetCardinality(**WINDOWS, **NOISE, epsilon=50, enter_values=("in",), leave_values=("out",)),
    "histogram": ContinualHistogram(**WINDOWS, **NOISE, epsilon=50, domain=Domain(["in", "out"])),
}


def points(first: int, arrived: Timestamp) -> TimestampedValue:
    users = [str(point) for point in range(first, first + 100)]
    columns = {"user": users, "item": ["in"] * 100, "time": [5] * 100}
    return TimestampedValue(pa.RecordBatch.from_pydict(columns), arrived)


def answers(runner: str, name: str, arrived: dict[int, Timestamp]) -> tuple[list, int]:
    def build(pipeline):
        batches = (
            pipeline | beam.Create(list(arrived.items())) | beam.MapTuple(points).with_output_types(pa.RecordBatch)
        )
        published = batches | (ON_A_CLOCK | OTHERS)[name].with_dead_letters()
        return {"rows": published.rows, "letters": published.dead_letters}

    results = run(runner, build)
    return sorted(results.elements("rows")), len(results.elements("letters"))


@on_every_runner
@some_quick("name", ON_A_CLOCK, "ranges")
def test_updates_of_a_clocked_stage_count_if_they_arrived_before_the_decision(runner, name):
    check_that_arrival_decides(runner, name)


@some_quick("name", OTHERS, "cardinality", "histogram")
def test_all_that_goes_by_windows_is_decided_so(name):
    check_that_arrival_decides("fn_api", name)


def check_that_arrival_decides(runner: str, name: str) -> None:
    decision = Timestamp(WINDOW + LATENESS)
    early = {1: Timestamp(3), 101: decision - 0.001}
    late = {201: decision + 0.001, 301: Timestamp(100)}
    without, _ = answers("fn_api", name, early)
    with_late, letters = answers(runner, name, early | late)
    assert with_late == without
    assert letters > 0
    assert answers("fn_api", name, early | dict.fromkeys(late, Timestamp(3)))[0] != without
