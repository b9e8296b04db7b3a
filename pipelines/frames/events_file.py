"""From a frame to a file of events."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
from privstream.pipelines.sources.fields import is_text

FRAMES = "have __arrow_c_stream__, as those of pandas (2.2 or newer), Polars (collected), pyarrow and DuckDB have"
COLUMN = re.compile(r"Conversion failed for column (.+) with type ")


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


def write_events(table: pa.Table, names: Sequence[str], path: str) -> None:
    """Write some columns of a table as a new Parquet file, which its owner alone can read.

    The same values in the same order give the same bytes, whatever library the frame is of, however it is cut into
    chunks, and whatever other columns, index or metadata it has: so the file's fingerprint is that of its contents.
    Another order gives other bytes, because where a person's events are limited, which of them count may depend on it.
    """
    columns = {name: _plain(table.column(name)) for name in names}
    with open(os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as stream:
        pq.write_table(pa.table(columns), stream, store_schema=False)


def _plain(column: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return a column as one chunk, with text written out where it is a dictionary or a view."""
    kind = column.type
    if is_text(kind):
        value = kind.value_type if pa.types.is_dictionary(kind) else kind
        text = pa.types.is_string(value) or pa.types.is_large_string(value) or pa.types.is_string_view(value)
        column = column.cast(pa.large_string() if text else pa.large_binary())
    return pa.chunked_array([column.combine_chunks()], column.type)
