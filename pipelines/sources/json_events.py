"""Reads JSON lines: one object on each line, in UTF-8.

A block of lines is parsed at once, as one JSON array. That is as fast as Arrow's own reader, which is not used because
a line `null` takes its process down (pyarrow 25.0). Only a block in which this fails is parsed line by line.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import TaggedOutput
from privstream.pipelines.sources.event_files import (
    MAX_RECORD_CHARACTERS,
    PLAIN,
    Damage,
    Part,
    RawEvents,
    TextForm,
    cut,
    open_file,
)
from privstream.pipelines.sources.fields import AnyFields
from privstream.pipelines.sources.normalise import count_refusal, normaliser_of
from privstream.pipelines.sources.text_lines import read_lines
from privstream.transforms.events.dead_letters import DEAD_LETTERS, DeadLetter

BETWEEN = secrets.token_hex(8)
REASON = "line must be one JSON object"


def schema(path: str, form: TextForm = PLAIN) -> None:
    """Make sure that the file can be opened; which fields a line has is decided line by line."""
    open_file(path).close()


def parts(path: str, size: int) -> Iterator[Part]:
    """Return the file as one part: the numbers of its lines are known only from its beginning."""
    yield Part(0, size)


def read(path: str, part: Part, fields: Sequence[str], form: TextForm = PLAIN) -> Iterator[RawEvents | Damage]:
    """Read some fields; lines that are no JSON objects are reported with their number."""
    for lines in read_lines(path, form.encoding):
        if isinstance(lines, Damage):
            yield lines
            continue
        rows, good = parse_block(lines.texts), lines
        if rows is None:
            parsed = [parse_line(text) for text in lines.texts]
            for row in range(len(parsed)):
                if parsed[row] is None:
                    yield Damage("malformed_line", REASON, lines.position(row), lines.record(row))
            kept = [row for row in range(len(parsed)) if parsed[row] is not None]
            rows = [row for row in parsed if row is not None]
            good = lines.take(kept)
        if rows:
            yield RawEvents({name: [row.get(name) for row in rows] for name in fields}, good.position, good.record)


def parse_block(texts: list[bytes]) -> list[dict[str, Any]] | None:
    """Parse all lines at once; None if any is not one object.

    Between two lines stands a word that no line can know, so that lines that are no objects cannot join to some.
    """
    try:
        parsed = json.loads("[" + f',"{BETWEEN}",'.encode().join(texts).decode() + "]")
    except (ValueError, RecursionError):
        return None
    rows = parsed[::2]
    whole = len(parsed) == max(2 * len(texts) - 1, 0) and parsed[1::2] == [BETWEEN] * (len(texts) - 1)
    return rows if whole and set(map(type, rows)) <= {dict} else None


def parse_line(text: bytes) -> dict[str, Any] | None:
    """Parse one line; None if it is not one object."""
    try:
        row = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None


RECORD_BYTES = 1 << 20
"""Longer records are not looked at."""

PARSED_BYTES = 1 << 20
"""So many bytes of records are parsed at once."""


class Records(NamedTuple):
    """Neighbouring records of a partition that arrived in one second: where they come from, and what they contain."""

    place: str
    offsets: list[int]
    values: list[bytes]


class ParseRecords(beam.DoFn):
    """Makes an Arrow batch of records."""

    def __init__(self, fields: AnyFields) -> None:
        self.fields = fields
        self.normalise = normaliser_of(fields)

    def process(self, element: Records) -> Iterator[Any]:
        """Parse records, so many bytes at a time; those that are too long are not looked at."""
        first = 0
        for last in _ends(element.values):
            yield from self._parse(Records(element.place, element.offsets[first:last], element.values[first:last]))
            first = last

    def _parse(self, records: Records) -> Iterator[Any]:
        """Parse all at once or, if that fails, one by one."""
        place, offsets, values = records
        long = len(values) == 1 and len(values[0]) > RECORD_BYTES
        rows: Sequence[dict[str, Any] | None] | None = [None] if long else parse_block(values)
        if rows is None:
            rows = [parse_line(value) for value in values]
        good = [number for number, row in enumerate(rows) if row is not None]

        def record(row: int) -> str:
            return _quote(values[good[row]])

        def position(row: int) -> str:
            return f"offset {offsets[good[row]]}"

        for number in sorted(set(range(len(rows))) - set(good)):
            reason = f"record must be at most {RECORD_BYTES:,} bytes" if long else REASON.replace("line", "record")
            letter = DeadLetter(reason, place, f"offset {offsets[number]}", _quote(values[number]))
            count_refusal("malformed_record")
            yield TaggedOutput(DEAD_LETTERS, letter)
        if not good:
            return
        columns = {name: [rows[number].get(name) for number in good] for name in self.fields.names()}  # type: ignore[union-attr]
        batch, refusals = self.normalise(RawEvents(columns, position, record))
        for refusal in refusals:
            count_refusal(refusal.code, refusal.by)
            letter = DeadLetter(refusal.reason, place, position(refusal.row), record(refusal.row))
            yield TaggedOutput(DEAD_LETTERS, letter)
        if batch.num_rows:
            yield batch


def _ends(values: Sequence[bytes]) -> Iterator[int]:
    """Cut values into runs of `PARSED_BYTES` at most, or of one; give the number behind each run."""
    first = bytes_ = 0
    for number, value in enumerate(values):
        if number > first and bytes_ + len(value) > PARSED_BYTES:
            yield number
            first, bytes_ = number, 0
        bytes_ += len(value)
    yield len(values)


def _quote(value: bytes) -> str:
    """Quote a record for its dead letter."""
    return cut(value[: 4 * MAX_RECORD_CHARACTERS + 4].decode("utf-8", "backslashreplace"))
