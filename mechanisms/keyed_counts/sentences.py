"""What the guarantee and the accuracy of counts per key say in words: keys are items, and steps are windows."""

from __future__ import annotations

from collections.abc import Mapping

from privstream.mechanisms.keyed_counts.calibration import Bounds


def limits(bounds: Bounds, unit: str, *, lasting: bool = False) -> tuple[str, ...]:
    """Return sentences that say what a unit is limited to, and which items are considered; `lasting`: stay found."""
    if unit == "event":
        found = ["An event counts for one item in one window."]
    else:
        times = "once" if bounds.contributions == 1 else f"{bounds.contributions:,} times"
        found = [
            f"A person counts at most {times} in the whole run, and at most once for an item in a window of a stream."
        ]
        if bounds.span != 1 and bounds.per_key < bounds.contributions:
            found.append(f"At most {bounds.per_key:,} of these {'are' if bounds.per_key > 1 else 'is'} for one item.")
    if bounds.listed:
        found.append(
            f"On the list of different people a person counts for at most {bounds.listed:,} items in the whole run, "
            "once for each."
        )
    if bounds.largest is not None:
        low = -bounds.largest if bounds.signed else 0
        found.append(f"The value that is added for one of them is an integer from {low:,} to {bounds.largest:,}.")
    if bounds.min_people is not None and bounds.min_people > 1:
        where = "since the start" if bounds.span != 1 else "in one window" if lasting else "in the window"
        if bounds.listed:
            where += ", or in all windows up to a test of the list of people,"
        what = "found" if lasting else "published"
        found.append(f"Items with fewer than {bounds.min_people:,} {_plural(unit)} {where} are never {what}.")
    return tuple(found)


def accuracy(
    unit: str,
    beta: float,
    items: int,
    horizon: int | None,
    numbers: Mapping[str, float | None],
    *,
    steady: bool,
    windows: int | None = None,
) -> str:
    """Return what holds, as sentences: of so many items, with the numbers of `KeyedCounts.accuracy`.

    `steady`: they are the same in every window. `windows`: counts are sums over so many, and items are found by others.
    """
    last, there = ("", " in a window") if steady else (" in the last window",) * 2
    several = "" if windows is None else f" over {windows:,} windows"
    text = f"Counts{several} have a standard deviation of {numbers['stddev']:.3g}{last}"
    if "sum_stddev" in numbers:
        text += f", and sums one of {numbers['sum_stddev']:.4g}"
    together = "in one window" if horizon is None else f"in {horizon:,} window{'s' * (horizon > 1)}"
    text += (
        f". With probability {1 - beta:g}, all error bounds of {items:,} items {together} hold; those of counts are at "
        f"most {numbers['error_bound']:,}"
    )
    if (found := numbers["detection_threshold"]) is not None:
        text += f". With the same probability, each of {items:,} items is published that at least {found:,} "
        text += f"{_plural(unit)} have{there}"
    return f"{text}."


def _plural(unit: str) -> str:
    return "events" if unit == "event" else "people"
