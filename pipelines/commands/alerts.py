"""`privstream alerts`: from an event file to the windows in which public rules about numbers of people were met."""

from __future__ import annotations

import argparse
import math
from typing import Any

from privstream.mechanisms import KeyedNoise
from privstream.pipelines.command import Command
from privstream.pipelines.commands import options
from privstream.pipelines.commands.alert_rules_file import read_rules
from privstream.pipelines.commands.event_pipeline import EventPipeline
from privstream.transforms import Alert, SparseVectorAlerts

ORDER = ("window_start", "stream", "rule")
"""By time."""

LATER = 1000
"""The number of windows that the accuracy is told for where there is no end."""

RULES = """\
rules, one JSON object on each line:
  {"name": "flu", "at_least": 500, "items": ["fever", "cough"]}
  {"name": "outage", "at_most": 100}
A rule is about the number of different people who have, within a window, an event of one of its items; without items,
any event. Rules, and the file with them, are public.
"""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    parser.epilog = RULES
    options.add_files(parser)
    options.add_windows(parser, clock=True)
    budget = options.add_budget(parser, unit="a person over the whole run", delta=False)
    add_alerts(budget)
    options.add_key(parser)
    tests = parser.add_argument_group("tests")
    tests.add_argument("--rules", required=True, metavar="PATH", help="file with the rules, see below")
    tests.add_argument("--period", type=float, metavar="SECONDS", help="between window starts (default: window)")
    tests.add_argument(
        "--quiet",
        type=int,
        default=0,
        metavar="N",
        help="windows after an alert without tests of its rule (default: 0)",
    )
    tests.add_argument("--streams", metavar="A,B,..", help=f"public streams to watch; {options.STREAMS_NEEDED}")
    tests.add_argument(
        "--streams_per_person",
        type=int,
        metavar="N",
        help="streams that one person counts in; each stream then has a budget (default: any, and one budget for all)",
    )
    options.add_shards(parser)


def add_alerts(budget: argparse._ArgumentGroup) -> None:
    """Add: how the budget is spent."""
    budget.add_argument("--neighbouring", default="add_remove", help="add_remove (default) or replace_one")
    budget.add_argument(
        "--min_alerts", type=int, default=10, metavar="N", help="alerts that are paid for in any case (default: 10)"
    )
    budget.add_argument(
        "--branches", type=int, default=2, metavar="N", help="prices: clear alerts cost 1/2, 1/4 .. (default: 2 prices)"
    )
    budget.add_argument(
        "--budget", default="shared", help="shared (default): one for all rules; per_rule: a part of epsilon for each"
    )


def transform(arguments: argparse.Namespace, streams: bool, noise: KeyedNoise) -> SparseVectorAlerts:
    """Return the transform that the options describe; `streams` tells whether the events carry a stream."""
    if arguments.end is None and arguments.watch is None:
        raise ValueError("end must be given: every window until then is tested")
    return SparseVectorAlerts(
        epsilon=arguments.epsilon,
        rules=read_rules(arguments.rules),
        window=arguments.window,
        period=arguments.period,
        start=arguments.start,
        end=arguments.end,
        allowed_lateness=arguments.allowed_lateness,
        min_alerts=arguments.min_alerts,
        branches=arguments.branches,
        budget=arguments.budget,
        quiet=arguments.quiet,
        streams=options.streams(arguments, streams),
        streams_per_person=arguments.streams_per_person,
        neighbouring=arguments.neighbouring,
        beta=arguments.beta,
        shards=arguments.shards,
        noise=noise,
    )


def accuracy(alerts: SparseVectorAlerts) -> dict[str, Any]:
    """Return what is found."""
    plan, windows = alerts.plan, alerts.windows or LATER
    margin, tests = alerts.margin(windows), plan.tests(windows)
    span = "" if alerts.windows else f" of the first {windows:,} windows"
    return {
        "margin": margin,
        "failure_probability": plan.beta,
        "tests": tests,
        "gap_stddevs": [math.sqrt(plan.mechanism.tests.variance(branch)) for branch in range(plan.mechanism.branches)],
        "epsilon_per_alert": plan.mechanism.hit_epsilon,
        "sentence": (
            f"With probability {1 - plan.beta:g}, in all {tests:,} tests of a run{span} at once, every number of "
            f"people that passes its threshold by more than {math.ceil(margin):,} gives an alert, until the run stops, "
            "and none does that misses it by more."
        ),
    }


PIPELINE = EventPipeline(
    row_type=Alert,
    order=ORDER,
    title="alerts",
    transform=transform,
    accuracy=accuracy,
    published="alerts_published",
    beyond={
        "runs_stopped": "runs of tests have stopped: their budget is spent",
        "holdings_over_limit": "times a person was left out for being in enough streams already",
    },
    public_files=("rules",),
)

COMMAND = Command(
    description="Reports in which windows public rules about numbers of people are met, and by how much. Tests without "
    "an alert cost nothing; when alerts have spent the budget, the run stops and says so. The guarantee holds for each "
    "person over the whole run. Any option of Apache Beam may be added, such as --runner.",
    add_arguments=add_arguments,
    run=PIPELINE.run,
    takes_beam_options=True,
)
