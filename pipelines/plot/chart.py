"""A picture of one chart: axes, colours and their two schemes, notes and labels."""

from __future__ import annotations

import io
import json
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import Any, BinaryIO, Literal, NamedTuple, cast

import matplotlib
import numpy as np
from matplotlib import dates, font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.text import Annotation
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Affine2D, Bbox
from privstream.pipelines.sinks.row_files import iso_8601

INK, GREY, FAINT, ALARM = "#222222", "#9a9a9a", "#dddddd", "#b3261e"
COLOURS = (
    "#0072b2",
    "#d55e00",
    "#00805c",
    "#b0508c",
    "#8a6d00",
    "#2a9fd6",
    "#8b2c1f",
    "#5b4fc7",
    "#e08a00",
    "#4d7c0f",
    "#6b4f3a",
    "#444444",
)
"""The first ones are those of Okabe and Ito (2008), darker where white needs that: colour-blind people see them as
different. Each has a marker of its own, so that no line is told by its colour alone."""
MARKERS = ("o", "s", "^", "D", "v", "P", "X", "<", ">", "p", "h", "*")
SETTINGS: Any = {
    "font.size": 9,
    "text.color": INK,
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
MOST_TICKS = 10
LONGEST_NAME = 28
KEYS_ABREAST = 6
LONGEST_LINE = 170
TICKS = ["%Y", "%b", "%d %b", "%H:%M", "%H:%M", "%H:%M:%S"]
EVEN_TICKS = ["", "%Y", "%d %b", "%d %b", "%H:%M", "%H:%M"]
DAY = 86_400_000_000.0
"""Microseconds; the unit of the time axis is a day since 1970."""
PAGE = "page"
"""The format for pages: JSON with an SVG without words, its title and caption, and what its points mean."""
POINTS_PER_INCH = 72


class Note(NamedTuple):
    """What a point of a picture means: the name of its line, the point in data coordinates, and a text."""

    name: str
    x: float
    y: float
    text: str


class Sheet(Figure):
    """A figure, and what is said beside it.

    Attributes:
        bare: whether title and caption are not drawn, since they stand in the page around it.
        title, caption: these.
        notes: what its points mean.
    """

    def __init__(self, bare: bool) -> None:
        super().__init__(figsize=INCHES if not bare else (INCHES[0], INCHES[1] - 1), dpi=DOTS_PER_INCH)
        self.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)
        self.bare, self.title, self.caption = bare, "", ""
        self.notes: list[Note] = []

    def say(self, title: str, caption: str) -> None:
        """Take title and caption, and draw them if they are a part of the picture."""
        self.title, self.caption = title, caption
        if self.bare:
            return
        self.suptitle(title, x=0.01, ha="left", fontsize=13, color=INK)
        lines = "\n".join(textwrap.wrap(caption, LONGEST_LINE))
        self.supxlabel(lines, x=0.01, ha="left", fontsize=8.5, color=INK)


@contextmanager
def chart(stream: BinaryIO, format: str) -> Iterator[tuple[Sheet, Axes]]:
    """Give a figure with one pair of axes to draw on, and write it as png, svg or page."""
    installed = set(font_manager.get_font_names())
    fonts: dict[str, Any] = {"font.family": [font for font in FONTS if font in installed]}
    if format == PAGE:
        fonts["svg.fonttype"] = "none"  # the browser has fonts of more languages
    with matplotlib.rc_context(SETTINGS | fonts), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fonts that lack a character
        figure = Sheet(bare=format == PAGE)
        axes = figure.add_subplot()
        yield figure, axes
        if format == PAGE:
            stream.write(_page(figure, axes))
        else:
            figure.savefig(stream, format=format, metadata={"Date": None} if format == "svg" else None)


def _page(figure: Sheet, axes: Axes) -> bytes:
    """Return a picture for a page; places are in the units of its SVG, from the left and from above."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    scale = POINTS_PER_INCH / figure.dpi
    places = axes.transData.transform([(note.x, note.y) for note in figure.notes] or [(0, 0)]) * scale
    height = figure.get_figheight() * POINTS_PER_INCH
    inside = axes.get_window_extent().transformed(Affine2D().scale(scale)).padded(1)
    notes = [
        {"name": note.name, "text": note.text, "x": round(x, 1), "y": round(height - y, 1)}
        for note, (x, y) in zip(figure.notes, places.tolist(), strict=False)
        if inside.contains(x, y)
    ]
    size = [figure.get_figwidth() * POINTS_PER_INCH, height]
    words = {"title": figure.title, "caption": figure.caption, "notes": notes, "size": size}
    return json.dumps(words | {"svg": drawn.getvalue().decode()}).encode()


def note(axes: Axes, name: str, points: Iterable[tuple[float, float, str]]) -> None:
    """Say what the points of a line mean, for pages that show it beside the mouse; without a value there is none."""
    sheet = cast(Sheet, axes.get_figure())
    sheet.notes += [Note(name, x, y, text) for x, y, text in points if not math.isnan(y)]


def told(micros: float, value: float, bound: float = math.nan) -> str:
    """Return a text for a note: a moment in microseconds since 1970, a number, and how far it may be wrong."""
    known = f" ± {bound:,.6g}" if bound > 0 else ""
    return f"{moment(micros)}: {value:,.6g}{known}"


def moment(micros: float) -> str:
    """Return a moment in words, to the minute or, where needed, finer."""
    text = iso_8601(round(micros)).replace("T", " ").replace("Z", " UTC")
    return text.replace(":00 UTC", " UTC")


def freeze_layout(figure: Figure) -> None:
    """Fix where the axes are, so that labels do not move them."""
    figure.draw_without_rendering()
    figure.set_layout_engine("none")


def style_axes(
    figure: Sheet,
    axes: Axes,
    *,
    span: tuple[int, int] | None,
    values: str,
    title: str,
    caption: str,
    window: int = 0,
    whole: bool = True,
) -> None:
    """Draw the axes, title and caption.

    Args:
        figure, axes: where.
        span: first and last moment in microseconds since 1970, or None if nothing is shown.
        values: what the vertical axis counts.
        title: above the picture, on the left.
        caption: below the picture; says what is seen.
        window: length of the windows in microseconds, if all of them have one: those of several days have the ticks.
        whole: whether ticks of values are whole numbers.
    """
    axes.set_xticks([])
    if span is not None:
        _time_axis(axes, *span, window)
    axes.yaxis.set_major_locator(MaxNLocator(integer=whole))
    axes.yaxis.set_major_formatter(FuncFormatter(_whole_number if whole else _number))
    axes.set_ylabel(values)
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)
    figure.say(title, caption)


def _time_axis(axes: Axes, first: int, last: int, window: int) -> None:
    """Draw an axis of time, below which the days stand."""
    if first == last:
        axes.set_xticks([first / DAY], [moment(first)])
        return
    axes.set_xlim(first / DAY, last / DAY)
    if window > DAY and window % DAY == 0:
        _at_windows(axes, first, last, window)
    else:
        locator = dates.AutoDateLocator(tz=UTC, minticks=4, maxticks=MOST_TICKS)  # type: ignore[no-untyped-call]
        axes.xaxis.set_major_locator(locator)
        axes.xaxis.set_major_formatter(
            dates.ConciseDateFormatter(  # type: ignore[no-untyped-call]
                locator, tz=UTC, formats=TICKS, zero_formats=EVEN_TICKS, show_offset=False
            )
        )
    days = list(dict.fromkeys(_day(micros) for micros in (first, last - 1)))
    axes.set_xlabel(f"{' - '.join(days)}, UTC")


def _at_windows(axes: Axes, first: int, last: int, window: int) -> None:
    """Put ticks where windows of several days start, such as Mondays, as many as there is room for."""
    number = -(-(last - first) // window)
    starts = range(first, last, window * -(-number // MOST_TICKS))
    texts = [_day(start).rpartition(" ")[0] for start in starts]
    if first % DAY:  # days begin at another time in another zone
        texts = [f"{text}\n{iso_8601(start)[11:16]}" for text, start in zip(texts, starts, strict=True)]
    axes.set_xticks([start / DAY for start in starts], texts)


def _day(micros: int) -> str:
    """Return the day of a moment in words."""
    return f"{datetime.fromtimestamp(micros // 1_000_000, UTC):%d %b %Y}".removeprefix("0")


def window_of(rows: Sequence[Any]) -> int:
    """Return the length of the windows of rows in microseconds; 0 if they differ, or there are none."""
    lengths = {int(row.window_end.micros - row.window_start.micros) for row in rows}
    return lengths.pop() if len(lengths) == 1 else 0


def key_above(axes: Axes, marks: Sequence[Line2D], names: Sequence[str]) -> None:
    """Say what marks mean, in lines between the title and the picture."""
    if marks:
        axes.legend(
            marks,
            names,
            frameon=False,
            ncols=min(len(marks), KEYS_ABREAST),
            fontsize=9,
            loc="lower left",
            bbox_to_anchor=(0.0, 1.0),
            borderaxespad=0.2,
        )


def short(text: str) -> str:
    """Return a name that fits into a picture."""
    printable = "".join(part if part.isprintable() else " " for part in text)
    return printable if len(printable) <= LONGEST_NAME else f"{printable[: LONGEST_NAME - 1]}…"


def _whole_number(value: float, _: int | None) -> str:
    """Write a tick that is a whole number."""
    return f"{value:,.0f}"


def _number(value: float, _: int | None) -> str:
    """Write a tick."""
    return f"{value:,.6g}"


DISTANCES = (5, 16, 30, 46, 64, 84, 108, 136)
MARGIN = 1.5
LINE_FROM = 12
MARK = 4.0
BACKGROUND = {"boxstyle": "square,pad=0.08", "facecolor": "white", "edgecolor": "none", "alpha": 0.75}

Side = Literal["left", "center", "right"]


class Label(NamedTuple):
    """A name, the points at which it may stand (in data coordinates, the best first), and its colour."""

    text: str
    points: Sequence[tuple[float, float]]
    colour: str


def place(axes: Axes, labels: Sequence[Label], points: Sequence[tuple[float, float]] = ()) -> None:
    """Write each label near one of its points, with a thin line to those that had to move away.

    Labels never overlap. They keep off `points` too, if they can. A label for which there is no room is left out.
    """
    canvas = axes.get_window_extent()
    taken: list[Bbox] = []
    marks = [_around(x, y) for x, y in axes.transData.transform(np.array(points).reshape(-1, 2))]
    for label in labels:
        note = axes.annotate(
            label.text,
            label.points[0],
            xytext=(0, 0),
            textcoords="offset points",
            color=label.colour,
            fontsize=8.5,
            bbox=BACKGROUND,
            zorder=6,
        )
        for obstacles in (taken + marks, taken):
            if (offset := _find_place(note, label, canvas, obstacles)) is not None:
                break
        else:
            note.remove()
            continue
        taken.append(note.get_window_extent().padded(MARGIN))
        if max(map(abs, offset)) > LINE_FROM:
            axes.annotate(
                "",
                note.xy,
                xytext=offset,
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": label.colour, "linewidth": 0.5, "alpha": 0.6},
                zorder=5,
            )


def _find_place(note: Annotation, label: Label, canvas: Bbox, obstacles: Sequence[Bbox]) -> tuple[float, float] | None:
    """Move a note to the first place on the canvas where no obstacle is; return its offset, or None."""
    for x, y, side, point in _candidates(label):
        note.xy = point
        note.set_horizontalalignment(side)
        note.set_verticalalignment("bottom" if y > 0 else "center" if y == 0 else "top")
        note.set_position((x, y))
        box = note.get_window_extent().padded(MARGIN)
        inside = canvas.x0 <= box.x0 and box.x1 <= canvas.x1 and canvas.y0 <= box.y0 and box.y1 <= canvas.y1
        if inside and not any(box.overlaps(other) for other in obstacles):
            return x, y
    return None


def _around(x: float, y: float) -> Bbox:
    """Return a small box around a point."""
    return Bbox.from_extents(x - MARK, y - MARK, x + MARK, y + MARK)


def _candidates(label: Label) -> Iterator[tuple[float, float, Side, tuple[float, float]]]:
    """Return offsets in points, the side on which the text is placed, and the point; the best first."""
    for far in DISTANCES:
        for point in label.points:
            yield 0, far, "center", point
            yield far, far / 2, "left", point
            yield -far, far / 2, "right", point
            yield far, 0, "left", point
            yield -far, 0, "right", point
            yield far, -far / 2, "left", point
            yield -far, -far / 2, "right", point


PAPER = "#ffffff"
DARK = {PAPER: "#15181c", INK: "#e8e8e8", GREY: "#8d939a", FAINT: "#3a4048", ALARM: "#ff7b72"} | dict(
    zip(
        COLOURS,
        (
            "#568efc",
            "#ea902c",
            "#2afeb3",
            "#db68b4",
            "#ffe924",
            "#b0d9fe",
            "#c7a194",
            "#94b0fc",
            "#efb921",
            "#30e380",
            "#b58768",
            "#c2c2c2",
        ),
        strict=True,
    )
)
"""By its colour in light. Words in any of them have a contrast of 5 to 1 or more, and colour-blind people see those of
lines as different. The paper is that of the pages, see `report.css`."""

TAG, COLOUR = re.compile(r"<[^<>]+>"), re.compile("|".join(DARK))


def in_both(svg: str) -> str:
    """Return an SVG whose colours follow the scheme of the page that shows it; one that is printed is light."""
    light, dark = (
        "".join(f"{_name(colour)}:{shown};" for colour, shown in pairs)
        for pairs in (zip(DARK, DARK, strict=True), DARK.items())
    )
    style = f":root{{{light}}}@media (prefers-color-scheme: dark){{:root{{{dark}}}}}</style>"
    named = TAG.sub(lambda tag: COLOUR.sub(lambda colour: f"var({_name(colour[0])})", tag[0]), svg)
    return named.replace("</style>", style, 1)


def _name(colour: str) -> str:
    """Return the name of the property that has a colour."""
    return f"--{colour[1:]}"
