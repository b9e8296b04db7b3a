"""`privstream ranges`: from an event file to how many points lie in public ranges, at the end of every window."""

from __future__ import annotations

import argparse
from typing import Any

from privstream.mechanisms import KeyedNoise, checks
from privstream.pipelines.command import Command
from privstream.pipelines.commands import options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.pipelines.commands.point_queries import FORMAT, GiveQueries, read_point_queries
from privstream.transforms import RangeCount, RangeCounts, RangeQuery

ORDER = ("stream", "window_start", "low", "high")

LATER = 1000
"""The window for which the error is told when there is no end."""

LINES = '  {"low": 1, "high": 50}\n  {"low": 1, "high": 50, "time": "2024-01-01T12:00:00Z", "stream": "north"}\n'


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = FORMAT + LINES
    options.add_files(parser, user="point, a whole number", item="action")
    options.add_windows(parser, clock=True)
    budget = options.add_budget(parser, unit="an event", delta=None)
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    options.add_key(parser)
    add_points(parser).add_argument(
        "--consistent", action="store_true", help="counts of a window agree, none is negative; without error bounds"
    )


def add_points(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add: what points are, what happens to them, and what is asked about them; return the group."""
    points = parser.add_argument_group("points")
    points.add_argument("--universe", type=int, required=True, metavar="U", help="points are 1 .. U")
    points.add_argument("--insert_values", metavar="A,B,..", help="actions that insert a point (default: any other)")
    points.add_argument("--delete_values", metavar="A,B,..", help="actions that delete a point (default: none)")
    points.add_argument(
        "--duplicates",
        default="ignored",
        help="ignored (default): a point is there or not; counted: as often as it was inserted, less noise",
    )
    points.add_argument("--queries", required=True, metavar="PATH", help="file with the public queries, see below")
    points.add_argument(
        "--answers",
        type=int,
        metavar="N",
        help="bound the errors of so many answers with a time (default: those in --queries)",
    )
    points.add_argument(
        "--streams",
        metavar="A,B,..",
        help=f"public streams, each with points of its own; {options.STREAMS_NEEDED}",
    )
    return points


def point_options(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> dict[str, Any]:
    """Return the arguments that transforms on points have in common."""
    if arguments.answers is not None:
        checks.integer("answers", arguments.answers, minimum=1)
    return {
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "universe": arguments.universe,
        "window": arguments.window,
        "start": arguments.start,
        "end": arguments.end,
        "allowed_lateness": arguments.allowed_lateness,
        "duplicates": arguments.duplicates,
        "insert_values": options.texts("insert_values", arguments.insert_values),
        "delete_values": options.texts("delete_values", arguments.delete_values) or (),
        "streams": options.streams(arguments, streams),
        "neighbouring": arguments.neighbouring,
        "beta": arguments.beta,
        "noise": noise,
    }


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> RangeCounts:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    asked = read_point_queries(arguments.queries, RangeQuery)
    return RangeCounts(
        **point_options(arguments, streams, noise),
        standing=[(low, high) for low, high in asked.standing],
        queries=arguments.answers if arguments.answers is not None else len(asked.timed),
        consistent=arguments.consistent,
    )


def accuracy(counts: RangeCounts) -> dict[str, Any]:
    """Return how far the counts are off."""
    windows = counts.windows or LATER
    if counts.mechanism.consistent:
        return {"sentence": "No error is stated for consistent counts."}
    error = counts.error(windows)
    span = "" if counts.windows else f" in the first {windows:,} windows"
    number = f", at most {counts.queries:,} of them with a time" if counts.queries else ""
    return {
        "error_bound": error,
        "failure_probability": counts.beta,
        "windows": windows,
        "sentence": f"With probability {1 - counts.beta:g}, all counts of a stream{span} are within {error:,} of the "
        f"truth, for queries that do not depend on answers{number}; each row says its own bound, by its range.",
    }


UNUSABLE = {
    "points_outside_universe": "events of points that are not in 1 .. --universe",
    "events_of_other_actions": "events of actions that mean nothing",
}
UNANSWERED = {
    "queries_malformed": "queries that break a rule",
    "queries_outside_run": "queries outside of the windows of the run",
    "queries_late": "queries that came after their window had been answered",
}

PIPELINE = EventPipeline(
    row_type=RangeCount,
    order=ORDER,
    title="counts",
    transform=transform,
    accuracy=accuracy,
    published="counts_published",
    unusable=UNUSABLE,
    unanswered=UNANSWERED,
    public_files=("queries",),
    more_inputs=lambda arguments: {
        "queries": GiveQueries(read_point_queries(arguments.queries, RangeQuery).timed, RangeQuery)
    },
)

COMMAND = Command(
    description="Counts the points in public ranges (slots, prices, ages, addresses) at the end of every window, while "
    "points\ncome and go. One guarantee holds for each event over the whole run. Any option of Apache Beam may be "
    "added, such\nas --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
