"""`privstream queries`: from event files and linear queries, in a file or a folder, to private answers."""

from __future__ import annotations

import argparse
import math
import os
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.command import Command
from privstream.pipelines.commands import options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.pipelines.commands.queries_file import ReadQueries
from privstream.pipelines.commands.watch_queries import WatchQueries
from privstream.pipelines.sources.folder_looks import ARRIVAL, split_pattern
from privstream.transforms import Domain, PrivateQueries, QueryAnswer

WATCHED = "queries"
ORDER = ("time", "query")
"""As they were asked."""

QUERIES = """\
queries, one JSON object on each line, in the order in which they are asked, or with a time:
  {"name": "young", "items": ["0-9", "10-19"]}
  {"name": "points", "items": ["gold", "silver"], "weights": [1, 0.5], "time": "2024-01-01T12:00:00Z"}
The answer is the number of people who hold one of the items, or a weighted number with --real_weights. Queries and
the domain are public. Each person counts with one item.

With --watch, queries come in files into a folder, each renamed into it whole, and are asked when their file has come,
or at their own time, if that is later. With --watermark marks each has a time. A file _END ends the run.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = QUERIES
    options.add_files(parser, watched=WATCHED)
    budget = options.add_budget(parser, unit="a person over all queries", delta=None)
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    options.add_key(parser)
    public = parser.add_argument_group("public knowledge")
    public.add_argument("--queries", required=True, metavar="PATH", help="file or folder with the queries")
    public.add_argument("--domain", required=True, metavar="PATH", help="file with all items, one per line")
    public.add_argument("--records", type=int, required=True, metavar="N", help="number of people, or a public guess")
    answers = parser.add_argument_group("answers")
    answers.add_argument(
        "--alpha", type=float, required=True, help="error, as a part of --records, that is corrected; see plan queries"
    )
    answers.add_argument(
        "--planned", type=int, default=1000, metavar="N", help="queries for which errors are bounded (default: 1000)"
    )
    answers.add_argument("--selection", default="last", help="which item of a person counts: last (default) or first")
    answers.add_argument("--real_weights", action="store_true", help="weights may lie between 0 and 1; see sharp edges")
    options.add_shards(parser)


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> PrivateQueries:
    """Return the transform that the options describe; there are no streams."""
    return PrivateQueries(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        domain=Domain.from_file(arguments.domain),
        records=arguments.records,
        alpha=arguments.alpha,
        queries=arguments.planned,
        beta=arguments.beta,
        selection=arguments.selection,
        real_weights=arguments.real_weights,
        neighbouring=arguments.neighbouring,
        shards=arguments.shards,
        noise=noise,
    )


def read_queries(arguments: argparse.Namespace) -> dict[str, Any]:
    """Return what reads the queries."""
    if arguments.watch is None:
        return {WATCHED: ReadQueries(arguments.queries)}
    folder = split_pattern(arguments.queries, "--queries")[0]
    if os.path.realpath(os.path.dirname(arguments.input)) == os.path.realpath(folder):
        raise ValueError(f"--queries must be another folder than that of --input, got {folder}")
    return {WATCHED: WatchQueries(arguments.queries, arguments.watch, arguments.watermark or ARRIVAL)}


def accuracy(queries: PrivateQueries) -> dict[str, Any]:
    """Return what is found."""
    bound, needed, records = queries.accuracy(), queries.records_needed(), queries.mechanism.records
    enough = (
        "None of them is refused."
        if records >= needed
        else f"Some may be refused: with {needed:,} people none would be."
    )
    if bound >= records:
        enough += " That bounds nothing, with so few people: see privstream plan queries."
    return {
        "error_bound": bound,
        "failure_probability": queries.beta,
        "queries": queries.queries,
        "records_needed": needed,
        "max_measurements": queries.mechanism.max_updates,
        "sentence": (
            f"With probability {1 - queries.beta:g}, the first {queries.queries:,} answers are all within "
            f"{math.ceil(bound):,} people of the truth. {enough}"
        ),
    }


PIPELINE = EventPipeline(
    row_type=QueryAnswer,
    order=ORDER,
    title="answers",
    transform=transform,
    accuracy=accuracy,
    published="queries_answered",
    unanswered={
        "queries_malformed": "lines that are no queries on the domain",
        "queries_late": "queries that came after their time, or after a later one had been answered",
    },
    beyond={
        "events_beyond_one_record": "events left out: their person counts with another one",
        "queries_refused": "queries refused: the budget is spent",
    },
    public_files=("domain", "queries"),
    more_inputs=read_queries,
    watched=WATCHED,
)

COMMAND = Command(
    description="Answers linear queries about how many people hold which items, in the order in which they are asked, "
    "from a public hypothesis that learns from its errors. One guarantee holds for each person over all queries. Any "
    "option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
