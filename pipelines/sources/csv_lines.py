"""Reads CSV with a header: records as RFC 4180 has them, commas, double quotes.

All fields are read as text, so that `007` stays what it is. A block of records is parsed at once by Arrow, whose rules
are looser: it sees only what has been found to be records. Where a number of fields is wrong, each is looked at.
"""

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import pyarrow as pa
import pyarrow.csv as pa_csv
from privstream.pipelines.sources.csv_records import RecordCutter, Records
from privstream.pipelines.sources.event_files import Damage, InputFileError, Part, RawEvents
from privstream.pipelines.sources.fields import NAMES_MAY_BE_DATA
from privstream.pipelines.sources.text_pieces import BYTE_ORDER_MARK, read_pieces

HEADER_BYTES = 1 << 20
FIRST_BYTES = 64
"""So few are read at first: of a compressed file that ends early, the header can still be had."""

FIRST_LINE = re.compile(rb"(?:%s)?+(?P<blank>(?:[ \t\r\v\f]*+\n)*+)(?P<line>[^\n]++)\n" % BYTE_ORDER_MARK)


def schema(path: str) -> pa.Schema | None:
    """Return the header's fields, all of them text; None if the file is empty."""
    header = _read_header(path)
    if header is None:
        return None
    fields = [(name, pa.string()) for name in header.names]
    return pa.schema(fields, metadata={NAMES_MAY_BE_DATA: "no header"})


def parts(path: str, size: int) -> Iterator[Part]:
    """Return the file as one part: the numbers of its lines are known only from its beginning."""
    yield Part(0, size)


def read(path: str, part: Part, fields: Sequence[str]) -> Iterator[RawEvents | Damage]:
    """Read some fields; what is no record with the header's number of fields is reported with its line."""
    header = _read_header(path)
    if header is None:
        return
    cutter = RecordCutter(path, len(header.names), header.end, header.line + 1)
    for found in cutter.read():
        if isinstance(found, Damage):
            yield found
            continue
        try:
            yield _parse(found, header.names, fields)
        except pa.ArrowInvalid:
            misshapen = cutter.misshapen(found)
            yield from cutter.refuse(found, misshapen)
            if not misshapen.all():
                yield _parse(found.take(~misshapen), header.names, fields)


def _parse(records: Records, header: list[str], fields: Sequence[str]) -> RawEvents:
    """Parse records at once.

    Raises:
        ArrowInvalid: some do not have the header's number of fields.
    """
    block = b"\n" + records.joined()  # a blank line, so that Arrow takes no record for a byte order mark
    table = pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=header),
        convert_options=pa_csv.ConvertOptions(
            include_columns=list(fields),
            column_types=dict.fromkeys(fields, pa.binary()),
            strings_can_be_null=False,
            check_utf8=False,
        ),
    )
    if table.num_rows != len(records):
        raise pa.ArrowInvalid("each record must be one row")
    columns = {name: table.column(name).combine_chunks() for name in fields}
    return RawEvents(columns, records.position, records.record)


@dataclass(frozen=True)
class _Header:
    """The names in a header, the line that it stands on, and where in the file that line ends."""

    names: list[str]
    line: int
    end: int


def _read_header(path: str) -> _Header | None:
    """Read the first line that is not blank; None if there is none."""
    text = b""
    for piece in chain(read_pieces(path, size=FIRST_BYTES), [b"\n"]):
        text += piece
        found = FIRST_LINE.match(text)
        if found is not None and found["line"].strip():
            return _Header(_names(found["line"], path), found["blank"].count(b"\n") + 1, found.end())
        if len(text) > HEADER_BYTES:
            raise _no_header(path)
    return None


def _names(line: bytes, path: str) -> list[str]:
    """Return the names in a header."""
    if line.count(b'"') % 2 or b"\r" in line.removesuffix(b"\r"):
        raise _no_header(path)
    try:
        return list(pa_csv.read_csv(pa.BufferReader(line + b"\n")).column_names)
    except (pa.ArrowInvalid, UnicodeDecodeError):
        raise _no_header(path) from None


def _no_header(path: str) -> InputFileError:
    """Word the error of a file whose first line is no header."""
    return InputFileError(f"{path}: the first line must be a CSV header in UTF-8")
