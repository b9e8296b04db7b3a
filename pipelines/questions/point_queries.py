"""Queries about points as JSON lines, and what the questions about points take from them."""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.mechanisms.points.dynamic_points import LARGEST_UNIVERSE, widest_range
from privstream.pipelines.sinks.row_files import whole_file
from privstream.pipelines.sources.event_files import Damage, InputFileError
from privstream.pipelines.sources.json_events import REASON, parse_line
from privstream.pipelines.sources.text_lines import read_lines
from privstream.transforms import DeadLetter, PredecessorQuery, RangeQuery
from privstream.transforms.events.times import TimeForm, read_micros
from privstream.transforms.points.point_transform import MOST_STANDING
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


def asked_in(row_type: Row, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what options say of queries, as arguments of a transform.

    Raises:
        ValueError, TypeError: `answers` is out of range, or the file breaks a rule.
    """
    answers = given["answers"]
    if answers is not None:
        checks.integer("answers", answers, minimum=1)
    if given["queries"] is None:
        return {"standing": (), "queries": answers}
    asked = read_point_queries(given["queries"], row_type)
    return {"standing": tuple(asked.standing), "queries": len(asked.timed) if answers is None else answers}


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


def prepare_predecessor(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked; a plan need not say it.

    Raises:
        ValueError, TypeError: a number is out of range, or the file breaks a rule.
    """
    asked = asked_in(PredecessorQuery, given)
    return asked | {"standing": tuple(point for (point,) in asked["standing"])}


range_inputs = partial(give_timed, RangeQuery)


def prepare_ranges(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is asked; a plan may give the number of ranges in place of a file.

    Where all queries of a file are for every window, no others are asked.

    Raises:
        ValueError, TypeError: a number is out of range, or the file breaks a rule.
    """
    number = given.get("ranges")
    if (number is None) == (given["queries"] is None):
        raise ValueError("one of --ranges and --queries must be given")
    asked = asked_in(RangeQuery, given)
    if number is None:
        alone = bool(asked["standing"]) and asked["queries"] == 0 and not given.get("consistent")
        return asked | ({"only_standing": True} if alone else {})
    return {"standing": any_ranges(number, given["universe"]), "queries": asked["queries"] or 0}


def any_ranges(number: int, universe: int) -> tuple[tuple[int, int], ...]:
    """Return so many ranges, or all that there are: what bounds the errors of these bounds those of any.

    One of them consists of as many dyadic intervals as any range does, and the bound for all goes by the most.
    """
    if checks.integer("ranges", number, minimum=1) > MOST_STANDING:
        raise ValueError(f"ranges must be <= {MOST_STANDING}, got {number}")
    universe = min(checks.integer("universe", universe, minimum=1), LARGEST_UNIVERSE)  # a larger one is refused later
    widest = widest_range(universe)
    points = range(1, universe + 1)
    others = ((low, high) for low in points for high in points[low - 1 :] if (low, high) != widest)
    return (widest, *itertools.islice(others, number - 1))
