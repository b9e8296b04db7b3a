"""What limits of people keep out of answers, in the words that questions share."""

from __future__ import annotations

from collections.abc import Iterable

from privstream.mechanisms.accuracy import EACH, Coverage, Limit
from privstream.transforms.reading.domain import Domain

WHOLE_RUN = "in the whole run"
FIRST = "first"
FIRST_WINDOWS = "those of the first windows"
RANDOM = "random"
SPREAD = "by each window no more than its part of the run, with those carried over that were not used"

ALL_PEOPLE = "the numbers of people in all records that are usable and in time"
ALL_EVENTS = "the numbers of all events that are usable and in time"
"""What is counted where no limit leaves anything out."""


POINTS = "the numbers of points after all events that are usable and in time"
"""What is counted where points come and go."""

JUST_FOUND = "Counts by which an item was found, or just passes a threshold, are more often too high than too low."
TOO_LARGE = "A number that is published near the threshold is mostly too large: it may be there for its noise."
"""What is to be said of numbers that are published because they are large with their noise."""


def items_in_window(most: int, domain: Domain | None) -> list[Limit]:
    """Return the limit of a person's items in a window (`max_per_window`), if it can leave something out.

    Args:
        most: items of a person that count.
        domain: the public list of items, if there is one.
    """
    if domain is not None and most >= len(domain):
        return []
    return [Limit.at_most("max_per_window", most, "item", "in a window", "random")]


def windows_of_person(most: int, option: str, possible: int | None) -> list[Limit]:
    """Return the limit of the windows that a person takes part in, if it can leave something out.

    Args:
        most: windows of a person that count.
        option: what sets it.
        possible: windows in which a person can be, if that is known.
    """
    if possible is not None and most >= possible:
        return []
    return [Limit.at_most(option, most, "window", WHOLE_RUN, FIRST, lasting=True)]


def charged_out(most: int, what: str) -> Limit:
    """Return the limit by which people who were charged so often (`max_hits`), for what is said, no longer count."""
    times = "once" if most == 1 else f"{most:,} times"
    return Limit("max_hits", f"who was charged {times} (max_hits), {what}, no longer counts", lasting=True)


def people_who_count(limits: Iterable[Limit], scope: str = EACH, note: str = "", more: str = "") -> Coverage:
    """Return what answers about numbers of people hold under some limits; `more` as that of `Coverage`."""
    limits = tuple(limits)
    holds = "the numbers of people who count" if limits else ALL_PEOPLE
    return Coverage(holds=holds, scope=scope, limits=limits, note=note, more=more)
