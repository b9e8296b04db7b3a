"""Attacks by trials, where a mechanism tests in secret: two neighbouring inputs, and how rows tell which it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from privstream.transforms.reading.domain import Domain

PERIOD = ""
"""What tells trials apart that are budget periods of one run."""

SUSPECT = 0
"""The number of the person who is in one of the inputs and not in the other."""


class Sent(NamedTuple):
    """An event of an attack.

    Attributes:
        user: a number for each person; `SUSPECT` for the one who may be missing. A point, where users are points.
        item: the item.
    """

    user: int
    item: str


Adversary = Callable[[Any], Iterable[Sent]]
"""What is sent in the first window, given the transform, all of whose parameters are public."""

Score = Callable[[Any, Sequence[Any]], float]


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack: inputs D and D' that differ in one unit, in one window, and a number that tells them apart.

    Attributes:
        name: in a few words.
        text: what the inputs are and what the adversary looks at, in a sentence.
        options: arguments of the transform.
        control: other arguments, of a transform that promises less: held against the guarantee of `options`, the same
            attack must refute it.
        others: what everybody else sends, with D and with D' alike.
        suspect: what the one unit sends, with D alone.
        score: of all rows of a trial; the more they look like D, the larger.
        about: whether it shows the epsilon that is there, or a delta alone.
        times: how many times as many trials as are asked for it takes: what shows most is rare, and a trial is small.
        one_in: one trial in so many gets D. Where D' has no events, trials with it cost nothing.
        told_by: the field of a row by which trials are told apart: each has items there that no other trial has; or
            `PERIOD`.
    """

    name: str
    text: str
    options: Mapping[str, Any]
    control: Mapping[str, Any]
    suspect: Sequence[Sent]
    score: Score
    others: Adversary = lambda transform: ()
    about: Literal["epsilon", "delta"] = "epsilon"
    times: int = 1
    one_in: int = 2
    told_by: str = PERIOD


def crowd(number: int, item: str) -> list[Sent]:
    """Return one event of each of so many others."""
    return [Sent(1 + i, item) for i in range(number)]


def moved(field: str) -> Score:
    """Score by the sum of a field over all rows, each from 0 to 1: as far as one unit moves it."""
    return lambda transform, rows: float(sum(min(1, max(0, getattr(row, field))) for row in rows))


def shown(field: str) -> Score:
    """Score by the number of rows in which a field says yes, or is above 0."""
    return lambda transform, rows: float(sum(getattr(row, field) > 0 for row in rows))


EPSILON = 2.0
ONE = Domain(["a"])

EMPTY = 100
"""One trial in so many has an event, the others have no cost: that an item of nobody is published is seen to be rare,
even times e^epsilon.
"""

COUNTS = (
    Attack(
        name="a person alone with an item",
        text="the list of items is not public. With D, one person has an item that nobody else has. The adversary sees "
        "whether it is published. The control publishes it with 5%, as if it were not charged.",
        options={"epsilon": EPSILON, "delta": 0.002, "max_contributions": 1},
        control={"delta": 0.1},
        suspect=[Sent(SUSPECT, "a")],
        score=lambda transform, rows: float(len(rows)),
        about="delta",
        times=3 * EMPTY,
        one_in=EMPTY,
        told_by="item",
    ),
)

MANY_EVENTS = 20

HISTOGRAM = (
    Attack(
        name="noise of a count",
        text=f"the unit is an event. There are {MANY_EVENTS} events, so that the estimate is renewed. With D, there is "
        "one more. The adversary sees the count. The control has a quarter of the noise.",
        options={"epsilon": EPSILON, "domain": ONE, "largest": 1},
        control={"epsilon": 4 * EPSILON},
        times=4,
        others=lambda transform: crowd(MANY_EVENTS, "a"),
        suspect=[Sent(SUSPECT, "a")],
        score=lambda transform, rows: float(sum(row.estimate for row in rows)),
        told_by="category",
    ),
)

THRESHOLD = 20

FLAGS = (
    Attack(
        name="a threshold that is just reached",
        text=f"the unit is an event. A category with the threshold {THRESHOLD} has {THRESHOLD - 1} events. With D, it "
        "has one more. The adversary sees whether the flag goes up.",
        options={"epsilon": EPSILON, "thresholds": THRESHOLD, "domain": ONE},
        control={"epsilon": 4 * EPSILON},
        times=16,
        others=lambda transform: crowd(THRESHOLD - 1, "a"),
        suspect=[Sent(SUSPECT, "a")],
        score=shown("raised"),
        told_by="category",
    ),
)

POINT = [Sent(1, "in")]

RANGES = (
    Attack(
        name="one point",
        text="the unit is an event. With D, one point is inserted; with D', none. The adversary sees the count. "
        "Noise is for a point that comes and goes, of which one window shows half.",
        options={"epsilon": EPSILON, "universe": 1, "standing": ((1, 1),)},
        control={"epsilon": 4 * EPSILON},
        suspect=POINT,
        score=moved("estimate"),
        times=4,
    ),
)

POINT_EPSILON = 3.0

PREDECESSOR = (
    Attack(
        name="points that only come",
        text="the unit is an event. One point is inserted so often that it may be found. With D, once more. The "
        "adversary sees whether it is found.",
        options={"epsilon": POINT_EPSILON, "universe": 1, "standing": (1,)},
        control={"epsilon": 2 * POINT_EPSILON},
        times=4,
        others=lambda transform: POINT * (transform.error(1) // 2),
        suspect=POINT,
        score=shown("predecessor"),
    ),
)

NONE: tuple[Attack, ...] = ()
"""Of questions whose noise is added to numbers: replays say all."""
