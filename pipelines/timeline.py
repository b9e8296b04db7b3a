"""Draws heavy hitters over time: a line for each item, error bars, and what was missed."""

from __future__ import annotations

import textwrap
import warnings
from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any, BinaryIO, TypeVar

import matplotlib
from matplotlib import dates, font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, MaxNLocator
from privstream.pipelines.event_writers import ItemHolders
from privstream.pipelines.labels import Label, place
from privstream.pipelines.row_files import iso_8601
from privstream.pipelines.truth import Verdict, key
from privstream.transforms.rows import HeavyHitter

INK, GREY, FAINT, ALARM = "#222222", "#9a9a9a", "#dddddd", "#b3261e"
COLOURS = (
    "#1f6fb4",
    "#d1670b",
    "#2b8a3e",
    "#8e4ec6",
    "#a8336a",
    "#0b8a8f",
    "#8a6d0b",
    "#5c5fc8",
    "#b4483a",
    "#4d7c0f",
    "#6b4f3a",
    "#3f6b8c",
)
SETTINGS: Any = {
    "font.size": 9,
    "axes.edgecolor": GREY,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "text.parse_math": False,
    "svg.hashsalt": "privstream",
}
FONTS = ("DejaVu Sans", "Noto Sans", "Noto Sans CJK JP", "Noto Sans Arabic", "Noto Sans Devanagari", "Arial Unicode MS")
INCHES = (11.0, 6.0)
DOTS_PER_INCH = 150
MISSED_LABELS = 4
PEAKS = 6
MANY_WINDOWS = 100
LONGEST_NAME = 28
TICKS = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
EVEN_TICKS = ["", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M"]
DAY = 86_400_000_000.0

Row = TypeVar("Row", HeavyHitter, ItemHolders)


@dataclass(frozen=True)
class Timeline:
    """What is drawn: the rows and the truth of one stream.

    Attributes:
        stream: its name, empty where there is but one.
        rows: what was published.
        truth: the true holders, or nothing.
        detection_threshold: the number of people from which items are promised to be found, if known.
        verdict: the rows against the truth, if both that and the threshold are known.
    """

    stream: str
    rows: Sequence[HeavyHitter]
    truth: Sequence[ItemHolders]
    detection_threshold: int | None
    verdict: Verdict | None


def draw(timeline: Timeline, stream: BinaryIO, format: str, *, top: int) -> None:
    """Draw a picture.

    Args:
        timeline: what to draw.
        stream: where to write it.
        format: png or svg.
        top: number of items in colour, those with the highest counts; the others are grey.
    """
    installed = set(font_manager.get_font_names())
    fonts = {"font.family": [font for font in FONTS if font in installed]}
    with matplotlib.rc_context(SETTINGS | fonts), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fonts that lack a character
        figure = Figure(figsize=INCHES, dpi=DOTS_PER_INCH)
        figure.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)
        axes = figure.add_subplot()
        labels = _lines(axes, timeline, top)
        missed = _missed(axes, timeline, labels)
        _dress(figure, axes, timeline)
        figure.draw_without_rendering()
        figure.set_layout_engine("none")  # labels do not move the axes
        place(axes, labels, [(_day(row), row.count) for row in timeline.rows] + missed)
        metadata = {"Date": None} if format == "svg" else None
        figure.savefig(stream, format=format, metadata=metadata)


def _lines(axes: Axes, timeline: Timeline, top: int) -> list[Label]:
    """Draw the items, the first `top` of them in colour; return their labels."""
    published: dict[str, list[HeavyHitter]] = defaultdict(list)
    for row in timeline.rows:
        published[row.item].append(row)
    truth: dict[str, list[ItemHolders]] = defaultdict(list)
    for held in timeline.truth:
        if held.item in published:
            truth[held.item].append(held)
    ranked = sorted(published, key=lambda item: (-max(row.count for row in published[item]), item))
    small = len({row.window_start for row in timeline.rows}) > MANY_WINDOWS
    labels = []
    for rank, item in reversed(list(enumerate(ranked))):
        colour = COLOURS[rank] if rank < top else GREY
        _true_line(axes, truth[item], colour)
        _line(axes, published[item], colour, small=small, layer=3 if rank < top else 2)
        if rank < top:
            peaks = sorted(published[item], key=lambda row: -row.count)[:PEAKS]
            points = [(_day(row), row.count + 2 * row.count_stddev) for row in peaks]
            labels.append(Label(short(item), points, colour))
    return labels[::-1]


def _line(axes: Axes, rows: Iterable[HeavyHitter], colour: str, *, small: bool, layer: int) -> None:
    """Draw an item's counts with error bars; windows that follow each other are connected."""
    for run in _runs(rows):
        axes.errorbar(
            [_day(row) for row in run],
            [row.count for row in run],
            yerr=[2 * row.count_stddev for row in run],
            color=colour,
            linewidth=1.0 if small else 1.6,
            marker="o",
            markersize=1.8 if small else 3.5,
            capsize=0 if small else 2.5,
            elinewidth=0.6 if small else 1.0,
            zorder=layer,
        )


def _true_line(axes: Axes, rows: Iterable[ItemHolders], colour: str) -> None:
    """Draw an item's true counts, faintly."""
    for run in _runs(rows):
        axes.plot(
            [_day(row) for row in run],
            [row.holders for row in run],
            color=colour,
            alpha=0.35,
            linewidth=1,
            linestyle=(0, (4, 2)),
            marker="" if len(run) > 1 else "_",
            zorder=1,
        )


def _missed(axes: Axes, timeline: Timeline, labels: list[Label]) -> list[tuple[float, float]]:
    """Mark what was missed, add labels of the items that most people held, and return the marks."""
    missed = set(() if timeline.verdict is None else timeline.verdict.missed)
    points: dict[str, list[tuple[float, float]]] = defaultdict(list)
    for row in sorted(timeline.truth, key=lambda row: -row.holders):
        if key(row) in missed:
            points[row.item].append((_day(row), row.holders))
    labels += [Label(f"{short(item)} (missed)", points[item][:PEAKS], ALARM) for item in list(points)[:MISSED_LABELS]]
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


def _dress(figure: Figure, axes: Axes, timeline: Timeline) -> None:
    """Draw everything but the items."""
    rows: list[HeavyHitter | ItemHolders] = [*timeline.rows, *timeline.truth]
    years = ""
    axes.set_xticks([])
    if rows:
        first = min(row.window_start.micros for row in rows) / DAY
        last = max(row.window_end.micros for row in rows) / DAY
        axes.set_xlim(first, last)
        years = " - ".join(sorted({iso_8601(round(day * DAY))[:4] for day in (first, last)}))
        locator = dates.AutoDateLocator(tz=UTC, minticks=4, maxticks=10)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(
            dates.ConciseDateFormatter(  # type: ignore[no-untyped-call]
                locator, tz=UTC, formats=TICKS, zero_formats=EVEN_TICKS, show_offset=False
            )
        )
    axes.yaxis.set_major_locator(MaxNLocator(integer=True))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.set_ylabel("people in a window")
    axes.set_xlabel(f"{years} UTC".strip())
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    items = {row.item for row in timeline.rows}
    counts = [row.count + 2 * row.count_stddev for row in timeline.rows]
    counts += [row.holders for row in timeline.truth if row.item in items]
    threshold = timeline.detection_threshold
    if threshold is not None:
        axes.axhline(threshold, color=INK, linewidth=0.9, linestyle=(0, (1, 2)), zorder=1)
        axes.annotate(
            f"found from\n{threshold:,} people",
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
    title = "Heavy hitters" + (f" of {short(timeline.stream)}" if timeline.stream else "")
    axes.set_title(title, loc="left", fontsize=13, color=INK, pad=12)
    figure.supxlabel("\n".join(textwrap.wrap(_caption(timeline), 150)), x=0.01, ha="left", fontsize=8.5, color=INK)


def _caption(timeline: Timeline) -> str:
    """Say what is seen."""
    bars = "Bars: two standard deviations of the noise. " if any(row.count_stddev for row in timeline.rows) else ""
    if not timeline.rows:
        bars = "No heavy hitters were published. "
    if not timeline.truth:
        return bars
    bars += "Dashed: everybody, also people whom the limits leave out of the counts. "
    if timeline.verdict is None or timeline.detection_threshold is None:
        return bars + "What counts as missed is unknown: the guarantee is not beside the rows."
    return bars + timeline.verdict.sentence(timeline.detection_threshold)


def short(text: str) -> str:
    """Return a name that fits into a picture."""
    printable = "".join(part if part.isprintable() else " " for part in text)
    return printable if len(printable) <= LONGEST_NAME else f"{printable[: LONGEST_NAME - 1]}…"


def _day(row: HeavyHitter | ItemHolders) -> float:
    """Return the middle of a window in days since 1970."""
    return float((row.window_start.micros + row.window_end.micros) / (2 * DAY))


def _runs(rows: Iterable[Row]) -> list[list[Row]]:
    """Cut rows where a window is left out."""
    runs: list[list[Row]] = []
    for row in sorted(rows, key=lambda row: row.window_start):
        if runs and row.window_start <= runs[-1][-1].window_end:
            runs[-1].append(row)
        else:
            runs.append([row])
    return runs
