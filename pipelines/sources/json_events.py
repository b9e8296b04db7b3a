"""Reads JSON lines: one object on each line, in UTF-8.

A block of lines is parsed at once, as one JSON array. That is as fast as Arrow's own reader, which is not used because
a line `null` takes its process down (pyarrow 25.0). Only a block in which this fails is parsed line by line.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from privstream.pipelines.sources.event_files import PLAIN, Damage, Part, RawEvents, TextForm, open_file
from privstream.pipelines.sources.text_lines import read_lines

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
