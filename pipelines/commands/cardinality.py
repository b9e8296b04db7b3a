"""`privstream cardinality`: from an event file to how many people are in a set now, at the end of every window."""

from __future__ import annotations

import argparse
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.mechanisms.cardinality.set_cardinality import MODES, UNITS
from privstream.pipelines.command import Command
from privstream.pipelines.commands import options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.transforms import CardinalityEstimate, SetCardinality

ORDER = ("stream", "window_start")
"""By stream and time."""

LATER = 1000
"""The window for which the error is told, beside others, when there is no end."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    options.add_files(parser, item="value that says whether a person enters or leaves")
    options.add_windows(parser, clock=True)
    budget = options.add_budget(parser, unit="the unit", delta=None)
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    add_limits(budget)
    options.add_key(parser)
    presence = parser.add_argument_group("who is there")
    presence.add_argument("--enter_values", metavar="A,B,..", help="items that say that a person enters (default: any)")
    presence.add_argument("--leave_values", metavar="A,B,..", help="items that say that a person leaves")
    presence.add_argument(
        "--timeout", type=float, metavar="SECONDS", help="a person has left when nothing was heard for so long"
    )
    options.add_public(parser, domain=False)


def add_limits(budget: argparse._ArgumentGroup) -> None:
    """Add: what is protected, and what is known of it."""
    budget.add_argument("--unit", choices=UNITS, default="user", help="all that one user does (default), or one event")
    budget.add_argument(
        "--max_updates",
        type=int,
        metavar="K",
        help="public guess: how often people enter or leave in the whole run, all together (default: unknown)",
    )
    budget.add_argument(
        "--visits_per_person", type=int, metavar="N", help="later entries of a person do not count (default: no limit)"
    )
    budget.add_argument("--mode", choices=MODES, default="auto", help="how (default: auto, what promises least error)")


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> SetCardinality:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    return SetCardinality(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        unit=arguments.unit,
        window=arguments.window,
        start=arguments.start,
        end=arguments.end,
        allowed_lateness=arguments.allowed_lateness,
        enter_values=options.texts("enter_values", arguments.enter_values),
        leave_values=options.texts("leave_values", arguments.leave_values),
        timeout=arguments.timeout,
        max_updates=arguments.max_updates,
        visits_per_person=arguments.visits_per_person,
        mode=arguments.mode,
        streams=options.streams(arguments, streams),
        streams_per_person=arguments.streams_per_person,
        neighbouring=arguments.neighbouring,
        beta=arguments.beta,
        shards=arguments.shards,
        noise=noise,
    )


def accuracy(inside: SetCardinality) -> dict[str, Any]:
    """Return how far the estimates are off."""
    mechanism = inside.mechanism
    windows = mechanism.horizon or LATER
    error = mechanism.error(windows)
    found = {
        "mode": mechanism.chosen_mode,
        "failure_probability": mechanism.beta,
        "windows": windows,
        "error_bound": error,
        "updates": mechanism.expected_updates,
    }
    span = "" if mechanism.horizon else f" of the first {windows:,} windows"
    condition = (
        f", while people enter or leave at most {mechanism.expected_updates:,} times in all"
        if mechanism.chosen_mode in ("sparse", "paper")
        else ""
    )
    sentence = (
        f"With probability {1 - mechanism.beta:g}, all estimates of a stream{span} are within {error:,} of the true "
        f"number{condition} (mode {mechanism.chosen_mode}; each row says its own bound)."
    )
    return found | {"sentence": sentence}


PIPELINE = EventPipeline(
    row_type=CardinalityEstimate,
    order=ORDER,
    title="estimates",
    transform=transform,
    accuracy=accuracy,
    published="estimates_published",
    unusable={"events_of_other_values": "events that neither enter nor leave"},
    beyond={
        "entries_over_limit": "entries beyond a person's limits, which do not count",
        "estimates_without_bound": "estimates without a bound: --max_updates was passed, they stay what they are",
    },
    public_files=(),
)

COMMAND = Command(
    description="Tells how many people are in a set now (in the building, subscribed, online), at the end of every "
    "window, from events of people who enter and leave, or from sessions with a time-out. One guarantee holds for the "
    "whole run, however often people come and go. Any option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
