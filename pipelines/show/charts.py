"""Charts of published rows, whose columns say how they are drawn; without a network."""

from __future__ import annotations

import base64
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC
from html import escape
from typing import Any

import altair as alt
import pyarrow as pa
import pyarrow.compute as pc
import vl_convert
from privstream.mechanisms.views.rules import ALERT, NO_DATA
from privstream.mechanisms.views.tables import in_micros
from privstream.pipelines.show import words
from privstream.pipelines.show.shown import Shown, ends_of, name_of
from privstream.pipelines.terminal import one_line
from privstream.transforms.row_types import ENDED

WIDE, NARROW = 960, 366
"""Widths in pixels, for screens and for phones."""

MOST_LINES, MOST_ROWS, MOST_WINDOWS = 8, 20, 500
LONGEST_NAME, LONGEST_TITLE, LONGEST_TEXT = 22, 120, 2000
INK, GREY = "#222222", "#9a9a9a"
COLOURS = ("#0072b2", "#d55e00", "#00805c", "#b0508c", "#8a6d00", "#2a9fd6", "#8b2c1f", "#5b4fc7")
"""Those of Okabe and Ito (2008), darker where white needs that: colour-blind people see them as different."""

STATES = {ALERT: COLOURS[0], NO_DATA: GREY}
"""What bars of a timeline mean, and their colours."""

AT_END = ("histogram", "flags", "cardinality", "ranges", "predecessor")
"""Questions about the moment at which a window ends; all others are about the window."""

TIMES = {name: "%H:%M" for name in ("hours", "minutes")} | {"seconds": "%H:%M:%S", "year": "%-d %b %Y"}
TIMES |= {name: "%-d %b" for name in ("date", "day", "week", "month", "quarter")}
"""How ticks of time are written, by what they differ in."""

STYLE: dict[str, Any] = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal", "gridColor": "#e4e4e4"}
STYLE |= {"labelFontSize": 12, "titleFontSize": 12, "titlePadding": 8, "domainColor": GREY, "tickColor": GREY}
TITLE = {"anchor": "start", "fontSize": 15, "subtitleFontSize": 12, "subtitleColor": INK, "offset": 12}
CONFIG: dict[str, Any] = {"axis": STYLE, "title": TITLE, "view": {"stroke": None}}
CONFIG |= {"font": "Arial, Helvetica, Liberation Sans, sans-serif"}  # others may be wider, so there is room
CONFIG |= {"padding": {"left": 16, "right": 12, "top": 5, "bottom": 5}}


@dataclass(frozen=True)
class ChartPoint:
    """A row as charts see it, of a window in microseconds since 1970, both 0 without windows."""

    name: str
    start: int
    end: int
    value: float | None = None
    lower: float | None = None
    upper: float | None = None
    state: str = ""  # a key of `STATES`, if there is something to show


@dataclass(frozen=True)
class Chart:
    """A chart, which notebooks show.

    Attributes:
        kind: lines, dots or a timeline, a key of `KINDS`.
        points: what is drawn, of these names, which are short, distinct, and safe to draw.
    """

    kind: str
    shown: Shown
    caption: str
    points: Sequence[ChartPoint]
    names: Sequence[str]

    @property
    def title(self) -> str:
        """What is drawn, and of dots the window."""
        when = f": {self.shown.when}" if self.kind == "dots" and self.shown.when else ""
        return short(words.capital(f"{self.shown.title}{when}"), LONGEST_TITLE)

    def spec(self, width: int = WIDE, *, words: bool = True) -> dict[str, Any]:
        """Return the Vega-Lite specification, with title and caption unless the page around it has these `words`."""
        fit = alt.AutoSizeParams(type="fit-x", contains="padding")
        drawn = KINDS[self.kind](self, width).properties(width=width, autosize=fit, background="white")
        if words:
            lines = textwrap.wrap(self.caption, width // 7)
            drawn = drawn.properties(title=alt.TitleParams(textwrap.wrap(self.title, width // 9), subtitle=lines))
        return dict(drawn.configure(**CONFIG).to_dict(validate=False))

    def svg(self, width: int = WIDE, *, words: bool = True) -> str:
        """Return an SVG without scripts."""
        return str(vl_convert.vegalite_to_svg(self.spec(width, words=words)))

    def png(self, width: int = WIDE) -> bytes:
        """Return a PNG of twice as many pixels."""
        return bytes(vl_convert.vegalite_to_png(self.spec(width), scale=2))

    def img(self) -> str:
        """Return HTML: the picture as an image, and another one for phones; scripts of an image never run."""
        wide, narrow = (
            "data:image/svg+xml;base64," + base64.b64encode(self.svg(width, words=False).encode()).decode()
            for width in (WIDE, NARROW)
        )
        text = escape(f"{self.title}. {self.caption}")
        narrow = f'<source media="(max-width: 40rem)" srcset="{narrow}">'
        return f'<picture>{narrow}<img src="{wide}" alt="{text}" style="width: 100%; max-width: {WIDE}px"></picture>'

    def _repr_mimebundle_(self, include: Any = None, exclude: Any = None) -> dict[str, Any]:
        """Return what a notebook shows."""
        return {"image/png": self.png(), "text/plain": f"{self.title}. {self.caption}"}

    def wall(self, micros: int) -> float:
        """Return milliseconds since 1970 that look in UTC as a moment does on the clocks of the run."""
        return self.shown.clocks.local(micros).replace(tzinfo=UTC).timestamp() * 1e3

    def rows(self, points: Sequence[ChartPoint]) -> alt.Chart:
        """Return a chart of points, without a mark."""
        walls = [{"start": self.wall(point.start), "end": self.wall(point.end)} for point in points]
        return alt.Chart(alt.InlineData([asdict(point) | wall for point, wall in zip(points, walls, strict=True)]))

    def time(self, first: str, last: str, title: str, width: int) -> alt.X:
        """Return the axis of time, on the clocks of the run, from the `first` end of windows to the `last` one."""
        span = min(getattr(point, first) for point in self.points), max(getattr(point, last) for point in self.points)
        scale = alt.Scale(type="utc", domain=list(map(self.wall, span)))
        ticks: dict[str, Any] = {
            "labelOverlap": "greedy",
            "labelSeparation": 8,
            "tickCount": width // 120,
            "grid": False,
        }
        begin = self.shown.clocks.local(span[0])
        title = f"{title}{self.shown.clocks.zone}, from {begin.day} {begin:%B %Y}"  # which no tick of a day says
        return alt.X(f"{first}:T", scale=scale, axis=alt.Axis(title=title, format=TIMES, **ticks))

    def number(self, kind: type[alt.X] | type[alt.Y], name: str) -> Any:
        """Return an axis of numbers."""
        log = self.shown.record.get("parameters", {}).get("scale") == "log"
        axis = alt.Axis(format=",~r", tickCount=6, labelOverlap=True, grid=not log)
        scale = alt.Scale(type="log" if log else "linear")
        return kind(f"{name}:Q", title=short(self.shown.unit), axis=axis, scale=scale)

    def labels(self, width: int) -> alt.Y:
        """Return the axis of names, one below the other."""
        axis = alt.Axis(title=None, labelLimit=int(width / 2.5), ticks=False, domain=False, labelPadding=6)
        return alt.Y("name:N", scale=alt.Scale(domain=list(self.names)), axis=axis)


def lines(given: Chart, width: int) -> Any:
    """Draw numbers over windows: a line for each name, and a band for its interval; gaps stay gaps."""
    names, windows = list(given.names), sorted({(point.start, point.end) for point in given.points})
    there = {(point.name, point.start) for point in given.points}
    gaps = [ChartPoint(name, *window) for name in names for window in windows if (name, window[0]) not in there]
    columns = max(1, width // 240)
    drawn: Any = {"columns": columns, "labelFontSize": 12, "columnPadding": 28, "symbolSize": 60, "symbolOpacity": 1}
    legend = alt.Legend(title=None, orient="bottom", **drawn) if len(names) > 1 else None
    colour = alt.Color("name:N", scale=alt.Scale(domain=names, range=list(COLOURS[: len(names)])), legend=legend)
    record = given.shown.record
    ends = words.word_of(record) in AT_END or record.get("parameters", {}).get("over") == "start"
    at = "end" if ends else "start"
    base = given.rows([*given.points, *gaps]).encode(x=given.time(at, at, f"{at} of window, ", width), color=colour)
    band = base.mark_area(opacity=0.15).encode(y=given.number(alt.Y, "lower"), y2="upper:Q")
    line = base.mark_line(strokeWidth=1.8, point={"filled": True, "size": 14}).encode(y=given.number(alt.Y, "value"))
    return alt.layer(band, line).properties(height=380 if width > NARROW else 280)


def dots(given: Chart, width: int) -> Any:
    """Draw a dot for each name, and a line for its interval."""
    base = given.rows(given.points).encode(y=given.labels(width))
    interval = base.mark_rule(color=INK, strokeWidth=1.5).encode(x=given.number(alt.X, "lower"), x2="upper:Q")
    dot = base.mark_point(filled=True, size=60, opacity=1, color=COLOURS[0]).encode(x=given.number(alt.X, "value"))
    return alt.layer(interval, dot).properties(height=24 * max(2, len(given.names)))


def timeline(given: Chart, width: int) -> Any:
    """Draw when each name was in which state: a bar from its first window to its last one."""
    seen = [state for state in STATES if any(point.state == state for point in given.points)]
    legend = alt.Legend(title=None, orient="bottom", labelFontSize=12) if len(seen) > 1 else None
    colour = alt.Color("state:N", scale=alt.Scale(domain=seen, range=[STATES[one] for one in seen]), legend=legend)
    base = given.rows(given.points).mark_bar(height=14).properties(height=24 * max(2, len(given.names)))
    return base.encode(x=given.time("start", "end", "", width), x2="end:T", y=given.labels(width), color=colour)


KINDS: dict[str, Callable[[Chart, int], Any]] = {"lines": lines, "dots": dots, "timeline": timeline}


def chart_of(rows: pa.Table, record: Mapping[str, Any]) -> Chart:
    """Return the chart of published rows: states along time, else numbers over windows, or those of one window.

    Args:
        record: their guarantee file.
    """
    columns, told = {*rows.column_names}, list[str]()
    shown = Shown(rows, record, MOST_ROWS, number="value" if "value" in columns else None)
    if columns & {"status", "state", "raised"}:
        kind, points = "timeline", episodes(shown)
        told.append("A bar runs from the start of the first window to the end of the last one.")
    elif len(shown.windows) > 1 and shown.number != "rise" and "rank" not in columns:
        kind, newest = "lines", shown.windows[-MOST_WINDOWS:]
        points = points_of(shown, rows.filter(pc.greater_equal(rows["window_start"].cast(pa.int64()), newest[0])))
        if len(newest) < len(shown.windows):
            told.append(f"The newest {len(newest)} of {len(shown.windows):,} windows.")
    else:
        kind, points = "dots", points_of(shown, shown.rows)
    points = [point for point in points if point.state or point.value is not None]
    if kind != "timeline" and any(point.lower is not None for point in points):
        sure = "the 95% interval of each number"
        told.insert(0, f"Bands: {sure}." if kind == "lines" else f"Lines: {sure}, where it is wider than the dot.")
    if shown.number != "rise" and kind != "timeline" and (bounds := words.lower_bounds(record)):
        told.insert(0, f"Lower bounds: {bounds}.")
    if not points:
        return Chart("dots", shown, "Nothing was published that could be drawn.", (), ())
    sizes = dict[str, float]()
    for point in points:
        size = point.end - point.start if point.value is None else point.value
        sizes[point.name] = max(sizes.get(point.name, size), size)
    largest = sorted(sizes, key=lambda name: (-sizes[name], name))[: MOST_LINES if kind == "lines" else MOST_ROWS]
    chosen = largest if kind == "lines" else [name for name in sizes if name in largest]
    if len(chosen) < (all_ := shown.all if kind == "dots" else len(sizes)):
        which = {"timeline": "longest", "lines": "largest"}.get(kind, "largest" if shown.of_items else "first")
        told.append(f"{len(chosen)} of {all_:,}, the {which}.")
    texts = [short(name) for name in chosen]
    names = [text if texts.count(text) == 1 else f"{text} #{place}" for place, text in enumerate(texts, start=1)]
    labels = dict(zip(chosen, names, strict=True))
    points = [replace(point, name=labels[point.name]) for point in points if point.name in labels]
    if kind == "lines" and len(points) < len(labels) * len({point.start for point in points}):
        told.append("Gaps: not published, which is not zero.")
    return Chart(kind, shown, " ".join(told), points, names)


def episodes(shown: Shown) -> list[ChartPoint]:
    """Return when each name was in which state, by their beginning: windows that follow each other are one."""
    found: dict[str, list[ChartPoint]] = defaultdict(list)
    for point in sorted(points_of(shown, shown.table), key=lambda each: each.start):
        own = found[point.name]
        if own and own[-1].state == point.state and own[-1].end >= point.start:
            own[-1] = replace(own[-1], end=max(own[-1].end, point.end))
        elif point.state:
            own.append(replace(point, value=None))
    return sorted((point for own in found.values() for point in own), key=lambda each: each.start)


def short(text: str, most: int = LONGEST_NAME) -> str:
    """Return a text as one line that can be drawn; of a long one both ends stay.

    >>> short("a name of more than twenty letters, as some have")
    'a name of mo…some have'
    """
    line = one_line(text[:LONGEST_TEXT])
    return line if len(line) <= most else f"{line[: most - 10]}…{line[-9:]}"


def points_of(shown: Shown, table: pa.Table) -> list[ChartPoint]:
    """Return what a chart needs of rows."""
    ends, points = ends_of(shown.number or "", table.column_names) or ("", ""), list[ChartPoint]()
    for row in in_micros(table).to_pylist():
        numbers = (row.get(name) for name in (shown.number, *ends))
        value, lower, upper = (each if each is not None and math.isfinite(each) else None for each in numbers)
        if lower is None or upper is None:  # a lower bound has no interval
            lower = upper = None
        span = row.get("window_start", 0), row.get("window_end", 0)
        points.append(ChartPoint(name_of(row, shown.keys) or "all", *span, value, lower, upper, _state(row)))
    return points


def _state(row: Mapping[str, Any]) -> str:
    """Return the state that a row reports; empty where it reports none."""
    if "status" in row:
        return "" if row["status"] == ENDED else ALERT
    return ALERT if row.get("raised") else state if (state := row.get("state", "")) in STATES else ""
