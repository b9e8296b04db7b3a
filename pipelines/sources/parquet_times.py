"""The least time of each row group of a Parquet file, as its statistics state it."""

from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq
from privstream.pipelines.sources.fields import FieldMapping
from privstream.pipelines.sources.parquet_events import open_parquet, stored_types
from privstream.transforms.events.times import micros_column

PHYSICAL = {"INT32": pa.int32(), "INT64": pa.int64()}
"""Types whose order is that of time: text has another one, and a NaN among floats may spoil what is stated."""


class RowGroup(NamedTuple):
    """What is stated of a row group: its rows, and microseconds before which it has no event; None if not stated."""

    rows: int
    least: int | None


def row_groups(path: str, fields: FieldMapping) -> list[RowGroup]:
    """Return what the footer of a file states of its row groups.

    Raises:
        InputFileError: the file is no Parquet, or is damaged.
    """
    with open_parquet(path) as stream:
        metadata = stored_types(stream)
        column = _time_column(metadata, fields.time)
        kind = metadata.schema.to_arrow_schema().field(fields.time).type
        groups = [metadata.row_group(number) for number in range(metadata.num_row_groups)]
        return [
            RowGroup(group.num_rows, None if column is None else _least(group.column(column), kind, fields.time_unit))
            for group in groups
        ]


def _time_column(metadata: pq.FileMetaData, name: str) -> int | None:
    """Return the number of the one column that is called so; of two, nothing is known."""
    numbers = [number for number in range(metadata.num_columns) if metadata.schema.column(number).path == name]
    return numbers[0] if len(numbers) == 1 else None


def _least(chunk: pq.ColumnChunkMetaData, kind: pa.DataType, unit: str | None) -> int | None:
    """Return the least time of a column of a row group, read as the reader of events reads it.

    What cannot be a time is the beginning: it holds everything back until the row group has been read.
    """
    statistics, physical = chunk.statistics, PHYSICAL.get(chunk.physical_type)
    signed = pa.types.is_timestamp(kind) or kind == physical
    if statistics is None or physical is None or not signed or not statistics.has_min_max:
        return None
    stated = pa.array([statistics.min_raw], physical)
    times, marks = micros_column(stated.cast(kind), unit or "s")
    return 0 if any(rows.any() for rows, _ in marks) else int(times[0])
