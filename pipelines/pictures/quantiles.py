"""`privstream plot quantiles`: quantiles as lines with their intervals, and the truth beside them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.ticker import AutoLocator, FuncFormatter, LogLocator, NullFormatter
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.plot.bands import MARKS, draw_alone, draw_truth
from privstream.pipelines.plot.chart import (
    COLOURS,
    DAY,
    INK,
    MARKERS,
    UTC,
    Label,
    chart,
    freeze_layout,
    note,
    place,
    plural,
    short,
    style_axes,
)
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.promise import NOTHING_KNOWN, covers_all
from privstream.pipelines.simulate.truths import TrueQuantile
from privstream.transforms.row_types import QuantileEstimate

WIDE = 20.0
"""Values that span a larger ratio are drawn on a logarithmic axis."""
FOOT = 0.035
"""Height of a row of crosses, as a part of the picture's."""
MOST_FEET = 0.3
"""All rows have at most so much of it."""


@dataclass(frozen=True, eq=False)
class Line:
    """A quantile over time.

    Attributes:
        name: such as 50%.
        days: where its points stand, in days since 1970; float64, shape (n,), as all columns but these three.
        starts, ends: of windows, in microseconds since 1970; int64.
        estimates, lower, upper: what is published.
        truth: NaN where it is not known.
        unknown: whether an interval says nothing; bool.
    """

    name: str
    days: np.ndarray
    starts: np.ndarray
    ends: np.ndarray
    estimates: np.ndarray
    lower: np.ndarray
    upper: np.ndarray
    truth: np.ndarray
    unknown: np.ndarray

    def notes(self, heights: np.ndarray) -> Iterator[tuple[float, float, float, str]]:
        """What its points mean, which stand at these heights."""
        columns = (self.days, heights, self.starts, self.estimates, self.lower, self.upper, self.unknown)
        for day, y, start, value, low, high, unknown in zip(*(column.tolist() for column in columns), strict=True):
            said = NOTHING_KNOWN if unknown else f"{value:,.6g}"
            yield day, y, start, f"{said} (between {low:,.6g} and {high:,.6g})"

    @property
    def seen(self) -> Line:
        """The line as it is drawn: with a gap where nothing is known."""
        estimates, lower, upper = (
            np.where(self.unknown, np.nan, column) for column in (self.estimates, self.lower, self.upper)
        )
        return replace(self, estimates=estimates, lower=lower, upper=upper)


def prepare(given: Given) -> Drawing:
    """Return what draws the quantiles."""
    parameters: Mapping[str, Any] = {} if given.promise is None else given.promise.maybe("parameters") or {}
    found = lines(given.rows, given.truth or [], each=given.of_windows, parameters=parameters)
    text = caption(given.rows, found, given.sure(given.bands)) + given.when
    values = parameters.get("value_field")
    values = short(values) if isinstance(values, str) else "value"
    return partial(draw_lines, found, values=values, title=given.title("Quantiles"), caption=text, clocks=given.clocks)


def lines(
    rows: Sequence[QuantileEstimate], truth: Sequence[TrueQuantile], *, each: bool, parameters: Mapping[str, Any]
) -> list[Line]:
    """Return a line for each quantile, the largest first.

    Args:
        rows: what was published.
        truth: what is known of true quantiles.
        each: whether values are those of each window.
        parameters: of the run, as far as they are known.
    """
    true = {(row.window_end, row.quantile): row.value for row in truth}
    points: dict[float, list[tuple[Any, ...]]] = defaultdict(list)
    for row in sorted(rows, key=lambda row: row.window_end):
        known = true.get((row.window_end, row.quantile), np.nan)
        start, end = (row.window_start if each else row.window_end).micros, row.window_end.micros
        points[row.quantile].append((start, end, *row[4:7], known))
    found = []
    for quantile in sorted(points, reverse=True):
        starts, ends = np.array([point[:2] for point in points[quantile]], np.int64).T
        estimates, lower, upper, known = np.array([point[2:] for point in points[quantile]], np.float64).T
        unknown, days = covers_all(lower, upper, parameters), (starts + ends) / (2 * DAY)
        found.append(Line(f"{100 * quantile:.10g}%", days, starts, ends, estimates, lower, upper, known, unknown))
    return found


def draw_lines(
    found: Sequence[Line],
    stream: BinaryIO,
    format: str,
    *,
    title: str,
    caption: str,
    values: str = "value",
    clocks: Clocks = UTC,
) -> None:
    """Draw lines with their intervals; `values` is what the vertical axis shows."""
    with chart(stream, format, clocks) as figure:
        axes = figure.add_subplot()
        for rank, line in enumerate(found):
            _draw(axes, line.seen, COLOURS[rank % len(COLOURS)], MARKERS[rank % len(MARKERS)])
        moments = [(start, end) for line in found for start, end in zip(line.starts, line.ends, strict=True)]
        span = (int(moments[0][0]), int(max(end for _, end in moments))) if moments else None
        if not moments:
            axes.text(0.5, 0.5, "no rows", transform=axes.transAxes, ha="center", color=INK)
        starts = {int(start) for start, end in moments if start < end}
        style_axes(figure, axes, span=span, values=values, title=title, caption=caption, starts=starts)
        axes.yaxis.set_major_locator(AutoLocator())
        if _is_wide(found):
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_ylabel(f"{values}, logarithmic axis")
        axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
        if not moments:
            axes.set_yticks([])
        labels = [
            _mark(axes, line, foot, COLOURS[rank % len(COLOURS)])
            for rank, (line, foot) in enumerate(zip(found, _feet(axes, found), strict=True))
        ]
        freeze_layout(figure)
        place(axes, labels)


def _draw(axes: Axes, line: Line, colour: str, marker: str) -> None:
    """Draw a line with its intervals, and the truth, dashed."""
    axes.fill_between(line.days, line.lower, line.upper, color=colour, alpha=0.15, linewidth=0)
    draw_alone(axes, line.days, line.lower, line.upper, colour, layer=1)
    step = 1 if line.unknown.any() else max(1, len(line.days) // MARKS)
    style: dict[str, Any] = {"marker": marker, "markevery": step, "markersize": 4}
    axes.plot(line.days, line.estimates, color=colour, linewidth=1.5, **style)
    draw_truth(axes, line.days, line.truth, colour)


def _feet(axes: Axes, found: Sequence[Line]) -> list[float]:
    """Return a height below all lines for the crosses of each, for which room is made if there are any."""
    unknown = [line.unknown for line in found]
    if not np.any(unknown):
        return [0.0] * len(found)
    if np.all(unknown):
        axes.set_ylim(min(line.lower.min() for line in found), max(line.upper.max() for line in found))
    row = min(FOOT, MOST_FEET / len(found))
    room = row * len(found)
    axes.get_ylim()  # from here on the limits stay
    axes.set_ylim(bottom=_height(axes, -room / (1 - room)))
    return [_height(axes, row * (rank + 0.5)) for rank in reversed(range(len(found)))]


def _height(axes: Axes, part: float) -> float:
    """Return the value at a part of the height of the picture."""
    return float(axes.transData.inverted().transform(axes.transAxes.transform((0.0, part)))[1])


def _mark(axes: Axes, line: Line, foot: float, colour: str) -> Label:
    """Draw crosses where nothing is known of a line, note what its points mean, and return its name."""
    axes.plot(line.days[line.unknown], np.full(line.unknown.sum(), foot), "x", color=colour, markersize=4)
    heights = np.where(line.unknown, foot, line.estimates)
    note(axes, line.name, line.notes(heights))
    named = ~line.unknown | line.unknown.all()
    return Label(line.name, list(zip(line.days[named].tolist(), heights[named].tolist(), strict=True)), colour)


def _is_wide(found: Sequence[Line]) -> bool:
    """Tell whether values that are known are > 0 and span several orders of magnitude."""
    if not found:
        return False
    lower, upper, unknown = (
        np.concatenate([getattr(x, name) for x in found]) for name in ("lower", "upper", "unknown")
    )
    known = ~unknown | unknown.all()
    least, most = lower[known].min(), upper[known].max()
    return bool(least > 0 and most > WIDE * least)


def caption(rows: Sequence[QuantileEstimate], found: Sequence[Line], meaning: str) -> str:
    """Say what is seen."""
    if not rows:
        return "There are no rows."
    text = f"{plural(len(found), 'quantile')} in {plural(len(found[0].days), 'window')}. {meaning}"
    if unknown := sum(int(line.unknown.sum()) for line in found):
        points = sum(len(line.days) for line in found)
        text += (
            f" Crosses at the foot, in the order of the lines, {unknown:,} of {points:,}: {NOTHING_KNOWN}, since there "
            "are too few values: the interval covers all that a value may be, or nearly."
        )
    known = [line for line in found if np.isfinite(line.truth).any()]
    if not known:
        return text
    judged = sum(int(np.isfinite(line.truth).sum()) for line in known)
    outside = sum(int(((line.truth < line.lower) | (line.truth > line.upper)).sum()) for line in known)
    inside = "all of them are" if not outside else f"all but {outside:,} of {judged:,} are"
    return f"{text} Dashed: quantiles of all values, before any limits; {inside} in their intervals."


PICTURE = PictureSpec(
    description="Draws quantiles over time with their intervals and, given the truth, the true quantiles.",
    truth=TrueQuantile,
    shows="draws true quantiles, dashed",
    prepare=prepare,
)
