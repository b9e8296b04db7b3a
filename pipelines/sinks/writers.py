"""Writes the rows of a bounded run: one file that appears whole or not at all."""

import pickle
from collections.abc import Iterable, Sequence
from functools import partial
from itertools import chain
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import AsIter
from apache_beam.transforms.window import GlobalWindows
from privstream.pipelines.sinks.row_files import (
    ALIKE,
    COMPLETE,
    check_destination,
    output_format,
    shape_of,
    sort_rows,
    write_row_file,
)
from privstream.transforms.reading.domain import number_alike
from typing_extensions import override

MOST_TOGETHER = 1000
"""Rows in one element: a runner spends more on an element than a file on a row."""


class WriteRows(beam.PTransform[Any, Any]):
    """Writes all rows of a bounded collection as one file, also when there are none.

    The file gets its name only when it is complete; a run that fails leaves whatever was there before. Results are
    small, so one worker writes them; rows with an item are in its memory, such as dead letters are not.

    Args:
        order: fields to sort by, `-` before a name for falling numbers; empty keeps the order in which rows come.
        tables: whether tables come in place of rows: pairs of an encoded `StepKey` and an Arrow stream, times in
            microseconds.
    """

    def __init__(
        self,
        path: str,
        row_type: type,
        *,
        order: Sequence[str] = (),
        option: str = "--output",
        private: bool = False,
        tables: bool = False,
    ) -> None:
        super().__init__()
        self.path, self.format, self.tables = path, output_format(path, option), tables
        unknown = {name.removeprefix("-") for name in order} - {*shape_of(row_type).fields}
        if unknown:
            raise ValueError(f"order must name fields of {row_type.__name__}, got {', '.join(sorted(unknown))}")
        check_destination(path, option)
        self.write = partial(_write, tables=tables, path=path, row_type=row_type, order=tuple(order), private=private)

    @override
    def expand(self, rows: Any) -> Any:
        if not rows.is_bounded:
            raise ValueError("WriteRows must get a bounded collection")
        if not rows.windowing.is_default():
            rows = rows | "Into one window" >> beam.WindowInto(GlobalWindows())
        if not self.tables:  # without their schema, which Flink cannot hand to a side input in streaming mode
            rows = (
                rows
                | "Plain" >> beam.Map(tuple).with_output_types(Any)
                | "Together" >> beam.BatchElements(min_batch_size=MOST_TOGETHER, max_batch_size=MOST_TOGETHER)
                | "Encoded" >> beam.Map(pickle.dumps).with_output_types(bytes)
            )
        return rows.pipeline | "Once" >> beam.Impulse() | "Write file" >> beam.Map(self.write, parts=AsIter(rows))

    @override
    def display_data(self) -> dict[str, Any]:
        return {"path": self.path, "format": self.format}


def _write(
    impulse: bytes,
    parts: Iterable[Any],
    *,
    tables: bool,
    path: str,
    row_type: Any,
    order: tuple[str, ...],
    private: bool,
) -> None:
    """Write the file; count that it is complete, and which of its names look like others."""
    item = shape_of(row_type).item
    if tables:
        found = [pa.ipc.open_stream(data).read_all() for _, data in sorted(parts)]
        rows: Any = pa.concat_tables(found, promote_options="default") if found else []
    else:
        rows = map(row_type._make, chain.from_iterable(map(pickle.loads, parts)))
        rows = sort_rows(rows, order) if order or item is not None else rows
    write_row_file(path, row_type, rows, private=private)
    Metrics.counter("privstream", COMPLETE).inc()
    if item is not None:
        names = rows[item].unique().to_pylist() if isinstance(rows, pa.Table) else {getattr(row, item) for row in rows}
        Metrics.counter("privstream", ALIKE).inc(number_alike(names))
