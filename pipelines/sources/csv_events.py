"""CSV as RFC 4180 and pyarrow have it: a quote at the beginning of a field opens it, and elsewhere is text.

A record is a line, or several where a quoted field has line breaks: a reader that took each line for a record would let
one person's text forge records of others. Blocks of whole records are cut here, so that each record has its line, and
pyarrow parses them. A quote that nobody closes would make one record of the rest of the file: the file is refused.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from itertools import chain
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
from privstream.pipelines.sources.fields import NAMES_MAY_BE_DATA
from privstream.pipelines.sources.formats import (
    BYTE_ORDER_MARK,
    PLAIN,
    TEXT_RULE,
    Damage,
    RawEvents,
    TextForm,
    UnfitError,
)
from privstream.transforms.counters import counter
from privstream.transforms.reading.fields import quote

COMMA = b","
DELIMITERS = (COMMA, b";", b"\t", b"|")  # what a header can show to separate fields; another delimiter must be named
RETURN = re.compile(rb"\r(?!\n)")
HEADER_BYTES = 1 << 20
MAX_RECORD_BYTES = 1 << 26
MANY_LINES = 20  # records of more lines are counted: a quote that is no quotation mark may have made one of many
NOT_CLOSED = "the quote that opens a field of the record on line {} is not closed; --quote none if quotes are text"
NO_RETURN = "record must have a line feed behind each carriage return outside of quotes"
RULE = TEXT_RULE


class Header(NamedTuple):
    """The names in a header, and how records are cut into fields."""

    names: list[str]
    delimiter: bytes
    quote: bool
    quoted: re.Pattern[bytes]
    """What finds quoted fields, one after the other; one that is not closed goes on to the end of the text."""


class Records(NamedTuple):
    """Records one behind the other: their text, where each ends behind its line feed, and the line it begins on."""

    text: bytes
    ends: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]

    def bytes_of(self, row: int) -> bytes:
        """Return the text of a record."""
        return self.text[self.ends[row - 1] if row else 0 : self.ends[row]]

    def position(self, row: int) -> str:
        """Say where a record begins."""
        return f"line {self.lines[row]}"

    def record(self, row: int) -> str:
        """Quote a record for its dead letter."""
        return quote(self.bytes_of(row).removesuffix(b"\n").removesuffix(b"\r"))

    def split(self, rows: list[int], code: str, rule: str) -> tuple[Iterator[Damage], Records]:
        """Return what to say of records that break a rule, but for blank ones, and all others."""
        wrong = (row for row in rows if self.bytes_of(row).strip())
        kept = np.delete(np.arange(len(self.ends)), rows)
        texts = [self.bytes_of(row) for row in kept.tolist()]
        others = Records(b"".join(texts), np.cumsum([*map(len, texts)], dtype=np.int64), self.lines[kept])
        return (Damage(code, rule, self.position(row), self.record(row)) for row in wrong), others


def schema(pieces: Iterator[bytes], form: TextForm = PLAIN) -> pa.Schema | None:
    """Return the header's fields, all of them text; None if the file is empty."""
    found = _header(pieces, form)
    if found is None:
        return None
    return pa.schema([(name, pa.string()) for name in found[0].names], metadata={NAMES_MAY_BE_DATA: "no header"})


def check(pieces: Iterator[bytes], form: TextForm = PLAIN) -> None:
    """Refuse text without its end, too long records, a quote that is not closed, one that makes a record of several."""
    for _ in _blocks(pieces, form):
        pass


def read(
    pieces: Iterator[bytes], fields: Sequence[str], form: TextForm = PLAIN, group: int = 0
) -> Iterator[RawEvents | Damage]:
    """Read some fields; what is no record with the header's number of fields is reported with its line."""
    for block, header in _blocks(pieces, form):
        records = block
        if RETURN.search(records.text):
            outside = (header.quoted.sub(b"", records.bytes_of(row)) for row in range(len(records.ends)))
            bare = [row for row, text in enumerate(outside) if RETURN.search(text)]
            damages, records = records.split(bare, "carriage_return", NO_RETURN)
            yield from damages
        try:
            table = _table(records.text, header, fields)
        except pa.ArrowInvalid:
            rule = f"line must be one CSV record with {len(header.names)} fields"
            damages, records = records.split(_misshapen(records.text, header), "malformed_line", rule)
            yield from damages
            table = _table(records.text, header, fields)
        if table.num_rows != len(records.ends):
            raise AssertionError("each record must be one row")
        if table.num_rows:
            columns = {name: table.column(name).combine_chunks() for name in fields}
            yield RawEvents(columns, table.num_rows, records.position, records.record)


def _blocks(pieces: Iterator[bytes], form: TextForm) -> Iterator[tuple[Records, Header]]:
    """Give the records of a file in their order, block by block, with its header."""
    if (found := _header(pieces, form)) is None:
        return
    (header, line, text), many, enough = found, counter("records_of_many_lines"), 0
    for piece in chain(pieces, [b""]):
        text += piece
        if not piece and text and not text.endswith(b"\n"):
            text += b"\n"
        if not text or (piece and len(text) < enough):
            continue
        feeds = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        ends = np.ones(len(feeds), np.bool_)
        is_open = False
        for each in header.quoted.finditer(text):
            is_open = each.end() == len(text)
            if b"\n" in each[0]:
                ends[slice(*np.searchsorted(feeds, each.span()))] = False
        lasts = np.flatnonzero(ends) + 1  # the line of the block that a record ends with
        feeds = feeds[ends] + 1
        if len(feeds):
            counts = np.diff(lasts, prepend=0)
            many.inc(int(np.count_nonzero(counts > MANY_LINES)))
            records = Records(text[: feeds[-1]], feeds, line + lasts - counts)
            for row in np.flatnonzero(counts > 1).tolist():
                record = records.bytes_of(row)
                follow = (record[each.end() :][:1] for each in header.quoted.finditer(record))
                if any(sign not in (header.delimiter, b"\r", b"\n", b"") for sign in follow):
                    rule = "must have quotes around fields, for one makes a record of several lines"
                    raise UnfitError(f"{records.position(row)} {rule}; --quote none if quotes are text")
            yield records, header
            text, line = text[feeds[-1] :], line + int(lasts[-1])
        enough = 2 * len(text)  # so that a long record is not looked through again and again
        if text and not piece:
            raise UnfitError(NOT_CLOSED.format(line))
        if len(text) > MAX_RECORD_BYTES:
            rule = f"a record must be at most {MAX_RECORD_BYTES >> 20} MiB, and that on line {line} is not"
            raise UnfitError(f"{rule}: perhaps {NOT_CLOSED.format(line)}" if is_open else rule)


def _table(
    text: bytes, header: Header, fields: Sequence[str], reject: Callable[[pa_csv.InvalidRow], str] | None = None
) -> pa.Table:
    text = header.delimiter * (len(header.names) - 1) + b"\n" + text  # a row more: no byte order mark begins the text
    types, quotes = dict.fromkeys(fields, pa.binary()), '"' if header.quote else False
    reads = pa_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=header.names)
    parses = pa_csv.ParseOptions(
        delimiter=header.delimiter.decode(), quote_char=quotes, newlines_in_values=header.quote,
        ignore_empty_lines=False, invalid_row_handler=reject,
    )  # fmt: skip
    converts = pa_csv.ConvertOptions(check_utf8=False, include_columns=list(fields), column_types=types)
    return pa_csv.read_csv(pa.BufferReader(text), reads, parses, converts).slice(1)


def _misshapen(text: bytes, header: Header) -> list[int]:
    """Return which records have another number of fields: pyarrow tells it of text that is UTF-8 alone."""
    rows: list[int] = []

    def note(row: pa_csv.InvalidRow) -> str:
        rows.append(row.number - 2)  # it counts from 1, with the row more
        return "skip"

    _table(text.decode("latin-1").encode(), header, [], note)
    return rows


def _header(pieces: Iterator[bytes], form: TextForm) -> tuple[Header, int, bytes] | None:
    """Read the first record that is not blank; return it, the next line, and the text behind it; None if none is.

    The delimiter, if not named, is what separates all names that are asked for, or else most names. A file with nothing
    else in its first mebibyte is refused.
    """
    text, piece = b"", b"\n"
    while piece and len(text) < HEADER_BYTES:
        piece = next(pieces, b"")
        text += piece
    text = text.removeprefix(BYTE_ORDER_MARK)
    if not piece and text and not text.endswith(b"\n"):
        text += b"\n"
    blank = text[: len(text) - len(text.lstrip())].rfind(b"\n") + 1
    line, text = 1 + text.count(b"\n", 0, blank), text[blank:]
    if not text and not piece:
        return None
    found: list[tuple[list[str], bytes, int]] = []
    quoting: Literal[0, 3] = csv.QUOTE_MINIMAL if form.quote else csv.QUOTE_NONE
    shown = text.decode("utf-8", "surrogateescape")
    for delimiter in [form.delimiter] if form.delimiter else DELIMITERS:
        lines = io.StringIO(shown, newline="\n")
        reader = csv.reader(lines, delimiter=delimiter.decode(), quoting=quoting, strict=True)
        with suppress(csv.Error, UnicodeEncodeError):  # a quote that is not closed, a bare return; no UTF-8
            names = next(reader)
            "".join(names).encode()
            whole = reader.line_num <= text.count(b"\n")
            if whole and (len(names) > 1 or delimiter in (COMMA, form.delimiter)):
                found.append((names, delimiter, reader.line_num))
    fitting = [each for each in found if set(form.names) <= set(each[0])]
    if not found:
        raise UnfitError(f"its first line must {_rule_of_header(form, text)}")
    if form.names and len(fitting) > 1:
        raise UnfitError("--delimiter must be given, for its first line can be read in several ways")
    names, delimiter, count = max(fitting or found, key=lambda each: len(each[0]))
    # A quote first, so that all else is passed over fast; then that nothing, a line feed or a delimiter is before it.
    quoted = rb'"(?<![^\n%s]")(?:[^"]++|"")*+"?' % re.escape(delimiter) if form.quote else rb'"(?!)'
    header = Header(names, delimiter, form.quote, re.compile(quoted))
    return header, line + count, text.split(b"\n", count)[-1]


def _rule_of_header(form: TextForm, text: bytes) -> str:
    """Word which rule the first line of a text breaks, which is no header."""
    text = text[: text.find(b"\n") + 1] or text
    try:
        text.decode()
    except UnicodeDecodeError:
        how = "end its name in .gz" if text[:2] == b"\x1f\x8b" else "name its encoding, as in --encoding windows-1252"
        return f"be text in {form.encoding.upper()}, and is not: {how}"
    if RETURN.search(text):
        return "end with a line feed: it has a carriage return without one; write the file with line feeds"
    return "be a CSV header, with each quote closed"
