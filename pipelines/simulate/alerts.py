"""`privstream simulate alerts`: what people report to a clinic, with outbreaks and an outage, and rules that notice
them."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
from apache_beam.utils.timestamp import Timestamp
from privstream.pipelines.questions.public_lists import write_rules
from privstream.pipelines.questions.spec import Option
from privstream.pipelines.simulate.simulation import simulation
from privstream.pipelines.simulate.streams import START_MICROS, TrueWindow, start_simulation
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


def rules_for(users: int) -> tuple[AlertRule, ...]:
    """Return rules that outbreaks and outages of so many people meet."""
    return (
        AlertRule(name="flu", at_least=round(0.12 * users), items=("fever", "cough")),
        AlertRule(name="rash", at_least=round(0.03 * users), items=("rash",)),
        AlertRule(name="line down", at_most=round(0.05 * users)),
    )


def simulate_clinic(*, users: int, windows: int, seed: int, window_seconds: float = 3600.0) -> Iterator[TrueWindow]:
    """Simulate reports: every so often an outbreak that rises and falls, and once a short outage.

    Args:
        users: number of people, >= 1.
        windows: number of windows, >= 1.
        seed: of all random choices.
        window_seconds: length of a window.

    Returns:
        The windows, made one at a time.
    """
    rng, length = start_simulation(users, windows, seed, window_seconds)
    names = np.array([f"u{i:06}" for i in range(users)])
    middle, width = windows * rng.uniform(0.25, 0.45), max(windows / 25, 0.7)
    outage = range(round(windows * 0.7), round(windows * 0.7) + max(1, windows // 40))
    rules = rules_for(users)
    for window in range(windows):
        start = START_MICROS + window * length
        share = USUAL + OUTBREAK * np.exp(-(((window - middle) / width) ** 2) / 2)
        reports = rng.random((users, len(ITEMS))) < share * (OUTAGE if window in outage else 1.0)
        who, what = np.nonzero(reports)
        times = start + rng.integers(0, length, len(who))
        order = np.argsort(times, kind="stable")
        columns = names[who[order]], np.array(ITEMS)[what[order]], times[order]
        met = [reports[:, [ITEMS.index(item) for item in rule.items or ITEMS]].any(axis=1) for rule in rules]
        counts = [int(np.count_nonzero(people)) for people in met]
        yield TrueWindow.of(start, length, columns, RuleCount, [rule.name for rule in rules], counts)


def _write_rules(arguments: argparse.Namespace) -> None:
    if arguments.rules is not None:
        write_rules(arguments.rules, rules_for(arguments.users))


COMMAND = simulation(
    "Writes simulated reports to a clinic, with an outbreak and an outage, to try alerts out on; nothing in them is "
    "private.",
    simulate_clinic,
    RuleCount,
    "how many people met each rule",
    Option("rules", "Path", "rules that the outbreak and the outage meet, as JSON lines"),
    more=_write_rules,
)
