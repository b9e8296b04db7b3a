"""`privstream simulate alerts`: what people report to a clinic, with outbreaks and an outage, and rules that notice
them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from apache_beam.utils.timestamp import Timestamp
from privstream.mechanisms import checks
from privstream.pipelines.command import Command
from privstream.pipelines.questions.public_lists import write_rules
from privstream.pipelines.simulate.simulation import add_simulation, write_files
from privstream.pipelines.simulate.streams import EVENT_SCHEMA, START_MICROS
from privstream.transforms import AlertRule

ITEMS = ("fever", "cough", "rash", "headache", "checkup")
USUAL = np.array([0.02, 0.03, 0.005, 0.04, 0.1])
"""Part of all people who report each item in a usual window."""

OUTBREAK = np.array([0.1, 0.14, 0.0, 0.02, 0.0])
OUTAGE = 0.05
"""Part of the usual reports that come in while the line is down."""


class RuleCount(NamedTuple):
    """How many different people met a rule in a window, in truth."""

    stream: str
    window_start: Timestamp
    window_end: Timestamp
    rule: str
    people: int


@dataclass(frozen=True, eq=False)
class ClinicWindow:
    """One window: `events`, and how many people met each rule."""

    start: int
    end: int
    events: pa.RecordBatch
    people: dict[str, int]


def rules_for(users: int) -> tuple[AlertRule, ...]:
    """Return rules that outbreaks and outages of so many people meet."""
    return (
        AlertRule(name="flu", at_least=round(0.12 * users), items=("fever", "cough")),
        AlertRule(name="rash", at_least=round(0.03 * users), items=("rash",)),
        AlertRule(name="line down", at_most=round(0.05 * users)),
    )


def simulate_clinic(*, users: int, windows: int, seed: int, window_seconds: float = 3600.0) -> Iterator[ClinicWindow]:
    """Simulate reports: every so often an outbreak that rises and falls, and once a short outage.

    Args:
        users: number of people, >= 1.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.

    Returns:
        The windows, made one at a time.
    """
    checks.integer("users", users, minimum=1)
    checks.integer("windows", windows, minimum=1)
    rng = np.random.default_rng(checks.integer("seed", seed, minimum=0))
    length = round(checks.positive("window", window_seconds) * 1_000_000)
    names = np.array([f"u{i:06}" for i in range(users)])
    middle, width = windows * rng.uniform(0.25, 0.45), max(windows / 25, 0.7)
    outage = range(round(windows * 0.7), round(windows * 0.7) + max(1, windows // 40))
    rules = rules_for(users)
    for window in range(windows):
        share = USUAL + OUTBREAK * np.exp(-(((window - middle) / width) ** 2) / 2)
        reports = rng.random((users, len(ITEMS))) < share * (OUTAGE if window in outage else 1.0)
        who, what = np.nonzero(reports)
        times = START_MICROS + window * length + rng.integers(0, length, len(who))
        order = np.argsort(times, kind="stable")
        columns = [names[who[order]], np.array(ITEMS)[what[order]], times[order]]
        arrays = [pa.array(column).cast(f.type) for column, f in zip(columns, EVENT_SCHEMA, strict=True)]
        people = {}
        for rule in rules:
            met = reports if rule.items is None else reports[:, [ITEMS.index(item) for item in rule.items]]
            people[rule.name] = int(np.count_nonzero(met.any(axis=1)))
        start = START_MICROS + window * length
        yield ClinicWindow(start, start + length, pa.RecordBatch.from_arrays(arrays, schema=EVENT_SCHEMA), people)


def rule_counts(window: ClinicWindow) -> Iterator[RuleCount]:
    """Return the truth about one window."""
    for rule, people in window.people.items():
        yield RuleCount("", Timestamp(micros=window.start), Timestamp(micros=window.end), rule, people)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_simulation(parser, truth="how many people met each rule")
    parser.add_argument("--rules", metavar="PATH", help="rules that the outbreak and the outage meet, as JSON lines")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Write the files."""
    write_files(arguments, simulate_clinic, truth_type=RuleCount, truth_of=rule_counts, windows=arguments.windows)
    if arguments.rules is not None:
        write_rules(arguments.rules, rules_for(arguments.users))


COMMAND = Command(
    description="Writes simulated reports to a clinic, with an outbreak and an outage, to try alerts out on; nothing "
    "in them is private.",
    add_arguments=add_arguments,
    run=run,
)
