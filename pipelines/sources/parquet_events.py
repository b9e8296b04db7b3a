"""Reads Parquet, row group by row group, without touching single rows.

A few bytes can stand for gigabytes of text: a dictionary names a long value once, and `DELTA_BYTE_ARRAY` says only what
differs from the row before. So how many rows are decoded at once follows from how long their values can be.
"""

import io
from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import BinaryIO

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from privstream.pipelines.sources.formats import PLAIN, RawEvents, TextForm, UnfitError, numbered
from privstream.transforms.reading.fields import cut_by_text, unchecked_text

BATCH_ROWS = 1 << 18
FEW_ROWS = 128  # rows that are decoded at once where any of them may be long
BATCH_BYTES = 1 << 26
GROUP_BYTES = 1 << 27  # a row group with less text than this, dictionaries counted once, may be in memory as a whole
PROBE_BYTES = 1 << 20
FOOTER_END = 8  # bytes: the length of the footer, and the magic number
MAGIC, ENCRYPTED_MAGIC = b"PAR1", b"PARE"
SIGNATURE_BYTES = 28  # of a footer that can be read although columns are encrypted
RULE = "is not a Parquet file, or is damaged"


def schema(stream: BinaryIO, form: TextForm = PLAIN) -> pa.Schema:
    """Return the types of a file's fields."""
    stored_types(stream)
    return pq.read_schema(stream)


check = schema  # a damaged page is found where it is read


def read(stream: BinaryIO, fields: Sequence[str], form: TextForm = PLAIN, group: int = 0) -> Iterator[RawEvents]:
    """Read some columns of a row group; text in which long values may be many comes as dictionaries.

    A damaged file ends the run: Arrow does not distinguish it from a failing disk or network.
    """
    metadata = stored_types(stream)
    first = 1
    for batch in _batches(stream, metadata, group, fields):
        whole = {name: unchecked_text(batch.column(name)) for name in fields}
        for piece in cut_by_text(whole, batch.num_rows):  # dictionaries have room to be written out
            columns = {name: column[piece] for name, column in whole.items()}
            numbers = range(first + piece.start, first + piece.stop)
            yield numbered(columns, f"row group {group + 1}, row", numbers)
        first += batch.num_rows


def _batches(
    stream: BinaryIO, metadata: pq.FileMetaData, number: int, fields: Sequence[str]
) -> Iterator[pa.RecordBatch]:
    """Decode some columns of a row group; a batch takes a few times `GROUP_BYTES`, and the largest page, at most."""
    group = metadata.row_group(number)
    chunks = [group.column(column) for column in range(group.num_columns)]
    texts = [chunk for chunk in chunks if chunk.path_in_schema in fields and chunk.physical_type == "BYTE_ARRAY"]
    coded = [chunk.path_in_schema for chunk in texts if chunk.has_dictionary_page]
    refers_back = any("DELTA_BYTE_ARRAY" in chunk.encodings for chunk in texts)
    rows, dictionaries = BATCH_ROWS, []
    if refers_back or sum(chunk.total_uncompressed_size for chunk in texts) > GROUP_BYTES:
        rows = FEW_ROWS
    elif coded and _longest_row(stream, metadata, number, coded) * BATCH_ROWS > BATCH_BYTES:
        dictionaries = coded
    file = pq.ParquetFile(stream, metadata=metadata, read_dictionary=dictionaries, coerce_int96_timestamp_unit="us")
    yield from file.iter_batches(rows, row_groups=[number], columns=list(fields), use_threads=False)


def _longest_row(stream: BinaryIO, metadata: pq.FileMetaData, number: int, names: list[str]) -> int:
    """Return the bytes of a row with the longest text of each dictionary: the first row brings them whole."""
    file = pq.ParquetFile(stream, metadata=metadata, read_dictionary=names, pre_buffer=False, buffer_size=PROBE_BYTES)
    for batch in file.iter_batches(1, row_groups=[number], columns=names, use_threads=False):
        return sum(pc.max(pc.binary_length(column.dictionary)).as_py() or 0 for column in batch.columns)
    return 0


def stored_types(stream: BinaryIO) -> pq.FileMetaData:
    """Return the metadata of a file without the types that its columns had in Arrow before they were written.

    These would make pyarrow gather all values of a row group in one dictionary, which has room for 2 GiB. Columns that
    are encrypted are refused: of them pyarrow would end the process.
    """
    stream.seek(-FOOTER_END, io.SEEK_END)
    end = stream.read(FOOTER_END)
    size = int.from_bytes(end[:4], "little")
    stream.seek(-FOOTER_END - size, io.SEEK_END)
    footer = stream.read(size)
    metadata = None if end[4:] == ENCRYPTED_MAGIC else _parsed(footer + end)
    if metadata is None or size - metadata.serialized_size == SIGNATURE_BYTES:
        raise UnfitError("it is encrypted, and there is no key for it here")
    return metadata


@lru_cache(maxsize=4)
def _parsed(footer: bytes) -> pq.FileMetaData:
    """Parse a footer, once for row groups that are read one after the other."""
    return pq.read_metadata(io.BytesIO(MAGIC + footer.replace(b"ARROW:schema", b"arrow:schema")))


def row_groups(stream: BinaryIO) -> list[int]:
    """Return the rows of each row group."""
    metadata = stored_types(stream)
    return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]
