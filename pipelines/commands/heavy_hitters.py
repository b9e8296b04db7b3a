"""`privstream heavy-hitters`: from an event file to the items that many people hold, window by window."""

from __future__ import annotations

import argparse
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.command import Command
from privstream.pipelines.commands import options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.transforms import Domain, HeavyHitter, ShiftingHeavyHitters

ORDER = ("stream", "window_start", "-count", "item")
"""By stream and window, the most frequent item first."""

LATER = 1000
"""The window for which a threshold that rises is told, beside the first."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    options.add_files(parser)
    options.add_windows(parser, clock=False)
    budget = options.add_budget(parser, unit="a person over the whole run", delta=True)
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    budget.add_argument("--calibration", default="clock", help="clock (default), target_charging or paper")
    options.add_count_share(budget)
    options.add_key(parser)
    limits = parser.add_argument_group("limits for each person")
    limits.add_argument("--max_hits", type=int, required=True, help="hits that one person is charged for, then dropped")
    limits.add_argument(
        "--horizon",
        type=options.horizon_steps,
        required=True,
        metavar="STEPS",
        help=f"windows of one person, or {options.UNBOUNDED}",
    )
    limits.add_argument("--participation_cap", type=int, metavar="STEPS", help="windows of one person, counted")
    limits.add_argument("--items_per_step", type=int, default=1, help="items of one person in a window (default: 1)")
    limits.add_argument("--selection", default="last", help="which of them: last, first or random (default: last)")
    options.add_public(parser, domain=None, named=False)


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> ShiftingHeavyHitters:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    each = arguments.streams_per_person
    return ShiftingHeavyHitters(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        max_hits=arguments.max_hits,
        window=arguments.window,
        period=arguments.period,
        start=arguments.start,
        end=arguments.end,
        allowed_lateness=arguments.allowed_lateness,
        horizon=arguments.horizon,
        participation_cap=arguments.participation_cap,
        items_per_step=arguments.items_per_step,
        selection=arguments.selection,
        domain=None if arguments.domain is None else Domain.from_file(arguments.domain),
        streams=options.streams(arguments, streams, unnamed=True),
        streams_per_person=1 if streams and each is None else each,
        calibration=arguments.calibration,
        neighbouring=arguments.neighbouring,
        beta=arguments.beta,
        count_share=arguments.count_share,
        shards=arguments.shards,
        noise=noise,
    )


def accuracy(hitters: ShiftingHeavyHitters) -> dict[str, Any]:
    """Return what is found."""
    return {
        "detection_threshold": hitters.detection_threshold,
        "failure_probability": hitters.monitor.beta,
        "tests": hitters.tests,
        "count_stddev": hitters.monitor.count_stddev,
        "sentence": _sentence(hitters),
    }


def _sentence(hitters: ShiftingHeavyHitters) -> str:
    """Say what is found, and on what that is conditional."""
    first, later = hitters.detection_threshold, hitters.detection_threshold_at(LATER)
    rising = f"; the number is for the first window and rises to {later:,} in window {LATER:,}" if later > first else ""
    stream = "" if hitters.streams_per_person is None else " in any one stream"
    return (
        f"With probability {1 - hitters.monitor.beta:g}, every item that {first:,} people hold in a window, all of "
        f"them within their limits, is found, in {hitters.tests:,} tests of one item in one window{stream}{rising}."
    )


PIPELINE = EventPipeline(
    row_type=HeavyHitter,
    order=ORDER,
    title="heavy hitters",
    transform=transform,
    accuracy=accuracy,
    published="hits_published",
    beyond={
        "items_over_limit": "times an item of a person was left out: --items_per_step others of the window count",
        "holdings_over_limit": "times a person was left out for having taken part often enough",
    },
)

COMMAND = Command(
    description="Reports the items that many people hold in each window. The guarantee holds for each person over the "
    "whole run. Any option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
