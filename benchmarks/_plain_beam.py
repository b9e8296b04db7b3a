"""What one writes without privstream, and without privacy: how many different people hold an item in each window.

Both pipelines follow Beam's own examples: rows of Parquet as dictionaries, event time, fixed windows, then either one
group per person, or `Distinct`.
"""

import json
from collections.abc import Iterable, Iterator
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from apache_beam.transforms.combiners import Count
from apache_beam.transforms.window import FixedWindows, TimestampedValue

FIELDS = ["user", "item", "time"]


def timestamped_pair(row: dict[str, Any]) -> TimestampedValue[tuple[str, str]]:
    return TimestampedValue((row["user"], row["item"]), row["time"].timestamp())


def distinct_items(held: tuple[str, Iterable[str]]) -> Iterator[str]:
    yield from set(held[1])


def item_of(pair: tuple[str, str]) -> str:
    return pair[1]


def is_heavy(counted: tuple[str, int], min_holders: int) -> bool:
    return counted[1] >= min_holders


def to_line(counted: tuple[str, int], window: Any = beam.DoFn.WindowParam) -> str:
    item, count = counted
    return json.dumps({"window_start": float(window.start), "item": item, "count": count})


def group_by_person(pipeline: beam.Pipeline, events: str, output: str, window: int, min_holders: int) -> None:
    """GroupByKey per person, then count per item."""
    items = _windowed(pipeline, events, window) | beam.GroupByKey() | "Items" >> beam.FlatMap(distinct_items)
    _count(items, output, min_holders)


def distinct_pairs(pipeline: beam.Pipeline, events: str, output: str, window: int, min_holders: int) -> None:
    """Distinct pairs of person and item, then count per item."""
    items = _windowed(pipeline, events, window) | beam.Distinct() | "Items" >> beam.Map(item_of)
    _count(items, output, min_holders)


def _windowed(pipeline: beam.Pipeline, events: str, window: int) -> Any:
    return (
        pipeline
        | "Read" >> beam.io.ReadFromParquet(events, columns=FIELDS)
        | "EventTime" >> beam.Map(timestamped_pair)
        | "Window" >> beam.WindowInto(FixedWindows(window))
    )


def _count(items: Any, output: str, min_holders: int) -> None:
    (
        items
        | "Count" >> Count.PerElement()
        | "Heavy" >> beam.Filter(is_heavy, min_holders)
        | "Line" >> beam.Map(to_line)
        | "Write" >> beam.io.WriteToText(output, file_name_suffix=".jsonl")
    )


def arrow_alone(events: str, output: str, window: int, min_holders: int) -> None:
    """The same answer by Arrow in one thread: no pipeline, no stream, everything in memory."""
    table = pq.read_table(events, columns=FIELDS, use_threads=False)
    step = pc.divide(table["time"].cast(pa.int64()), window * 1_000_000)
    groups = table.append_column("step", step).group_by(["step", "item"], use_threads=False)
    counted = groups.aggregate([("user", "count_distinct")])
    pq.write_table(counted.filter(pc.greater_equal(counted["user_count_distinct"], min_holders)), output)
