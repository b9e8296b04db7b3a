"""Attacks on live histograms: an event, and a person with more events than may count, by an adaptive adversary."""

from collections.abc import Iterable, Sequence
from typing import Any

from privstream.pipelines.questions.attack import (
    SUSPECT,
    Attack,
    Seen,
    Sent,
    all_windows,
    crowd,
    first_window,
    nobody,
    total,
)
from privstream.transforms.events.domain import Domain

EPSILON = 2.0
ONE = Domain(["a"])
LIMIT, MOST_OTHERS = 2, 5


def as_many_as_seen(rows: Sequence[Any]) -> int:
    """Return how many others come after these rows: as many as the last count seems to be."""
    return min(MOST_OTHERS, abs(rows[-1].estimate)) if rows else 0


def following(seen: Seen) -> Iterable[Sent]:
    """Let others come after what was published before."""
    return crowd(as_many_as_seen(seen.rows), "a", first=1 + seen.window * MOST_OTHERS)


def above_the_others(transform: Any, rows: Sequence[Any]) -> float:
    """Return by how much the last count exceeds the number of others, which follows from the counts before."""
    others = sum(as_many_as_seen(rows[:window]) for window in range(len(rows)))
    return float(rows[-1].estimate - others)


ATTACKS = (
    Attack(
        name="noise of a count",
        text="the unit is an event. With D, there is one event; with D', none. The adversary sees the count.",
        options={"epsilon": EPSILON, "domain": ONE, "method": "direct_counters"},
        control={"epsilon": 2 * EPSILON},
        others=nobody,
        suspect=first_window(Sent(SUSPECT, "a")),
        score=total("estimate"),
    ),
    Attack(
        name="an adaptive adversary",
        text=f"the unit is a person, of whom {LIMIT} events may count. With D, one person sends 2 events in each of 3 "
        "windows. In each window as many others send one as the last count says. The adversary sees the last count.",
        options={
            "epsilon": EPSILON,
            "domain": ONE,
            "unit": "user",
            "max_contributions": LIMIT,
            "method": "direct_counters",
        },
        control={"epsilon": 4 * EPSILON},
        others=following,
        suspect=all_windows(Sent(SUSPECT, "a"), Sent(SUSPECT, "a")),
        score=above_the_others,
        windows=3,
        adaptive=True,
    ),
)
