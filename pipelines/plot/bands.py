"""Draws estimates over time: a line for each with a band for its error, and the truth beside it where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from privstream.pipelines.plot.chart import (
    COLOURS,
    DAY,
    GREY,
    INK,
    MARKERS,
    Label,
    chart,
    freeze_layout,
    note,
    place,
    short,
    style_axes,
    told,
)

LABEL_POINTS = 6
FAR_BELOW = 0.5
WIDE = 0.5
MOST_PLACES = 1000
MARKS = 8
"""On a line, to tell it without its colour."""


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
        window: length of the windows that values are about, in microseconds: points stand in their middle. 0 for values
            of the moment when a window ends, as of all that was counted until then.
    """

    name: str
    times: np.ndarray
    estimates: np.ndarray
    error_bounds: np.ndarray
    truth: np.ndarray | None = None
    points: np.ndarray | None = None
    counted: np.ndarray | None = None
    window: int = 0

    @property
    def days(self) -> np.ndarray:
        """Where points stand, in days since 1970."""
        return np.asarray((self.times - self.window / 2) / DAY)

    @property
    def span(self) -> tuple[int, int]:
        """First and last moment that it is about."""
        return int(self.times[0]) - self.window, int(self.times[-1])


def draw_bands(
    bands: Sequence[Band],
    stream: BinaryIO,
    format: str,
    *,
    values: str,
    title: str,
    caption: str,
    top: int = 10,
    levels: Sequence[float] = (),
    whole: bool = True,
) -> None:
    """Draw bands; those with the largest estimates in colour, at most `top` of them, the others grey.

    Args:
        bands: what to draw.
        stream: where to write the picture.
        format: png or svg.
        values: what the vertical axis counts.
        title: above the picture.
        caption: below it.
        top: bands in colour and with a name, at most as many as there are colours.
        levels: values to mark with a line across.
        whole: whether values are whole numbers on the axis.
    """
    ranked = sorted(bands, key=lambda band: (-float(np.fmax.reduce(band.estimates, initial=0.0)), band.name))
    with chart(stream, format) as (figure, axes):
        labels = []
        for level in levels:
            axes.axhline(level, color=GREY, linewidth=1.2, linestyle=(0, (1, 2)), zorder=1)
        for rank, band in reversed(list(enumerate(ranked))):
            colour = COLOURS[rank] if rank < min(top, len(COLOURS)) else GREY
            marker = MARKERS[rank] if colour != GREY else "."
            several = band.points is not None or band.counted is not None
            plain = colour == GREY and several  # dots and bands of many items would hide all lines
            _draw(axes, band, colour, marker, layer=3 if colour != GREY else 2, bounds=not (plain or too_wide(bands)))
            if colour != GREY and np.isfinite(band.estimates).any():
                labels.append(_label(band, colour))
        moments = [moment for band in bands if len(band.times) for moment in band.span]
        span = (min(moments), max(moments)) if moments else None
        if not moments:
            axes.text(0.5, 0.5, "no rows", transform=axes.transAxes, ha="center", color=INK)
        lengths = {band.window for band in bands}
        window = lengths.pop() if len(lengths) == 1 else 0
        if window and any((np.diff(band.times) % window).any() for band in bands):
            window = 0  # those of a calendar differ in length
        style_axes(figure, axes, span=span, values=values, title=title, caption=caption, window=window, whole=whole)
        freeze_layout(figure)
        place(axes, labels[::-1], _places(ranked[:top]))


def too_wide(bands: Sequence[Band]) -> bool:
    """Tell whether bands would cover each other and all lines."""
    estimates = np.concatenate([band.estimates for band in bands] or [np.zeros(0)])
    known = estimates[np.isfinite(estimates)]
    several = sum(widest([band]) > 0 for band in bands) > 1
    return several and len(known) > 0 and widest(bands) > WIDE * np.ptp(known)


def widest(bands: Sequence[Band]) -> float:
    """Return the largest error bound, 0 if none is known."""
    bounds = np.concatenate([band.error_bounds for band in bands] or [np.zeros(0)])
    return float(np.max(bounds[np.isfinite(bounds)], initial=0.0))


def tell_bounds(bands: Sequence[Band], meaning: str) -> str:
    """Say how error bounds are shown, and what they mean."""
    if not widest(bands):
        return ""
    hidden = ", and are not drawn, since they would cover all lines" if too_wide(bands) else ""
    reach = widest(bands)
    far = f"{reach:,.0f}" if reach >= 1 else f"{reach:.2g}"
    return f" {meaning} The widest reach {far} above and below their line{hidden}."


def _draw(axes: Axes, band: Band, colour: str, marker: str, *, layer: int, bounds: bool) -> None:
    """Draw a line with a few markers, its band, and the truth, dashed."""
    days = band.days
    low, high = band.estimates - band.error_bounds, band.estimates + band.error_bounds
    if band.points is not None or band.counted is not None:
        low = np.maximum(low, 0.0)  # as the interval of the row
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
    step = 1 if np.isnan(band.estimates).any() else max(1, len(days) // MARKS)
    style: dict[str, Any] = {"marker": marker, "markevery": step, "markersize": 4, "clip_on": False}
    axes.plot(days, band.estimates, color=colour, linewidth=1.5, zorder=layer, **style)
    columns = (column.tolist() for column in (band.times - band.window, days, band.estimates, band.error_bounds))
    note(
        axes,
        band.name,
        [(day, value, told(time, value, bound)) for time, day, value, bound in zip(*columns, strict=True)],
    )
    if band.truth is not None:
        axes.plot(days, band.truth, color=colour, alpha=0.6, linewidth=1, linestyle=(0, (4, 2)), zorder=layer)


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


def _label(band: Band, colour: str) -> Label:
    """Return a name for the line's last part, or for its peak if it ends far below; or wherever there is room."""
    known = np.flatnonzero(np.isfinite(band.estimates))
    at = known[np.unique(np.linspace(len(known) - 1, len(known) // 2, LABEL_POINTS).astype(np.int64))[::-1]]
    peak = known[np.argmax(band.estimates[known])]
    if band.estimates[known[-1]] < FAR_BELOW * band.estimates[peak]:
        at = np.concatenate([[peak], at])
    points = list(zip(band.days[at].tolist(), band.estimates[at].tolist(), strict=True))
    return Label(short(band.name), points, colour)
