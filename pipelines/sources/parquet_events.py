"""Reads Parquet, row group by row group, without touching single rows."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import pyarrow as pa
import pyarrow.parquet as pq
from privstream.pipelines.sources.event_files import InputFileError, Part, RawEvents, describe_row, open_file

BATCH_ROWS = 1 << 16
BATCH_BYTES = 1 << 26


def schema(path: str) -> pa.Schema:
    """Return the types of a file's fields."""
    with _open(path) as file:
        return file.schema_arrow


def parts(path: str, size: int) -> Iterator[Part]:
    """Return one part for each row group."""
    with _open(path) as file:
        groups = file.metadata.num_row_groups
    for group in range(groups):
        yield Part(group, group + 1)


def read(path: str, part: Part, fields: Sequence[str]) -> Iterator[RawEvents]:
    """Read some columns of a file's row groups.

    Raises:
        InputFileError: the file is no Parquet, or is damaged; Arrow does not tell damage from a failing disk or
            network, so a run ends rather than go on without a part of its input.
    """
    with _open(path) as file:
        for group in range(part.start, part.end):
            start = 0
            rows = _batch_rows(file.metadata.row_group(group))
            for batch in file.iter_batches(rows, row_groups=[group], columns=list(fields), use_threads=False):
                columns = {name: batch.column(name) for name in fields}
                yield RawEvents(columns, _Position(group, start), describe_row(columns))
                start += batch.num_rows


class _Position:
    """Names the rows of one batch."""

    def __init__(self, group: int, start: int) -> None:
        self.group, self.start = group, start

    def __call__(self, row: int) -> str:
        return f"row group {self.group + 1}, row {self.start + row + 1}"


def _batch_rows(group: pq.RowGroupMetaData) -> int:
    """Return how many rows to take at once, fewer where rows are long."""
    bytes_per_row = group.total_byte_size / max(group.num_rows, 1)
    return int(max(1, min(BATCH_ROWS, BATCH_BYTES / max(bytes_per_row, 1))))


@contextmanager
def _open(path: str) -> Iterator[pq.ParquetFile]:
    """Open a Parquet file; its errors, raised inside the block, name the file and nothing that is in it."""
    with open_file(path) as stream:
        try:
            yield pq.ParquetFile(stream)
        except (pa.ArrowException, OSError) as error:
            raise InputFileError(f"{path} is not a Parquet file, or is damaged ({type(error).__name__})") from None
