"""A picture of one chart: axes, colours and their two schemes, notes and labels."""

from __future__ import annotations

import io
import itertools
import json
import math
import re
import textwrap
import warnings
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, BinaryIO, Literal, NamedTuple, cast
from unicodedata import east_asian_width

import matplotlib
import numpy as np
from matplotlib import dates, font_manager
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, MaxNLocator
from matplotlib.transforms import Affine2D, Bbox
from privstream.mechanisms.arrays import Floats
from privstream.pipelines.local_time import MIDNIGHT, Clocks
from privstream.transforms.timing.calendar import read_zone

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
FONTS = (
    "DejaVu Sans",
    "Noto Sans",
    "Noto Sans CJK JP",
    "Noto Sans CJK SC",
    "Noto Sans JP",
    "WenQuanYi Zen Hei",
    "WenQuanYi Micro Hei",
    "Droid Sans Fallback",
    "Hiragino Sans",
    "PingFang SC",
    "Microsoft YaHei",
    "Yu Gothic",
    "Malgun Gothic",
    "Noto Sans Arabic",
    "Noto Sans Devanagari",
    "Arial Unicode MS",
)
"""Those that are installed; a letter is drawn by the first that has it."""
UTC = Clocks()
INCHES = (11.0, 6.0)
DOTS_PER_INCH = 150
MOST_TICKS = 10
LONGEST_NAME = 28
KEYS_ABREAST = 6
LONGEST_LINE = 170
DAY = 86_400_000_000.0
"""Microseconds; the unit of the time axis is a day since 1970."""
PAGE = "page"
"""The format for pages: JSON with an SVG without words, its title and caption, and what its points mean."""
POINTS_PER_INCH = 72


class Note(NamedTuple):
    """What a point of a picture means: its axes, the name of its line, the point in their data, and a text."""

    axes: Axes
    name: str
    x: float
    y: float
    text: str


class Sheet(Figure):
    """A figure, and what is said beside it.

    Attributes:
        bare: whether title and caption are not drawn, since they stand in the page around it.
        clocks: by which times are shown.
        title, caption: these.
        notes: what its points mean.
    """

    def __init__(self, bare: bool, clocks: Clocks) -> None:
        super().__init__(figsize=INCHES if not bare else (INCHES[0], INCHES[1] - 1), dpi=DOTS_PER_INCH)
        self.set_layout_engine("constrained", w_pad=0.12, h_pad=0.1)
        self.bare, self.clocks, self.title, self.caption = bare, clocks, "", ""
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
def chart(stream: BinaryIO, format: str, clocks: Clocks = UTC) -> Iterator[Sheet]:
    """Give a figure to draw on, without axes, and write it as png, svg or page; times are those of `clocks`."""
    installed = set(font_manager.get_font_names())
    fonts: dict[str, Any] = {"font.family": [font for font in FONTS if font in installed]}
    if format == PAGE:
        fonts["svg.fonttype"] = "none"  # the browser has fonts of more languages
    with matplotlib.rc_context(SETTINGS | fonts), warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of fonts that lack a character
        figure = Sheet(format == PAGE, clocks)
        yield figure
        if format == PAGE:
            stream.write(_page(figure))
        else:
            figure.savefig(stream, format=format, metadata={"Date": None} if format == "svg" else None)


def _page(figure: Sheet) -> bytes:
    """Return a picture for a page; places are in the units of its SVG, from the left and from above."""
    drawn = io.BytesIO()
    figure.savefig(drawn, format="svg", metadata={"Date": None})
    scale = POINTS_PER_INCH / figure.dpi
    height = figure.get_figheight() * POINTS_PER_INCH
    notes = []
    for axes, some in itertools.groupby(figure.notes, lambda note: note.axes):
        of_axes = list(some)
        places = axes.transData.transform([(note.x, note.y) for note in of_axes]) * scale
        inside = axes.get_window_extent().transformed(Affine2D().scale(scale)).padded(1)
        notes += [
            {"name": note.name, "text": note.text, "x": round(x, 1), "y": round(height - y, 1)}
            for note, (x, y) in zip(of_axes, places.tolist(), strict=True)
            if inside.contains(x, y)
        ]
    size = [figure.get_figwidth() * POINTS_PER_INCH, height]
    words = {"title": figure.title, "caption": figure.caption, "notes": notes, "size": size}
    return json.dumps(words | {"svg": drawn.getvalue().decode()}).encode()


def note(axes: Axes, name: str, points: Iterable[tuple[float, float, float | None, str]]) -> None:
    """Say what the points of a line mean, for pages that show it beside the mouse; without a value there is none.

    Args:
        axes: where they are.
        name: of the line.
        points: each in data coordinates, with its moment in microseconds since 1970, if it has one, and a text.
    """
    sheet = cast(Sheet, axes.get_figure())
    for x, y, micros, text in points:
        if not math.isnan(y):
            when = "" if micros is None else f"{sheet.clocks.moment(micros)}: "
            sheet.notes.append(Note(axes, name, x, y, f"{when}{text}"))


def told(value: float, bound: float = math.nan) -> str:
    """Return a number in words, and how far it may be wrong."""
    return f"{value:,.6g}{f' ± {bound:,.6g}' if bound > 0 else ''}"


def plural(number: int, word: str, words: str = "") -> str:
    """Return a number with its word, which is another one unless it is 1.

    >>> plural(1, "window"), plural(2000, "category", "categories")
    ('1 window', '2,000 categories')
    """
    return f"{number:,} {word if number == 1 else words or f'{word}s'}"


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
    starts: Iterable[int] = (),
    whole: bool = True,
) -> None:
    """Draw the axes, title and caption.

    Args:
        figure, axes: where.
        span: first and last moment in microseconds since 1970, or None if nothing is shown.
        values: what the vertical axis counts.
        title: above the picture, on the left.
        caption: below it; says what is seen.
        starts: when windows start, in microseconds since 1970: those of several days have the ticks.
        whole: whether ticks of values are whole numbers.
    """
    axes.set_xticks([])
    if span is not None:
        time_axis(axes, *span, starts)
    value_axis(axes, whole=whole)
    axes.set_ylabel(values)
    figure.say(title, caption)


def value_axis(axes: Axes, most: int = MOST_TICKS, *, whole: bool = True) -> None:
    """Draw an axis of numbers, `whole` ones or others, with lines across."""
    axes.yaxis.set_major_locator(MaxNLocator(nbins=most - 1, integer=whole))
    axes.yaxis.set_major_formatter(FuncFormatter(_whole_number if whole else _number))
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", color=FAINT, linewidth=0.6)
    axes.set_axisbelow(True)


def time_axis(axes: Axes, first: int, last: int, starts: Iterable[int] = (), *, most: int = MOST_TICKS) -> None:
    """Draw an axis of time, below which the days stand and the time zone.

    Args:
        axes: where.
        first, last: moments in microseconds since 1970.
        starts: when windows start: those of several days have the ticks.
        most: number of ticks, about.
    """
    clocks = cast(Sheet, axes.get_figure()).clocks
    if first == last:
        axes.set_xticks([first / DAY], [clocks.moment(first)])
        return
    axes.set_xlim(first / DAY, last / DAY)
    ticks = _window_ticks(clocks, first, last, sorted({*starts}), most) or _even_ticks(clocks, first, last, most)
    axes.set_xticks([micros / DAY for micros in ticks], _tick_texts(clocks, ticks))
    days = list(dict.fromkeys(clocks.day(micros) for micros in (first, last - 1)))
    axes.set_xlabel(f"{' - '.join(days)}, {clocks.zone}")


def _window_ticks(clocks: Clocks, first: int, last: int, starts: Sequence[int], most: int) -> list[int]:
    """Return where windows of several days start, such as Mondays, as many as there is room for; else none."""
    lengths = np.diff([*starts, last])
    if not starts or starts[0] != first or min(lengths) <= 1.5 * DAY:
        return []
    window = int(np.gcd.reduce(lengths))
    if len(starts) > most and all(clocks.local(start).day == 1 for start in starts):
        return []
    if window > 1.5 * DAY:  # all have one length, and some may be missing
        starts = range(first, last, window)
    return [*starts][:: -(-len(starts) // most)]


def _even_ticks(clocks: Clocks, first: int, last: int, most: int) -> list[int]:
    """Return moments at even hours, days, months or years."""
    zone = read_zone(clocks.zone)
    locator = dates.AutoDateLocator(tz=zone, minticks=min(4, most), maxticks=most)  # type: ignore[no-untyped-call]
    ends = [clocks.local(micros) for micros in (first, last)]
    found = [round(day * DAY) for day in locator.tick_values(*ends)]  # type: ignore[no-untyped-call]
    inside = [micros for micros in found if first <= micros <= last]
    return inside[:: -(-len(inside) // most) or 1]


def _tick_texts(clocks: Clocks, ticks: Sequence[int]) -> list[str]:
    """Write ticks as years, months, days or times, whatever tells them apart; a new day or year is named."""
    moments = [clocks.local(micros) for micros in ticks]
    if not all(moment.time() == MIDNIGHT for moment in moments):
        seconds = any(moment.second or moment.microsecond for moment in moments)
        if len({moment.date() for moment in moments}) == len(moments):
            return [f"{moment.day} {moment:%b}\n{moment:%H:%M}" for moment in moments]
        form = "%H:%M:%S" if seconds else "%H:%M"
        return [f"{each.day} {each:%b}" if each.time() == MIDNIGHT else f"{each:{form}}" for each in moments]
    if len(moments) < 2:  # a year or a month alone does not say which day
        return [f"{moment.day} {moment:%b}" for moment in moments]
    if all((moment.day, moment.month) == (1, 1) for moment in moments):
        return [f"{moment.year}" for moment in moments]
    if all(moment.day == 1 for moment in moments):
        return [f"{moment:%b}" if moment.month > 1 else f"{moment.year}" for moment in moments]
    return [f"{moment.day} {moment:%b}" for moment in moments]


def starts_of(rows: Iterable[Any]) -> set[int]:
    """Return when windows of rows start, in microseconds since 1970."""
    return {int(row.window_start.micros) for row in rows}


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


def short(text: str, width: int = LONGEST_NAME) -> str:
    """Return a name that fits into a picture, by the width of its letters; of a long one both ends are kept.

    >>> short("a name of more than twenty-eight letters, as some have")
    'a name of more tha…some have'
    """
    printable = "".join(part if part.isprintable() else " " for part in text)
    if _width(printable) <= width:
        return printable
    end = _fitting(printable[::-1], width // 3)[::-1]
    return f"{_fitting(printable, width - 1 - _width(end))}…{end}"


def short_names(names: Sequence[str], width: int = LONGEST_NAME) -> list[str]:
    """Return names that fit, and differ: those that would look alike lose what they have in common at their beginning.

    >>> short_names(["the market on the bridge, on Mondays", "the market on the hill, on Mondays", "tea"], 20)
    ['…bridge, on Mondays', '…hill, on Mondays', 'tea']
    """
    found = [short(name, width) for name in names]
    for text in {text for text in found if found.count(text) > 1}:
        places = [place for place, other in enumerate(found) if other == text]
        letters = zip(*(names[place] for place in places), strict=False)
        common = sum(1 for _ in itertools.takewhile(lambda each: len({*each}) == 1, letters))
        for place in places:
            found[place] = short(f"…{names[place][common:]}", width)
    return found


def _width(text: str) -> int:
    """Return how wide a text is: letters such as those of Chinese are two wide."""
    return sum(1 + (east_asian_width(letter) in "WF") for letter in text)


def _fitting(text: str, width: int) -> str:
    """Return the longest beginning of a text that is at most so wide."""
    ends = itertools.accumulate(1 + (east_asian_width(letter) in "WF") for letter in text)
    return text[: sum(end <= width for end in ends)]


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

INCH = 72
"""In points."""

Side = Literal["left", "center", "right"]
SHARES: Mapping[Side, float] = {"left": 0.0, "center": 0.5, "right": 1.0}
"""Of the width of a text, how much is to the left of where it stands."""

Place = tuple[float, float, Side, tuple[float, float]]
"""Where a text may stand: its offset in points, its side that is there, and the point."""


class Label(NamedTuple):
    """A name, the points at which it may stand (in data coordinates, the best first), and its colour."""

    text: str
    points: Sequence[tuple[float, float]]
    colour: str


def place(axes: Axes, labels: Sequence[Label], points: Sequence[tuple[float, float]] = ()) -> None:
    """Write each label near one of its points, with a thin line to those that had to move away.

    Labels never overlap. They keep off `points` too, if they can. A label for which there is no room is left out.
    """
    lowest, highest = np.tile(axes.get_window_extent().get_points(), 2)
    corners = axes.transData.transform(np.array(points).reshape(-1, 2))
    taken, marks = np.empty((0, 4)), np.hstack([corners - MARK, corners + MARK])
    for label in labels:
        pixels: Any = axes.transData.transform(label.points)
        shown = [point for point, pixel in zip(label.points, pixels, strict=True) if axes.contains_point(pixel)]
        if not shown:
            continue
        note = axes.annotate(
            label.text,
            shown[0],
            xytext=(0, 0),
            textcoords="offset points",
            horizontalalignment="left",
            verticalalignment="bottom",
            color=label.colour,
            fontsize=8.5,
            bbox=BACKGROUND,
            zorder=6,
        )
        places = list(_candidates(shown))
        boxes = _boxes(axes, note.get_window_extent(), places)
        inside = np.flatnonzero(((boxes >= lowest) & (boxes <= highest)).all(axis=1))
        for obstacles in (np.vstack([taken, marks]), taken):
            if (found := next((each for each in inside if not _overlaps(boxes[each], obstacles)), None)) is not None:
                break
        else:
            note.remove()
            continue
        x, y, side, note.xy = places[found]
        note.set_horizontalalignment(side)
        note.set_verticalalignment("bottom" if y > 0 else "center" if y == 0 else "top")
        note.set_position((x, y))
        taken = np.vstack([taken, boxes[found]])
        if max(abs(x), abs(y)) > LINE_FROM:
            axes.annotate(
                "",
                note.xy,
                xytext=(x, y),
                textcoords="offset points",
                arrowprops={"arrowstyle": "-", "color": label.colour, "linewidth": 0.5, "alpha": 0.6},
                zorder=5,
            )


def _boxes(axes: Axes, text: Bbox, places: Sequence[Place]) -> Floats:
    """Return a box for a text in each of some places, with a margin, shape (n, 4): left, lower, right and upper end."""
    offsets = np.array([(x, y) for x, y, _, _ in places])
    shares = np.column_stack([[SHARES[side] for _, _, side, _ in places], (1 - np.sign(offsets[:, 1])) / 2])
    near = axes.transData.transform([point for *_, point in places])
    lower = near + offsets * cast(Figure, axes.get_figure(root=True)).dpi / INCH - np.array(text.size) * shares
    return np.hstack([lower - MARGIN, lower + text.size + MARGIN])


def _overlaps(box: Floats, others: Floats) -> bool:
    """Tell whether a box has a point in common with one of others, shape (n, 4)."""
    return bool(((others[:, :2] <= box[2:]) & (box[:2] <= others[:, 2:])).all(axis=1).any())


def _candidates(points: Sequence[tuple[float, float]]) -> Iterator[Place]:
    """Return offsets in points, the side on which the text is placed, and the point; the best first."""
    for far in DISTANCES:
        for point in points:
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


def middle_day(row: Any) -> float:
    """Return the middle of a row's window in days since 1970."""
    return float((row.window_start.micros + row.window_end.micros) / (2 * DAY))
