"""`privstream plot top-k`: how many people had the leading items, window by window, and how sure that is."""

from __future__ import annotations

import argparse
from collections import defaultdict
from functools import partial
from typing import BinaryIO

import numpy as np
from matplotlib.axes import Axes
from privstream.mechanisms import checks
from privstream.pipelines.command import Command
from privstream.pipelines.plot.chart import COLOURS, DAY, GREY, INK, chart, freeze_layout, short, style_axes
from privstream.pipelines.plot.labels import Label, place
from privstream.pipelines.plot.rows import add_plot, choose_stream, read_rows, write_picture
from privstream.pipelines.simulate.event_writers import ItemHolders
from privstream.transforms.rows import RankedItem

Points = dict[int, RankedItem]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_plot(parser, rows="top-k", truth="draws true numbers, dashed")
    parser.add_argument(
        "--top", type=int, default=8, metavar="N", help=f"items in colour, 1 to {len(COLOURS)} (default: 8)"
    )


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the rows, draw, and write the picture."""

    def prepare() -> partial[None]:
        if checks.integer("top", arguments.top, minimum=1) > len(COLOURS):
            raise ValueError(f"top must be <= {len(COLOURS)}, got {arguments.top}")
        stream, rows = choose_stream(read_rows("--input", arguments.input, RankedItem), arguments.stream)
        truth = None if arguments.truth is None else read_rows("--truth", arguments.truth, ItemHolders)
        known = None if truth is None else [row for row in truth if row.stream == stream]
        return partial(draw, rows, known, stream_name=stream, top=arguments.top)

    write_picture(arguments.output, prepare)


def draw(
    rows: list[RankedItem],
    truth: list[ItemHolders] | None,
    stream: BinaryIO,
    format: str,
    *,
    stream_name: str,
    top: int,
) -> None:
    """Draw the items that were most often and most clearly on top in colour, the others grey.

    Args:
        rows: of one stream.
        truth: how many people had the items, or None.
        stream: where to write the picture.
        format: png or svg.
        stream_name: for the title.
        top: items in colour, and with a name.
    """
    by_item: dict[str, Points] = defaultdict(dict)
    for row in rows:
        by_item[row.item][int(row.window_start.micros)] = row
    ranked = sorted(by_item, key=lambda item: (-sum(row.estimate for row in by_item[item].values()), item))
    windows = sorted({int(row.window_start.micros) for row in rows})
    ends = max((int(row.window_end.micros) for row in rows), default=0)
    length = ends - windows[-1] if windows else 0
    with chart(stream, format) as (figure, axes):
        labels = []
        for rank, item in reversed(list(enumerate(ranked))):
            colour = COLOURS[rank] if rank < top else GREY
            _draw_item(axes, by_item[item], windows, length, colour)
            if rank < top:
                labels.append(_label(item, by_item[item], length, colour))
        if truth is not None:
            _draw_truth(axes, truth, windows, length, dict(zip(ranked[:top], COLOURS, strict=False)))
        if not rows:
            axes.text(0.5, 0.5, "no rows", transform=axes.transAxes, ha="center", color=INK)
        span = (windows[0], ends) if windows else None
        title = "The leading items" + (f", {stream_name}" if stream_name else "")
        style_axes(figure, axes, span=span, values="people in a window", title=title, caption=caption(rows, truth))
        freeze_layout(figure)
        half = length / 2
        place(axes, labels[::-1], [((row.window_start.micros + half) / DAY, row.estimate) for row in rows])


def _draw_item(axes: Axes, points: Points, windows: list[int], length: int, colour: str) -> None:
    """Draw an item's estimates with bars, joined where it was on top in one window after the other."""
    times = np.array(windows, dtype=np.int64)
    shown = [points.get(time) for time in windows]
    estimates = np.array([np.nan if row is None else row.estimate for row in shown])
    bounds = np.array([np.nan if row is None else row.error_bound for row in shown])
    coloured = colour != GREY
    axes.errorbar(
        (times + length / 2) / DAY,
        estimates,
        bounds,
        color=colour,
        alpha=1.0 if coloured else 0.5,
        marker="o",
        markersize=4 if coloured else 2.5,
        linewidth=1.2 if coloured else 0.6,
        elinewidth=1.0 if coloured else 0.5,
        zorder=3 if coloured else 2,
    )


def _draw_truth(axes: Axes, truth: list[ItemHolders], windows: list[int], length: int, colours: dict[str, str]) -> None:
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


def caption(rows: list[RankedItem], truth: list[ItemHolders] | None) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    windows = len({row.window_start for row in rows})
    text = (
        f"The {max(row.rank for row in rows):,} leading items of each of {windows:,} windows; the most frequent "
        "ones are in colour. Points: estimates of numbers of people; bars: their error bounds."
    )
    if truth is None:
        return text
    holders = {(row.item, row.window_start): row.holders for row in truth}
    errors = [
        (abs(row.estimate - holders[row.item, row.window_start]), row.error_bound)
        for row in rows
        if (row.item, row.window_start) in holders
    ]
    text += " Dashed: true numbers, as far as they are known, of all people, before any limits"
    if not errors:
        return f"{text}."
    outside = sum(error > bound for error, bound in errors)
    return f"{text}; {outside:,} of {len(errors):,} estimates are further from the truth than their error bound."


COMMAND = Command(
    description="Draws how many people have the leading items of each window, with bars for the error and, given the "
    "truth, the true numbers.",
    add_arguments=add_arguments,
    run=run,
)
