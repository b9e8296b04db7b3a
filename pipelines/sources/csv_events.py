"""CSV as RFC 4180 and pyarrow have it: a quote at the beginning of a field opens it, and elsewhere is text.

A record is a line, or several where a quoted field has line breaks: a reader that took each line for a record would let
one person's text forge records of others. Blocks of whole records are cut here, so that each record has its line, and
pyarrow parses them. A quote that nobody closes would make one record of the rest of the file: the file is refused.
"""

from __future__ import annotations

import re
from collections import deque
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv as pa_csv
from privstream.pipelines.sources import text_lines
from privstream.pipelines.sources.event_files import (
    LONG_RECORDS,
    MANY_LINES,
    PLAIN,
    Damage,
    InputFileError,
    Part,
    RawEvents,
    TextForm,
)
from privstream.pipelines.sources.fields import NAMES_MAY_BE_DATA
from privstream.pipelines.sources.text_lines import BYTE_ORDER_MARK, quote, read_pieces, too_long
from privstream.transforms.counters import counter

COMMA = b","
DELIMITERS = (COMMA, b";", b"\t", b"|")
"""What a header can show to separate fields; another delimiter must be named."""

RETURN = re.compile(rb"\r(?!\n)")
HEADER_BYTES, FIRST_BYTES = 1 << 20, 64
"""A header has so many bytes at most. So few are read at first: of a compressed file that ends early, it can be had."""


def quoted(delimiter: bytes) -> re.Pattern[bytes]:
    """Return what finds quoted fields, one after the other; one that is not closed goes on to the end of the text."""
    return re.compile(rb'(?:^|(?<=[\n%s]))"(?P<text>(?:[^"]++|"")*+)(?P<end>"?)' % re.escape(delimiter))


@dataclass(frozen=True, eq=False)
class Records:
    """Records in a block of text: where each starts and ends, its line feed included, and the line it begins on."""

    text: bytes
    starts: npt.NDArray[np.int64]
    ends: npt.NDArray[np.int64]
    lines: npt.NDArray[np.int64]

    def __getitem__(self, row: int) -> bytes:
        return self.text[self.starts[row] : self.ends[row]]

    def position(self, row: int) -> str:
        """Say where a record begins."""
        return f"line {self.lines[row]}"

    def record(self, row: int) -> str:
        """Quote a record for its dead letter."""
        return quote(self[row].removesuffix(b"\n").removesuffix(b"\r"))

    def take(self, rows: npt.NDArray[np.bool_]) -> Records:
        """Keep some of the records."""
        if len(rows) and rows.all():
            return self
        kept = [self[row] for row in np.flatnonzero(rows).tolist()]
        ends = np.cumsum([0, *map(len, kept)])
        return Records(b"".join(kept), ends[:-1], ends[1:], self.lines[rows])


class RecordCutter:
    """Cuts a file into records.

    Args:
        path: the file.
        header: its first line.
        form: how text is written.
    """

    def __init__(self, path: str, header: Header, form: TextForm) -> None:
        self.path, self.form = path, form
        self._quoted = quoted(header.delimiter) if form.quote else None
        self._delimiter = header.delimiter
        self._start, self._line = header.end, header.line + header.lines
        self._long = 0  # the line on which a record begins of which only the end is awaited
        self._many = counter(LONG_RECORDS)

    def read(self) -> Iterator[Records | Damage]:
        """Give the records in their order, block by block, and those that are too long.

        Raises:
            InputFileError: a quote is not closed.
        """
        rest = b""
        for piece in read_pieces(self.path, self._start, encoding=self.form.encoding):
            rest = yield from self._cut(rest + piece)
            if len(rest) > text_lines.MAX_LINE_BYTES:
                if not self._long:
                    yield too_long("record", self._line, rest)
                rest = self._shortened(rest)
        if rest:
            last = self._last_quoted(rest)
            if last is not None and not last["end"]:
                rule = f"the quote that opens a field of the record on line {self._long or self._line} is not closed"
                raise InputFileError(f"{self.path}: {rule}; --quote none if quotes are text in this file")
            yield from self._cut(rest + b"\n")

    def _cut(self, text: bytes) -> Generator[Records | Damage, None, bytes]:
        """Give what is complete in a text that begins with a record; return the rest."""
        feeds = np.flatnonzero(np.frombuffer(text, np.uint8) == ord("\n"))
        lines = np.arange(1, len(feeds) + 1)
        ends = np.ones(len(feeds), np.bool_)
        for found in self._quoted.finditer(text) if self._quoted and b'"' in text else ():
            if b"\n" in found["text"]:
                ends[slice(*np.searchsorted(feeds, found.span()))] = False
        feeds, lines = feeds[ends] + 1, lines[ends]
        if not len(feeds):
            return text
        starts, counts = np.append(0, feeds[:-1]), np.diff(lines, prepend=0)
        self._many.inc(int(np.count_nonzero(counts > MANY_LINES)))
        first = int(self._long > 0)
        records = Records(text, starts[first:], feeds[first:], (self._line + lines - counts)[first:])
        long = records.ends - records.starts > text_lines.MAX_LINE_BYTES + len(b"\r\n")
        for row in np.flatnonzero(long).tolist():
            yield too_long("record", int(records.lines[row]), records[row])
        yield records.take(~long)
        self._line, self._long = self._line + int(lines[-1]), 0
        return text[feeds[-1] :]

    def _last_quoted(self, text: bytes) -> re.Match[bytes] | None:
        """Return the last quoted field that begins in a text."""
        found = deque(self._quoted.finditer(text) if self._quoted else (), maxlen=1)
        return found[0] if found else None

    def _shortened(self, text: bytes) -> bytes:
        """Return a text after which a record goes on as after this one, which is too long to be kept."""
        self._long = self._long or self._line
        self._line += text.count(b"\n")
        last = self._last_quoted(text)
        if last is not None and last.end() == len(text):
            return b'"' + last["end"]
        return b"x" + self._delimiter * text.endswith(self._delimiter)


def schema(path: str, form: TextForm = PLAIN) -> pa.Schema | None:
    """Return the header's fields, all of them text; None if the file is empty."""
    header = read_header(path, form)
    if header is None:
        return None
    fields = [(name, pa.string()) for name in header.names]
    return pa.schema(fields, metadata={NAMES_MAY_BE_DATA: "no header"})


def parts(path: str, size: int) -> Iterator[Part]:
    """Return the file as one part: the numbers of its lines are known only from its beginning."""
    yield Part(0, size)


def read(path: str, part: Part, fields: Sequence[str], form: TextForm = PLAIN) -> Iterator[RawEvents | Damage]:
    """Read some fields; what is no record with the header's number of fields is reported with its line.

    Raises:
        InputFileError: the file has no header, or a quote is not closed.
    """
    header = read_header(path, form)
    if header is None:
        return
    for found in RecordCutter(path, header, form).read():
        if isinstance(found, Damage):
            yield found
        else:
            yield from _parse(path, found, header, fields, form)


def _parse(
    path: str, records: Records, header: Header, fields: Sequence[str], form: TextForm
) -> Iterator[RawEvents | Damage]:
    """Parse records at once, but for those with a carriage return that pyarrow would take for the end of a line.

    Raises:
        InputFileError: a quote that is none has made one record of several.
    """
    blank = np.flatnonzero(records.ends - records.starts <= len(b"\r\n")).tolist()
    if blank := [row for row in blank if not records[row].strip()]:
        records = records.take(~np.isin(np.arange(len(records.ends)), blank))
    if b"\r" in records.text and RETURN.search(records.text):
        fits = np.array(
            [not has_bare_return(records[row], header.delimiter, form) for row in range(len(records.ends))], np.bool_
        )
        rule = "record must have a line feed behind each carriage return outside of quotes"
        for row in np.flatnonzero(~fits).tolist():
            yield Damage("carriage_return", rule, records.position(row), records.record(row))
        records = records.take(fits)
    table = _table(records, header, fields, form)
    if table is None:  # pyarrow says which they are only of those that are UTF-8
        shape = f"line must be one CSV record with {len(header.names)} fields"
        pattern = _shape_of(header, form)
        fits = np.array([pattern.fullmatch(records[row]) is not None for row in range(len(records.ends))], np.bool_)
        for row in np.flatnonzero(~fits).tolist():
            if _is_misquoted(records[row], header.delimiter, form):
                rule = "quotes around fields, for one makes a record of several lines"
                place = f"{path}: {records.position(row)}"
                raise InputFileError(f"{place} must have {rule}; --quote none if quotes are text")
            if records[row].strip():
                yield Damage("malformed_line", shape, records.position(row), records.record(row))
        records = records.take(fits)
        table = _table(records, header, fields, form)
    if table is None or table.num_rows != len(records.ends) + 1:
        raise AssertionError("each record must be one row")
    if len(records.ends):
        columns = {name: table.column(name).combine_chunks()[1:] for name in fields}
        yield RawEvents(columns, records.position, records.record)


def _table(records: Records, header: Header, fields: Sequence[str], form: TextForm) -> pa.Table | None:
    """Parse records, behind a first row that counts for nothing; None if some have another number of fields."""
    before = header.delimiter * (len(header.names) - 1) + b"\n"  # so that no byte order mark begins the text
    text = before + (records.text[records.starts[0] : records.ends[-1]] if len(records.ends) else b"")
    try:
        return pa_csv.read_csv(
            pa.BufferReader(text),
            pa_csv.ReadOptions(use_threads=False, block_size=len(text) + 1, column_names=header.names),
            _parse_options(header.delimiter, form, ignore_empty_lines=False),
            pa_csv.ConvertOptions(
                include_columns=list(fields),
                column_types=dict.fromkeys(fields, pa.binary()),
                strings_can_be_null=False,
                check_utf8=False,
            ),
        )
    except pa.ArrowInvalid:
        return None


def _shape_of(header: Header, form: TextForm) -> re.Pattern[bytes]:
    """Return what a record with the header's number of fields looks like."""
    between = re.escape(header.delimiter)
    field = rb"[^%s\n]*+" % between
    if form.quote:
        field = rb'(?:"(?:[^"]++|"")*+"%s|(?!")%s)' % (field, field)
    return re.compile(rb"%s(?:%s%s){%d}\n" % (field, between, field, len(header.names) - 1))


def _is_misquoted(record: bytes, delimiter: bytes, form: TextForm) -> bool:
    """Tell whether a record of several lines has a closing quote that is not the end of a field."""
    if not form.quote or b"\n" not in record[:-1]:
        return False
    ends = (found.end() for found in quoted(delimiter).finditer(record))
    return any(record[end : end + 1] not in (delimiter, b"\r", b"\n", b"") for end in ends)


def has_bare_return(text: bytes, delimiter: bytes, form: TextForm) -> bool:
    """Tell whether a carriage return outside of quotes has no line feed behind it."""
    return RETURN.search(quoted(delimiter).sub(b"", text) if form.quote else text) is not None


def _parse_options(delimiter: bytes, form: TextForm, **more: object) -> pa_csv.ParseOptions:
    """Return how pyarrow cuts fields."""
    mark = '"' if form.quote else False
    return pa_csv.ParseOptions(delimiter=delimiter.decode(), quote_char=mark, newlines_in_values=form.quote, **more)


@dataclass(frozen=True)
class Header:
    """The names in a header, what separates them, the line that it begins on and how many it has, and where it ends."""

    names: list[str]
    delimiter: bytes
    line: int
    lines: int
    end: int


def read_header(path: str, form: TextForm) -> Header | None:
    """Read the first record that is not blank; None if there is none.

    Raises:
        InputFileError: it is no header.
    """
    text = b""
    for piece in chain(read_pieces(path, size=FIRST_BYTES, encoding=form.encoding), [b"\n"]):
        text += piece
        mark = len(BYTE_ORDER_MARK) * text.startswith(BYTE_ORDER_MARK)
        blank = len(text[mark:]) - len(text[mark:].lstrip())
        blank = mark + text[mark : mark + blank].rfind(b"\n") + 1
        feeds = [found.start() for found in re.finditer(rb"\n", text[blank:])]
        for number, feed in enumerate(feeds, 1):
            line = text[blank : blank + feed]
            chosen = _names(line, path, form)
            if chosen is not None:
                return Header(*chosen, text[:blank].count(b"\n") + 1, number, blank + feed + 1)
        if len(text) > HEADER_BYTES:
            raise _no_header(path, form, text)
    if text.removeprefix(BYTE_ORDER_MARK).strip():
        raise _no_header(path, form, text)
    return None


def _names(line: bytes, path: str, form: TextForm) -> tuple[list[str], bytes] | None:
    """Return the names in a header, and what separates them; None if a quote is still open.

    Where it is not named, it is what separates all names that are asked for, or the only one of `DELIMITERS` in the
    line. Records do not decide about it.
    """
    plain = re.sub(rb'"[^"]*"', b"", line) if form.quote else line
    possible = [form.delimiter] if form.delimiter else [each for each in DELIMITERS if each in plain] or [COMMA]
    found = {}
    for delimiter in possible:
        if form.quote and any(not each["end"] for each in quoted(delimiter).finditer(line)):
            continue
        if has_bare_return(line + b"\n", delimiter, form):
            raise _no_header(path, form, line + b"\n")
        options = _parse_options(delimiter, form)
        try:
            found[delimiter] = list(pa_csv.read_csv(pa.BufferReader(line + b"\n"), parse_options=options).column_names)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            raise _no_header(path, form, line + b"\n") from None
    if not found:
        return None
    fitting = [each for each in found if set(form.names) <= set(found[each])]
    if len(fitting) > 1:
        raise InputFileError(f"--delimiter must be given: the first line of {path} can be read in several ways")
    chosen = fitting[0] if fitting else max(found, key=lambda each: len(found[each]))
    return found[chosen], chosen


def _no_header(path: str, form: TextForm, text: bytes) -> InputFileError:
    """Word the error of a file whose first line is no header."""
    try:
        text.decode()
    except UnicodeDecodeError:
        rule = f"must be text in {form.encoding.upper()}, and is not: name its encoding, as in --encoding windows-1252"
        return InputFileError(f"{path}: the first line {rule}")
    if RETURN.search(text):
        rule = "must end with a line feed: it has a carriage return without one"
        return InputFileError(f"{path}: the first line {rule}; write the file with line feeds, or CR and LF")
    return InputFileError(f"{path}: the first line must be a CSV header, with each quote closed")
