"""Every question as a whole transform, with random limits, and what one person may change of what it publishes."""

import random
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import apache_beam as beam
import runner_harness
from apache_beam.transforms.window import TimestampedValue
from apache_beam.utils.timestamp import Timestamp
from fuzz_meaning import Event
from fuzz_values import CANARY
from privstream.mechanisms.noise.sources import KeyedNoise
from privstream.transforms import (
    AlertRule,
    ContinualHistogram,
    Domain,
    LinearQuery,
    PredecessorQueries,
    PredecessorQuery,
    PrivateQueries,
    RangeCounts,
    RangeQuery,
    SetCardinality,
    ShiftingHeavyHitters,
    SparseVectorAlerts,
    ThresholdFlags,
    TopKWithGap,
)

NOISE = KeyedNoise(bytes(range(7, 39)))
SECOND = 1_000_000
START = 1_700_000_000 // 60 * 60
SPAN = 50
STREAMS = ("north", "south")
ITEMS = tuple(f"{CANARY} {number}" for number in range(4))
LISTED = Domain(list(ITEMS[:3]))
CLOCK = {"noise": NOISE, "window": 10, "start": START, "end": START + SPAN}
RULES = [AlertRule(name="crowd", at_least=18), AlertRule(name="silence", at_most=3, items=ITEMS[:1])]
DOORS = {"enter_values": ITEMS[:2], "leave_values": ITEMS[2:3]}

Rows = list[Any]


def place(row: Any) -> tuple[str, int]:
    """Return stream and window of a row."""
    return row.stream, row.window_start.micros


@dataclass(frozen=True)
class Question:
    """A transform, and what is public of its rows.

    Attributes:
        make: makes it from random limits; `streams` says whether there are streams.
        public: what of a row is public where all rows are; None where which rows there are is private.
        untouched: tells whether an event of one person must leave a row as it is.
        asked: queries beside the events.
        points: users are numbers.
    """

    make: Callable[[random.Random, dict[str, Any]], beam.PTransform]
    public: Callable[[Any], tuple[Any, ...]] | None
    untouched: Callable[[Any, Event], bool]
    asked: tuple[Any, ...] = ()
    points: bool = False


def _before(row: Any, event: Event) -> bool:
    """A row of another stream, or of a window that ended before the event."""
    return row.stream != event.stream or row.window_end.micros <= event.time


def _elsewhere(row: Any, event: Event) -> bool:
    return row.stream != event.stream or not row.window_start.micros <= event.time < row.window_end.micros


def _hitters(chance: random.Random, streams: dict[str, Any]) -> beam.PTransform:
    limits = {
        "max_hits": chance.choice([1, 3]),
        "horizon": chance.choice([3, 8]),
        "items_per_step": chance.choice([1, 2]),
    }
    known = {"domain": LISTED} if chance.random() < 0.3 else {}
    start = {"start": START} if known else {}
    each = {**streams, "streams_per_person": chance.choice([1, 2])} if streams else {}
    return ShiftingHeavyHitters(
        epsilon=25.0, delta=1e-2, window=10, beta=0.5, noise=NOISE, **limits, **known, **start, **each
    )


def _people(chance: random.Random) -> dict[str, Any]:
    return chance.choice([{}, {"unit": "person", "max_contributions": 3}])


QUESTIONS = {
    "heavy hitters": Question(_hitters, None, lambda row, event: row.item != event.item),
    "top k": Question(
        lambda chance, streams: TopKWithGap(
            **CLOCK, **streams, epsilon=9.0, domain=LISTED, top=2, items_per_step=2,
            streams_per_person=2 if streams else None,
        ),
        lambda row: (*place(row), row.window_end.micros, row.rank),
        _elsewhere,
    ),
    "alerts": Question(
        lambda chance, streams: SparseVectorAlerts(
            **CLOCK, **streams, epsilon=9.0, rules=RULES, min_alerts=4,
            method=chance.choice(("counts", "sparse_vector")),
        ),
        None,
        lambda row, event: row.window_end.micros <= event.time,
    ),
    "histogram": Question(
        lambda chance, streams: ContinualHistogram(
            **CLOCK, **streams, **_people(chance), epsilon=3.0, domain=LISTED, queries=("histogram", "max", "top:2")
        ),
        lambda row: (*place(row), row.window_end.micros, row.query, row.category if row.query == "histogram" else ""),
        _before,
    ),
    "flags": Question(
        lambda chance, streams: ThresholdFlags(**CLOCK, **streams, **_people(chance), epsilon=30.0, domain=LISTED,
        thresholds=6),
        lambda row: (*place(row), row.window_end.micros, row.category, row.threshold),
        _before,
    ),
    "cardinality": Question(
        lambda chance, streams: SetCardinality(**CLOCK, **streams, **chance.choice([DOORS, {"timeout": 15}]),
        epsilon=9.0),
        lambda row: (*place(row), row.window_end.micros),
        _before,
    ),
    "ranges": Question(
        lambda chance, streams: RangeCounts(**CLOCK, **streams, epsilon=9.0, universe=64, standing=[(1, 64), (3,
        9)], queries=2),
        lambda row: (*place(row), row.window_end.micros, row.low, row.high),
        _before,
        tuple(RangeQuery(low, 60, Timestamp(START + 15)) for low in (2, 40)),
        points=True,
    ),
    "predecessors": Question(
        lambda chance, streams: PredecessorQueries(**CLOCK, **streams, epsilon=99.0, universe=64, standing=[30],
        queries=1),
        lambda row: (*place(row), row.window_end.micros, row.query),
        _before,
        (PredecessorQuery(5, Timestamp(START + 25)),),
        points=True,
    ),
    "queries": Question(
        lambda chance, streams: PrivateQueries(epsilon=9.0, domain=LISTED, records=40, alpha=0.3, queries=5,
        noise=NOISE),
        lambda row: (row.query, row.time.micros),
        lambda row, event: False,
        tuple(LinearQuery(f"q{number}", Timestamp(START + number), ITEMS[: number + 1]) for number in range(3)),
    ),
}  # fmt: skip


def crowd(chance: random.Random, question: Question, streams: bool, people: int = 30) -> list[Event]:
    """Return events of honest people, some of whom come often."""
    events = []
    for number in range(chance.choice([people, 2 * people, 3 * people])):
        user = str(1 + number % people) if question.points else f"{CANARY} {number % people}"
        time = START * SECOND + chance.randrange(SPAN * SECOND)
        events.append(
            Event(user, chance.choices(ITEMS, [8, 3, 2, 1])[0], time, chance.choice(STREAMS) if streams else "")
        )
    return events


def element(event: Event, form: str = "row") -> Any:
    """Return an event as a row, or as a pair if it has no stream."""
    if form == "pair" and not event.stream:
        return TimestampedValue((event.user, event.item), Timestamp(micros=event.time))
    fields = {"user": event.user, "item": event.item, "time": Timestamp(micros=event.time)}
    return beam.Row(**fields, **({"stream": event.stream} if event.stream else {}))


def _given(impulse: bytes, elements: list[Any]) -> list[Any]:
    """Give elements of which Beam knows nothing: `Create` looks at their types, and fails on some mixtures."""
    return elements


def run_all(
    runner: str, question: Question, made: beam.PTransform, inputs: list[list[Any]], *, typed: bool = False
) -> runner_harness.Results:
    """Run a transform on several inputs in one pipeline; its outputs are `rows 0`, `dead 0`, `rows 1` ..

    Only where it is `typed` does Beam know of which type the elements are.
    """

    def build(pipeline: beam.Pipeline) -> dict[str, Any]:
        outputs = {}
        for number, elements in enumerate(inputs):
            if typed:
                given = pipeline | f"Elements {number}" >> beam.Create(elements, reshuffle=False)
            else:
                once = pipeline | f"Once {number}" >> beam.Impulse()
                given = once | f"Elements {number}" >> beam.FlatMap(_given, elements).with_output_types(Any)
            if question.asked:
                asked = pipeline | f"Ask {number}" >> beam.Create(question.asked)
                given = {"events": given, "queries": asked}
            published = given | f"Question {number}" >> made.with_dead_letters()
            outputs[f"rows {number}"], outputs[f"dead {number}"] = published.rows, published.dead_letters
        return outputs

    return runner_harness.run(runner, build)
