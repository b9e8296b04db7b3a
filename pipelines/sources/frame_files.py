"""A frame of events as a file that every runner can read."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Sequence
from itertools import chain
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from privstream.transforms.events.event_columns import is_text

FRAMES = "have __arrow_c_stream__, as those of pandas (2.2 or newer), Polars (collected), pyarrow and DuckDB have"
COLUMN = re.compile(r"Conversion failed for column (.+) with type ")
LEAST, MOST_SECONDS = -(1 << 63), (1 << 63) // 1000 - 1


def as_table(frame: Any) -> pa.Table:
    """Return a frame as an Arrow table.

    Raises:
        TypeError: it is none, or has a column that Arrow cannot take; no value of it is quoted.
    """
    if not hasattr(frame, "__arrow_c_stream__"):
        raise TypeError(f"frame must {FRAMES}, got {type(frame).__name__}")
    try:
        return pa.table(frame)
    except Exception as error:  # each library has its own, and they quote values
        column = COLUMN.match(str(error.args[-1])) if error.args else None
        which = f"column `{column[1]}` is not" if column else "a column is not"
        raise TypeError(f"frame must have columns of one type each: {which} ({type(error).__name__})") from None


def write_events(tables: Iterable[pa.Table], names: Sequence[str], path: str) -> None:
    """Write some columns of tables, at least one, as a new Parquet file, which its owner alone can read.

    The same values in the same order give the same bytes, whatever library the frame is of, however it is cut into
    chunks, and whatever other columns, index or metadata it has: so the file's fingerprint is that of its contents.
    Another order gives other bytes, because where a person's events are limited, which of them count may depend on it.
    """
    try:
        plain = (pa.table({name: _plain(table.column(name)) for name in names}) for table in tables)
        first = next(plain)
        with (
            open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream,
            pq.ParquetWriter(stream, first.schema, store_schema=False) as writer,
        ):
            for table in chain([first], plain):
                writer.write_table(table)
    except pa.ArrowException as error:  # its words quote values
        raise TypeError(f"frame must have columns that Parquet can hold ({type(error).__name__})") from None


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as one chunk, with text written out where it is a dictionary or a view."""
    kind = column.type
    if is_text(kind):
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
        column = column.cast(pa.large_string() if text else pa.large_binary())
    elif pa.types.is_timestamp(kind) and kind.unit == "s":  # Parquet has no seconds; what is too large is no time
        seconds = column.cast(pa.int64())
        fits = pc.less_equal(pc.abs(pc.if_else(pc.equal(seconds, LEAST), 0, seconds)), MOST_SECONDS)
        fits = pc.and_(fits, pc.not_equal(seconds, LEAST))
        column = pc.if_else(fits, seconds, pa.scalar(None, pa.int64())).cast(kind)
    return pa.chunked_array([column.combine_chunks()], column.type)
