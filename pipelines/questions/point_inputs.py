"""Queries about points that have a time, as the pipeline reads them beside events."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import apache_beam as beam
from apache_beam.pvalue import PCollection
from privstream.pipelines.questions.point_queries import Row, read_point_queries
from privstream.transforms import DeadLetter, PredecessorQuery, RangeQuery
from typing_extensions import override


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


predecessor_inputs = partial(give_timed, PredecessorQuery)
range_inputs = partial(give_timed, RangeQuery)
