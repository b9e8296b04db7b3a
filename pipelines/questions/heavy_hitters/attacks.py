"""Attacks on heavy hitters: a person with an item that may be reported, with many of them, or alone with one."""

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
WINDOWS, MANY_WINDOWS = 2, 8
ONE, MANY = Domain(["a"]), Domain(f"item {window}" for window in range(MANY_WINDOWS))


def most_telling_crowd(seen: Seen, windows: int) -> int:
    """Return how many people must have an item in so many windows for one more to make the most of a difference."""
    counts = np.arange(1, 2 * seen.transform.detection_threshold)
    hits = seen.transform.answer.monitor.calibrated.hit_probability(counts)
    return most_telling(hits, windows)


def on_the_edge(seen: Seen) -> Iterable[Sent]:
    """Let so many people have the item, the same in all windows."""
    return crowd(most_telling_crowd(seen, WINDOWS), "a")


def others_on_the_edge(seen: Seen) -> Iterable[Sent]:
    """Let so many people have the item of the window, others in each window."""
    number = most_telling_crowd(seen, 1)
    return crowd(number, f"item {seen.window}", first=1 + seen.window * number)


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
        name="too many charges",
        text=f"each of {MANY_WINDOWS} windows has an item of its own and people of its own, so many that it may be "
        "reported. With D, one person more has all of these items, and may be charged for one. The adversary counts "
        "the reports. The control may charge for all.",
        options={
            "epsilon": EPSILON,
            "delta": DELTA,
            "max_hits": 1,
            "method": "clock",
            "count_share": 0.0,
            "domain": MANY,
        },
        control={"epsilon": MANY_WINDOWS * EPSILON, "max_hits": MANY_WINDOWS},
        others=others_on_the_edge,
        suspect=lambda seen: [Sent(SUSPECT, f"item {seen.window}")],
        score=lambda transform, rows: float(len(rows)),
        windows=MANY_WINDOWS,
    ),
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
