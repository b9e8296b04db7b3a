"""Charts: one for each question and each view of a monitor, from published rows alone; drawn without a network."""

from __future__ import annotations

import base64
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC
from functools import partial
from html import escape
from types import MappingProxyType
from typing import Any

import altair as alt
import vl_convert
from privstream.mechanisms.views.rules import ALERT
from privstream.pipelines.local_time import Clocks, moment
from privstream.pipelines.show.words import value_unit
from privstream.pipelines.terminal import one_line
from privstream.transforms.row_types import (
    ENDED,
    CardinalityEstimate,
    CategoryFlag,
    HeavyHitter,
    HistogramEstimate,
    NearestPoints,
    RangeCount,
)

WIDE, NARROW = 960, 366
"""Widths in pixels, for screens and for phones."""

MOST_LINES, MOST_ROWS, MOST_WINDOWS, MOST_MARKED = 8, 20, 500, 60
LONGEST_NAME, LONGEST_TEXT = 22, 2000
INK, GREY, ALARM = "#222222", "#9a9a9a", "#b3261e"
COLOURS = ("#0072b2", "#d55e00", "#00805c", "#b0508c", "#8a6d00", "#2a9fd6", "#8b2c1f", "#5b4fc7")
"""Those of Okabe and Ito (2008), darker where white needs that: colour-blind people see them as different."""

SHAPES = ("circle", "square", "triangle-up", "diamond", "triangle-down", "cross", "triangle-right", "triangle-left")
NO_DATA = "no data"
STATES = {ALERT: ALARM, "reported": COLOURS[0], "raised": ALARM, NO_DATA: GREY}
"""What bars of a timeline mean, and their colours."""

TIMES = {name: "%H:%M" for name in ("hours", "minutes")} | {"seconds": "%H:%M:%S", "year": "%-d %b %Y"}
TIMES |= {name: "%-d %b" for name in ("date", "day", "week", "month", "quarter")}
"""How ticks of time are written, by what they differ in."""

AT_END = (HistogramEstimate, CategoryFlag, CardinalityEstimate, RangeCount, NearestPoints)
"""Rows about the moment at which a window ends; all others are about the window."""

NUMBERS = ("people", "estimate", "value", "ratio")
"""Fields with the number of a row; the first that it has is shown."""

FONTS = "Arial, Helvetica, Liberation Sans, sans-serif"
PADDING = {"left": 16, "right": 12, "top": 5, "bottom": 5}
"""Browsers without these fonts have wider letters."""

STYLE: dict[str, Any] = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal", "gridColor": "#e4e4e4"}
STYLE |= {"labelFontSize": 12, "titleFontSize": 12, "titlePadding": 8, "domainColor": GREY, "tickColor": GREY}


@dataclass(frozen=True)
class Point:
    """A row as charts see it.

    Attributes:
        start, end: of its window in microseconds since 1970, both 0 without windows.
        state: a key of `STATES`; empty where there is nothing to show.
    """

    name: str
    start: int
    end: int
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    state: str = ""


@dataclass(frozen=True)
class Chart:
    """A chart, which notebooks show."""

    kind: str
    title: str
    caption: str
    draw: Callable[[int], Any] = field(repr=False)

    def spec(self, width: int = WIDE, *, words: bool = True) -> dict[str, Any]:
        """Return the Vega-Lite specification, with title and caption unless the page around it has these `words`."""
        fit = alt.AutoSizeParams(type="fit-x", contains="padding")
        drawn = self.draw(width).properties(width=width, autosize=fit, background="white")
        if words:
            lines = textwrap.wrap(self.caption, width // 7)
            drawn = drawn.properties(title=alt.TitleParams(textwrap.wrap(self.title, width // 9), subtitle=lines))
        drawn = drawn.configure(font=FONTS, padding=PADDING).configure_view(stroke=None).configure_axis(**STYLE)
        drawn = drawn.configure_title(anchor="start", fontSize=15, subtitleFontSize=12, subtitleColor=INK, offset=12)
        return dict(drawn.to_dict(validate=False))

    def svg(self, width: int = WIDE, *, words: bool = True) -> str:
        """Return an SVG without scripts."""
        return str(vl_convert.vegalite_to_svg(self.spec(width, words=words)))

    def png(self, width: int = WIDE) -> bytes:
        """Return a PNG of twice as many pixels."""
        return bytes(vl_convert.vegalite_to_png(self.spec(width), scale=2))

    def img(self, *, words: bool = True) -> str:
        """Return HTML: the picture as an image, and another one for phones; scripts of an image never run."""
        wide, narrow = (
            "data:image/svg+xml;base64," + base64.b64encode(self.svg(width, words=words).encode()).decode()
            for width in (WIDE, NARROW)
        )
        text = escape(f"{self.title}. {self.caption}")
        narrow = f'<source media="(max-width: 40rem)" srcset="{narrow}">'
        return f'<picture>{narrow}<img src="{wide}" alt="{text}" style="width: 100%; max-width: {WIDE}px"></picture>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return what a notebook shows."""
        return {"image/png": self.png(), "text/plain": f"{self.title}. {self.caption}"}


@dataclass(frozen=True)
class Drawn:
    """What a chart is made of.

    Attributes:
        points: what is shown; names are short, distinct, and safe to draw.
        values: what numbers count.
        span: of the axis of time, in microseconds since 1970.
    """

    points: Sequence[Point]
    names: Sequence[str]
    values: str
    at_end: bool
    clocks: Clocks
    span: tuple[int, int]
    log: bool

    def wall(self, micros: int) -> float:
        """Return milliseconds since 1970 that look in UTC as a moment does on the clocks of the run."""
        return self.clocks.local(micros).replace(tzinfo=UTC).timestamp() * 1e3

    def rows(self, points: Sequence[Point]) -> alt.Chart:
        """Return a chart of points, without a mark."""
        walls = [{"start": self.wall(point.start), "end": self.wall(point.end)} for point in points]
        return alt.Chart(alt.InlineData([asdict(point) | wall for point, wall in zip(points, walls, strict=True)]))

    def time(self, name: str, title: str, width: int) -> alt.X:
        """Return the axis of time, on the clocks of the run."""
        scale = alt.Scale(type="utc", domain=[self.wall(micros) for micros in self.span])
        ticks: dict[str, Any] = {"labelOverlap": True, "labelSeparation": 8, "tickCount": width // 120, "grid": False}
        return alt.X(f"{name}:T", scale=scale, axis=alt.Axis(title=title + self.clocks.zone, format=TIMES, **ticks))

    def number(self, kind: type[alt.X] | type[alt.Y], name: str, **scale: Any) -> Any:
        """Return an axis of numbers, which ends at the lowest one where that is below 0."""
        scale["nice"] = all((point.value or 0) >= 0 for point in self.points)
        axis = alt.Axis(format=",~r", tickCount=6, labelOverlap=True, grid=not self.log)
        scaled = alt.Scale(type="log" if self.log else "linear", **scale)
        return kind(f"{name}:Q", title=self.values, axis=axis, scale=scaled)

    def labels(self, width: int) -> alt.Y:
        """Return the axis of names, one below the other."""
        axis = alt.Axis(title=None, labelLimit=int(width / 2.5), ticks=False, domain=False, labelPadding=6)
        return alt.Y("name:N", scale=alt.Scale(domain=list(self.names)), axis=axis)


def lines(given: Drawn, width: int) -> Any:
    """Draw numbers over windows: a line for each name, and a band for its interval; gaps stay gaps."""
    domain, windows = list(given.names), sorted({(point.start, point.end) for point in given.points})
    there = {(point.name, point.start) for point in given.points}
    gaps = [Point(name, *window) for name in domain for window in windows if (name, window[0]) not in there]
    columns = max(1, width // 180)
    drawn: Any = {
        "labelFontSize": 12,
        "labelLimit": (width - 60) // columns - 30,
        "symbolSize": 60,
        "columnPadding": 28,
        "symbolOpacity": 1,
    }
    legend = alt.Legend(title=None, orient="bottom", columns=columns, **drawn) if len(domain) > 1 else None
    colours, shapes = (alt.Scale(domain=domain, range=list(each[: len(domain)])) for each in (COLOURS, SHAPES))
    colour = alt.Color("name:N", scale=colours, legend=legend)
    at, title = ("end", "end of window, ") if given.at_end else ("start", "start of window, ")
    time, y = given.time(at, title, width), given.number(alt.Y, "value")
    base = given.rows([*given.points, *gaps]).encode(x=time, color=colour)
    marks = [
        base.mark_area(opacity=0.15).encode(y=given.number(alt.Y, "lower"), y2="upper:Q"),
        base.mark_line(strokeWidth=1.8).encode(y=y),
    ]
    if len(windows) <= MOST_MARKED:
        shape = alt.Shape("name:N", scale=shapes, legend=legend)
        marks.append(base.mark_point(filled=True, size=30, opacity=1).encode(y=y, shape=shape))
    return alt.layer(*marks).properties(height=380 if width > NARROW else 280)


def bars(given: Drawn, width: int) -> Any:
    """Draw the numbers of one window: a bar for each name, and a line for its interval."""
    base = given.rows(given.points).encode(y=given.labels(width))
    interval = base.mark_rule(color=INK, strokeWidth=1.5).encode(x=given.number(alt.X, "lower"), x2="upper:Q")
    bar = base.mark_bar(color=COLOURS[0], opacity=0.55, height=14).encode(x=given.number(alt.X, "value"))
    return alt.layer(bar, interval).properties(height=24 * max(2, len(given.names)))


def dots(given: Drawn, width: int) -> Any:
    """Draw a point for each name, and a line for its interval; the axis need not begin at 0."""
    base = given.rows(given.points).encode(y=given.labels(width))
    ends, at = (given.number(alt.X, name, zero=False, padding=10) for name in ("lower", "value"))
    interval = base.mark_rule(color=COLOURS[0], strokeWidth=5, opacity=0.35).encode(x=ends, x2="upper:Q")
    dot = base.mark_point(color=COLOURS[0], filled=True, size=60, opacity=1).encode(x=at)
    return alt.layer(interval, dot).properties(height=24 * max(2, len(given.names)))


def timeline(given: Drawn, width: int) -> Any:
    """Draw when each name was in which state: a bar from its first window to its last one."""
    seen = [state for state in STATES if any(point.state == state for point in given.points)]
    legend = alt.Legend(title=None, orient="bottom", labelFontSize=12) if len(seen) > 1 else None
    colour = alt.Color("state:N", scale=alt.Scale(domain=seen, range=[STATES[one] for one in seen]), legend=legend)
    base = given.rows(joined(given.points)).mark_bar(height=14).properties(height=24 * max(2, len(given.names)))
    return base.encode(x=given.time("start", "", width), x2="end:T", y=given.labels(width), color=colour)


Draw = Callable[[Drawn, int], Any]
"""What draws a kind of chart at a width."""


@dataclass(frozen=True)
class Look:
    """How a question looks: what draws it, its title, what numbers count; what draws one window; what marks mean."""

    kind: Draw
    title: str
    values: str = ""
    alone: Draw | None = None
    shows: str = ""


FLAGS = Look(timeline, "Categories counted more often than their thresholds", shows="Bars: since when a flag is up.")
HITTERS = Look(timeline, "Items that many people have", shows="Bars: windows in which an item is reported.")
NEAREST = Look(dots, "Nearest points", "point", shows="Dots: queries. Lines: from the point below to the point above.")
RULES = Look(timeline, "Alerts", shows="Bars: windows in which a rule is met.")
STATED = Look(timeline, "Alerts", shows="Bars: windows with an alert, or without data.")
LOOKS = {
    "counts": Look(lines, "People per item", "people", bars),
    "sums": Look(lines, "Sums per item", "value", bars),
    "heavy-hitters": HITTERS,
    "top-k": Look(bars, "Items that most people have", "people"),
    "alerts": RULES,
    "histogram": Look(lines, "Events per category since the start", "events", bars),
    "flags": FLAGS,
    "quantiles": Look(lines, "Quantiles", "value", dots),
    "cardinality": Look(lines, "People present", "people", dots),
    "ranges": Look(lines, "Points per range", "points", dots),
    "predecessor": NEAREST,
    "queries": Look(dots, "Answers to queries", "people"),
    "ratios": Look(lines, "Ratios", "ratio", dots),
    "rises": Look(bars, "Rises", "people more"),
    "states": STATED,
}
"""By the name that a question or a view has for its chart."""

USUAL = Look(dots, "Published numbers", "value")
"""Of other ones."""


def chart_of(
    name: str,
    rows: Sequence[Any],
    *,
    parameters: Mapping[str, Any] = MappingProxyType({}),
    limited: bool = False,
) -> Chart:
    """Return the chart of published rows.

    Args:
        name: of the chart, such as a key of `LOOKS`.
        limited: whether numbers are of what counts within limits.
    """
    name = "sums" if name == "counts" and rows and "value" in rows[0]._fields else name
    look, clocks = LOOKS.get(name, USUAL), Clocks.of(parameters)
    title, values = _words(look, parameters)
    points = [point_of(row, {"rises": ("rise",), "sums": ("value",)}.get(name, NUMBERS)) for row in rows]
    points = [point for point in points if (point.state if look.kind is timeline else point.value is not None)]
    if not points:
        empty = alt.Chart(alt.InlineData([{"text": "nothing to draw"}])).mark_text(fontSize=14).encode(text="text:N")
        return Chart(look.kind.__name__, title, "Nothing was published that could be drawn.", lambda width: empty)
    windows, told = sorted({(point.start, point.end) for point in points}), []
    kind = look.alone if look.alone is not None and len(windows) == 1 else look.kind
    if kind in (bars, dots) and windows[-1][1]:
        points = [point for point in points if point.end == windows[-1][1]]
        title += f", window until {clocks.moment(windows[-1][1])}"
    elif len(windows) > MOST_WINDOWS:
        points = [point for point in points if point.start >= windows[-MOST_WINDOWS][0]]
        told.append(f"The newest {MOST_WINDOWS} of {len(windows):,} windows.")
    labels = _labels(points, kind)
    if len(labels) < (all_ := len({point.name for point in points})):
        longest = "that last longest" if kind is timeline else "with the largest numbers"
        told.append(f"{len(labels)} of {all_:,}, those {'that come last' if kind is dots else longest}.")
    shown = [replace(point, name=labels[point.name]) for point in points if point.name in labels]
    if kind is lines and len(shown) < len(labels) * len({point.start for point in shown}):
        told.append("Gaps: not published, which is not zero.")
    told += ["Numbers are of what counts within limits."] * limited
    at_end = isinstance(rows[0], AT_END) or parameters.get("over") == "start"
    moments = [micros for point in shown for micros in (point.start, point.end)]
    span = _span({} if kind is lines else parameters, clocks, moments[at_end::2] if kind is lines else moments)
    log = look.title == "Quantiles" and parameters.get("scale") == "log"
    given = Drawn(shown, list(labels.values()), values, at_end, clocks, span, log)
    own = any(getattr(row, "lower", None) is not None for row in rows)
    sure = "95% intervals, each alone" if own else "error bounds, which hold for all rows together"
    meaning = look.shows or f"{'Bands' if kind is lines else 'Lines'}: {sure}."
    return Chart(kind.__name__, title, " ".join([meaning, *told]), partial(kind, given))


def _words(look: Look, parameters: Mapping[str, Any]) -> tuple[str, str]:
    """Return the title, and what numbers count, by the options of the run."""
    title, values, over = look.title, look.values, parameters.get("over")
    several = "Contributions" if over not in (None, "window", "start") else ""
    counted = "Events" if parameters.get("unit") == "event" else several
    if counted and title.startswith("People per"):
        title, values = title.replace("People", counted, 1), counted.lower()
    title += f" against {short(str(parameters.get('against')))} before" if title == "Rises" else ""
    title += " since the start" if over == "start" else ""
    unit = value_unit({"parameters": parameters})
    return title, short(unit) if values == "value" and unit else values


def _labels(points: Sequence[Point], kind: Draw) -> dict[str, str]:
    """Return the labels of names to draw, in order: of lines and bars the largest first, of a timeline the earliest."""
    names, sizes = list(dict.fromkeys(point.name for point in points)), defaultdict[str, float](float)
    for point in points:
        size = float(point.end - point.start) if kind is timeline else point.value or 0.0
        sizes[point.name] = sizes[point.name] + size if kind is timeline else max(sizes.get(point.name, size), size)
    largest = sorted(names, key=lambda name: (-sizes[name], name))
    chosen = names[-MOST_ROWS:] if kind is dots else largest[: MOST_LINES if kind is lines else MOST_ROWS]
    if kind is timeline:
        begins = {point.name: point.start for point in sorted(points, key=lambda point: -point.start)}
        chosen.sort(key=lambda name: begins[name])
    texts = [short(name) for name in chosen]
    alike = [text if texts.count(text) == 1 else f"{text} #{place}" for place, text in enumerate(texts, start=1)]
    return dict(zip(chosen, alike, strict=True))


def _span(parameters: Mapping[str, Any], clocks: Clocks, moments: Sequence[int]) -> tuple[int, int]:
    """Return the time of a run, as far as its options say it, with some moments in it."""
    found = [*moments]
    for option in ("start", "end"):
        try:
            found.append(round(moment(option, parameters[option], clocks.zone) * 1e6))
        except (KeyError, ValueError, TypeError, OverflowError):  # whatever somebody has written into the file
            continue
    return min(found), max(found)


def episodes(rows: Sequence[Any]) -> list[Point]:
    """Return when each alert, flag or report of rows began and ended."""
    return joined([point for point in map(point_of, rows) if point.state])


def joined(points: Sequence[Point]) -> list[Point]:
    """Join windows of a name in one state that follow each other."""
    found: dict[str, list[Point]] = defaultdict(list)
    for point in sorted(points, key=lambda each: each.start):
        own = found[point.name]
        if own and own[-1].state == point.state and own[-1].end >= point.start:
            own[-1] = replace(own[-1], end=max(own[-1].end, point.end))
        else:
            own.append(Point(point.name, point.start, point.end, state=point.state))
    return [point for own in found.values() for point in own]


def short(text: str) -> str:
    """Return a text as one line that can be drawn; of a long one both ends stay.

    >>> short("a name of more than twenty letters, as some have")
    'a name of mo…some have'
    """
    line = one_line(text[:LONGEST_TEXT])
    cut = len(line) > LONGEST_NAME or len(text) > LONGEST_TEXT
    return f"{line[: LONGEST_NAME - 10]}…{one_line(text[-LONGEST_TEXT:])[-9:]}" if cut else line


def point_of(row: Any, numbers: Sequence[str] = NUMBERS) -> Point:
    """Return what charts need of a row, whose number is the first of these that it has."""
    name = name_of(row)
    start, end = (row.window_start.micros, row.window_end.micros) if hasattr(row, "window_end") else (0, 0)
    if isinstance(row, NearestPoints):  # the query between its neighbours
        return Point(name, start, end, row.query, row.predecessor or row.query, row.successor or row.query)
    number = next((each for each in numbers if each in row._fields and getattr(row, each) is not None), "")
    ends = [f"{number}_{end}" for end in ("lower", "upper")]
    ends = ends if ends[0] in row._fields else ["lower", "upper"]
    value = getattr(row, number) if number else None
    lower, upper = (getattr(row, end, None) for end in ends)
    if lower is None and upper is None and value is not None and getattr(row, "error_bound", -1) >= 0:
        lower, upper = value - row.error_bound, value + row.error_bound
    if lower is None or upper is None:  # a lower bound has no interval
        lower = upper = None
    return Point(name, start, end, _finite(value), _finite(lower), _finite(upper), state_of(row))


def name_of(row: Any) -> str:
    """Return what a row is about, but for its window."""
    parts = [getattr(row, name, "") for name in ("item", "rule", "category")]
    if isinstance(row, HistogramEstimate):
        parts.insert(1, "" if row.query == "histogram" else row.query)
    elif isinstance(row, RangeCount):
        parts.append(f"{row.low:,} to {row.high:,}")
    elif hasattr(row, "quantile"):
        parts.append("median" if row.quantile == 0.5 else f"{100 * row.quantile:g}%")
    elif hasattr(row, "query"):
        parts.append(str(row.query))
    return ": ".join(filter(None, parts)) or "all"


def state_of(row: Any) -> str:
    """Return the state that a row reports; empty where it reports none."""
    if isinstance(row, CategoryFlag):
        return "raised" if row.raised else ""
    if hasattr(row, "status"):
        return "" if row.status == ENDED else "reported" if isinstance(row, HeavyHitter) else ALERT
    return state if (state := getattr(row, "state", "")) in STATES else ""


def _finite(value: Any) -> float | None:
    """Return a number that can be drawn, else None."""
    return None if value is None or not math.isfinite(value) else value
