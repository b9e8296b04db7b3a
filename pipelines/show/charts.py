"""Charts of published rows, whose columns say how they are drawn; without a network."""

from __future__ import annotations

import base64
import math
import textwrap
from collections import defaultdict
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC
from html import escape
from typing import Any

import altair as alt
import pyarrow as pa
import vl_convert
from privstream.mechanisms.views.rules import ALERT
from privstream.mechanisms.views.tables import in_micros
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.show import words
from privstream.pipelines.show.shown import NUMBERS, POINTS, keys_of
from privstream.pipelines.terminal import one_line
from privstream.transforms.row_types import ENDED

WIDE, NARROW = 960, 366
"""Widths in pixels, for screens and for phones."""

MOST_LINES, MOST_ROWS, MOST_WINDOWS, MOST_MARKED = 8, 20, 500, 60
LONGEST_NAME, LONGEST_TITLE, LONGEST_TEXT = 22, 120, 2000
INK, GREY, ALARM = "#222222", "#9a9a9a", "#b3261e"
COLOURS = ("#0072b2", "#d55e00", "#00805c", "#b0508c", "#8a6d00", "#2a9fd6", "#8b2c1f", "#5b4fc7")
"""Those of Okabe and Ito (2008), darker where white needs that: colour-blind people see them as different."""

NO_DATA, REPORTED, RAISED = "no data", "reported", "raised"
STATES = {ALERT: ALARM, REPORTED: COLOURS[0], RAISED: ALARM, NO_DATA: GREY}
"""What bars of a timeline mean, and their colours."""

AT_END = ("histogram", "flags", "cardinality", "ranges", "predecessor")
"""Questions about the moment at which a window ends; all others are about the window."""

TIMES = {name: "%H:%M" for name in ("hours", "minutes")} | {"seconds": "%H:%M:%S", "year": "%-d %b %Y"}
TIMES |= {name: "%-d %b" for name in ("date", "day", "week", "month", "quarter")}
"""How ticks of time are written, by what they differ in."""

UTC_CLOCKS = Clocks()
FONTS = "Arial, Helvetica, Liberation Sans, sans-serif"
PADDING = {"left": 16, "right": 12, "top": 5, "bottom": 5}
"""Browsers without these fonts have wider letters."""

STYLE: dict[str, Any] = {"labelColor": INK, "titleColor": INK, "titleFontWeight": "normal", "gridColor": "#e4e4e4"}
STYLE |= {"labelFontSize": 12, "titleFontSize": 12, "titlePadding": 8, "domainColor": GREY, "tickColor": GREY}


@dataclass(frozen=True)
class Point:
    """A row as charts see it, of a window in microseconds since 1970, both 0 without windows.

    Attributes:
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
    """A chart, which notebooks show.

    Attributes:
        kind: lines, bars, dots or a timeline, a key of `KINDS`.
        points: what is shown; names are short, distinct, and safe to draw.
        values: what numbers count.
        span: of the axis of time, in microseconds since 1970.
    """

    kind: str
    title: str
    caption: str
    points: Sequence[Point] = ()
    names: Sequence[str] = ()
    values: str = ""
    at_end: bool = False
    clocks: Clocks = UTC_CLOCKS
    span: tuple[int, int] = (0, 0)
    log: bool = False

    def spec(self, width: int = WIDE, *, words: bool = True) -> dict[str, Any]:
        """Return the Vega-Lite specification, with title and caption unless the page around it has these `words`."""
        fit = alt.AutoSizeParams(type="fit-x", contains="padding")
        drawn = KINDS[self.kind](self, width)
        drawn = drawn.properties(width=width, autosize=fit, background="white")
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

    def wall(self, micros: int) -> float:
        """Return milliseconds since 1970 that look in UTC as a moment does on the clocks of the run."""
        return self.clocks.local(micros).replace(tzinfo=UTC).timestamp() * 1e3

    def rows(self, points: Sequence[Point]) -> alt.Chart:
        """Return a chart of points, without a mark."""
        walls = [{"start": self.wall(point.start), "end": self.wall(point.end)} for point in points]
        return alt.Chart(alt.InlineData([asdict(point) | wall for point, wall in zip(points, walls, strict=True)]))

    def time(self, name: str, title: str, width: int) -> alt.X:
        """Return the axis of time, on the clocks of the run; ticks of a single day do not say which it is."""
        scale = alt.Scale(type="utc", domain=[self.wall(micros) for micros in self.span])
        ticks: dict[str, Any] = {"labelOverlap": True, "labelSeparation": 8, "tickCount": width // 120, "grid": False}
        first = self.clocks.local(self.span[0])
        title = f"{title}{self.clocks.zone}, from {first.day} {first:%B %Y}"
        return alt.X(f"{name}:T", scale=scale, axis=alt.Axis(title=title, format=TIMES, **ticks))

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


def lines(given: Chart, width: int) -> Any:
    """Draw numbers over windows: a line for each name, and a band for its interval; gaps stay gaps."""
    names, windows = list(given.names), sorted({(point.start, point.end) for point in given.points})
    there = {(point.name, point.start) for point in given.points}
    gaps = [Point(name, *window) for name in names for window in windows if (name, window[0]) not in there]
    columns = max(1, width // 240)
    drawn: Any = {"labelFontSize": 12, "labelLimit": (width - 60) // columns - 30, "columnPadding": 28}
    drawn |= {"symbolSize": 60, "symbolOpacity": 1}
    legend = alt.Legend(title=None, orient="bottom", columns=columns, **drawn) if len(names) > 1 else None
    colour = alt.Color("name:N", scale=alt.Scale(domain=names, range=list(COLOURS[: len(names)])), legend=legend)
    at, title = ("end", "end of window, ") if given.at_end else ("start", "start of window, ")
    base = given.rows([*given.points, *gaps]).encode(x=given.time(at, title, width), color=colour)
    band = base.mark_area(opacity=0.15).encode(y=given.number(alt.Y, "lower"), y2="upper:Q")
    dot = {"filled": True, "size": 30 if len(windows) <= MOST_MARKED else 5}
    line = base.mark_line(strokeWidth=1.8, point=dot).encode(y=given.number(alt.Y, "value"))
    return alt.layer(band, line).properties(height=380 if width > NARROW else 280)


def across(given: Chart, width: int) -> Any:
    """Draw a bar or a dot for each name, and a line for its interval; the axis of dots need not begin at 0."""
    base, dots = given.rows(given.points).encode(y=given.labels(width)), given.kind == "dots"
    scale = {"zero": False, "padding": 10} if dots else {}
    value, ends = (given.number(alt.X, name, **scale) for name in ("value", "lower"))
    dot, bar = (
        base.mark_point(color=COLOURS[0], filled=True, size=60, opacity=1),
        base.mark_bar(height=14, opacity=0.55),
    )
    interval = base.mark_rule(color=INK, strokeWidth=1.5).encode(x=ends, x2="upper:Q")
    mark = (dot if dots else bar).encode(x=value, color=alt.value(COLOURS[0]))
    return alt.layer(mark, interval).properties(height=24 * max(2, len(given.names)))


def timeline(given: Chart, width: int) -> Any:
    """Draw when each name was in which state: a bar from its first window to its last one."""
    seen = [state for state in STATES if any(point.state == state for point in given.points)]
    legend = alt.Legend(title=None, orient="bottom", labelFontSize=12) if len(seen) > 1 else None
    colour = alt.Color("state:N", scale=alt.Scale(domain=seen, range=[STATES[one] for one in seen]), legend=legend)
    base = given.rows(given.points).mark_bar(height=14).properties(height=24 * max(2, len(given.names)))
    return base.encode(x=given.time("start", "", width), x2="end:T", y=given.labels(width), color=colour)


KINDS: dict[str, Callable[[Chart, int], Any]] = {"lines": lines, "bars": across, "dots": across, "timeline": timeline}


def chart_of(rows: pa.Table, record: Mapping[str, Any], title: str = "", *, limited: bool = False) -> Chart:
    """Return the chart of published rows: states along time, else numbers over windows, or those of one window.

    Args:
        record: their guarantee file.
        title: what they are; by the guarantee file if empty.
        limited: whether numbers are of what counts within limits.
    """
    parameters, columns, keys = record.get("parameters", {}), {*rows.column_names}, keys_of(rows)
    clocks, number, told = Clocks.of(parameters), number_of(rows), list[str]()
    unit = words.value_unit(record) or number if number == "value" else words.unit_of(record)
    title = short(title or words.title_of(record, keys, unit), LONGEST_TITLE)
    title = title[:1].upper() + title[1:]
    states = not columns.isdisjoint(("status", "state", "raised"))
    points = episodes(rows) if states else [point for point in points_of(rows, number) if point.value is not None]
    if not points:
        return Chart("dots", title, "Nothing was published that could be drawn.")
    windows = sorted({(point.start, point.end) for point in points})
    kind = "bars" if windows[-1][1] and number != "ratio" and {*keys} - {*POINTS} else "dots"
    kind = "lines" if len(windows) > 1 and number not in ("rise", "query") and "rank" not in columns else kind
    kind = "timeline" if states else kind
    if kind in ("bars", "dots") and windows[-1][1]:
        points = [point for point in points if point.end == windows[-1][1]]
        title += f", window until {clocks.moment(windows[-1][1])}"
    elif len(windows) > MOST_WINDOWS:
        points = [point for point in points if point.start >= windows[-MOST_WINDOWS][0]]
        told.append(f"The newest {MOST_WINDOWS} of {len(windows):,} windows.")
    labels = _labels(points, kind)
    if len(labels) < (all_ := len({point.name for point in points})):
        which = {"timeline": "that last longest", "dots": "that come last"}.get(kind, "with the largest numbers")
        told.append(f"{len(labels)} of {all_:,}, those {which}.")
    shown = [replace(point, name=labels[point.name]) for point in points if point.name in labels]
    if kind == "lines" and len(shown) < len(labels) * len({point.start for point in shown}):
        told.append("Gaps: not published, which is not zero.")
    told += ["Numbers are of what counts within limits."] * limited
    at_end = words.word_of(record) in AT_END or parameters.get("over") == "start"
    starts, ends = [point.start for point in shown], [point.end for point in shown]
    return Chart(
        kind=kind,
        title=title,
        caption=" ".join([_meaning(kind, number, columns), *told]),
        points=shown,
        names=list(labels.values()),
        values=short({"ratio": "ratio", "query": "point", "rise": f"{unit} more"}.get(number, unit)),
        at_end=at_end,
        clocks=clocks,
        span=(
            min(ends if kind == "lines" and at_end else starts),
            max(starts if kind == "lines" and not at_end else ends),
        ),
        log=parameters.get("scale") == "log",
    )


def number_of(rows: pa.Table) -> str:
    """Return the column with the number of a row; empty where it has none."""
    names = rows.column_names
    if "distance" in names:
        return "query"
    wanted = ("rise",) if "rise" in names and rows["rise"].null_count < rows.num_rows else ("value", *NUMBERS)
    return next((name for name in wanted if name in names), "")


def _meaning(kind: str, number: str, columns: Container[str]) -> str:
    """Return what marks mean."""
    if kind == "timeline":
        return "Bars: from the first window to the last one."
    if number == "query":
        return "Dots: queries. Lines: from the point below to the point above."
    sure = "95% intervals, each alone" if "lower" in columns else "error bounds, which hold for all rows together"
    return f"{'Bands' if kind == 'lines' else 'Lines'}: {sure}."


def _labels(points: Sequence[Point], kind: str) -> dict[str, str]:
    """Return the labels of names to draw, in order: of lines and bars the largest first, of a timeline the earliest."""
    names, sizes = list(dict.fromkeys(point.name for point in points)), defaultdict[str, float](float)
    for point in points:
        size = float(point.end - point.start) if kind == "timeline" else point.value or 0.0
        sizes[point.name] = sizes[point.name] + size if kind == "timeline" else max(sizes.get(point.name, size), size)
    largest = sorted(names, key=lambda name: (-sizes[name], name))
    chosen = names[-MOST_ROWS:] if kind == "dots" else largest[: MOST_LINES if kind == "lines" else MOST_ROWS]
    if kind == "timeline":
        chosen.sort(key=names.index)
    texts = [short(name) for name in chosen]
    different = [text if texts.count(text) == 1 else f"{text} #{place}" for place, text in enumerate(texts, start=1)]
    return dict(zip(chosen, different, strict=True))


def episodes(rows: pa.Table) -> list[Point]:
    """Return when each name was in which state, by their beginning: windows that follow each other are one."""
    found: dict[str, list[Point]] = defaultdict(list)
    for point in sorted(points_of(rows, ""), key=lambda each: each.start):
        own = found[point.name]
        if own and own[-1].state == point.state and own[-1].end >= point.start:
            own[-1] = replace(own[-1], end=max(own[-1].end, point.end))
        elif point.state:
            own.append(point)
    return sorted((point for own in found.values() for point in own), key=lambda each: each.start)


def short(text: str, most: int = LONGEST_NAME) -> str:
    """Return a text as one line that can be drawn; of a long one both ends stay.

    >>> short("a name of more than twenty letters, as some have")
    'a name of mo…some have'
    """
    line = one_line(text[:LONGEST_TEXT])
    cut = len(line) > most or len(text) > LONGEST_TEXT
    return f"{line[: most - 10]}…{one_line(text[-LONGEST_TEXT:])[-9:]}" if cut else line


def points_of(table: pa.Table, number: str) -> list[Point]:
    """Return what a chart needs of rows."""
    keys, prefix = keys_of(table), f"{number}_" if f"{number}_lower" in table.column_names else ""
    ends = ("predecessor", "successor") if number == "query" else (f"{prefix}lower", f"{prefix}upper")
    points = []
    for row in in_micros(table).to_pylist():
        value, lower, upper = (_finite(row.get(name)) for name in (number, *ends))
        if number == "query":  # there is no point 0
            lower, upper = lower or value, upper or value
        elif lower is None and upper is None and value is not None and row.get("error_bound", -1) >= 0:
            lower, upper = value - row["error_bound"], value + row["error_bound"]
        if lower is None or upper is None:  # a lower bound has no interval
            lower = upper = None
        span = row.get("window_start", 0), row.get("window_end", 0)
        points.append(Point(name_of(row, keys), *span, value, lower, upper, state_of(row)))
    return points


def name_of(row: Mapping[str, Any], keys: Sequence[str]) -> str:
    """Return what a row is about, but for its window."""
    texts = {name: str(row[name]) for name in keys if row[name] != "histogram"}
    if "high" in texts:
        texts |= {"low": f"{row['low']:,} to {row['high']:,}", "high": ""}
    if "quantile" in texts:
        texts["quantile"] = "median" if row["quantile"] == 0.5 else f"{100 * row['quantile']:g}%"
    return ", ".join(filter(None, texts.values())) or "all"


def state_of(row: Mapping[str, Any]) -> str:
    """Return the state that a row reports; empty where it reports none."""
    if "status" in row:
        return "" if row["status"] == ENDED else ALERT if "rule" in row else REPORTED
    return RAISED if row.get("raised") else state if (state := row.get("state", "")) in STATES else ""


def _finite(value: Any) -> float | None:
    """Return a number that can be drawn, else None."""
    return None if value is None or not math.isfinite(value) else value
