"""Attacks on each question: two neighbouring inputs, and how to tell from the rows which of them it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations_with_replacement
from typing import Any, Literal, NamedTuple

import numpy as np
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.pipelines.audit.evidence import at_least, at_most
from privstream.pipelines.audit.fits import INTERVAL, LESS_NOISE
from privstream.transforms.events.domain import Domain

PERIOD = ""
"""What tells trials apart that are periods of one run, in each of which everything starts afresh."""

CLEAR = 2.0
"""Of a smaller epsilon as many units are in D as have so much together: then fewest trials say most."""

SUSPECT = 0
"""The number of the person who is in one of the inputs and not in the other."""


class Sent(NamedTuple):
    """An event of an attack.

    Attributes:
        user: a number for each person; `SUSPECT` for the one who may be missing. A point, where users are points.
        item: the item.
        value: the number beside the item.
    """

    user: int
    item: str
    value: float = 0.0


class Seen(NamedTuple):
    """What the adversary knows before a window.

    Attributes:
        transform: the transform, all of whose parameters are public.
        window: number of the window, 0, 1, ..
        rows: what was published before, in this trial; empty unless the attack is adaptive.
        units: people or events that D has and D' has not; they all send the same.
    """

    transform: Any
    window: int
    rows: Sequence[Any]
    units: int = 1


Adversary = Callable[[Seen], Iterable[Sent]]
Score = Callable[[Any, Sequence[Any]], float]


class Transcript(NamedTuple):
    """All numbers of a trial: of each window, of each item, the fields of its row.

    Attributes:
        name: the field of a row that says which item it is about.
        items: what stands there, in each window.
        fields: of a row: the numbers that are published with noise.
        counted: how many numbers one person moves by 1, or by the largest value.
        size: events and rows of a trial, about, beside those of the suspect.
        sent: how many events the suspect sends, more than may count.
        apart: whether noise is independent in each number.
        read: of a transform and all rows of a trial, its numbers, where they are no fields of rows.
    """

    name: str
    items: tuple[str, ...]
    fields: tuple[str, ...]
    counted: int
    size: int
    sent: int
    apart: bool = False
    read: Callable[[Any, Sequence[Any]], Sequence[float]] | None = None


@dataclass(frozen=True, kw_only=True)
class Attack:
    """An attack: inputs D and D' that differ in one unit, and a number that tells them apart.

    Attributes:
        name: in a few words.
        text: what the inputs are and what the adversary looks at, in a sentence.
        options: arguments of the transform.
        control: other arguments, of a transform that promises less: held against the guarantee of `options`, the same
            attack must refute it.
        others: what everybody else sends in a window, with D and with D' alike.
        suspect: what the one unit sends in a window, with D alone: events of the person `SUSPECT`, or, where the unit
            is an event, one event in the first window.
        score: of all rows of a trial; the more they look like D, the larger.
        windows: number of windows.
        adaptive: whether `others` and `suspect` depend on what was published before.
        about: whether it shows the epsilon that is there, or a delta alone.
        times: how many times as many trials as are asked for it takes: what shows most is rare, and a trial is small.
        transcript: what is read of all rows, where the attack is on all that is published by a crowd. It has no score
            of its own: that is the likelihood ratio of a model that is fitted to these numbers.
        part: of a transform, the part of its guarantee that the attack is on; None where that is all of it.
        one_in: one trial in so many gets D. Where D' has no events, trials with it cost nothing.
        single: whether D has one unit more at every epsilon: then the less that is, the more trials are needed.
        told_by: the field of a row by which trials are told apart: each has items there that no other trial has; or
            `PERIOD`.
    """

    name: str
    text: str
    options: Mapping[str, Any]
    control: Mapping[str, Any]
    others: Adversary
    suspect: Adversary
    score: Score = lambda transform, rows: 0.0
    windows: int = 1
    adaptive: bool = False
    about: Literal["epsilon", "delta"] = "epsilon"
    times: int = 1
    transcript: Transcript | None = None
    part: Callable[[Any], PrivacyGuarantee] | None = None
    one_in: int = 2
    single: bool = False
    told_by: str = PERIOD

    def at(self, epsilon: float) -> Attack:
        """Return the same attack, and its control, with so much of a budget.

        What shows most becomes rare above `CLEAR`; below it, one unit alone shows less of itself in each trial.
        """
        factor = epsilon / self.options["epsilon"]
        options = {**self.options, "epsilon": epsilon}
        control = {name: factor * value if name == "epsilon" else value for name, value in self.control.items()}
        more = math.sqrt(epsilon / CLEAR) if epsilon > CLEAR else (CLEAR / epsilon) ** 2 if self.single else 1.0
        return replace(self, options=options, control=control, times=math.ceil(self.times * more))

    @property
    def units(self) -> int:
        """How many units D has more than D', where no model says what one of a crowd shows.

        With a delta of 0 so many are protected by so many times epsilon, whatever the mechanism: one has at least its
        part of what all of them show.
        """
        alone = self.single or self.transcript is not None or self.options.get("delta", 0) > 0
        return 1 if alone else units_of(self.options.get("epsilon", CLEAR))

    @property
    def told(self) -> str:
        """The text, with how many units D has more."""
        if self.units == 1:
            return self.text
        return (
            f"{self.text} At this epsilon D has {self.units} units more that do the same, which are protected by "
            f"{self.units} times epsilon: what is measured is what all show, divided by {self.units}."
        )


def units_of(epsilon: float) -> int:
    """Return how many units have `CLEAR` together."""
    return max(1, round(CLEAR / epsilon))


def nobody(seen: Seen) -> Iterable[Sent]:
    """Send nothing."""
    return ()


def all_windows(*events: Sent) -> Adversary:
    """Send the same in every window."""
    return lambda seen: events


def first_window(*events: Sent) -> Adversary:
    """Send something in the first window alone."""
    return lambda seen: events if seen.window == 0 else ()


def crowd(number: int, item: str, first: int = 1) -> list[Sent]:
    """Return one event of each of so many others."""
    return [Sent(first + i, item) for i in range(number)]


def plenty(seen: Seen, number: int) -> int:
    """Return as many people as are, beside noise, what so many are with an epsilon of `EPSILON`."""
    return int(np.ceil(number * max(1.0, EPSILON / seen.transform.guarantee.epsilon)))


def total(field: str) -> Score:
    """Score by the sum of a field over all rows."""
    return lambda transform, rows: float(sum(getattr(row, field) for row in rows))


def largest(field: str) -> Score:
    """Score by the largest value of a field.

    Where one of several contributions counts, and nobody knows which, no number shows it by itself. That none is large
    does: it is likely where nothing counts, and e^epsilon times less likely where any one does.
    """
    return lambda transform, rows: float(max(getattr(row, field) for row in rows))


def at_most_moved(field: str) -> Score:
    """Score by the sum of a field over all rows, each from 0 to as far as units move it."""

    def score(transform: Any, rows: Sequence[Any]) -> float:
        most = units_of(transform.guarantee.epsilon)
        return float(sum(min(most, max(0, getattr(row, field))) for row in rows))

    return score


def earliness(windows: int, shows: Callable[[Any], bool] = lambda row: True) -> Score:
    """Score by how early there is a row that shows something: so many windows for the first one, 0 for never."""

    def score(transform: Any, rows: Sequence[Any]) -> float:
        steps = transform.steps
        numbers = [row.window_start.micros // steps.period - steps.first for row in rows if shows(row)]
        return float(windows - min(numbers, default=windows))

    return score


EPSILON = 2.0
LESS = {"epsilon": EPSILON / LESS_NOISE}
"""Of a control: noise is 15% less than is claimed."""
HALF = {"epsilon": 2 * EPSILON}

DELTA = 0.12
HITTER_WINDOWS = 2
ALONE, UNCHARGED = {"epsilon": EPSILON, "delta": 0.002}, {"delta": 0.1}
"""Of attacks by a person alone with an item; and of a control that publishes it with 5%, as if it were not charged."""

EMPTY = 100
"""One trial in so many has an event, the others have no cost: that an item of nobody is published is seen to be rare,
even times e^epsilon.
"""
EDGE_TRIALS = 40_000
"""For about so many trials with either input numbers of others are chosen."""
MOST_TRIED = 24

THREE = ("a", "b", "c")
ONE = Domain(["a"])
MANY = Domain(f"item {window}" for window in range(HITTER_WINDOWS))


def others_on_the_edge(seen: Seen) -> Iterable[Sent]:
    """Let so many people have the item of the window, others each time, that most is seen of a person who makes reports
    likelier: that nothing is reported is rare without that person, but likelier than delta.
    """
    monitor, most = seen.transform.monitor.calibrated, seen.transform.detection_threshold
    silent = 1 - monitor.hit_probability(np.arange(most + 2))
    tried = np.unique(np.linspace(1, most, MOST_TRIED).astype(int))
    numbers = np.array(list(combinations_with_replacement(tried, HITTER_WINDOWS)))
    without, with_one = (np.prod(silent[given], axis=1) * EDGE_TRIALS for given in (numbers, numbers + 1))
    shown = (at_least(without, EDGE_TRIALS, INTERVAL) - DELTA) / at_most(with_one, EDGE_TRIALS, INTERVAL)
    number = int(numbers[np.argmax(shown), seen.window])
    return crowd(number, f"item {seen.window}", first=1 + seen.window * most)


HEAVY_HITTERS = (
    Attack(
        name="too many charges",
        text=f"each of {HITTER_WINDOWS} windows has an item of its own and people of its own, so many that trials in "
        "which nothing is reported are rare, but likelier than delta. With D, one person more has all of these items, "
        "and may be charged for one. The adversary counts the reports. The control has half of the noise.",
        options={
            "epsilon": EPSILON,
            "delta": DELTA,
            "max_hits": 1,
            "method": "clock",
            "domain": MANY,
        },
        control=HALF,
        others=others_on_the_edge,
        suspect=lambda seen: [Sent(SUSPECT, f"item {seen.window}")],
        score=lambda transform, rows: float(len(rows)),
        windows=HITTER_WINDOWS,
        times=48,
        told_by="item",
    ),
)


TWICE = all_windows(Sent(SUSPECT, "a"), Sent(SUSPECT, "a"))
WINDOWS = 6

COUNTS = (
    Attack(
        name="noise of a count",
        text="with D, one person has an item twice in a window; with D', nobody has it. The adversary sees its count.",
        options={"epsilon": EPSILON, "domain": ONE, "max_contributions": 1},
        control=LESS,
        times=4,
        others=nobody,
        suspect=TWICE,
        score=total("noisy"),
        told_by="item",
    ),
    Attack(
        name="a person alone with an item",
        text="the list of items is not public. With D, one person has an item that nobody else has. The adversary sees "
        "whether it is published.",
        options={**ALONE, "max_contributions": 1},
        control=UNCHARGED,
        others=nobody,
        suspect=all_windows(Sent(SUSPECT, "a")),
        score=lambda transform, rows: float(len(rows)),
        about="delta",
        times=3 * EMPTY,
        one_in=EMPTY,
        told_by="item",
    ),
)


FAR_ABOVE = 1e6
"""More than any gap or estimate."""


def nearly_all(seen: Seen) -> int:
    """Return how many people are missing at a test that should rarely be missed with D, and not be rare without: noise
    is small where D has one person more.
    """
    return int(seen.units == 1)


MANY_EVENTS = 20


def many_events(seen: Seen) -> Iterable[Sent]:
    """Let so many others send an event in each window that estimates are renewed."""
    return crowd(MANY_EVENTS, "a", first=1 + seen.window * MANY_EVENTS)


HISTOGRAM = (
    Attack(
        name="noise of a count",
        text=f"the unit is an event. There are {MANY_EVENTS} events, so that the estimate is renewed. With D, there is "
        "one more. The adversary sees the count. The control has a quarter of the noise.",
        options={"epsilon": EPSILON, "domain": ONE, "largest": 1},
        control={"epsilon": 4 * EPSILON},
        times=4,
        others=many_events,
        suspect=first_window(Sent(SUSPECT, "a")),
        score=total("estimate"),
        told_by="category",
    ),
)


LOW, HIGH = 0.5, 1.5
MANY_LOW = tuple(Sent(1 + i, "", LOW) for i in range(30))
JUST_ABOVE = 0.98
ONE_VALUE = {
    "epsilon": EPSILON,
    "low": 0,
    "high": 2,
    "resolution": 2,
    "max_contributions": 1,
    "quantiles": (JUST_ABOVE,),
}
VALUE_WINDOWS = 2

QUANTILES = (
    Attack(
        name="a value more",
        text=f"{len(MANY_LOW)} people have a low value. With D, one person more has a high one, twice. The adversary "
        f"sees the quantile of {JUST_ABOVE:.0%}, which is high if anybody has a high one, up to noise.",
        options=ONE_VALUE,
        control=LESS,
        times=4,
        others=all_windows(*MANY_LOW),
        suspect=all_windows(Sent(SUSPECT, "", HIGH), Sent(SUSPECT, "", HIGH)),
        score=total("value"),
    ),
    Attack(
        name="too many values",
        text=f"{len(MANY_LOW)} people each have a low value in {VALUE_WINDOWS} windows, others each time. With D, one "
        "person more has a high one in all of them, of which one may count. The adversary takes the largest of such "
        "quantiles. The control has the same noise, and all of the values count.",
        options=ONE_VALUE,
        control={"epsilon": VALUE_WINDOWS * EPSILON, "max_contributions": VALUE_WINDOWS},
        others=lambda seen: [one._replace(user=one.user + seen.window * len(MANY_LOW)) for one in MANY_LOW],
        suspect=all_windows(Sent(SUSPECT, "", HIGH)),
        score=largest("value"),
        windows=VALUE_WINDOWS,
        times=4,
    ),
)


FLAG_EPSILON = 1.0
THRESHOLD, FLAG_WINDOWS = 20, 3
PUBLIC = {"epsilon": FLAG_EPSILON, "thresholds": THRESHOLD, "domain": Domain(["a"])}


def nearly(seen: Seen) -> Iterable[Sent]:
    """Let others bring the count to one below its threshold in the first window."""
    return crowd(THRESHOLD - seen.units, "a") if seen.window == 0 else ()


def raised(windows: int) -> Attack:
    """Return an attack of so many windows."""
    return Attack(
        name="a threshold that is just reached" if windows == 1 else "a flag that waits",
        text=f"the unit is an event. A category with the threshold {THRESHOLD} has {THRESHOLD - 1} events in the first "
        f"of {windows} windows. With D, it has one more. The adversary sees when the flag goes up.",
        options=PUBLIC,
        control={"epsilon": 4 * FLAG_EPSILON},
        times=8 * windows,
        others=nearly,
        suspect=first_window(Sent(SUSPECT, "a")),
        score=earliness(windows, lambda row: bool(row.raised)),
        windows=windows,
        told_by="category",
    )


FLAGS = (raised(1), raised(FLAG_WINDOWS))


LEAVE = ("out",)
THIRTY_INSIDE = all_windows(*crowd(30, "in"))
ENTERED_TWICE = all_windows(Sent(SUSPECT, "in"), Sent(SUSPECT, "in"))


def up_and_down(others: int, *, alone: bool = False) -> Score:
    """Score by how far numbers go up from so many others, and down again in the second window, as far as units do, or
    one alone.
    """

    def score(transform: Any, rows: Sequence[Any]) -> float:
        most = 1 if alone else units_of(transform.guarantee.epsilon)
        found: dict[Any, list[int]] = {}
        for row in sorted(rows, key=lambda row: row.window_start):
            found.setdefault((getattr(row, "low", 0), getattr(row, "high", 0)), []).append(row.estimate)
        moved = [min(most, max(0, each)) for up, down in found.values() for each in (up - others, up - down)]
        return float(sum(moved))

    return score


def nearly_enough_then_many(seen: Seen) -> Iterable[Sent]:
    """Let nearly as many enter as the test of the first window asks for, and then 30 more, or what is plenty."""
    number = int(seen.transform.mechanism.algorithm.thresholds(np.array([1]), 0)[0])
    number -= nearly_all(seen)
    return crowd(plenty(seen, 30), "in", first=1 + number) if seen.window else crowd(number, "in")


def changed_when(transform: Any, rows: Sequence[Any]) -> float:
    """Score low where the estimate changes in the second window alone, and becomes large."""
    first, second = (row.noisy for row in sorted(rows, key=lambda row: row.window_start))
    return FAR_ABOVE if first else -float(second)


CARDINALITY = (
    Attack(
        name="fresh noise",
        text="30 people are in the set. With D, one person more enters, twice. The adversary sees the number.",
        options={"epsilon": EPSILON, "leave_values": LEAVE},
        control=LESS,
        times=4,
        others=THIRTY_INSIDE,
        suspect=ENTERED_TWICE,
        score=total("noisy"),
    ),
    Attack(
        name="changes that are tested",
        text="so many people enter that the estimate is nearly changed, and 30 or more in the next window. With D, one "
        "person more is in the set in the first window alone. The adversary sees when the estimate changes, and what "
        "it is then.",
        options={"epsilon": EPSILON, "leave_values": LEAVE, "method": "sparse_counter", "max_updates": 20},
        control={"epsilon": 4 * EPSILON},
        others=nearly_enough_then_many,
        suspect=lambda seen: [Sent(SUSPECT, "out" if seen.window else "in")],
        score=changed_when,
        windows=2,
        times=4,
    ),
    Attack(
        name="too many windows",
        text="30 people are in the set. With D, one person more enters, and stays for two windows, of which one may "
        "count. The adversary sees both numbers. The control has the same noise, and both windows count.",
        options={"epsilon": EPSILON, "leave_values": LEAVE, "max_contributions": 1},
        control={"epsilon": 2 * EPSILON, "max_contributions": 2},
        others=lambda seen: [] if seen.window else crowd(30, "in"),
        suspect=first_window(Sent(SUSPECT, "in")),
        score=total("noisy"),
        windows=2,
        times=4,
    ),
)


POINT = 1
INSERTED = first_window(Sent(POINT, "in"))

RANGES = (
    Attack(
        name="one point",
        text="the unit is an event. With D, one point is inserted; with D', none. The adversary sees the count.",
        options={"epsilon": EPSILON, "universe": 1, "standing": ((1, 1),)},
        control=LESS,
        times=4,
        others=nobody,
        suspect=INSERTED,
        score=total("estimate"),
    ),
    Attack(
        name="a point in two ranges",
        text="the unit is an event. With D, one point of two is inserted; with D', none. The adversary sees the counts "
        "of a range with both and of one with that point.",
        options={"epsilon": EPSILON, "universe": 2, "standing": ((1, 1), (1, 2))},
        control=HALF,
        others=nobody,
        suspect=INSERTED,
        score=at_most_moved("estimate"),
        times=4,
    ),
    Attack(
        name="a point that is deleted",
        text="the unit is an event, and a point that is there is not counted again. It is deleted in the second "
        "window. With D, it is inserted in the first. The adversary sees whether its count goes up, and down again.",
        options={"epsilon": EPSILON, "universe": 1, "standing": ((1, 1),), "delete_values": LEAVE},
        control=HALF,
        others=lambda seen: [Sent(POINT, "out")] if seen.window else [],
        suspect=INSERTED,
        score=up_and_down(0, alone=True),
        windows=2,
        times=2,
        single=True,
    ),
    Attack(
        name="ranges that are known before",
        text="the unit is an event. Three ranges are asked in all windows, and no others. With D, a point that is in "
        "all of them is inserted. The adversary sees how many of their counts are above 0.",
        options={
            "epsilon": EPSILON,
            "universe": 1000,
            "standing": ((1, 600), (400, 800), (500, 1000)),
        },
        control=HALF,
        others=nobody,
        suspect=first_window(Sent(500, "in")),
        score=at_most_moved("estimate"),
        times=4,
    ),
)


POINT_EPSILON = 3.0


def about_half(seen: Seen) -> Iterable[Sent]:
    """Insert the point half as often, at the start, as makes sure that it is found."""
    often = seen.transform.error(1) // 2
    return [Sent(POINT, "in")] * often if seen.window == 0 else []


PREDECESSOR = (
    Attack(
        name="points that only come",
        text="the unit is an event. One point is inserted so often that it may be found. With D, once more. The "
        "adversary sees whether it is found.",
        options={"epsilon": POINT_EPSILON, "universe": 1, "standing": (POINT,)},
        control={"epsilon": 2 * POINT_EPSILON},
        times=4,
        others=about_half,
        suspect=first_window(Sent(POINT, "in")),
        score=earliness(1, lambda row: bool(row.predecessor > 0)),
    ),
)
