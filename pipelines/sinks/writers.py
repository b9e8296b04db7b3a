"""Writes the rows of a bounded run: one file that appears whole or not at all."""

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import apache_beam as beam
import pyarrow as pa
from apache_beam.metrics.metric import Metrics
from apache_beam.pvalue import AsIter
from apache_beam.transforms.window import GlobalWindows
from privstream.pipelines.sinks.row_files import (
    COMPLETE,
    check_destination,
    output_format,
    plain_table,
    shape_of,
    sort_table,
    whole_file,
    write_row_file,
    write_rows,
)
from privstream.transforms.batches import from_stream, to_stream
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
        owner_only: bool = False,
        tables: bool = False,
    ) -> None:
        super().__init__()
        self.path, self.row_type, self.tables = path, row_type, tables
        self.format = output_format(path, option)
        unknown = {name.removeprefix("-") for name in order} - {*shape_of(row_type).fields}
        if unknown:
            raise ValueError(f"order must name fields of {row_type.__name__}, got {', '.join(sorted(unknown))}")
        check_destination(path, option)
        self.write = partial(_write, path=path, row_type=row_type, order=tuple(order), owner_only=owner_only)

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
                | "Encoded" >> beam.Map(_encoded, self.row_type).with_output_types(tuple[bytes, bytes])
            )
        return rows.pipeline | "Once" >> beam.Impulse() | "Write file" >> beam.Map(self.write, parts=AsIter(rows))


def _encoded(rows: Iterable[Any], row_type: Any) -> tuple[bytes, bytes]:
    """Return rows as an Arrow stream."""
    return b"", to_stream(plain_table(row_type, rows))


def _write(
    impulse: bytes, parts: Iterable[Any], *, path: str, row_type: Any, order: tuple[str, ...], owner_only: bool
) -> None:
    """Write the file; count that it is complete."""
    if order or shape_of(row_type).item is not None:
        found = [from_stream(data) for _, data in sorted(parts)]
        table = pa.concat_tables(found, promote_options="default") if found else plain_table(row_type, ())
        write_row_file(path, row_type, sort_table(table, order), owner_only=owner_only)
    else:
        with whole_file(path, owner_only=owner_only) as stream:
            tables = (pa.ipc.open_stream(data).read_all() for _, data in parts)
            write_rows(stream, row_type, tables, output_format(path))
    Metrics.counter("privstream", COMPLETE).inc()
