"""`privstream plot histogram` and `flags`: live counts, when flags went up, and the truth beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.plot.bands import Band, draw_bands, tell_bounds
from privstream.pipelines.plot.chart import (
    COLOURS,
    DAY,
    FAINT,
    INK,
    UTC,
    chart,
    key_above,
    note,
    plural,
    short,
    short_names,
    style_axes,
)
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec, row_intervals
from privstream.pipelines.plot.promise import held, percent, without_limits
from privstream.pipelines.simulate.truths import CategoryCount
from privstream.transforms.histograms.questions import questions
from privstream.transforms.row_types import CategoryFlag, HistogramEstimate

MEANINGS = {
    "quantile": "quantile:Q is the count that a part Q of all categories does not exceed.",
    "max": "max is the largest count.",
    "min": "min is the least count.",
    "median": "median is the middle count.",
}


def prepare(given: Given) -> Drawing:
    """Return what draws the counts, or the answers to a query."""
    rows = _chosen(given.rows, given.options["query"])
    found = bands(rows, given.truth or [])
    quantiles = bool(rows) and not any(row.category for row in rows)
    title = given.title("Quantiles of the counts since the start" if quantiles else "Counts since the start")
    text = caption(rows, found, replace(given, rows=rows).sure_of_rows(given.bands))
    values = given.counted("events so far", "that count")
    return partial(draw_bands, found, values=values, title=title, caption=text, top=given.top, clocks=given.clocks)


def _chosen(rows: Sequence[HistogramEstimate], query: str | None) -> list[HistogramEstimate]:
    """Return the rows of the query, or of all queries that are not about categories."""
    names = list(dict.fromkeys(row.query for row in rows))
    if query is None and "histogram" in names:
        query = "histogram"
    if query is not None and rows and query not in names:
        raise ValueError(f"query must be one of {', '.join(names)}, got {query!r}")
    return [row for row in rows if query is None or row.query == query]


def bands(rows: Sequence[HistogramEstimate], truth: Sequence[CategoryCount]) -> list[Band]:
    """Return one band for each category and query, at the ends of windows."""
    true: dict[int, dict[str, int]] = defaultdict(dict)
    for count in truth:
        true[int(count.window_end.micros)][count.category] = count.events
    lines: dict[str, list[tuple[float, ...]]] = defaultdict(list)
    for row, *ends in zip(rows, *row_intervals(rows).tolist(), strict=True):
        moment = int(row.window_end.micros)
        known = _true_answer(row, true[moment]) if true[moment] else np.nan
        lines[row.category or row.query].append((moment, row.estimate, *ends, known))
    found = []
    for name, points in lines.items():
        times, estimates, lower, upper, counts = np.array(sorted(points), dtype=np.float64).T
        has_truth = counts if np.isfinite(counts).any() else None
        both = np.array([lower, upper])
        found.append(Band(name, times.astype(np.int64), estimates, upper - estimates, has_truth, ends=both))
    return found


def _true_answer(row: HistogramEstimate, counts: dict[str, int]) -> float:
    """Return what a row would say without noise; NaN if the truth is not known."""
    if row.category:
        return counts.get(row.category, np.nan)
    asked = questions((row.query,), len(counts))[0]
    return float(asked.query.values(np.array([list(counts.values())], np.int64))[0, 0])


def caption(rows: Sequence[HistogramEstimate], found: list[Band], meaning: str) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    categories = len({row.category for row in rows} - {""})
    asked = {row.query.partition(":")[0] for row in rows if not row.category}
    parts = [f"{plural(categories, 'category', 'categories')}."] * (categories > 0) + [
        MEANINGS[name] for name in MEANINGS if name in asked
    ]
    text = " ".join(parts) + tell_bounds(found, meaning)
    known = [(band, np.abs(band.estimates - band.truth)) for band in found if band.truth is not None]
    if not known:
        return text
    errors = np.concatenate([error[np.isfinite(error)] for _, error in known])
    outside = sum(band.outside for band, _ in known)
    inside = "all estimates are" if not outside else f"all but {outside:,} of {len(errors):,} estimates are"
    return f"{text} Dashed: the truth. The largest error is {errors.max():,.0f}; {inside} within their bands."


HISTOGRAM = PictureSpec(
    description="Draws live counts with bands for their error and, given the truth, true counts.",
    truth=CategoryCount,
    shows="draws true counts, dashed",
    prepare=prepare,
    top=8,
    query=True,
)


MOST = 40
"""Categories that fit into a picture."""


@dataclass(frozen=True)
class FlagPicture:
    """What is drawn: moments in microseconds since 1970 by category, the first flag first.

    Attributes:
        stream: its name, empty where there is but one.
        span: start of the first and end of the last window, or None if there are no rows.
        thresholds: of all categories, in the order in which they are drawn.
        raised: when flags went up, of those that did.
        passed: when counts had passed their thresholds in truth, of those that had; None if the truth is not known.
        error_bound: the largest of the rows.
        certainty: the probability with which it is right, such as 95%.
        counts: what counts are, as a part of a sentence.
        starts: when windows start.
        clocks: by which times are shown.
    """

    stream: str
    span: tuple[int, int] | None
    thresholds: Mapping[str, int]
    raised: Mapping[str, int]
    passed: Mapping[str, int] | None
    error_bound: int
    certainty: str
    counts: str
    starts: Sequence[int] = ()
    clocks: Clocks = UTC


def prepare_flags(given: Given) -> Drawing:
    """Return what draws the flags."""
    promise = given.promise
    counts = f"{held(promise)} so far{without_limits(promise)}"
    found = flag_picture(given.stream, given.rows, given.truth, percent(promise), counts, given.clocks)
    return partial(draw_flags, found)


def flag_picture(
    stream: str,
    rows: Sequence[CategoryFlag],
    truth: Sequence[CategoryCount] | None,
    certainty: str,
    counts: str,
    clocks: Clocks = UTC,
) -> FlagPicture:
    """Return when flags went up, and when they should have."""
    thresholds = {row.category: row.threshold for row in rows}
    raised: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row.window_end):
        if row.raised:
            raised.setdefault(row.category, int(row.window_end.micros))
    passed: dict[str, int] | None = None if truth is None else {}
    for count in sorted(truth or (), key=lambda count: count.window_end):
        if passed is not None and count.events >= thresholds.get(count.category, count.events + 1):
            passed.setdefault(count.category, int(count.window_end.micros))
    starts, ends = [int(row.window_start.micros) for row in rows], [int(row.window_end.micros) for row in rows]
    never = max(ends, default=0) + 1
    order = sorted(thresholds, key=lambda name: (raised.get(name, never), (passed or {}).get(name, never), name))
    return FlagPicture(
        stream=stream,
        span=(min(starts), max(ends)) if rows else None,
        thresholds={name: thresholds[name] for name in order},
        raised=raised,
        passed=passed,
        error_bound=max((row.error_bound for row in rows), default=0),
        certainty=certainty,
        counts=counts,
        starts=sorted({*starts}),
        clocks=clocks,
    )


def draw_flags(found: FlagPicture, stream: BinaryIO, format: str) -> None:
    """Draw a line for each category, thick from when its flag went up."""
    names = list(found.thresholds)[:MOST]
    years = found.span is not None and found.clocks.several_years(*found.span)
    with chart(stream, format, found.clocks) as figure:
        axes = figure.add_subplot()
        for place, name in enumerate(names):
            axes.axhline(place, color=FAINT, linewidth=0.8, zorder=1)
            if name in found.raised and found.span is not None:
                days = [found.raised[name] / DAY, found.span[1] / DAY]
                axes.plot(days, [place, place], color=COLOURS[0], linewidth=5, solid_capstyle="butt", zorder=2)
                note(axes, name, [(days[0], place, found.raised[name], "up from here on")])
                _beside(axes, place, found.clocks.short(found.raised[name], year=years))
                axes.plot(days[:1], [place], "o", color=COLOURS[0], markersize=7, clip_on=False, zorder=3)
            if found.passed and name in found.passed:
                day = found.passed[name] / DAY
                axes.plot([day], [place], "D", color=COLOURS[1], markersize=5, clip_on=False, zorder=4)
        if not names:
            axes.text(0.5, 0.5, "no rows", transform=axes.transAxes, ha="center", color=INK)
        title = "Categories that have passed their thresholds" + (f", {short(found.stream)}" if found.stream else "")
        words: Any = {"values": "", "title": title, "caption": caption_of_flags(found)}
        style_axes(figure, axes, span=found.span, starts=found.starts, **words)
        axes.grid(visible=False)
        axes.set_yticks(
            range(len(names)),
            [f"{text} ({found.thresholds[name]:,})" for text, name in zip(short_names(names), names, strict=True)],
        )
        axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
        marks = [Line2D([], [], color=COLOURS[0], linewidth=5, marker="o", markersize=7)]
        if found.passed is not None:
            marks.append(Line2D([], [], color=COLOURS[1], linewidth=0, marker="D", markersize=5))
        key_above(axes, marks, ["flag is up", "count passed the threshold"][: len(marks)])


def _beside(axes: Axes, height: float, text: str) -> None:
    """Write a text on the right of the picture, at a height."""
    at: dict[str, Any] = {"xycoords": ("axes fraction", "data"), "textcoords": "offset points", "xytext": (6, 0)}
    axes.annotate(text, (1.0, height), verticalalignment="center", color=INK, fontsize=8, **at)


def caption_of_flags(found: FlagPicture) -> str:
    """Say what is seen."""
    if not found.thresholds:
        return "There are no rows."
    text = (
        f"In brackets: the thresholds, in events; on the right: when flags went up. {len(found.raised):,} of "
        f"{plural(len(found.thresholds), 'flag')} went up, and stay up. With probability {found.certainty}, all of "
        f"them together, each flag goes up at a count that is at most {plural(found.error_bound, 'event')} below or "
        f"above its threshold. Counts are {found.counts}."
    )
    if found.passed is not None:
        early = sum(moment < found.passed.get(name, moment + 1) for name, moment in found.raised.items())
        never = len(found.passed.keys() - found.raised.keys())
        text += (
            f" In truth, counts that passed their thresholds: {len(found.passed):,}; flags that were early: {early:,}, "
            f"that are not up yet: {never:,}."
        )
    beyond = len(found.thresholds) - MOST
    return text if beyond <= 0 else f"{text} Not shown: {beyond:,} more categories."


FLAGS = PictureSpec(
    description="Draws when the flag of each category went up and, given the truth, when its count passed the "
    "threshold.",
    truth=CategoryCount,
    shows="marks when counts passed their thresholds",
    prepare=prepare_flags,
)
