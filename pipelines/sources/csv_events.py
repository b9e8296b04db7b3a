"""Cuts CSV text into records as RFC 4180 has them, whatever is in one of them.

A record is a line, or several where a quoted field has line breaks. The rules are strict: a quote stands only around a
field, or twice inside of quotes, and a carriage return only before a line feed. So a quote that nobody closes can be
distinguished from a line break in a field: what it opens is no record with the header's number of fields. It costs its
own line.

The work is done on whole blocks, by where quotes and line feeds stand. Only lines with an odd number of quotes are
looked at one by one.
"""

from __future__ import annotations

import re
from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
from privstream.pipelines.sources import text_lines
from privstream.pipelines.sources.event_files import PLAIN, UTF_8, Damage, InputFileError, Part, RawEvents, TextForm
from privstream.pipelines.sources.fields import NAMES_MAY_BE_DATA
from privstream.pipelines.sources.text_lines import BYTE_ORDER_MARK, quote, read_pieces, too_long

Places = npt.NDArray[np.int64]
"""Where something stands in a block, in rising order."""

Mask = npt.NDArray[np.bool_]

QUOTE, NEWLINE, RETURN = b'"\n\r'
WHITESPACE = b" \t\n\r\v\f"
COMMA = b","
DELIMITERS = (COMMA, b";", b"\t", b"|")
"""What a header can show to separate fields; another delimiter must be named."""

BARE_RETURN = ("carriage_return", "record must have a line feed behind each carriage return")
"""The code and the wording of a rule."""


@dataclass(frozen=True, eq=False)
class Records:
    """Records in a block of text: where each starts and ends, its line feed included, and the line it begins on."""

    text: bytes
    starts: Places
    ends: Places
    lines: Places

    def __len__(self) -> int:
        return len(self.starts)

    def position(self, row: int) -> str:
        """Say where a record begins."""
        return f"line {self.lines[row]}"

    def record(self, row: int) -> str:
        """Quote a record for its dead letter."""
        return quote(self[row].removesuffix(b"\n").removesuffix(b"\r"))

    def __getitem__(self, row: int) -> bytes:
        return self.text[self.starts[row] : self.ends[row]]

    def take(self, rows: Mask) -> Records:
        """Keep some of the records."""
        return self if rows.all() else Records(self.text, self.starts[rows], self.ends[rows], self.lines[rows])

    def with_any(self, places: Places) -> Mask:
        """Tell in which records any of some places is."""
        rows = np.searchsorted(self.ends, places, "right")
        rows, places = rows[rows < len(self)], places[rows < len(self)]
        found = np.zeros(len(self), bool)
        found[rows[self.starts[rows] <= places]] = True
        return found

    def joined(self) -> bytes:
        """Return the text of these records alone."""
        gaps = np.flatnonzero(self.starts[1:] != self.ends[:-1]) + 1
        first, last = np.concatenate([[0], gaps]), np.concatenate([gaps, [len(self)]]) - 1
        runs = zip(self.starts[first].tolist(), self.ends[last].tolist(), strict=True)
        return b"".join([self.text[start:end] for start, end in runs])


class RecordCutter:
    """Cuts a file into records.

    Args:
        path: the file.
        fields: how many fields a record has.
        start: where the text behind the header begins, in bytes.
        line: the number of the line that begins there.
        delimiter: what separates fields, one byte.
        encoding: of the file.
    """

    def __init__(
        self, path: str, fields: int, start: int, line: int, delimiter: bytes = COMMA, encoding: str = UTF_8
    ) -> None:
        self.path, self.fields, self.delimiter, self.encoding = path, fields, delimiter, encoding
        between = re.escape(delimiter)
        field = rb'(?:"(?:[^"]++|"")*+"|[^"%s\n]*+)' % between
        self.pattern = re.compile(field + rb"(?:%s%s){%d}\r?\n" % (between, field, fields - 1))
        self._blank = WHITESPACE.replace(delimiter, b"")
        self._may_be_blank = np.isin(np.arange(256), list(self._blank))
        self._start, self._line = start, line
        self._shape = ("malformed_line", f"line must be one CSV record with {fields} fields")

    def read(self) -> Iterator[Records | Damage]:
        """Give the records in their order, block by block, and what cannot be one."""
        rest, skipped = b"", 0
        for piece in read_pieces(self.path, self._start, encoding=self.encoding):
            text, skipped = piece[skipped:], max(skipped - len(piece), 0)
            rest = yield from self._cut(rest + text)
            while len(rest) > _longest():
                damage, end = self._oversized(rest)
                yield damage
                rest, skipped = rest[end:], max(end - len(rest), 0)
                rest = yield from self._cut(rest)
        if rest:
            yield from self._cut(rest + b"\n" * (not rest.endswith(b"\n")), last=True)

    def misshapen(self, records: Records) -> Mask:
        """Tell which are not one record with the right number of fields."""
        return np.array([not self.pattern.fullmatch(records[row]) for row in range(len(records))], bool)

    def refuse(self, records: Records, rows: Mask, rule: tuple[str, str] | None = None) -> Iterator[Damage]:
        """Report records that break a rule, that of their shape if no other is given."""
        long = records.ends - records.starts > _longest()
        for row in np.flatnonzero(rows).tolist():
            if long[row]:
                yield too_long("record", int(records.lines[row]), records[row])
            else:
                yield Damage(*(rule or self._shape), records.position(row), records.record(row))

    def _cut(self, text: bytes, last: bool = False) -> Generator[Records | Damage, None, bytes]:
        """Give what is complete in a text that begins with a record; return the rest."""
        codes = np.frombuffer(text, np.uint8)
        ends = np.flatnonzero(codes == NEWLINE) + 1
        starts = np.concatenate([[0], ends])[:-1]
        quotes = np.flatnonzero(codes == QUOTE) if b'"' in text else ends[:0]
        odd = (np.diff(np.searchsorted(quotes, ends), prepend=0) & 1).astype(bool)
        alone, complete = self._unclosed(text, starts, ends, np.flatnonzero(odd).tolist(), last)
        odd[alone] = False
        closed = np.flatnonzero(~np.logical_xor.accumulate(odd[:complete]))
        opened = np.concatenate([[0], closed + 1])[:-1]
        records = Records(text, starts[opened], ends[closed], self._line + opened)
        refused = np.isin(closed, alone)
        yield from self.refuse(records, refused)
        if alone:
            quotes = quotes[~np.isin(np.searchsorted(ends, quotes, "right"), alone)]
        yield from self._check(records.take(~refused), quotes)
        end = int(ends[complete - 1]) if complete else 0
        self._start, self._line = self._start + end, self._line + complete
        return text[end:]

    def _unclosed(self, text: bytes, starts: Places, ends: Places, odd: list[int], last: bool) -> tuple[list[int], int]:
        """Return the lines whose quotes nobody closes, and how many lines are complete, of those with `odd` quotes."""
        alone, place = [], 0
        while place + 1 < len(odd):
            first, second = odd[place], odd[place + 1]
            if self.pattern.fullmatch(text, starts[first], ends[second]):
                place += 2
            else:
                alone.append(first)
                place += 1
        if place == len(odd):
            return alone, len(ends)
        return ([*alone, odd[place]], len(ends)) if last else (alone, odd[place])

    def _check(self, records: Records, quotes: Places) -> Iterator[Records | Damage]:
        """Give records, but for blank lines and for those that are too long or break a rule of quotes or line ends."""
        codes = np.frombuffer(records.text, np.uint8)
        blank = np.zeros(len(records), bool)
        for row in np.flatnonzero(self._may_be_blank[codes[records.starts]]).tolist():
            blank[row] = not records[row].strip(self._blank)
        records = records.take(~blank)
        quotes = quotes[quotes < records.ends.max(initial=0)]
        misplaced = records.with_any(_misplaced(codes, quotes[::2], quotes[1::2], self.delimiter))
        yield from self.refuse(records, misplaced)
        returns = np.flatnonzero(codes[:-1] == RETURN) if b"\r" in records.text else quotes[:0]
        bare = records.with_any(returns[codes[returns + 1] != NEWLINE]) & ~misplaced
        yield from self.refuse(records, bare, BARE_RETURN)
        long = (records.ends - records.starts > _longest()) & ~misplaced & ~bare
        yield from self.refuse(records, long)
        kept = records.take(~(misplaced | bare | long))
        if len(kept):
            yield kept

    def _oversized(self, text: bytes) -> tuple[Damage, int]:
        """Report a record that is too long, or its first line if it is none; return how many bytes that takes."""
        found = follow(self.path, self._start, self.fields, self.delimiter, self.encoding)
        if found.whole or found.size > _longest():
            damage = too_long("record", self._line, text)
        else:
            damage = Damage(*self._shape, f"line {self._line}", quote(text[: found.size].rstrip(b"\r\n")))
        self._start, self._line = self._start + found.size, self._line + found.lines
        return damage, found.size


class Followed(NamedTuple):
    """The bytes and lines of a record, or those of its first line if it is not `whole`."""

    size: int
    lines: int
    whole: bool


def follow(path: str, start: int, fields: int, delimiter: bytes = COMMA, encoding: str = UTF_8) -> Followed:
    """Follow a record to its end without keeping it; it is whole if it has the rules' quotes and number of fields."""
    size = lines = commas = first = 0
    inside = wrong = False
    text = b"\n"  # what stands before the record: each byte is judged between its neighbours
    for piece in chain(read_pieces(path, start, encoding=encoding), [b"\n\n"]):
        text += piece
        codes = np.frombuffer(text, np.uint8)
        feeds, quotes, found = (np.flatnonzero(codes[1:-1] == code) + 1 for code in (NEWLINE, QUOTE, delimiter[0]))
        closed = feeds[(np.searchsorted(quotes, feeds) + inside) % 2 == 0][:1]
        quotes, found = (places[places < closed.min(initial=len(text))] for places in (quotes, found))
        wrong = wrong or len(_misplaced(codes, quotes[inside::2], quotes[not inside :: 2], delimiter)) > 0
        commas += int(np.count_nonzero((np.searchsorted(quotes, found) + inside) % 2 == 0))
        if not first and len(feeds):
            first = size + int(feeds[0])
        if len(closed) and not wrong and commas == fields - 1:
            return Followed(size + int(closed[0]), lines + int(np.searchsorted(feeds, closed[0])) + 1, True)
        if first and (wrong or len(closed)):
            break
        inside ^= len(quotes) % 2 == 1
        size, lines, text = size + len(text) - 2, lines + len(feeds), text[-2:]
    return Followed(first, 1, False)


def _misplaced(codes: npt.NDArray[np.uint8], opening: Places, closing: Places, delimiter: bytes) -> Places:
    """Return the quotes that do not stand around a field or, twice, inside of one."""
    before = np.where(opening > 0, codes[opening - 1], NEWLINE)
    opens = np.isin(before, list(delimiter + b'\n"'))
    closes = np.isin(codes[closing + 1], list(delimiter + b'\n"\r'))
    return np.concatenate([opening[~opens], closing[~closes]])


def _longest() -> int:
    """Return how many bytes a record may have, with the end of its line."""
    return text_lines.MAX_LINE_BYTES + len(b"\r\n")


HEADER_BYTES = 1 << 20
FIRST_BYTES = 64
"""So few are read at first: of a compressed file that ends early, the header can still be had."""

FIRST_LINE = re.compile(rb"(?:%s)?+(?P<blank>(?:[ \t\r\v\f]*+\n)*+)(?P<line>[^\n]++)\n" % BYTE_ORDER_MARK)


def schema(path: str, form: TextForm = PLAIN) -> pa.Schema | None:
    """Return the header's fields, all of them text; None if the file is empty."""
    header = _read_header(path, form)
    if header is None:
        return None
    fields = [(name, pa.string()) for name in header.names]
    return pa.schema(fields, metadata={NAMES_MAY_BE_DATA: "no header"})


def parts(path: str, size: int) -> Iterator[Part]:
    """Return the file as one part: the numbers of its lines are known only from its beginning."""
    yield Part(0, size)


def read(path: str, part: Part, fields: Sequence[str], form: TextForm = PLAIN) -> Iterator[RawEvents | Damage]:
    """Read some fields; what is no record with the header's number of fields is reported with its line."""
    header = _read_header(path, form)
    if header is None:
        return
    delimiter = header.delimiter
    cutter = RecordCutter(path, len(header.names), header.end, header.line + 1, delimiter, form.encoding)
    for found in cutter.read():
        if isinstance(found, Damage):
            yield found
            continue
        try:
            yield from _without_headers(_parse(found, header, fields))
        except pa.ArrowInvalid:
            misshapen = cutter.misshapen(found)
            yield from cutter.refuse(found, misshapen)
            if not misshapen.all():
                yield from _without_headers(_parse(found.take(~misshapen), header, fields))


def _without_headers(events: RawEvents) -> Iterator[RawEvents | Damage]:
    """Report records that have the names of all fields in them: a header that stands in the file again."""
    again = None
    for name, column in events.columns.items():
        found = pc.equal(column, name.encode())
        again = found if again is None else pc.and_(again, found)
        if not again.true_count:
            yield events
            return
    again = np.asarray(again)
    for row in np.flatnonzero(again).tolist():
        yield Damage("repeated_header", "record must not be the header again", events.position(row), events.record(row))
    yield events.take(np.flatnonzero(~again))


def _parse(records: Records, header: _Header, fields: Sequence[str]) -> RawEvents:
    """Parse records at once.

    Raises:
        ArrowInvalid: some do not have the header's number of fields.
    """
    block = b"\n" + records.joined()  # a blank line, so that Arrow takes no record for a byte order mark
    table = pa_csv.read_csv(
        pa.BufferReader(block),
        read_options=pa_csv.ReadOptions(use_threads=False, block_size=len(block) + 1, column_names=header.names),
        parse_options=pa_csv.ParseOptions(delimiter=header.delimiter.decode()),
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
    """The names in a header, what separates them, the line that it stands on, and where in the file that line ends."""

    names: list[str]
    delimiter: bytes
    line: int
    end: int


def _read_header(path: str, form: TextForm) -> _Header | None:
    """Read the first line that is not blank; None if there is none."""
    text = b""
    for piece in chain(read_pieces(path, size=FIRST_BYTES, encoding=form.encoding), [b"\n"]):
        text += piece
        found = FIRST_LINE.match(text)
        if found is not None and found["line"].strip():
            names, delimiter = _names(found["line"], path, form)
            return _Header(names, delimiter, found["blank"].count(b"\n") + 1, found.end())
        if len(text) > HEADER_BYTES:
            raise _no_header(path, form)
    return None


def _names(line: bytes, path: str, form: TextForm) -> tuple[list[str], bytes]:
    """Return the names in a header, and what separates them.

    Where it is not named, it is what separates all names that are asked for, or the only one of `DELIMITERS` in the
    line. Records do not decide about it.
    """
    if line.count(b'"') % 2 or b"\r" in line.removesuffix(b"\r"):
        raise _no_header(path, form)
    plain = re.sub(rb'"[^"]*"', b"", line)
    possible = [form.delimiter] if form.delimiter else [each for each in DELIMITERS if each in plain] or [COMMA]
    found = {}
    for delimiter in possible:
        options = pa_csv.ParseOptions(delimiter=delimiter.decode())
        try:
            found[delimiter] = list(pa_csv.read_csv(pa.BufferReader(line + b"\n"), parse_options=options).column_names)
        except (pa.ArrowInvalid, UnicodeDecodeError):
            raise _no_header(path, form) from None
    fitting = [each for each in possible if set(form.names) <= set(found[each])]
    if len(fitting) > 1:
        raise InputFileError(f"--delimiter must be given: the first line of {path} can be read in several ways")
    chosen = fitting[0] if fitting else max(possible, key=lambda each: len(found[each]))
    return found[chosen], chosen


def _no_header(path: str, form: TextForm) -> InputFileError:
    """Word the error of a file whose first line is no header."""
    other = "" if form.encoding != UTF_8 else ", unless --encoding names another encoding"
    return InputFileError(f"{path}: the first line must be a CSV header in {form.encoding.upper()}{other}")
