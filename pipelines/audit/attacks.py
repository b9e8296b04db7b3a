"""Attacks on each question: two neighbouring inputs, and how to tell from the rows which of them it was."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from privstream.mechanisms.privacy.guarantee import PrivacyGuarantee
from privstream.transforms.alerts.rules import AlertRule
from privstream.transforms.events.domain import Domain

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
    """

    transform: Any
    window: int
    rows: Sequence[Any]


Adversary = Callable[[Seen], Iterable[Sent]]
Score = Callable[[Any, Sequence[Any]], float]


class Transcript(NamedTuple):
    """All numbers of a trial: of each window, of each item, the fields of its row.

    Attributes:
        name: the field of a row that says which item it is about.
        items: what stands there, in each window.
        fields: of a row: the numbers that are published with noise.
        growing: whether these are sums since the start whose windows have noise of their own: then they are seen as
            differences, which are as good.
        counted: how many numbers one person moves by 1, or by the largest value.
        size: events and rows of a trial, about, beside those of the suspect.
        sent: how many events the suspect sends, more than may count.
        apart: whether noise is independent in each number.
        read: of a transform and all rows of a trial, its numbers, where they are no fields of rows.
    """

    name: str
    items: tuple[str, ...]
    fields: tuple[str, ...]
    growing: bool
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
        asked: the items of each query, where queries are asked.
        about: whether it shows the epsilon that is there, or a delta alone.
        transcript: what is read of all rows, where the attack is on all that is published by a crowd. It has no score
            of its own: that is the likelihood ratio of a model that is fitted to these numbers.
        part: of a transform, the part of its guarantee that the attack is on; None where that is all of it.
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
    asked: tuple[tuple[str, ...], ...] = ()
    about: Literal["epsilon", "delta"] = "epsilon"
    transcript: Transcript | None = None
    part: Callable[[Any], PrivacyGuarantee] | None = None


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


def total(field: str) -> Score:
    """Score by the sum of a field over all rows."""
    return lambda transform, rows: float(sum(getattr(row, field) for row in rows))


def earliness(windows: int, shows: Callable[[Any], bool] = lambda row: True) -> Score:
    """Score by how early there is a row that shows something: so many windows for the first one, 0 for never."""

    def score(transform: Any, rows: Sequence[Any]) -> float:
        steps = transform.steps
        numbers = [row.window_start.micros // steps.period - steps.first for row in rows if shows(row)]
        return float(windows - min(numbers, default=windows))

    return score


def most_telling(hits: NDArray[np.float64], windows: int) -> int:
    """Return the number of others for whom one person more changes most about when an item is first reported.

    Args:
        hits: probability of a report in a window, for 1, 2, .. people.
        windows: in so many of which they have the item.
    """
    silent = (1 - hits)[:, None] ** np.arange(1, windows + 1)
    return 1 + int(np.argmax((silent[:-1] - silent[1:]).max(axis=1)))


EPSILON = 2.0
DELTA = 0.05
HITTER_WINDOWS = 8
THREE = ("a", "b", "c")
ONE = Domain(["a"])
MANY = Domain(f"item {window}" for window in range(HITTER_WINDOWS))


def others_on_the_edge(seen: Seen) -> Iterable[Sent]:
    """Let so many people have the item of the window, others each time, that one more makes most of a difference."""
    counts = np.arange(1, 2 * seen.transform.detection_threshold)
    number = most_telling(seen.transform.answer.monitor.calibrated.hit_probability(counts), 1)
    return crowd(number, f"item {seen.window}", first=1 + seen.window * number)


HEAVY_HITTERS = (
    Attack(
        name="too many charges",
        text=f"each of {HITTER_WINDOWS} windows has an item of its own and people of its own, so many that it may be "
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
        control={"epsilon": HITTER_WINDOWS * EPSILON, "max_hits": HITTER_WINDOWS},
        others=others_on_the_edge,
        suspect=lambda seen: [Sent(SUSPECT, f"item {seen.window}")],
        score=lambda transform, rows: float(len(rows)),
        windows=HITTER_WINDOWS,
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
        about="delta",
    ),
)


TWICE = all_windows(Sent(SUSPECT, "a"), Sent(SUSPECT, "a"))
WINDOWS = 6

COUNTS = (
    Attack(
        name="noise of a count",
        text="with D, one person has an item twice in a window; with D', nobody has it. The adversary sees its count.",
        options={"epsilon": EPSILON, "domain": ONE, "max_contributions": 1},
        control={"epsilon": 2 * EPSILON},
        others=nobody,
        suspect=TWICE,
        score=total("count"),
    ),
    Attack(
        name="a person alone with an item",
        text="the list of items is not public. With D, one person has an item that nobody else has. The adversary sees "
        "whether it is published.",
        options={"epsilon": 0.2, "delta": 0.002, "max_contributions": 1},
        control={"epsilon": 1.0, "delta": 0.1},
        others=nobody,
        suspect=all_windows(Sent(SUSPECT, "a")),
        score=lambda transform, rows: float(len(rows)),
        about="delta",
    ),
)


TWO = Domain(["a", "b"])
TIE = (*crowd(3, "a"), *crowd(3, "b", first=4))
CLEAR = tuple(crowd(60, "b"))
SECOND_TWICE = all_windows(Sent(SUSPECT, "b"), Sent(SUSPECT, "b"))


def ahead(transform: Any, rows: Sequence[Any]) -> float:
    """Return how far `b` seems to be ahead of `a`; of equal counts the first item of the list is on top."""
    (row,) = rows
    return float(row.gap + 1 if row.item == "b" else -row.gap)


TOP_K = (
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
        suspect=SECOND_TWICE,
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
        suspect=SECOND_TWICE,
        score=total("estimate"),
    ),
)


ALERT_WINDOWS = 16
RULE_FOR_ONE, LOW_RULE, HIGH_RULE = (
    (AlertRule(name=f"at least {least}", at_least=least, items=("a", "b")),) for least in (1, 5, 60)
)
SUSPECT_ALWAYS = all_windows(Sent(SUSPECT, "a"), Sent(SUSPECT, "b"))


def passed_by(transform: Any, rows: Sequence[Any]) -> float:
    """Return by how much the rule is passed, with noise; -1 where there is no alert."""
    return float(rows[0].gap) if rows else -1.0


def passed_in_all(transform: Any, rows: Sequence[Any]) -> float:
    """Return by how much the rule is passed in all windows together, with noise; 0 where there is no alert."""
    return math.fsum(1 + row.gap for row in rows)


ALERTS = (
    Attack(
        name="a test that is nearly passed, sparse vector",
        text="5 people meet a rule for 5. With D, one person more meets it. The adversary sees whether there is an "
        "alert, and by how much the rule is passed.",
        options={"epsilon": EPSILON, "rules": LOW_RULE, "min_alerts": 1, "branches": 1, "method": "sparse_vector"},
        control={"epsilon": 4 * EPSILON},
        others=all_windows(*crowd(5, "a")),
        suspect=SUSPECT_ALWAYS,
        score=passed_by,
    ),
    Attack(
        name="a budget that is spent",
        text=f"one person meets a rule for one in each of {ALERT_WINDOWS} windows, and the budget pays for one alert. "
        "With D, one person more meets it in all of them. The adversary adds up by how much it is passed. The control "
        "pays for all alerts.",
        options={"epsilon": EPSILON, "rules": RULE_FOR_ONE, "min_alerts": 1, "branches": 1, "method": "sparse_vector"},
        control={"epsilon": ALERT_WINDOWS * EPSILON, "min_alerts": ALERT_WINDOWS},
        others=all_windows(*crowd(1, "a")),
        suspect=SUSPECT_ALWAYS,
        score=passed_in_all,
        windows=ALERT_WINDOWS,
    ),
    Attack(
        name="the number of an alert",
        text="60 people meet a rule for 5. With D, one person more meets it, by two events. The adversary sees the "
        "number of people in the alert.",
        options={"epsilon": EPSILON, "rules": LOW_RULE, "method": "counts"},
        control={"epsilon": 2 * EPSILON},
        others=all_windows(*crowd(60, "a")),
        suspect=SUSPECT_ALWAYS,
        score=total("estimate"),
    ),
)


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


HISTOGRAM = (
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
            "unit": "person",
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


LOW, HIGH = 0.5, 1.5
MANY_LOW = tuple(Sent(1 + i, "", LOW) for i in range(30))
RANKS_ABOVE = tuple(0.8 + number / 200 for number in range(40))
FEW = (0.3, 0.5, 0.7)
OTHERS = tuple(Sent(1 + i, "", LOW if i % 2 else HIGH) for i in range(4))

QUANTILES = (
    Attack(
        name="a value more",
        text=f"{len(MANY_LOW)} people have a low value. With D, one person more has a high one, twice. The adversary "
        "adds up quantiles near the share of low ones, which is known well but for the noise of the high ones.",
        options={
            "epsilon": EPSILON,
            "low": 0,
            "high": 2,
            "resolution": 2,
            "max_contributions": 1,
            "quantiles": RANKS_ABOVE,
        },
        control={"epsilon": 2 * EPSILON},
        others=all_windows(*MANY_LOW),
        suspect=all_windows(Sent(SUSPECT, "", HIGH), Sent(SUSPECT, "", HIGH)),
        score=total("estimate"),
    ),
    Attack(
        name="too many values",
        text="of 4 people, half have a low value and half a high one. With D, one person more has a high one in each "
        f"of {WINDOWS} windows, of which one may count. The adversary adds up the quantiles of all windows. The "
        "control has the same noise, and all of them count.",
        options={"epsilon": EPSILON, "low": 0, "high": 2, "resolution": 2, "max_contributions": 1, "quantiles": FEW},
        control={"epsilon": WINDOWS * EPSILON, "max_contributions": WINDOWS},
        others=all_windows(*OTHERS),
        suspect=all_windows(Sent(SUSPECT, "", HIGH)),
        score=total("estimate"),
        windows=WINDOWS,
    ),
)


FLAG_EPSILON = 1.0
THRESHOLD, FLAG_WINDOWS = 20, 3
PUBLIC = {"epsilon": FLAG_EPSILON, "thresholds": THRESHOLD, "domain": Domain(["a"])}


def nearly(seen: Seen) -> Iterable[Sent]:
    """Let others bring the count to one below its threshold in the first window."""
    return crowd(THRESHOLD - 1, "a") if seen.window == 0 else ()


def raised(windows: int) -> Attack:
    """Return an attack of so many windows."""
    return Attack(
        name="a threshold that is just reached" if windows == 1 else "a flag that waits",
        text=f"the unit is an event. A category with the threshold {THRESHOLD} has {THRESHOLD - 1} events in the first "
        f"of {windows} windows. With D, it has one more. The adversary sees when the flag goes up.",
        options=PUBLIC,
        control={"epsilon": (2 if windows == 1 else 4) * FLAG_EPSILON},
        others=nearly,
        suspect=first_window(Sent(SUSPECT, "a")),
        score=earliness(windows, lambda row: bool(row.raised)),
        windows=windows,
    )


FLAGS = (raised(1), raised(FLAG_WINDOWS))


LEAVE = ("out",)
THIRTY_INSIDE = all_windows(*crowd(30, "in"))
ENTERED_TWICE = all_windows(Sent(SUSPECT, "in"), Sent(SUSPECT, "in"))


def up_and_down(others: int) -> Score:
    """Score by how many numbers go up by 1 from so many others, and down again in the second window."""

    def score(transform: Any, rows: Sequence[Any]) -> float:
        found: dict[Any, list[int]] = {}
        for row in sorted(rows, key=lambda row: row.window_start):
            found.setdefault((getattr(row, "low", 0), getattr(row, "high", 0)), []).append(row.estimate)
        return float(sum((up > others) + (down < up) for up, down in found.values()))

    return score


CARDINALITY = (
    Attack(
        name="fresh noise",
        text="30 people are in the set. With D, one person more enters, twice. The adversary sees the number.",
        options={"epsilon": EPSILON, "leave_values": LEAVE, "method": "direct_counter"},
        control={"epsilon": 2 * EPSILON},
        others=THIRTY_INSIDE,
        suspect=ENTERED_TWICE,
        score=total("estimate"),
    ),
    Attack(
        name="changes that are tested",
        text="30 people are in the set, in 3 windows. With D, one person more enters in all of them. The adversary "
        "adds up the numbers.",
        options={"epsilon": EPSILON, "leave_values": LEAVE, "method": "sparse_counter", "max_updates": 20},
        control={"epsilon": 8 * EPSILON},
        others=THIRTY_INSIDE,
        suspect=ENTERED_TWICE,
        score=total("estimate"),
        windows=3,
    ),
    Attack(
        name="an event",
        text="the unit is an event. 30 people are in the set, and in the second window one leaves who has not entered. "
        "With D, there is one event more, by which that person enters in the first window. The adversary sees whether "
        "the number goes up, and down again.",
        options={"epsilon": EPSILON, "unit": "event", "leave_values": LEAVE},
        control={"epsilon": 2 * EPSILON},
        others=lambda seen: [Sent(SUSPECT, "out")] if seen.window else crowd(30, "in"),
        suspect=first_window(Sent(SUSPECT, "in")),
        score=up_and_down(30),
        windows=2,
    ),
)


POINT = 1
INSERTED = first_window(Sent(POINT, "in"))

RANGES = (
    Attack(
        name="one point",
        text="the unit is an event. With D, one point is inserted; with D', none. The adversary sees the count.",
        options={"epsilon": EPSILON, "universe": 1, "standing": ((1, 1),), "duplicates": "counted"},
        control={"epsilon": 2 * EPSILON},
        others=nobody,
        suspect=INSERTED,
        score=total("estimate"),
    ),
    Attack(
        name="a point in two ranges",
        text="the unit is an event, and a point that is there is not counted again. One point of two is deleted in the "
        "second window. With D, it is inserted in the first. The adversary sees whether the counts of a range with "
        "both and of one with that point go up, and down again.",
        options={"epsilon": EPSILON, "universe": 2, "standing": ((1, 1), (1, 2)), "delete_values": LEAVE},
        control={"epsilon": 4 * EPSILON},
        others=lambda seen: [Sent(POINT, "out")] if seen.window else [],
        suspect=INSERTED,
        score=up_and_down(0),
        windows=2,
    ),
    Attack(
        name="ranges that are known before",
        text="the unit is an event. Three ranges are asked in all windows, and no others. With D, a point that is in "
        "all of them is inserted. The adversary adds up their counts.",
        options={
            "epsilon": EPSILON,
            "universe": 1000,
            "standing": ((1, 600), (400, 800), (500, 1000)),
            "only_standing": True,
            "duplicates": "counted",
        },
        control={"epsilon": 4 * EPSILON},
        others=nobody,
        suspect=first_window(Sent(500, "in")),
        score=total("estimate"),
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
        options={"epsilon": POINT_EPSILON, "universe": 1, "standing": (POINT,), "duplicates": "counted"},
        control={"epsilon": 4 * POINT_EPSILON},
        others=about_half,
        suspect=first_window(Sent(POINT, "in")),
        score=earliness(1, lambda row: bool(row.predecessor > 0)),
    ),
)


QUERIES = (
    Attack(
        name="noise of an answer",
        text="with D, one person has an item twice; with D', nobody has it. The adversary asks how many have it.",
        options={"epsilon": EPSILON, "domain": Domain(["a"])},
        control={"epsilon": 2 * EPSILON},
        others=nobody,
        suspect=all_windows(Sent(SUSPECT, "a"), Sent(SUSPECT, "a")),
        score=total("estimate"),
        asked=(("a",),),
    ),
    Attack(
        name="several records",
        text="with D, one person has three items, of which one may count; with D', nobody has any. The adversary asks "
        "how many have one of them.",
        options={"epsilon": EPSILON, "domain": Domain(["a", "b", "c"])},
        control={"epsilon": 4 * EPSILON},
        others=nobody,
        suspect=all_windows(*(Sent(SUSPECT, item) for item in "abc")),
        score=total("estimate"),
        asked=(("a", "b", "c"),),
    ),
)
