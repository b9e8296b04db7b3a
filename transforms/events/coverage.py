"""What limits of people keep out of answers, in the words that questions share."""

from __future__ import annotations

from collections.abc import Iterable

from privstream.mechanisms.accuracy import EACH, Coverage, Limit
from privstream.transforms.events.domain import Domain

WHOLE_RUN = "in the whole run"
FIRST = "first"

OF_ALL = "each by itself, published or not"
"""The scope of intervals of numbers that are published because they are large with their noise."""

TOO_LARGE = "Of numbers near the threshold, those that are published are mostly too large."
"""What is to be said of them."""


def items_in_window(most: int, selection: str, domain: Domain | None, stream: str) -> list[Limit]:
    """Return the limit of a person's items in a window (`items_per_step`), if it can leave something out.

    Args:
        most: items of a person that count.
        selection: which of them.
        domain: the public list of items, if there is one.
        stream: " of a stream", where there are several.
    """
    if domain is not None and most >= len(domain):
        return []
    return [Limit.at_most("items_per_step", most, "item", f"in a window{stream}", selection)]


def windows_of_person(most: int | None, option: str) -> list[Limit]:
    """Return the limit of the windows that a person takes part in, if there is one; `option` sets it."""
    return [] if most is None else [Limit.at_most(option, most, "window", WHOLE_RUN, FIRST, lasting=True)]


def streams_of_person(most: int | None, streams: tuple[str, ...] | None) -> list[Limit]:
    """Return the limit of the streams that a person appears in, if it can leave something out.

    Args:
        most: streams of a person that count; None for all.
        streams: public names of all streams; None if they are not known.
    """
    if most is None or (streams is not None and most >= len(streams)):
        return []
    return [Limit.at_most("streams_per_person", most, "stream", WHOLE_RUN, FIRST, lasting=True)]


def people_who_count(limits: Iterable[Limit], scope: str = EACH, note: str = "") -> Coverage:
    """Return what answers about numbers of people hold under some limits."""
    limits = tuple(limits)
    holds = "the numbers of people who count" if limits else "the true numbers of people"
    return Coverage(holds=holds, scope=scope, limits=limits, note=note)
