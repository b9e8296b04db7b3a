"""Options that the commands on counts of public categories share."""

from __future__ import annotations

import argparse
import json
from contextlib import suppress
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.commands import options
from privstream.pipelines.commands.endless import is_endless
from privstream.pipelines.numbers import LARGEST
from privstream.transforms import Domain
from privstream.transforms.histograms.events import LISTED
from privstream.transforms.histograms.histogram_transform import UNITS

BEYOND = {"contributions_over_limit": "categories left out because their person had reached the limit"}


def add_categories(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Add files, windows, budget, key, limits and public knowledge; return the group of the budget."""
    options.add_files(parser, user="person, read with --unit user alone", item="category")
    options.add_windows(parser, clock=True)
    budget = options.add_budget(parser, unit="the unit", delta=None)
    budget.add_argument(
        "--unit", choices=UNITS, default="event", help="what is protected: one event (default), or a user's whole life"
    )
    add_assumptions(budget)
    limits = parser.add_argument_group("limits")
    add_limits(limits)
    limits.add_argument("--max_per_window", type=int, metavar="N", help="categories of one user in one window")
    limits.add_argument("--separator", help="text between the categories of an event that may have several")
    options.add_key(parser)
    public = parser.add_argument_group("public knowledge")
    public.add_argument("--domain", required=True, metavar="PATH", help="file with the categories, one per line")
    public.add_argument(
        "--streams", metavar="A,B,..", help=f"public streams, each counted by itself; {options.STREAMS_NEEDED}"
    )
    options.add_shards(parser)
    return budget


def add_assumptions(budget: argparse._ArgumentGroup) -> None:
    """Add what neighbours are, and whether steps may be repeated with other data."""
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    budget.add_argument(
        "--restartable",
        action="store_true",
        default=None,
        help="bind all noise to the data, so that a run that is repeated with other data does not show by how much "
        "they differ (always, if the input has no end, or delta > 0)",
    )


def add_limits(limits: argparse._ArgumentGroup) -> None:
    """Add what decides the sensitivity."""
    limits.add_argument(
        "--max_contributions", type=int, metavar="C", help="categories of one user in the whole run, for --unit user"
    )
    limits.add_argument(
        "--categories_per_row", type=int, default=1, metavar="S", help="categories of one event (default: 1)"
    )


def common(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> dict[str, Any]:
    """Return the arguments that the transforms share; `streams` tells whether the events carry a stream."""
    if arguments.separator is None and arguments.categories_per_row > 1:
        raise ValueError("separator must be given when an event may have several categories")
    return {
        "epsilon": arguments.epsilon,
        "delta": arguments.delta,
        "beta": arguments.beta,
        "domain": Domain.from_file(arguments.domain),
        "window": arguments.window,
        "start": arguments.start,
        "end": arguments.end,
        "allowed_lateness": arguments.allowed_lateness,
        "neighbouring": arguments.neighbouring,
        "restartable": arguments.restartable or is_endless(arguments) or None,
        "unit": arguments.unit,
        "max_contributions": arguments.max_contributions,
        "max_per_window": arguments.max_per_window,
        "categories_per_row": arguments.categories_per_row,
        "separator": LISTED if arguments.separator is None else arguments.separator,
        "streams": options.streams(arguments, streams),
        "shards": arguments.shards,
        "noise": noise,
    }


def read_thresholds(text: str) -> int | dict[str, int]:
    """Return a number, or what a JSON object in a file says of each category."""
    found = _thresholds(text)
    for number in found.values() if isinstance(found, dict) else (found,):
        if isinstance(number, int) and number > LARGEST:
            raise ValueError(f"thresholds must be <= 2**40, got {number}")
    return found


def _thresholds(text: str) -> int | dict[str, int]:
    """Read a number, or a file."""
    with suppress(ValueError):
        return int(text)
    try:
        with open(text, encoding="utf-8") as file:
            found = json.load(file)
    except (OSError, ValueError):
        found = None
    if not isinstance(found, dict):
        raise ValueError(f"thresholds must be a whole number, or a file with a JSON object, got {text}")
    return found
