"""`privstream predecessor`: from an event file to what is near to public points, at the end of every window."""

from __future__ import annotations

import argparse
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.command import Command
from privstream.pipelines.commands import options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.pipelines.commands.point_queries import FORMAT, GiveQueries, read_point_queries
from privstream.pipelines.commands.ranges import LATER, UNANSWERED, UNUSABLE, add_points, point_options
from privstream.transforms import NearestPoints, PredecessorQueries, PredecessorQuery

ORDER = ("stream", "window_start", "query")
LINES = '  {"point": 50}\n  {"point": 50, "time": "2024-01-01T12:00:00Z", "stream": "north"}\n'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = FORMAT + LINES
    options.add_files(parser, user="point, a whole number", item="action")
    options.add_windows(parser, clock=True)
    budget = options.add_budget(parser, unit="an event", delta=None)
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    options.add_key(parser)
    add_points(parser)


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> PredecessorQueries:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    asked = read_point_queries(arguments.queries, PredecessorQuery)
    return PredecessorQueries(
        **point_options(arguments, streams, noise),
        standing=[point for (point,) in asked.standing],
        queries=arguments.answers if arguments.answers is not None else len(asked.timed),
    )


def accuracy(near: PredecessorQueries) -> dict[str, Any]:
    """Return how far off what is found is."""
    windows = near.windows or LATER
    error = near.mechanism.error(windows)
    span = "" if near.windows else f" in the first {windows:,} windows"
    return {
        "mechanism": type(near.mechanism).__name__,
        "error_bound": error,
        "failure_probability": near.mechanism.beta,
        "windows": windows,
        "sentence": f"With probability {1 - near.mechanism.beta:g}, between a point that was asked for and the "
        f"predecessor or successor that is told for it lies a point, and no more than {error:,}, in all answers of a "
        f"stream{span}, for queries that do not depend on answers; each row says its own bound. Where none is told, no "
        "more lie on that side.",
    }


PIPELINE = EventPipeline(
    row_type=NearestPoints,
    order=ORDER,
    title="answers",
    transform=transform,
    accuracy=accuracy,
    published="neighbours_published",
    unusable=UNUSABLE,
    unanswered=UNANSWERED,
    public_files=("queries",),
    more_inputs=lambda arguments: {
        "queries": GiveQueries(read_point_queries(arguments.queries, PredecessorQuery).timed, PredecessorQuery)
    },
)

COMMAND = Command(
    description="Finds what is near to public points (the last price level with activity, the nearest slot in use), "
    "below and\nabove, at the end of every window. One guarantee holds for each event over the run. Any option of "
    "Apache Beam\nmay be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
