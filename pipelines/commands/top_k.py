"""`privstream top-k`: from an event file to the items that most people hold, window by window, and how far ahead."""

from __future__ import annotations

import argparse
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.command import Command
from privstream.pipelines.commands import options
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.transforms import Domain, RankedItem, TopKWithGap
from privstream.transforms.top_k.top_k_with_gap import UNITS

ORDER = ("stream", "window_start", "rank")
"""By stream and window, the item on top first."""

PERSON = UNITS[0]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    options.add_files(parser)
    options.add_windows(parser, clock=True)
    asked = parser.add_argument_group("answers")
    asked.add_argument("--top", type=int, required=True, metavar="K", help="items to publish in each window")
    budget = options.add_budget(parser, unit="the unit", delta=None)
    add_shares(budget)
    options.add_key(parser)
    limits = parser.add_argument_group("limits for each person")
    limits.add_argument("--participation_cap", type=int, metavar="N", help="windows of one person (default: all)")
    limits.add_argument("--items_per_step", type=int, default=1, help="items of one person in a window (default: 1)")
    limits.add_argument("--selection", default="last", help="which of them: last, first or random (default: last)")
    options.add_public(parser, domain=True)


def add_shares(budget: argparse._ArgumentGroup) -> None:
    """Add whom the budget is for, and what it is spent on."""
    budget.add_argument(
        "--unit", choices=UNITS, default=PERSON, help="a person in the whole run (default), or in one window"
    )
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    budget.add_argument(
        "--measure_share",
        type=float,
        default=0.25,
        help="share of epsilon for counts of what is on top (default: 0.25)",
    )
    budget.add_argument("--noise_law", default="exponential", help="exponential (default) or laplace, of the ranking")


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> TopKWithGap:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    each = arguments.streams_per_person
    return TopKWithGap(
        epsilon=arguments.epsilon,
        delta=arguments.delta,
        window=arguments.window,
        start=arguments.start,
        end=arguments.end,
        allowed_lateness=arguments.allowed_lateness,
        domain=Domain.from_file(arguments.domain),
        top=arguments.top,
        unit=arguments.unit,
        participation_cap=arguments.participation_cap,
        items_per_step=arguments.items_per_step,
        selection=arguments.selection,
        streams=options.streams(arguments, streams),
        streams_per_person=1 if each is None and streams and arguments.unit == PERSON else each,
        measure_share=arguments.measure_share,
        noise_law=arguments.noise_law,
        neighbouring=arguments.neighbouring,
        beta=arguments.beta,
        shards=arguments.shards,
        noise=noise,
    )


def accuracy(ranking: TopKWithGap) -> dict[str, Any]:
    """Return how right the ranking and the counts are."""
    confidence = f"With probability {1 - ranking.beta:g}"
    return {
        "failure_probability": ranking.beta,
        "selection_error": ranking.selection_error,
        "least_error_bound": ranking.measure_error,
        "estimate_stddev": ranking.mechanism.estimate_variance**0.5,
        "sentence": f"{confidence}, no item that a window leaves out is held by over {ranking.selection_error:,.0f} "
        f"more people than one that it publishes. {confidence}, an estimate is within its error bound, at least "
        f"{ranking.measure_error:,.0f} people, of the true number. Both count people within their limits.",
    }


PIPELINE = EventPipeline(
    row_type=RankedItem,
    order=ORDER,
    title="ranks",
    transform=transform,
    accuracy=accuracy,
    published="ranks_published",
    beyond={
        "items_over_limit": "times an item of a person was left out: --items_per_step others of the window count",
        "holdings_over_limit": "times a person was left out for having taken part often enough",
    },
)

COMMAND = Command(
    description="Ranks the items of a public list by the number of people who hold them, in every window, and says by "
    "how much each is ahead of the next. Any option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
