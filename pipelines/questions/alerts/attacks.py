"""Attacks on alerts: a person who meets a rule that is nearly passed, in one window or many, or is in its number."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
from privstream.pipelines.questions.attack import (
    SUSPECT,
    Attack,
    Seen,
    Sent,
    all_windows,
    crowd,
    earliness,
    most_telling,
    total,
)
from privstream.transforms.alerts.rules import AlertRule

EPSILON, DELTA = 2.0, 0.05
WINDOWS, MANY_WINDOWS = 2, 16
MOST_EXPONENT = 100.0
ONE, LOW, HIGH = ((AlertRule(name=f"at least {least}", at_least=least, items=("a", "b")),) for least in (1, 5, 60))
SUSPECT_ALWAYS = all_windows(Sent(SUSPECT, "a"), Sent(SUSPECT, "b"))


def on_the_edge(seen: Seen) -> Iterable[Sent]:
    """Let so many people meet the rule that one more makes the most of a difference."""
    monitor = seen.transform.counted.monitor
    eta, surely = monitor.calibrated.eta, math.log(monitor.tests / monitor.beta)
    middle = HIGH[0].threshold + (surely - math.log(surely)) / (2 * eta)
    counts = np.arange(1, 3 * HIGH[0].threshold)
    hits = -np.expm1(-np.exp(np.minimum(eta * (counts - middle), MOST_EXPONENT)))
    return crowd(most_telling(hits, WINDOWS), "a")


def passed_by(transform: Any, rows: Sequence[Any]) -> float:
    """Return by how much the rule is passed, with noise; -1 where there is no alert."""
    return float(rows[0].gap) if rows else -1.0


def passed_in_all(transform: Any, rows: Sequence[Any]) -> float:
    """Return by how much the rule is passed in all windows together, with noise; 0 where there is no alert."""
    return math.fsum(1 + row.gap for row in rows)


ATTACKS = (
    Attack(
        name="a test that is nearly passed, status",
        text=f"others meet the rule, so many that an alert may start in each of {WINDOWS} windows. With D, one person "
        "more meets it in all of them. The adversary sees when it starts.",
        options={"epsilon": EPSILON, "delta": DELTA, "rules": HIGH, "max_hits": 1, "method": "status"},
        control={"epsilon": 16 * EPSILON},
        others=on_the_edge,
        suspect=SUSPECT_ALWAYS,
        score=earliness(WINDOWS),
        windows=WINDOWS,
    ),
    Attack(
        name="a test that is nearly passed, sparse vector",
        text="5 people meet a rule for 5. With D, one person more meets it. The adversary sees whether there is an "
        "alert, and by how much the rule is passed.",
        options={"epsilon": EPSILON, "rules": LOW, "min_alerts": 1, "branches": 1, "method": "sparse_vector"},
        control={"epsilon": 4 * EPSILON},
        others=all_windows(*crowd(5, "a")),
        suspect=SUSPECT_ALWAYS,
        score=passed_by,
    ),
    Attack(
        name="a budget that is spent",
        text=f"one person meets a rule for one in each of {MANY_WINDOWS} windows, and the budget pays for one alert. "
        "With D, one person more meets it in all of them. The adversary adds up by how much it is passed. The control "
        "pays for all alerts.",
        options={"epsilon": EPSILON, "rules": ONE, "min_alerts": 1, "branches": 1, "method": "sparse_vector"},
        control={"epsilon": MANY_WINDOWS * EPSILON, "min_alerts": MANY_WINDOWS},
        others=all_windows(*crowd(1, "a")),
        suspect=SUSPECT_ALWAYS,
        score=passed_in_all,
        windows=MANY_WINDOWS,
    ),
    Attack(
        name="the number of an alert",
        text="60 people meet a rule for 5. With D, one person more meets it, by two events. The adversary sees the "
        "number of people in the alert.",
        options={"epsilon": EPSILON, "rules": LOW, "method": "counts"},
        control={"epsilon": 2 * EPSILON},
        others=all_windows(*crowd(60, "a")),
        suspect=SUSPECT_ALWAYS,
        score=total("estimate"),
    ),
)
