"""Queries about points as JSON lines."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.sinks.row_files import whole_file
from privstream.pipelines.sources.event_files import Damage, InputFileError
from privstream.pipelines.sources.json_events import REASON, parse_line
from privstream.pipelines.sources.text_lines import read_lines
from privstream.transforms import DeadLetter, PredecessorQuery, RangeQuery
from privstream.transforms.events.times import TimeForm, read_micros
from typing_extensions import override

Row = type[RangeQuery] | type[PredecessorQuery]


class PointQueries(NamedTuple):
    """What a file asks.

    Attributes:
        standing: numbers of the queries without a time.
        timed: rows of the queries with one.
    """

    standing: list[tuple[int, ...]]
    timed: list[Any]


class QueriesGiven(NamedTuple):
    """What readers give: the queries, and no dead letters, since a query that breaks a rule is refused at once."""

    events: PCollection[Any]
    dead_letters: PCollection[Any]


class GiveQueries(beam.PTransform[Any, Any]):
    """The timed queries of a file."""

    def __init__(self, queries: Sequence[Any], row_type: type) -> None:
        super().__init__()
        self.queries, self.row_type = list(queries), row_type

    @override
    def expand(self, pbegin: Any) -> QueriesGiven:
        given = pbegin | "Queries" >> beam.Create(self.queries).with_output_types(self.row_type)
        none = pbegin | "No dead letters" >> beam.Create([]).with_output_types(DeadLetter)
        return QueriesGiven(given, none)


def give_timed(row_type: Row, arguments: argparse.Namespace) -> dict[str, GiveQueries]:
    """Return what reads the queries with a time."""
    return {"queries": GiveQueries(read_point_queries(arguments.queries, row_type).timed, row_type)}


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


def _parse(text: bytes, names: Sequence[str]) -> tuple[tuple[int, ...], Timestamp | None, str]:
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
    time = Timestamp(micros=read_micros("time", given["time"], TimeForm())) if "time" in given else None
    return tuple(given[name] for name in names), time, given.get("stream", "")


def write_point_queries(path: str, queries: Iterable[dict[str, int]]) -> None:
    """Write queries for every window."""
    with whole_file(path) as stream:
        for query in queries:
            stream.write(json.dumps(query).encode() + b"\n")


predecessor_inputs = partial(give_timed, PredecessorQuery)
range_inputs = partial(give_timed, RangeQuery)

read_predecessor_queries = partial(read_point_queries, row_type=PredecessorQuery)
read_range_queries = partial(read_point_queries, row_type=RangeQuery)
