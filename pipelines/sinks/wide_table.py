"""A view of the rows of a finished run: one row for each item, one column for each window."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pyarrow as pa
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.sinks.row_files import output_format, shape_of, whole_file
from privstream.pipelines.sinks.row_formats import arrow_schema, write_tables
from privstream.transforms.reading.domain import split_item

WIDE_FORMATS = ("csv", "xlsx", "parquet")
NUMBERS = ("people", "value", "estimate")
"""Fields with the number of a row; the first that it has is shown."""

LABELS = ("query", "quantile", "low", "high")
"""Fields that tell apart what is followed over windows, beside the item."""


def check_wide(path: str, row_type: type, *, unbounded: bool) -> None:
    """Check before a run that its rows can be written so."""
    if unbounded or path.rpartition(".")[2].lower() not in WIDE_FORMATS:
        known = ", ".join(f".{each}" for each in WIDE_FORMATS)
        raise ValueError(f"wide must be given with a run that ends and an --output of {known}, got {path}")
    fields = shape_of(row_type).fields
    if "window_start" not in fields or not {*NUMBERS} & {*fields} or {"rule", "state"} & {*fields}:
        raise ValueError(f"wide must be given with rows that have a number in each window, not {row_type.__name__}")


def write_wide(path: str, row_type: type, rows: Sequence[Any]) -> None:
    """Write rows side by side, the largest sum first; a window in which an item has no row is empty.

    Privacy: post-processing.
    """
    shape = shape_of(row_type)
    types, layout, item = shape.fields, shape.layout, shape.item
    number = next(name for name in NUMBERS if name in types)
    names = [name for name in LABELS if name in types and any(getattr(row, name) != "" for row in rows)]
    columns = shape.parts or ((item,) if item else ())
    clocks = Clocks(layout.zone)
    starts = sorted({row.window_start.micros for row in rows})
    days = clocks.at_midnight(starts)
    heads = {start: clocks.local(start).date().isoformat() if days else layout.time(start) for start in starts}
    lines: dict[tuple[Any, ...], dict[int, Any]] = {}
    for row in rows:
        parts = () if item is None else split_item(getattr(row, item), len(columns))
        label = *(getattr(row, name) for name in names), *parts
        lines.setdefault(label, {})[row.window_start.micros] = getattr(row, number)
    largest = sorted(lines.items(), key=lambda line: -sum(filter(None, line[1].values())))
    fields = {name: types[name] for name in names} | dict.fromkeys(columns, str)
    fields |= dict.fromkeys(heads.values(), types[number])
    schema = arrow_schema(fields, layout, heads.values())
    cells = zip(*((*label, *(line.get(start) for start in starts)) for label, line in largest), strict=True)
    table = pa.table([*cells], schema=schema) if largest else schema.empty_table()
    with whole_file(path) as stream:
        write_tables(stream, shape.name, schema, [table], output_format(path), layout)
