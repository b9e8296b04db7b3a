"""What an attack is: two neighbouring inputs, and how to tell from the rows which of them it was."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

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
    """

    name: str
    text: str
    options: Mapping[str, Any]
    control: Mapping[str, Any]
    others: Adversary
    suspect: Adversary
    score: Callable[[Any, Sequence[Any]], float]
    windows: int = 1
    adaptive: bool = False
    asked: tuple[tuple[str, ...], ...] = ()


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


def total(field: str) -> Callable[[Any, Sequence[Any]], float]:
    """Score by the sum of a field over all rows."""
    return lambda transform, rows: float(sum(getattr(row, field) for row in rows))


def earliness(windows: int, shows: Callable[[Any], bool] = lambda row: True) -> Callable[[Any, Sequence[Any]], float]:
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
