"""`privstream plot top-k`: how many people had the leading items, window by window, and how sure that is."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Sequence
from functools import partial
from typing import BinaryIO

import numpy as np
from matplotlib.axes import Axes
from privstream.pipelines.pictures.truth import share_of_truth
from privstream.pipelines.plot.chart import (
    COLOURS,
    DAY,
    GREY,
    INK,
    MARKERS,
    Label,
    Sheet,
    chart,
    freeze_layout,
    moment,
    note,
    place,
    short,
    style_axes,
    told,
    window_of,
)
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.promise import Promise, of_each_row
from privstream.pipelines.simulate.simulation import ItemHolders
from privstream.transforms.rows import RankedItem

Points = dict[int, RankedItem]
Bar = Callable[[RankedItem], tuple[float, float]]
"""What bars of a row reach from and to."""


def by_bound(row: RankedItem) -> tuple[float, float]:
    """Return the ends of the error bound."""
    return row.estimate - row.error_bound, row.estimate + row.error_bound


def by_itself(row: RankedItem) -> tuple[float, float]:
    """Return the interval of the row, which is much narrower than its bound where estimates are smoothed."""
    return row.lower, row.upper


def without_list(promise: Promise | None) -> bool:
    """Tell whether items are those that were found."""
    return promise is not None and promise.maybe("accuracy", "needed_in_1") is not None


def prepare(given: Given) -> Drawing:
    """Return what draws the items."""
    return partial(draw, given)


def draw(given: Given, stream: BinaryIO, format: str) -> None:
    """Draw the items that were most often and most clearly on top in colour, the others grey.

    Where every item may have had nobody, nothing is drawn: the order is noise.
    """
    rows, truth, top, bar = given.rows, given.truth, given.top, by_bound
    title, meaning = given.title("The leading items"), given.sure("Bars")
    if without_list(given.promise):
        bar, meaning = by_itself, of_each_row(given.promise, "Bars")
    text = caption(rows, truth, meaning, bar) if rows else given.empty("There are no rows.")
    windows = sorted({int(row.window_start.micros) for row in rows})
    span = (windows[0], max(int(row.window_end.micros) for row in rows)) if rows else None
    with chart(stream, format) as (figure, axes):
        values, window = given.counted("people in a window"), window_of(rows)
        style_axes(figure, axes, span=span, values=values, title=title, caption=text, window=window)
        if not rows or drowned(rows, bar):
            words = "Nothing can be told apart: noise dominates" if rows else "no rows"
            axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", fontsize=13, color=INK)
            axes.set_yticks([])
        else:
            _draw(figure, axes, rows, truth, top, bar)


def drowned(rows: Sequence[RankedItem], bar: Bar = by_bound) -> bool:
    """Tell whether noise dominates: by its bar, every item in every window may have had nobody."""
    return bool(rows) and all(bar(row)[0] <= 0 for row in rows)


def _draw(
    figure: Sheet, axes: Axes, rows: Sequence[RankedItem], truth: Sequence[ItemHolders] | None, top: int, bar: Bar
) -> None:
    """Draw the items, the truth, and names."""
    by_item: dict[str, Points] = defaultdict(dict)
    for row in rows:
        by_item[row.item][int(row.window_start.micros)] = row
    ranked = sorted(by_item, key=lambda item: (-sum(row.estimate for row in by_item[item].values()), item))
    windows = sorted({int(row.window_start.micros) for row in rows})
    length = int(rows[0].window_end.micros - rows[0].window_start.micros)
    labels = []
    for rank, item in reversed(list(enumerate(ranked))):
        colour, marker = (COLOURS[rank], MARKERS[rank]) if rank < top else (GREY, ".")
        _draw_item(axes, by_item[item], windows, length, colour, marker, bar)
        points = by_item[item].items()
        texts = [_told(time, row, bar) for time, row in points]
        places = [((time + length / 2) / DAY, row.estimate) for time, row in points]
        note(axes, item, [(*place, text) for place, text in zip(places, texts, strict=True)])
        if rank < top:
            labels.append(_label(item, by_item[item], length, colour))
    if truth is not None:
        _draw_truth(axes, truth, windows, length, dict(zip(ranked[:top], COLOURS, strict=False)))
    axes.set_ylim(bottom=min(0.0, *(row.estimate for row in rows)))
    freeze_layout(figure)
    place(axes, labels[::-1], [((row.window_start.micros + length / 2) / DAY, row.estimate) for row in rows])


def _told(time: int, row: RankedItem, bar: Bar) -> str:
    """Return the text of a note."""
    if bar is by_bound:
        return told(time, row.estimate, row.error_bound)
    return f"{moment(time)}: {row.estimate:,.6g} (between {row.lower:,.6g} and {row.upper:,.6g})"


def _draw_item(axes: Axes, points: Points, windows: list[int], length: int, colour: str, marker: str, bar: Bar) -> None:
    """Draw an item's estimates with bars, joined where it was on top in one window after the other."""
    times = np.array(windows, dtype=np.int64)
    shown = [points.get(time) for time in windows]
    estimates = np.array([np.nan if row is None else row.estimate for row in shown])
    ends = np.array([(np.nan, np.nan) if row is None else bar(row) for row in shown]).T
    coloured = colour != GREY
    axes.errorbar(
        (times + length / 2) / DAY,
        estimates,
        np.abs(ends - estimates),
        color=colour,
        alpha=1.0 if coloured else 0.5,
        marker=marker,
        markersize=4 if coloured else 2.5,
        linewidth=1.2 if coloured else 0.6,
        elinewidth=1.0 if coloured else 0.5,
        zorder=3 if coloured else 2,
    )


def _draw_truth(
    axes: Axes, truth: Sequence[ItemHolders], windows: list[int], length: int, colours: dict[str, str]
) -> None:
    """Draw how many people had the items in colour; where the truth is not known, there is no line."""
    holders = {(row.item, int(row.window_start.micros)): row.holders for row in truth}
    for item, colour in colours.items():
        true = [holders.get((item, time), np.nan) for time in windows]
        times = (np.array(windows, dtype=np.int64) + length / 2) / DAY
        axes.plot(times, true, color=colour, alpha=0.7, linewidth=1, linestyle=(0, (4, 2)), zorder=2)


def _label(item: str, points: Points, length: int, colour: str) -> Label:
    """Return the name of an item, at its highest points."""
    highest = sorted(points, key=lambda time: -points[time].estimate)[:6]
    return Label(short(item), [((time + length / 2) / DAY, points[time].estimate) for time in highest], colour)


def caption(rows: Sequence[RankedItem], truth: Sequence[ItemHolders] | None, meaning: str, bar: Bar = by_bound) -> str:
    """Say what is seen in some rows, of which there is at least one."""
    windows, most = len({row.window_start for row in rows}), max(row.rank for row in rows)
    what = "error bound" if bar is by_bound else "interval"
    if drowned(rows, bar):
        reach = max(bar(row)[1] - row.estimate for row in rows)
        return (
            f"By the {what}s, up to {reach:,.0f} people, each of the {most:,} "
            f"leading items of each of {windows:,} windows may have had nobody. Longer windows, fewer items in the "
            "ranking or a larger epsilon help: privstream plan top-k says how much."
        )
    text = (
        f"The {most:,} leading items of each of {windows:,} windows; the most frequent ones are in colour. Points: "
        f"estimates. {meaning} What would be below 0 is cut off."
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


PICTURE = PictureSpec(
    description="Draws how many people have the leading items of each window, with bars for the error and, given the "
    "truth, the true numbers.",
    truth=ItemHolders,
    shows="draws true numbers, dashed",
    prepare=prepare,
    top=8,
)
