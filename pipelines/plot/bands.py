"""Draws estimates over time: a line for each with a band for its error, and the truth beside it where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.plot.chart import (
    ALARM,
    COLOURS,
    DAY,
    FAINT,
    GREY,
    INK,
    MARKERS,
    UTC,
    Label,
    Sheet,
    chart,
    freeze_layout,
    note,
    place,
    short_names,
    style_axes,
    time_axis,
    told,
    value_axis,
)

LABEL_POINTS = 6
FAR_BELOW = 0.5
WIDE = 0.5
MOST_PLACES = 1000
MARKS = 8
"""On a line, to tell it without its colour."""

MANY_WINDOWS = 60
"""Lines over more windows are drawn one by one."""

ABREAST = {1: 1, 2: 2, 3: 3, 4: 2, 5: 3, 6: 3, 9: 3}
"""How many pictures stand beside each other, by their number; four of others."""

PANEL_TICKS = 3
LONGEST_HEADINGS, LONGEST_ROW_NAME = 84, 40
"""Letters of the names above pictures beside each other, and of a name beside a row."""

MOST_DAYS = 24
"""Beginnings of alerts that are told in words."""

MOST_ROWS = 30
"""Items of a single window that are drawn."""

EACH_BY_ITSELF = " Each is drawn by itself, with a scale of its own."
STROKES = " Upright strokes: the truth."
AFRESH = " Vertical lines: limits start afresh."
NOTHING_SURE = "No number is surely above 0: what is seen may be noise alone. "


@dataclass(frozen=True, eq=False)
class Band:
    """One line of a picture.

    Attributes:
        name: what it shows.
        times: ends of windows in microseconds since 1970, increasing; int64, shape (n,).
        estimates: float64, shape (n,); NaN where there is none, which leaves a gap.
        error_bounds: half the width of the band; float64, shape (n,).
        truth: the true values, NaN where they are not known; float64, shape (n,), or None.
        points: what the estimates were made of, drawn as dots, NaN where there is none; float64, shape (n,), or None.
            With these a line in grey has neither dots nor a band.
        counted: the part of the estimates that is counted and not assumed, drawn as a thin line with a hatched area up
            to the estimates; NaN where there is none; float64, shape (n,), or None.
        starts: when windows start that values are about, in microseconds since 1970: points stand in their middle;
            int64, shape (n,). None for values of the moment when a window ends, as of all that was counted until then.
        ends: lower and upper ends of intervals, where these are not `error_bounds` to either side; float64, shape
            (2, n), or None.
        signed: whether what is estimated may be below 0, as a rise; else intervals are cut off there.
        levels: values to mark with a line across, near which it is drawn: its axis need not begin at 0.
    """

    name: str
    times: np.ndarray
    estimates: np.ndarray
    error_bounds: np.ndarray
    truth: np.ndarray | None = None
    points: np.ndarray | None = None
    counted: np.ndarray | None = None
    starts: np.ndarray | None = None
    ends: np.ndarray | None = None
    signed: bool = False
    levels: tuple[float, ...] = ()

    @cached_property
    def begins(self) -> np.ndarray:
        """When windows start, in microseconds since 1970; their ends for values of these moments."""
        return self.times if self.starts is None else self.starts

    @property
    def days(self) -> np.ndarray:
        """Where points stand, in days since 1970."""
        return np.asarray((self.times + self.begins) / (2 * DAY))

    @property
    def span(self) -> tuple[int, int]:
        """First and last moment that it is about."""
        return int(self.begins[0]), int(self.times[-1])

    @property
    def interval(self) -> np.ndarray:
        """Lower and upper ends of intervals, at least 0 as the numbers are, but for signed ones; float64, (2, n)."""
        ends = (
            [self.estimates - self.error_bounds, self.estimates + self.error_bounds] if self.ends is None else self.ends
        )
        return np.array([ends[0] if self.signed else np.maximum(ends[0], np.minimum(self.estimates, 0)), ends[1]])

    @property
    def lowest(self) -> float:
        """The least of all that is drawn of it, at most 0."""
        parts = (self.interval[0], self.estimates, self.points, self.counted, self.truth)
        return min(float(np.nanmin(part, initial=0.0)) for part in parts if part is not None)

    @property
    def outside(self) -> int:
        """How many true values are outside of their interval."""
        return (
            0 if self.truth is None else int(((self.truth < self.interval[0]) | (self.truth > self.interval[1])).sum())
        )

    @property
    def texts(self) -> list[str]:
        """Each number in words, with its interval."""
        if self.ends is None:
            return [told(*both) for both in zip(self.estimates.tolist(), self.error_bounds.tolist(), strict=True)]
        return [
            f"{number:,.6g} (between {lower:,.6g} and {upper:,.6g})"
            for number, lower, upper in zip(self.estimates.tolist(), *self.ends.tolist(), strict=True)
        ]


def draw_bands(
    bands: Sequence[Band],
    stream: BinaryIO,
    format: str,
    *,
    values: str,
    title: str,
    caption: str,
    top: int = 10,
    renewals: Sequence[int] = (),
    alarms: Sequence[tuple[int, int]] = (),
    whole: bool = True,
    clocks: Clocks = UTC,
    empty: str = "no rows",
) -> None:
    """Draw bands; those with the largest estimates in colour, at most `top` of them, the others grey.

    Those of a single window are points with bars, one below the other. Where windows are many, or bands would cover all
    lines, each of those in colour is drawn by itself.

    Args:
        bands: what to draw.
        stream: where to write the picture.
        format: png or svg.
        values: what the vertical axis counts.
        title: above the picture.
        caption: below it.
        top: bands in colour and with a name, at most as many as there are colours.
        renewals: moments at which limits start afresh, in microseconds since 1970, to mark with upright lines.
        alarms: first and last moments of times to shade, in microseconds since 1970; of one band.
        whole: whether values are whole numbers on their axis.
        clocks: by which times are shown.
        empty: what is written where there is nothing to draw.
    """
    levels = sorted({level for band in bands for level in band.levels})
    ranked = sorted(bands, key=lambda band: (-float(np.fmax.reduce(band.estimates, initial=0.0)), band.name))
    top = min(top, len(COLOURS))
    within = [moment for moment in renewals if any(band.span[0] < moment < band.span[1] for band in bands)]
    caption = NOTHING_SURE * nothing_sure(bands) + caption
    with chart(stream, format, clocks) as figure:
        if len(bands) > 1 and len(moments_of(bands)) == 1 and not levels:
            _draw_rows(figure, ranked, top, values, whole=whole)
            figure.say(title, caption + STROKES * any(band.truth is not None for band in bands))
        elif one_by_one(bands):
            _draw_panels(figure, ranked[:top], values, within, whole=whole)
            shown = f" Only the {top} largest are shown." * (len(ranked) > top > 1)
            figure.say(title, caption + shown + EACH_BY_ITSELF + AFRESH * bool(within))
        else:
            labels = _draw_together(figure, ranked, top, values, levels, within, whole=whole, empty=empty)
            for begin, end in alarms:
                figure.axes[0].axvspan(begin / DAY, end / DAY, color=ALARM, alpha=0.12, linewidth=0, zorder=0)
            labels += _beginnings(alarms, levels, clocks)
            figure.say(title, caption + AFRESH * bool(within))
            freeze_layout(figure)
            place(figure.axes[0], labels, _places(ranked[:top]))
        freeze_layout(figure)


def _draw_together(
    figure: Sheet,
    ranked: Sequence[Band],
    top: int,
    values: str,
    levels: Sequence[float],
    renewals: Sequence[int],
    *,
    whole: bool,
    empty: str,
) -> list[Label]:
    """Draw all bands into one picture; return their names."""
    axes, labels = figure.add_subplot(), []
    names = short_names([band.name for band in ranked[:top]])
    _mark_levels(axes, levels)
    _mark_renewals(axes, renewals)
    for rank, band in reversed(list(enumerate(ranked))):
        colour, marker = (COLOURS[rank], MARKERS[rank]) if rank < top else (GREY, ".")
        several = band.points is not None or band.counted is not None
        plain = colour == GREY and several  # dots and bands of many items would hide all lines
        _draw(axes, band, colour, marker, layer=3 if colour != GREY else 2, bounds=not plain)
        if colour != GREY and np.isfinite(band.estimates).any():
            labels.append(_label(band, names[rank], colour))
    moments = [moment for band in ranked if len(band.times) for moment in band.span]
    span = (min(moments), max(moments)) if moments else None
    if not moments:
        axes.text(0.5, 0.5, empty, transform=axes.transAxes, ha="center", color=INK)
    style_axes(figure, axes, span=span, values=values, title="", caption="", starts=_starts(ranked), whole=whole)
    if not moments:
        axes.set_yticks([])
    return labels[::-1]


def _beginnings(alarms: Sequence[tuple[int, int]], levels: Sequence[float], clocks: Clocks) -> list[Label]:
    """Return when times to shade begin, in words, at a level that is marked."""
    ends = {end for _, end in alarms}
    begins = [begin for begin, _ in sorted(alarms) if begin not in ends][:MOST_DAYS]
    year = bool(begins) and clocks.several_years(begins[0], max(ends))
    return [Label(clocks.short(begin, year=year), [(begin / DAY, max(levels, default=0.0))], ALARM) for begin in begins]


def _mark_levels(axes: Axes, levels: Sequence[float]) -> None:
    """Draw dotted lines across."""
    for level in levels:
        axes.axhline(level, color=GREY, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)


def _mark_renewals(axes: Axes, renewals: Sequence[int]) -> None:
    """Draw upright lines where limits start afresh."""
    for moment in renewals:
        axes.axvline(moment / DAY, color=GREY, linewidth=0.8, linestyle=(0, (1, 2)), zorder=1)


def nothing_sure(bands: Sequence[Band]) -> bool:
    """Tell whether no interval that is known is above 0."""
    lowest = np.concatenate([band.interval[0] for band in bands] or [np.zeros(0)])
    known = lowest[np.isfinite(lowest)]
    return len(known) > 0 and bool((known <= 0).all())


def _draw_panels(figure: Sheet, bands: Sequence[Band], values: str, renewals: Sequence[int], *, whole: bool) -> None:
    """Draw each band by itself, the largest first."""
    columns = ABREAST.get(len(bands), 4)
    rows = -(-len(bands) // columns)
    spans = [band.span for band in bands]
    span, starts = (min(start for start, _ in spans), max(end for _, end in spans)), _starts(bands)
    figure.supylabel(values, fontsize=9, color=INK)
    names = short_names([band.name for band in bands], LONGEST_HEADINGS // columns)
    for number, band in enumerate(bands):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw(axes, band, COLOURS[number], MARKERS[number], layer=3, bounds=True)
        _mark_levels(axes, band.levels)
        _mark_renewals(axes, renewals)
        axes.set_title(names[number], loc="left", fontsize=9, color=COLOURS[number])
        time_axis(axes, *span, starts, most=PANEL_TICKS)
        value_axis(axes, PANEL_TICKS + 2, whole=whole)
        axes.set_ylim(bottom=0.0 if band.lowest >= 0 and not band.levels else None)
        if number != columns * (rows - 1):
            axes.set_xlabel("")
        if number + columns < len(bands):
            axes.tick_params(labelbottom=False)


def _draw_rows(figure: Sheet, bands: Sequence[Band], top: int, values: str, *, whole: bool) -> None:
    """Draw points with bars, one below the other, of bands of one window."""
    axes, shown = figure.add_subplot(), bands[:MOST_ROWS]
    for row, band in enumerate(shown):
        colour = COLOURS[0] if row < top else GREY
        number, (lower, upper) = float(band.estimates[0]), band.interval[:, 0].tolist()
        axes.hlines(row, lower, upper, color=colour, linewidth=4, alpha=0.3, zorder=2)
        axes.plot([number], [row], MARKERS[0], color=colour, markersize=5, zorder=3)
        if band.truth is not None:
            axes.plot(band.truth, [row], "|", color=INK, markersize=11, zorder=4)
        note(axes, band.name, [(number, row, float(band.begins[0]), band.texts[0])])
    axes.set_yticks(range(len(shown)), short_names([band.name for band in shown], LONGEST_ROW_NAME))
    axes.tick_params(axis="y", length=0)
    axes.set_ylim(len(shown) - 0.4, -0.6)
    axes.set_xlim(left=0.0 if min(band.lowest for band in shown) >= 0 else None)
    axes.xaxis.set_major_formatter("{x:,.0f}" if whole else "{x:,.6g}")
    axes.spines[["top", "right", "left"]].set_visible(False)
    axes.grid(axis="x", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    begin, end = shown[0].span
    clocks = figure.clocks
    when = clocks.moment(end) if begin == end else f"{clocks.moment(begin)} to {clocks.moment(end)}"
    axes.set_xlabel("\n".join([values, when]))


def moments_of(bands: Sequence[Band]) -> np.ndarray:
    """Return the ends of all windows."""
    return np.unique(np.concatenate([band.times for band in bands] or [np.zeros(0, np.int64)]))


def _starts(bands: Sequence[Band]) -> list[int]:
    """Return when all windows start; none for values of moments."""
    return sorted({start for band in bands if band.starts is not None for start in band.starts.tolist()})


def one_by_one(bands: Sequence[Band]) -> bool:
    """Tell whether bands are drawn one by one, since together they could not be told apart."""
    windows = len(moments_of(bands))
    return len(bands) > 1 and windows > 1 and (too_wide(bands) or windows > MANY_WINDOWS)


def too_wide(bands: Sequence[Band]) -> bool:
    """Tell whether bands would cover each other and all lines."""
    numbers = np.concatenate([band.estimates for band in bands] or [np.zeros(0)])
    known = numbers[np.isfinite(numbers)]
    hatched = any(band.counted is not None for band in bands)
    return len(bands) > 1 and len(known) > 0 and (hatched or widest(bands) > WIDE * np.ptp(known))


def widest(bands: Sequence[Band]) -> float:
    """Return how far an interval reaches at most above its number, 0 if none is known."""
    bounds = np.concatenate([band.interval[1] - band.estimates for band in bands] or [np.zeros(0)])
    return float(np.max(bounds[np.isfinite(bounds)], initial=0.0))


def tell_bounds(bands: Sequence[Band], meaning: str) -> str:
    """Say what error bounds mean, and how far they reach."""
    if not widest(bands):
        return ""
    reach = widest(bands)
    return f" {meaning} The widest reach {f'{reach:,.0f}' if reach >= 1 else f'{reach:.2g}'} upwards."


def _draw(axes: Axes, band: Band, colour: str, marker: str, *, layer: int, bounds: bool) -> None:
    """Draw a line with a few markers, its band, and the truth, dashed."""
    days, (low, high) = band.days, band.interval
    if bounds:
        axes.fill_between(days, low, high, color=colour, alpha=0.15, linewidth=0, zorder=layer - 1)
        draw_alone(axes, days, low, high, colour, layer=layer - 1)
    if band.points is not None and colour != GREY:
        dots: dict[str, Any] = {"linestyle": "", "marker": ".", "markersize": 3, "alpha": 0.5}
        axes.plot(days, band.points, color=colour, zorder=layer - 0.5, clip_on=False, **dots)
    if band.counted is not None and colour != GREY:
        axes.plot(days, band.counted, color=colour, linewidth=0.7, alpha=0.8, zorder=layer - 0.5)
        hatch: dict[str, Any] = {"facecolor": "none", "edgecolor": colour, "hatch": "////", "alpha": 0.35}
        axes.fill_between(days, band.counted, band.estimates, linewidth=0, zorder=layer - 0.8, **hatch)
    known = np.isfinite(band.estimates)
    every = len(days) <= MANY_WINDOWS and not known.all()  # those beside a gap may have no neighbour
    style: dict[str, Any] = {"marker": marker, "markersize": 4, "clip_on": False}
    style["markevery"] = 1 if every else np.flatnonzero(known)[:: max(1, int(known.sum()) // MARKS)].tolist()
    axes.plot(days, band.estimates, color=colour, linewidth=1.5, zorder=layer, **style)
    columns = (days.tolist(), band.estimates.tolist(), band.begins.tolist(), band.texts)
    note(axes, band.name, zip(*columns, strict=True))
    if band.truth is not None:
        draw_truth(axes, days, band.truth, colour, layer=layer)


def draw_truth(axes: Axes, days: np.ndarray, truth: np.ndarray, colour: str, *, layer: float = 2) -> None:
    """Draw true values dashed; that of a single window is one dash."""
    dash: dict[str, Any] = {"marker": "_", "markersize": 24} if len(days) == 1 else {}
    axes.plot(days, truth, color=colour, alpha=0.6, linewidth=1, linestyle=(0, (4, 2)), zorder=layer, **dash)


def draw_alone(axes: Axes, days: np.ndarray, low: np.ndarray, high: np.ndarray, colour: str, *, layer: int) -> None:
    """Draw the bands of points that have no neighbour, which no area can show."""
    known = np.concatenate([[False], np.isfinite(low), [False]])
    alone = known[1:-1] & ~known[:-2] & ~known[2:]
    axes.vlines(days[alone], low[alone], high[alone], color=colour, alpha=0.25, linewidth=5, zorder=layer)


def _places(bands: Sequence[Band]) -> list[tuple[float, float]]:
    """Return points of lines and between them, which names keep off; none if there are too many to do so."""
    found = []
    for band in bands:
        known = np.isfinite(band.estimates)
        days, heights = band.days[known], band.estimates[known]
        if not len(days):
            continue
        between = np.linspace(0, len(days) - 1, 2 * len(days) - 1)
        at = np.arange(len(days))
        found += list(zip(np.interp(between, at, days).tolist(), np.interp(between, at, heights).tolist(), strict=True))
    return found if len(found) <= MOST_PLACES else []


def _label(band: Band, name: str, colour: str) -> Label:
    """Return a name for the line's last part, or for its peak if it ends far below; or wherever there is room."""
    known = np.flatnonzero(np.isfinite(band.estimates))
    at = known[np.unique(np.linspace(len(known) - 1, len(known) // 2, LABEL_POINTS).astype(np.int64))[::-1]]
    peak = known[np.argmax(band.estimates[known])]
    if band.estimates[known[-1]] < FAR_BELOW * band.estimates[peak]:
        at = np.concatenate([[peak], at])
    points = list(zip(band.days[at].tolist(), band.estimates[at].tolist(), strict=True))
    return Label(name, points, colour)
