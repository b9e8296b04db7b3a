"""What the guarantee and the accuracy of counts per key say in words: keys are items, and steps are windows."""

from __future__ import annotations

from privstream.mechanisms.keyed_counts.calibration import Bounds


def limits(bounds: Bounds, unit: str) -> tuple[str, ...]:
    """Return sentences that say what a unit is limited to, and which items are considered."""
    if unit == "event":
        found = ["An event counts for one item in one window."]
    else:
        times = "once" if bounds.contributions == 1 else f"{bounds.contributions:,} times"
        found = [f"A person counts at most {times} in the whole run, and at most once for an item in a window."]
        if bounds.span != 1 and bounds.per_key < bounds.contributions:
            found.append(f"At most {bounds.per_key:,} of these {'are' if bounds.per_key > 1 else 'is'} for one item.")
    if bounds.largest is not None:
        low = -bounds.largest if bounds.signed else 0
        found.append(f"The value that is added for one of them is an integer from {low:,} to {bounds.largest:,}.")
    if bounds.min_people is not None and bounds.min_people > 1:
        where = "in the window" if bounds.span == 1 else "since the start"
        found.append(f"Items with fewer than {bounds.min_people:,} {_plural(unit)} {where} are never published.")
    return tuple(found)


def accuracy(unit: str, stddev: float, largest: float, bound: int, found: int | None, beta: float, tests: int) -> str:
    """Return what holds at the last window, as sentences; `largest` is the largest standard deviation of all."""
    last = f" in the last window, and up to {largest:.3g} before" if largest > stddev else ""
    text = f"Counts have a standard deviation of {stddev:.3g}{last}. With probability {1 - beta:g}, the counts of "
    text += f"{tests:,} items in one window are all off by at most {bound:,}"
    if found is None:
        return f"{text}."
    return f"{text}; and each of {tests:,} items that at least {found:,} {_plural(unit)} have is published."


def _plural(unit: str) -> str:
    return "events" if unit == "event" else "people"
