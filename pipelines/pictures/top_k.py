"""`privstream plot top-k`: how many people had the leading items, window by window, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from privstream.pipelines.pictures.truth import share_of_truth
from privstream.pipelines.plot.bands import Band, draw_bands
from privstream.pipelines.plot.chart import INK, chart, starts_of, style_axes
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.promise import Promise, of_each_row
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.transforms.row_types import RankedItem

Bar = Callable[[RankedItem], tuple[float, float]]
"""What bars of a row reach from and to."""


def by_bound(row: RankedItem) -> tuple[float, float]:
    """Return the ends of the error bound."""
    return row.estimate - row.error_bound, row.estimate + row.error_bound


def by_itself(row: RankedItem) -> tuple[float, float]:
    """Return the interval of the row, which is much narrower than its bound where estimates are smoothed."""
    return row.lower, row.upper


def smoothed(promise: Promise | None) -> bool:
    """Tell whether estimates are smoothed over windows: of items that were found, and of a list over files."""
    return promise is not None and promise.maybe("accuracy", "stddev") is not None


def prepare(given: Given) -> Drawing:
    """Return what draws the items."""
    return partial(draw, given)


def draw(given: Given, stream: BinaryIO, format: str) -> None:
    """Draw the items that were most often and most clearly on top in colour, the others grey.

    Where every item may have had nobody, nothing is drawn: the order is noise.
    """
    rows, bar = given.rows, by_bound
    title, meaning = given.title("The leading items"), given.sure(given.bands)
    if smoothed(given.promise):
        bar, meaning = by_itself, of_each_row(given.promise, given.bands)
    values = given.counted("people in a window")
    text = caption(rows, given.truth, meaning, bar) if rows else given.empty("There are no rows.")
    if rows and not drowned(rows, bar):
        of_items = bands(rows, given.truth or [], bar)
        more: Any = {"values": values, "top": given.top, "renewals": given.renewals, "clocks": given.clocks}
        draw_bands(of_items, stream, format, title=title, caption=text, **more)
        return
    span = (min(starts_of(rows)), max(int(row.window_end.micros) for row in rows)) if rows else None
    with chart(stream, format, given.clocks) as figure:
        axes = figure.add_subplot()
        style_axes(figure, axes, span=span, values=values, title=title, caption=text, starts=starts_of(rows))
        words = "Nothing can be told apart: noise dominates" if rows else "no rows"
        axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", fontsize=13, color=INK)
        axes.set_yticks([])


def drowned(rows: Sequence[RankedItem], bar: Bar = by_bound) -> bool:
    """Tell whether noise dominates: by its bar, every item in every window may have had nobody."""
    return bool(rows) and all(bar(row)[0] <= 0 for row in rows)


def bands(rows: Sequence[RankedItem], truth: Sequence[ItemHolders], bar: Bar) -> list[Band]:
    """Return a line for each item, with gaps where it was not on top."""
    windows = {int(row.window_end.micros): int(row.window_start.micros) for row in rows}
    ends = np.array(sorted(windows), np.int64)
    places = {end: place for place, end in enumerate(ends.tolist())}
    starts = np.array([windows[end] for end in ends.tolist()], np.int64)
    numbers: dict[str, np.ndarray] = defaultdict(lambda: np.full((4, len(ends)), np.nan))
    for row in rows:
        place = places[int(row.window_end.micros)]
        numbers[row.item][:3, place] = row.estimate, *bar(row)
    for true in truth:
        if true.item in numbers and (known := places.get(int(true.window_end.micros))) is not None:
            numbers[true.item][3, known] = true.holders
    found = []
    for item, (estimates, lower, upper, holders) in numbers.items():
        limits = None if bar is by_bound else np.array([lower, upper])
        true_numbers = holders if np.isfinite(holders).any() else None
        found.append(Band(item, ends, estimates, upper - estimates, true_numbers, starts=starts, ends=limits))
    return found


def caption(rows: Sequence[RankedItem], truth: Sequence[ItemHolders] | None, meaning: str, bar: Bar = by_bound) -> str:
    """Say what is seen in some rows, of which there is at least one."""
    windows, most = len({row.window_start for row in rows}), max(row.rank for row in rows)
    what = "error bound" if bar is by_bound else "interval"
    if drowned(rows, bar):
        reach = max(bar(row)[1] - row.estimate for row in rows)
        return (
            f"By the {what}s, up to {reach:,.0f} people, {_leading(most)} of {_each(windows)} "
            "may have had nobody. Longer windows, fewer items in the "
            "ranking or a larger epsilon help: privstream plan top-k says how much."
        )
    gaps = " Where a line has a gap, its item was not among them." if windows > 1 else ""
    text = (
        f"{_leading(most).capitalize()} of {_each(windows)}; the largest ones are in colour. "
        f"{meaning} What would be below 0 is cut off.{gaps}"
    )
    if truth is None:
        return text
    holders = {(row.item, row.window_start): row.holders for row in truth}
    judged = [row for row in rows if (row.item, row.window_start) in holders]
    known = [(row.estimate, holders[row.item, row.window_start]) for row in judged]
    held = [bar(row)[0] <= true <= bar(row)[1] for row, (_, true) in zip(judged, known, strict=True)]
    text += " Dashed: true numbers, as far as they are known, of all people, before any limits"
    if not known:
        return f"{text}."
    return (
        f"{text}; {held.count(False):,} of {len(known):,} estimates are further from the truth than their {what}"
        f"{share_of_truth(known)}."
    )


def _leading(most: int) -> str:
    """Name the items of a ranking."""
    return "the leading item" if most == 1 else f"the {most:,} leading items"


def _each(windows: int) -> str:
    """Say of which windows something holds."""
    return "a window" if windows == 1 else f"each of {windows:,} windows"


PICTURE = PictureSpec(
    description="Draws how many people have the leading items of each window, with bars for the error and, given the "
    "truth, the true numbers.",
    truth=ItemHolders,
    shows="draws true numbers, dashed",
    prepare=prepare,
    top=8,
)
