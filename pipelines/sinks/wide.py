"""Rows side by side: a line for each item, a column for each window."""

from __future__ import annotations

from typing import Any

import pyarrow as pa
from privstream.mechanisms.views.tables import in_micros
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.sinks.row_files import PLAIN, arrow_schema, output_format, shape_of, write_tables
from privstream.pipelines.stores import whole_file

WIDE_FORMATS = ("csv", "xlsx", "parquet")
NUMBERS = ("people", "value", "estimate")  # fields with the number of a row; the first that it has is shown
LABELS = ("query", "quantile", "low", "high")  # fields that tell apart what is followed over windows, beside the item


def check_wide(path: str, row_type: type, *, unbounded: bool) -> None:
    """Check before a run that its rows can be written so."""
    if unbounded or path.rpartition(".")[2].lower() not in WIDE_FORMATS:
        known = ", ".join(f".{each}" for each in WIDE_FORMATS)
        raise ValueError(f"wide must be given with a run that ends and an --output of {known}, got {path}")
    fields = shape_of(row_type).fields
    if "window_start" not in fields or not {*NUMBERS} & {*fields} or {"rule", "state"} & {*fields}:
        raise ValueError(f"wide must be given with rows that have a number in each window, not {row_type.__name__}")


def write_wide(path: str, row_type: type, rows: pa.Table) -> None:
    """Write rows side by side, the largest sum first; a window in which an item has no row is empty.

    Privacy: post-processing.
    """
    shape, plain = shape_of(row_type), in_micros(rows).to_pylist()
    types, clocks = shape.columns, Clocks(shape.layout.zone)
    number = next(name for name in NUMBERS if name in types)
    items = shape.parts or ((shape.item,) if shape.item else ())
    names = [name for name in LABELS if any(row.get(name, "") != "" for row in plain)] + [*items]
    starts = sorted({row["window_start"] for row in plain})
    days = clocks.at_midnight(starts)
    heads = [clocks.local(start).date().isoformat() if days else shape.layout.time(start) for start in starts]
    lines: dict[tuple[Any, ...], dict[int, Any]] = {}
    for row in plain:
        lines.setdefault(tuple(row[name] for name in names), {})[row["window_start"]] = row[number]
    largest = sorted(lines.items(), key=lambda line: -sum(filter(None, line[1].values())))
    schema = arrow_schema({name: types[name] for name in names} | dict.fromkeys(heads, types[number]), PLAIN, heads)
    cells = zip(*((*label, *map(line.get, starts)) for label, line in largest), strict=True)
    table = pa.table([*cells], schema=schema) if largest else schema.empty_table()
    with whole_file(path) as stream:
        write_tables(stream, row_type.__name__, schema, [table], output_format(path), shape.layout)
