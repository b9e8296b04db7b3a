"""`privstream flags`: from an event file to flags that say which categories have passed their thresholds."""

from __future__ import annotations

import argparse
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.command import Command
from privstream.pipelines.commands import histogram_options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.transforms import CategoryFlag, ThresholdFlags

ORDER = ("stream", "window_start", "-raised", "category")
MANY = 1_000_000


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    histogram_options.add_categories(parser)
    asked = parser.add_argument_group("answers")
    asked.add_argument(
        "--thresholds",
        required=True,
        metavar="N|PATH",
        help="a number for all categories, or a file with a JSON object from each category to its number",
    )


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> ThresholdFlags:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    return ThresholdFlags(
        **histogram_options.common(arguments, streams, noise),
        thresholds=histogram_options.read_thresholds(arguments.thresholds),
    )


def accuracy(flags: ThresholdFlags) -> dict[str, Any]:
    """Return how far flags are off."""
    windows = flags.windows or MANY
    error = flags.error(windows)
    return {
        "failure_probability": flags.mechanism.beta,
        "error_bound": error,
        "windows": windows,
        "sentence": f"With probability {1 - flags.mechanism.beta:g}, in {windows:,} windows of a stream, every "
        f"category counted {error:,} times more than its threshold has its flag up, and none {error:,} times less.",
    }


PIPELINE = EventPipeline(
    row_type=CategoryFlag,
    order=ORDER,
    title="flags",
    transform=transform,
    accuracy=accuracy,
    published="flags_published",
    beyond=histogram_options.BEYOND,
    public_files=("domain", "thresholds"),
)

COMMAND = Command(
    description="Tells, live, which public categories have been counted more often than their thresholds: after every "
    "window, a flag for each category, which stays up. Any option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
