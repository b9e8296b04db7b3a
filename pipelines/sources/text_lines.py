"""Reads JSON lines, and other text whose lines are records.

Arrow's own reader of JSON lines ends the process at a line `null` (pyarrow 25.0).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import chain
from typing import Any

from privstream.pipelines.sources.formats import (
    BYTE_ORDER_MARK,
    PLAIN,
    TEXT_RULE,
    Damage,
    RawEvents,
    TextForm,
    places,
)
from privstream.transforms.reading.fields import column_of, quote
from pydantic_core import from_json

MAX_LINE_BYTES = 1 << 24
REASON = "line must be one JSON object"
RULE = TEXT_RULE


def read_lines(pieces: Iterator[bytes]) -> Iterator[list[tuple[int, bytes]] | Damage]:
    """Read lines that are not blank, with their numbers, those of a piece together; too long ones are reported."""
    read, rest = 0, b""
    for piece in chain(pieces, [b"\n"]):
        *lines, rest = (rest + piece).split(b"\n")
        found: list[tuple[int, bytes]] = []
        for number, line in enumerate(lines, read + 1):
            text = line.removeprefix(BYTE_ORDER_MARK if number == 1 else b"").removesuffix(b"\r")
            if len(text) > MAX_LINE_BYTES:
                rule = f"line must be at most {MAX_LINE_BYTES} bytes"
                yield Damage("long_line", rule, f"line {number}", quote(text[:MAX_LINE_BYTES]))
            elif text.strip():
                found.append((number, text))
        if found:
            yield found
        read += len(lines)
        rest = rest[: MAX_LINE_BYTES + 2]  # is too long, whatever follows: a carriage return at the end does not count


def schema(pieces: Iterator[bytes], form: TextForm = PLAIN) -> None:
    """Return nothing: which fields a line of JSON has is decided line by line."""


def check(pieces: Iterator[bytes], form: TextForm = PLAIN) -> None:
    """Refuse text without its end, such as compressed text that is cut short."""
    for _ in pieces:
        pass


def read(
    pieces: Iterator[bytes], fields: Sequence[str], form: TextForm = PLAIN, group: int = 0
) -> Iterator[RawEvents | Damage]:
    """Read some fields of JSON lines; lines that are no JSON objects are reported with their number."""
    for lines in read_lines(pieces):
        if isinstance(lines, Damage):
            yield lines
        else:
            numbers, texts = zip(*lines, strict=True)
            yield from read_objects(texts, fields, places("line", numbers))


def read_objects(
    texts: Sequence[bytes], fields: Sequence[str], position: Callable[[int], str], what: str = "line"
) -> Iterator[RawEvents | Damage]:
    """Read some fields of JSON objects, one in each text; other texts are reported."""
    found: dict[int, dict[str, Any]] = {}
    for number, text in enumerate(texts):
        if (row := parse_line(text)) is not None:
            found[number] = row
        else:
            yield Damage(f"malformed_{what}", REASON.replace("line", what), position(number), quote(text))
    if found:
        good, rows = list(found), list(found.values())
        columns = {name: column_of([row.get(name) for row in rows]) for name in fields}
        yield RawEvents(columns, len(good), lambda row: position(good[row]), lambda row: quote(texts[good[row]]))


def parse_line(text: bytes) -> dict[str, Any] | None:
    """Parse one line; None if it is not one object."""
    try:
        row = from_json(text)
    except ValueError:
        return None
    return row if isinstance(row, dict) else None
