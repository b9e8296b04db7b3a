"""Batches as they go on: text written out, and never so much of it that Arrow or a worker has no room."""

from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

TEXT_BYTES = 1 << 26
"""A batch of several rows has at most so much text."""


def plain_batches(batch: pa.RecordBatch) -> Iterator[pa.RecordBatch]:
    """Write out the dictionaries of a batch without nulls, in as many pieces as its text needs."""
    texts = [column for column in batch.columns if _is_dictionary(column) or pa.types.is_string(column.type)]
    if not batch.num_rows or sum(map(_most_bytes, texts)) <= TEXT_BYTES:
        yield _plain(batch)
        return
    ends = np.cumsum(np.sum([_lengths(column) for column in texts], axis=0))
    first = 0
    while first < batch.num_rows:
        before = int(ends[first - 1]) if first else 0
        last = max(first + 1, int(np.searchsorted(ends, before + TEXT_BYTES, side="right")))
        yield _plain(batch.slice(first, last - first))
        first = last


def _plain(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Write out the dictionaries of a batch."""
    columns = [column.dictionary_decode() if _is_dictionary(column) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _most_bytes(column: pa.Array) -> int:
    """Return at least as many bytes as the text of a column has when it is written out."""
    if not _is_dictionary(column):
        return int(column.nbytes)
    return len(column) * (pc.max(pc.binary_length(column.dictionary)).as_py() or 0)


def _lengths(column: pa.Array) -> np.ndarray:
    """Return the bytes of each text, int64."""
    if not _is_dictionary(column):
        return np.asarray(pc.binary_length(column).to_numpy().astype(np.int64))
    lengths = pc.fill_null(pc.binary_length(column.dictionary), 0).to_numpy().astype(np.int64)
    return np.asarray(lengths[column.indices.to_numpy()])


def _is_dictionary(column: pa.Array) -> bool:
    """Tell whether the rows of a column are numbers of texts."""
    return bool(pa.types.is_dictionary(column.type))
