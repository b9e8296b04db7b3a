"""`privstream plot heavy-hitters`: the timeline of heavy hitters as a picture; the curves of those that stay found."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, BinaryIO, NamedTuple, TypeVar

import numpy as np
from matplotlib.axes import Axes
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.pictures.counts import bands, by_model, caption
from privstream.pipelines.pictures.truth import Verdict, detection_threshold, judge, key
from privstream.pipelines.plot.bands import draw_bands
from privstream.pipelines.plot.chart import (
    ALARM,
    COLOURS,
    GREY,
    INK,
    MARKERS,
    UTC,
    Label,
    Sheet,
    chart,
    freeze_layout,
    middle_day,
    note,
    place,
    short,
    short_names,
    starts_of,
    style_axes,
    told,
)
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec, is_smoothed
from privstream.pipelines.simulate.truths import ItemHolders
from privstream.transforms.row_types import HeavyHitter

MISSED_LABELS = 4
PEAKS = 6
MANY_WINDOWS = 100
BAR = 2
"""Length of a bar to either side, in standard deviations, where the guarantee file states no error of counts."""


class Counted(NamedTuple):
    """A count: the day at the middle of its window, the number, its bar to either side, and when the window starts."""

    day: float
    count: int  # type: ignore[assignment]  # the field's name wins over tuple.count
    bar: float
    micros: int

    @property
    def text(self) -> str:
        """What it says."""
        return told(self.count, round(self.bar))


Row = TypeVar("Row", HeavyHitter, ItemHolders)


@dataclass(frozen=True)
class Timeline:
    """What is drawn: the rows and the truth of one stream.

    Attributes:
        stream: its name, empty where there is but one.
        rows: what was published.
        truth: the true numbers of people, or nothing.
        detection_threshold: the number of people from which items are promised to be found, if known.
        verdict: the rows against the truth, if both that and the threshold are known.
        meaning: what bars mean, in sentences.
        people: what the vertical axis counts.
        error: length of bars to either side; None for some standard deviations.
        empty: what to say where there are no rows.
        clocks: by which times are shown.
    """

    stream: str
    rows: Sequence[HeavyHitter]
    truth: Sequence[ItemHolders]
    detection_threshold: int | None
    verdict: Verdict | None
    meaning: str
    people: str
    error: int | None = None
    empty: str = "No heavy hitters were published."
    clocks: Clocks = UTC


def draw(timeline: Timeline, stream: BinaryIO, format: str, *, top: int) -> None:
    """Draw a picture.

    Args:
        timeline: what to draw.
        stream: where to write it.
        format: png or svg.
        top: number of items in colour, those with the highest counts; the others are grey.
    """
    with chart(stream, format, timeline.clocks) as figure:
        axes = figure.add_subplot()
        labels = _lines(axes, timeline, top)
        missed = _missed(axes, timeline, labels)
        _dress(figure, axes, timeline)
        freeze_layout(figure)
        place(axes, labels, [(point.day, point.count) for point in _counted(timeline.rows)] + missed)


def _lines(axes: Axes, timeline: Timeline, top: int) -> list[Label]:
    """Draw the items, the first `top` of them in colour; return their labels."""
    published: dict[str, list[HeavyHitter]] = defaultdict(list)
    for row in timeline.rows:
        published[row.item].append(row)
    truth: dict[str, list[ItemHolders]] = defaultdict(list)
    for known in timeline.truth:
        if known.item in published:
            truth[known.item].append(known)
    counted = {item: _counted(rows, timeline.error) for item, rows in published.items()}
    ranked = sorted(published, key=lambda item: (-max((point.count for point in counted[item]), default=0), item))
    small = len({row.window_start for row in timeline.rows}) > MANY_WINDOWS
    labels, names = [], short_names(ranked[:top])
    for rank, item in reversed(list(enumerate(ranked))):
        colour = COLOURS[rank] if rank < top else GREY
        _true_line(axes, truth[item], colour)
        marker = MARKERS[rank] if rank < top else "."
        _line(axes, published[item], timeline.error, colour, marker, small=small, layer=3 if rank < top else 2)
        note(axes, item, [(point.day, point.count, point.micros, point.text) for point in counted[item]])
        if rank < top:
            peaks = sorted(counted[item], key=lambda point: -point.count)[:PEAKS]
            points = [(point.day, point.count + point.bar) for point in peaks] or [
                (middle_day(published[item][0]), 0.0)
            ]
            labels.append(Label(names[rank], points, colour))
    return labels[::-1]


def _line(
    axes: Axes,
    rows: Iterable[HeavyHitter],
    error: int | None,
    colour: str,
    marker: str,
    *,
    small: bool,
    layer: int,
) -> None:
    """Draw an item's counts with error bars; windows that follow each other are connected.

    Where there is no count, a dotted line stays at the height of the last one, or at 0: no slope that is not known.
    """
    for run in _runs(rows):
        days = np.array([middle_day(row) for row in run])
        counted = _counted(run, error)
        heights = np.array([np.nan if row.count is None else row.count for row in run], np.float64)
        known = np.isfinite(heights)
        last = np.maximum.accumulate(np.where(known, np.arange(len(run)), -1))
        stays = np.where(last < 0, 0.0, heights[last])
        width = 1.0 if small else 1.6
        if not known.all():
            style: dict[str, Any] = {"marker": "_" if len(run) == 1 else "", "linestyle": (0, (1, 2))}
            axes.plot(days, stays, color=colour, linewidth=width / 2, zorder=layer, **style)
        axes.plot(days, heights, color=colour, linewidth=width, zorder=layer)
        axes.errorbar(
            [point.day for point in counted],
            [point.count for point in counted],
            yerr=[point.bar for point in counted],
            color=colour,
            linestyle="none",
            marker=marker,
            markersize=1.8 if small else 3.5,
            elinewidth=0.6 if small else 1.0,
            zorder=layer,
        )


def _true_line(axes: Axes, rows: Iterable[ItemHolders], colour: str) -> None:
    """Draw an item's true counts, faintly."""
    for run in _runs(rows):
        axes.plot(
            [middle_day(row) for row in run],
            [row.holders for row in run],
            color=colour,
            alpha=0.35,
            linewidth=1,
            linestyle=(0, (4, 2)),
            marker="" if len(run) > 1 else "_",
            zorder=1,
        )


def _missed(axes: Axes, timeline: Timeline, labels: list[Label]) -> list[tuple[float, float]]:
    """Mark what was missed, add labels of the items that most people had, and return the marks."""
    missed = set(() if timeline.verdict is None else timeline.verdict.missed)
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in sorted(timeline.truth, key=lambda row: -row.holders):
        if key(row) in missed:
            points[row.item].append((middle_day(row), row.holders))
    told = list(points)[:MISSED_LABELS]
    labels += [
        Label(f"{name} (missed)", points[item][:PEAKS], ALARM)
        for name, item in zip(short_names(told), told, strict=True)
    ]
    marks = [mark for item in points.values() for mark in item]
    axes.scatter(
        [x for x, _ in marks],
        [y for _, y in marks],
        marker="D",
        s=34,
        facecolors="none",
        edgecolors=ALARM,
        linewidths=1.3,
        zorder=4,
    )
    return marks


def _dress(figure: Sheet, axes: Axes, timeline: Timeline) -> None:
    """Draw everything but the items."""
    rows: list[HeavyHitter | ItemHolders] = [*timeline.rows, *timeline.truth]
    span = (min(row.window_start.micros for row in rows), max(row.window_end.micros for row in rows)) if rows else None
    of_stream = f" of {short(timeline.stream)}" if timeline.stream else ""
    title, values = f"Heavy hitters{of_stream}: items of many {timeline.people}", f"{timeline.people} in a window"
    style_axes(figure, axes, span=span, values=values, title=title, caption=_caption(timeline), starts=starts_of(rows))
    items = {row.item for row in timeline.rows}
    counts = [point.count + point.bar for point in _counted(timeline.rows, timeline.error)]
    counts += [row.holders for row in timeline.truth if row.item in items]
    threshold = timeline.detection_threshold
    if threshold is not None:
        axes.axhline(threshold, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        axes.annotate(
            f"enough for a report:\n{threshold:,} {timeline.people}",
            (1.0, threshold),
            xycoords=("axes fraction", "data"),
            xytext=(4, 0),
            textcoords="offset points",
            verticalalignment="center",
            color=INK,
            fontsize=8,
        )
    if timeline.verdict is not None:
        counts += [row.holders for row in timeline.truth if row.holders >= (threshold or 0)]
    axes.set_ylim(0, 1.1 * max([1, threshold or 0, *counts]))


def _caption(timeline: Timeline) -> str:
    """Say what is seen."""
    counted = len(_counted(timeline.rows))
    bars = f"Points: counts with noise. {timeline.meaning} " if counted else "There are no counts. "
    if 0 < counted < len(timeline.rows):
        bars += "Dotted: the item continues, and how many people have it is not known; its height says nothing. "
    if not timeline.rows:
        bars = f"{timeline.empty} "
    if not timeline.truth:
        return bars
    bars += "Dashed: true numbers of all people, before any limits. "
    if timeline.verdict is None or timeline.detection_threshold is None:
        return bars + "Missed items are not shown, because the guarantee file is not beside the rows."
    return bars + timeline.verdict.sentence(timeline.detection_threshold)


def _counted(rows: Iterable[HeavyHitter], error: int | None = None) -> list[Counted]:
    """Return what is drawn of the rows that have a count, with bars of some length."""
    return [
        Counted(middle_day(row), row.count, BAR * row.count_stddev if error is None else error, row.window_start.micros)
        for row in rows
        if row.count is not None and row.count_stddev is not None
    ]


def _runs(rows: Iterable[Row]) -> list[list[Row]]:
    """Cut rows where a window is left out."""
    runs: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: row.window_start):
        if runs and row.window_start <= runs[-1][-1].window_end:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs


UNSURE = " Where a line has a gap, the item's smoothed count was not surely above 0: it is not reported."


def prepare(given: Given) -> Drawing:
    """Return what draws the items."""
    threshold = detection_threshold(given.promise)
    verdict = None if given.truth is None or threshold is None else judge(given.rows, given.truth, threshold)
    if is_smoothed(given.rows):
        return _curves(given, verdict, threshold)
    error = None if given.promise is None else given.promise.maybe("accuracy", "count_error")
    timeline = Timeline(
        stream=given.stream,
        rows=given.rows,
        truth=given.truth or [],
        detection_threshold=threshold,
        verdict=verdict,
        meaning=given.sure("Bars"),
        people=given.counted("people"),
        error=error if isinstance(error, int) else None,
        empty=given.empty("No heavy hitters were published."),
        clocks=given.clocks,
    )
    return partial(draw, timeline, top=given.top)


def _curves(given: Given, verdict: Verdict | None, threshold: int | None) -> Drawing:
    """Return what draws smoothed counts, as those of `counts`, and says what was missed."""
    found = bands(given.rows, given.truth or [], each=True)
    text = caption(given.rows, found, by_model(given)) + given.when
    if any(np.isnan(band.estimates).any() for band in found):
        text += UNSURE
    if verdict is not None and threshold is not None:
        text = f"{text} {verdict.of_heavy(threshold)}"
    words: dict[str, Any] = {
        "values": f"{given.counted('people')} in a window",
        "title": given.title("Heavy hitters: items of many people"),
        "caption": text,
    }
    return partial(draw_bands, found, top=given.top, renewals=given.renewals, clocks=given.clocks, **words)


PICTURE = PictureSpec(
    description="Draws the heavy hitters of each window with bars for the error of their counts, or their smoothed "
    "counts with bands, and, given the truth, says what was found and what was missed.",
    truth=ItemHolders,
    shows="shows what was missed",
    prepare=prepare,
    top=10,
)
