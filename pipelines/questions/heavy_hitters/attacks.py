"""Attacks on heavy hitters: one person more with an item that may be reported, and a person alone with one."""

from collections.abc import Iterable

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
    nobody,
)
from privstream.transforms.events.domain import Domain

EPSILON, DELTA = 2.0, 0.05
WINDOWS = 2
ONE = Domain(["a"])


def on_the_edge(seen: Seen) -> Iterable[Sent]:
    """Let so many people have the item that one more makes the most of a difference."""
    counts = np.arange(1, 2 * seen.transform.detection_threshold)
    hits = seen.transform.answer.monitor.calibrated.hit_probability(counts)
    return crowd(most_telling(hits, WINDOWS), "a")


def waiting(method: str) -> Attack:
    """Return the attack on the tests of a method."""
    return Attack(
        name=f"a test that is nearly passed, {method}",
        text=f"others have the item, so many that it may be reported in each of {WINDOWS} windows. With D, one person "
        "more has it in all of them. The adversary sees when it is first reported.",
        options={
            "epsilon": EPSILON,
            "delta": DELTA,
            "max_hits": 1,
            "method": method,
            "count_share": 0.0,
            "domain": ONE,
        },
        control={"epsilon": 8 * EPSILON},
        others=on_the_edge,
        suspect=all_windows(Sent(SUSPECT, "a")),
        score=earliness(WINDOWS),
        windows=WINDOWS,
    )


ATTACKS = (
    waiting("status"),
    waiting("clock"),
    Attack(
        name="a person alone with an item",
        text="the list of items is not public. With D, one person has an item that nobody else has. The adversary sees "
        "whether it is reported.",
        options={"epsilon": 0.2, "delta": 0.002, "max_hits": 1, "method": "counts"},
        control={"epsilon": 1.0, "delta": 0.1},
        others=nobody,
        suspect=all_windows(Sent(SUSPECT, "a")),
        score=lambda transform, rows: float(len(rows)),
    ),
)
