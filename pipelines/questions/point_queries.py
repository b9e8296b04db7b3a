"""Queries about points as JSON lines."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

from privstream.pipelines.sinks.row_files import whole_file
from privstream.pipelines.sources.event_files import Damage, InputFileError
from privstream.pipelines.sources.json_events import REASON, parse_line
from privstream.pipelines.sources.text_lines import read_lines
from privstream.transforms.events.times import TimeForm, read_micros
from privstream.transforms.row_types import PredecessorQuery, RangeQuery
from privstream.transforms.timing.steps import timestamp

Row = type[RangeQuery] | type[PredecessorQuery]


class PointQueries(NamedTuple):
    """What a file asks.

    Attributes:
        standing: numbers of the queries without a time.
        timed: rows of the queries with one.
    """

    standing: list[tuple[int, ...]]
    timed: list[Any]


def read_point_queries(path: str, row_type: Row) -> PointQueries:
    """Read the queries of a file; it is public, and small enough for memory.

    Raises:
        ValueError: there is no such file, or a line breaks a rule; names the line and the rule.
    """
    names = row_type._fields[: row_type._fields.index("time")]
    found = PointQueries([], [])
    try:
        for lines in read_lines(path):
            if isinstance(lines, Damage):
                raise ValueError(f"--queries, {lines.position}: {lines.reason}")
            for row, text in enumerate(lines.texts):
                try:
                    numbers, time, stream = _parse(text, names)
                except (TypeError, ValueError) as error:
                    raise ValueError(f"--queries, {lines.position(row)}: {error}") from None
                if time is None:
                    found.standing.append(numbers)
                else:
                    found.timed.append(row_type(**dict(zip(names, numbers, strict=True)), time=time, stream=stream))
    except InputFileError as error:
        raise ValueError(f"--queries must be a readable file: {error}") from None
    return found


def _parse(text: bytes, names: Sequence[str]) -> tuple[tuple[int, ...], Any, str]:
    """Return the numbers, the time and the stream of a query."""
    given = parse_line(text)
    if given is None:
        raise ValueError(REASON)
    known = (*names, "time", "stream")
    if unknown := sorted(set(given) - set(known)):
        raise ValueError(f"fields must be {', '.join(known)}, got {', '.join(map(repr, unknown))}")
    for name in names:
        if isinstance(given.get(name), bool) or not isinstance(given.get(name), int):
            raise TypeError(f"{name} must be a whole number")
    if "stream" in given and "time" not in given:
        raise ValueError("stream must not be given without a time")
    time = timestamp(read_micros("time", given["time"], TimeForm())) if "time" in given else None
    return tuple(given[name] for name in names), time, given.get("stream", "")


def write_point_queries(path: str, queries: Iterable[dict[str, int]]) -> None:
    """Write queries for every window."""
    with whole_file(path) as stream:
        for query in queries:
            stream.write(json.dumps(query).encode() + b"\n")


read_predecessor_queries = partial(read_point_queries, row_type=PredecessorQuery)
read_range_queries = partial(read_point_queries, row_type=RangeQuery)
