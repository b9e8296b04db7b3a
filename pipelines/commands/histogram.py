"""`privstream histogram`: from an event file to live counts of categories."""

from __future__ import annotations

import argparse
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.histograms.histogram_queries import MODES
from privstream.pipelines.command import Command
from privstream.pipelines.commands import histogram_options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.transforms import ContinualHistogram, HistogramEstimate

ORDER = ("stream", "window_start", "query", "-estimate", "category")
"""By stream, window and query, the largest first."""

QUERIES = "histogram,max,min,median,quantile:Q,top:K"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    histogram_options.add_categories(parser)
    asked = parser.add_argument_group("answers")
    asked.add_argument("--queries", default="histogram", metavar="A,B,..", help=f"of {QUERIES} (default: histogram)")
    add_mode(asked)


def add_mode(asked: argparse._ArgumentGroup) -> None:
    """Add how answers are found."""
    asked.add_argument("--mode", default="auto", choices=MODES, help="how (default: auto, what promises least error)")
    asked.add_argument("--largest", type=int, metavar="COUNT", help="largest count that is expected, for --mode")


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> ContinualHistogram:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    return ContinualHistogram(
        **histogram_options.common(arguments, streams, noise),
        queries=tuple(arguments.queries.split(",")),
        mode=arguments.mode,
        largest=arguments.largest,
    )


def accuracy(histogram: ContinualHistogram) -> dict[str, Any]:
    """Return how far the answers are off."""
    mechanism = histogram.mechanism
    largest = mechanism.largest or mechanism.horizon or 100_000
    error = mechanism.error(largest)
    found = {"mode": mechanism.chosen_mode, "failure_probability": mechanism.beta, "error_bound": error}
    if mechanism.chosen_mode == "direct":
        windows = "in all windows" if histogram.windows else f"in the first {largest:,} windows"
        return found | {"sentence": _sentence(histogram, error, windows)}
    when = f"while no answer exceeds {largest:,}" + ("" if histogram.windows else f", in the first {largest:,} windows")
    return found | {"largest": largest, "sentence": _sentence(histogram, error, when)}


def _sentence(histogram: ContinualHistogram, error: int, when: str) -> str:
    """Say how far the answers are off."""
    mechanism = histogram.mechanism
    truth = "the truth" if histogram.unit == "event" else "those without noise, after limits,"
    return (
        f"With probability {1 - mechanism.beta:g}, all numbers of a stream are within {error:,} of {truth} together, "
        f"{when} (mode {mechanism.chosen_mode}; each row says its own bound)."
    )


PIPELINE = EventPipeline(
    row_type=HistogramEstimate,
    order=ORDER,
    title="estimates",
    transform=transform,
    accuracy=accuracy,
    published="estimates_published",
    beyond=histogram_options.BEYOND,
)

COMMAND = Command(
    description="Counts the events of public categories, live: after every window, how many there have been so far, "
    "under one guarantee for the whole run. Any option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
