"""Reads JSON lines: one object on each line.

A block of lines is parsed at once, as one JSON array. That is as fast as Arrow's own reader, which is not used because
a line `null` takes its process down (pyarrow 25.0). Only a block in which this fails is parsed line by line.
"""

from __future__ import annotations

import json
import secrets
from collections.abc import Iterator, Sequence
from typing import Any

from privstream.pipelines.sources.event_files import PLAIN, Damage, Part, RawEvents, TextForm, open_file
from privstream.pipelines.sources.text_lines import check_text, read_lines

BETWEEN = secrets.token_hex(8)
REASON = "line must be one JSON object"

check = check_text


def schema(path: str, form: TextForm = PLAIN) -> None:
    """Make sure that the file can be opened; which fields a line has is decided line by line."""
    open_file(path).close()


def read(path: str, part: Part, fields: Sequence[str], form: TextForm = PLAIN) -> Iterator[RawEvents | Damage]:
    """Read some fields; lines that are no JSON objects are reported with their number."""
    for lines in read_lines(path, form.encoding):
        if isinstance(lines, Damage):
            yield lines
            continue
        rows = parse_all(lines.texts)
        found = [row for row in rows if row is not None]
        good = lines if len(found) == len(rows) else lines.take([n for n, row in enumerate(rows) if row is not None])
        for number, row in enumerate(rows):
            if row is None:
                yield Damage("malformed_line", REASON, lines.position(number), lines.record(number))
        if found:
            yield RawEvents({name: [row.get(name) for row in found] for name in fields}, good.position, good.record)


def parse_all(texts: Sequence[bytes]) -> Sequence[dict[str, Any] | None]:
    """Parse each of some texts; None for one that is not one object.

    At first all at once: between two texts stands a word that none can know, so that texts that are no objects cannot
    join to some.
    """
    try:
        parsed = json.loads("[" + f',"{BETWEEN}",'.encode().join(texts).decode() + "]")
    except (ValueError, RecursionError):
        parsed = []
    rows = parsed[::2]
    whole = len(parsed) == max(2 * len(texts) - 1, 0) and parsed[1::2] == [BETWEEN] * (len(texts) - 1)
    return rows if whole and set(map(type, rows)) <= {dict} else [parse_line(text) for text in texts]


def parse_line(text: bytes) -> dict[str, Any] | None:
    """Parse one line; None if it is not one object."""
    try:
        row = json.loads(text.decode())
    except (ValueError, RecursionError):
        return None
    return row if isinstance(row, dict) else None
