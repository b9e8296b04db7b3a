"""`privstream quantiles`: from an event file to live quantiles of how often categories occur."""

from __future__ import annotations

import argparse

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.command import Command
from privstream.pipelines.commands import histogram, histogram_options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.transforms import ContinualHistogram, HistogramEstimate

ORDER = ("stream", "window_start", "estimate", "query")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    histogram_options.add_categories(parser)
    asked = parser.add_argument_group("answers")
    asked.add_argument(
        "--quantiles",
        default="0.25,0.5,0.75",
        metavar="Q,..",
        help="in (0, 1] (default: 0.25,0.5,0.75); 1 is the maximum",
    )
    histogram.add_mode(asked)


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> ContinualHistogram:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    return ContinualHistogram(
        **histogram_options.common(arguments, streams, noise),
        queries=tuple(f"quantile:{quantile.strip()}" for quantile in arguments.quantiles.split(",")),
        mode=arguments.mode,
        largest=arguments.largest,
    )


PIPELINE = EventPipeline(
    row_type=HistogramEstimate,
    order=ORDER,
    title="estimates",
    transform=transform,
    accuracy=histogram.accuracy,
    published="estimates_published",
    beyond=histogram_options.BEYOND,
)

COMMAND = Command(
    description="Tells, live, how events are spread over public categories: after every window, the count that a part "
    "of all categories does not exceed, such as the median. Any option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
