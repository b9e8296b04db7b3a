"""Tables of published rows, and the windows that they are about."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from privstream.mechanisms.arrays import Integers


class Windows(Protocol):
    """Which windows there are."""

    def starting(self, moments: Any) -> Any:
        """Return the number of the window that starts at a moment, or at each of some."""

    def renewals(self, step: Any) -> Any:
        """Return how many budget periods are over before a window, or before each of some."""


def with_columns(table: pa.Table, columns: Mapping[str, np.ndarray]) -> pa.Table:
    """Return a table with further columns, or others in their place; nan is null."""
    known = dict(zip(table.column_names, table.columns, strict=True))
    return pa.table(known | {name: pa.array(column, from_pandas=True) for name, column in columns.items()})


def numbered(texts: pa.ChunkedArray) -> Integers:
    """Return a number for each text: equal ones for equal texts, in their order."""
    found = texts.combine_chunks().dictionary_encode()
    places = np.empty(len(found.dictionary), np.int64)
    places[pc.sort_indices(found.dictionary).to_numpy()] = np.arange(len(places))
    return np.asarray(places[found.indices.to_numpy()])


def in_micros(table: pa.Table) -> pa.Table:
    """Return a table with its times as numbers: microseconds since 1970."""
    types = [pa.int64() if pa.types.is_timestamp(each) else each for each in table.schema.types]
    return table.cast(pa.schema(map(pa.Field.with_type, table.schema, types)))
