"""Attacks on rankings: a person who breaks a tie, and one who is in the count of the item on top."""

from collections.abc import Sequence
from typing import Any

from privstream.pipelines.questions.attack import SUSPECT, Attack, Sent, all_windows, crowd, total
from privstream.transforms.events.domain import Domain

EPSILON = 2.0
TWO = Domain(["a", "b"])
TIE = (*crowd(3, "a"), *crowd(3, "b", first=4))
CLEAR = tuple(crowd(60, "b"))
TWICE = all_windows(Sent(SUSPECT, "b"), Sent(SUSPECT, "b"))


def ahead(transform: Any, rows: Sequence[Any]) -> float:
    """Return how far `b` seems to be ahead of `a`; of equal counts the first item of the list is on top."""
    (row,) = rows
    return float(row.gap + 1 if row.item == "b" else -row.gap)


ATTACKS = (
    Attack(
        name="a tie",
        text="two items are equal, 3 people each. With D, one person more has the second one. The adversary sees which "
        "item is on top, and by how much.",
        options={
            "epsilon": EPSILON,
            "domain": TWO,
            "top": 1,
            "method": "exponential_gaps",
            "measure_share": 0.01,
        },
        control={"epsilon": 2 * EPSILON},
        others=all_windows(*TIE),
        suspect=TWICE,
        score=ahead,
    ),
    Attack(
        name="the count on top",
        text="60 people have one item and nobody has the other. With D, one person more has the first one. The "
        "adversary sees its count.",
        options={
            "epsilon": EPSILON,
            "domain": TWO,
            "top": 1,
            "method": "exponential_gaps",
            "measure_share": 0.9,
        },
        control={"epsilon": 2 * EPSILON},
        others=all_windows(*CLEAR),
        suspect=TWICE,
        score=total("estimate"),
    ),
    Attack(
        name="counts of two windows",
        text="60 people have one item in both windows. With D, one person more has it in both. The adversary adds up "
        "its counts.",
        options={"epsilon": EPSILON, "delta": 0.01, "domain": TWO, "top": 1, "method": "counts"},
        control={"epsilon": 2 * EPSILON},
        others=all_windows(*CLEAR),
        suspect=TWICE,
        score=total("estimate"),
        windows=2,
    ),
)
