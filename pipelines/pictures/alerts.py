"""`privstream plot alerts`: the alerts over time, each with its bound, and the truth where it is known."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain
from typing import Any, BinaryIO

import numpy as np
from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from privstream.pipelines.local_time import Clocks
from privstream.pipelines.plot.bands import MOST_DAYS
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
    chart,
    freeze_layout,
    key_above,
    middle_day,
    note,
    place,
    plural,
    short_names,
    starts_of,
    style_axes,
    told,
)
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.promise import held, remark, without_limits
from privstream.pipelines.simulate.truths import RuleCount
from privstream.transforms import Alert
from privstream.transforms.row_types import ENDED

MOST_POINTS = 200
"""Points that beginnings of alerts keep off."""


@dataclass(frozen=True)
class AlertPicture:
    """What is drawn: the alerts of a stream, and the truth about their rules, or about nothing.

    Attributes:
        meaning: what bars mean, as the rest of a sentence, and perhaps another one.
        values: what the vertical axis counts.
        title: above the picture.
        tested: names of all rules, as far as they are known.
        span: the time in which they were tested, in microseconds since 1970, as far as it is known.
        clocks: by which times are shown.
    """

    stream: str
    rows: Sequence[Alert]
    truth: Sequence[RuleCount]
    meaning: str
    values: str
    title: str
    tested: Sequence[str] = ()
    span: Sequence[int] = ()
    clocks: Clocks = UTC

    @property
    def rules(self) -> list[str]:
        """The rules, those that gave an alert first, in the order of their first one."""
        return list(dict.fromkeys([*(row.rule for row in self.rows), *self.tested]))

    @property
    def styles(self) -> dict[tuple[str, str], list[str]]:
        """Colours and markers, and the rules that have them: one each, but all beyond the last are grey."""
        known = list(zip(COLOURS, MARKERS, strict=True))
        styles = {style: [rule] for style, rule in zip(known, self.rules, strict=False)}
        others = self.rules[len(known) :]
        return styles | {(GREY, "."): others} if others else styles


def prepare(given: Given) -> Drawing:
    """Return what draws the alerts."""
    rules, span = ((given.promise and given.promise.maybe("public", name)) or [] for name in ("rules", "span"))
    tested = [rule["name"] for rule in rules]
    where = f"where {held(given.promise)} are with probability 95%, each by itself"
    meaning = f"{where}{without_limits(given.promise)}.{remark(given.promise)}"
    values = given.counted("people in a window")
    title, truth = given.title("Alerts"), given.truth or []
    picture = AlertPicture(given.stream, given.rows, truth, meaning, values, title, tested, span, given.clocks)
    return partial(draw, picture)


def draw(picture: AlertPicture, stream: BinaryIO, format: str) -> None:
    """Draw alerts as thick lines, points in the middle of windows with a line to their bound, thresholds as dashes."""
    styles = picture.styles
    of_rule: dict[str, list[Alert]] = defaultdict(list)
    for row in picture.rows:
        of_rule[row.rule].append(row)
    true: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for count in sorted(picture.truth, key=lambda count: count.window_start):
        true[count.rule].append((middle_day(count), count.people))
    windows = [(row.window_start.micros, row.window_end.micros) for row in picture.rows]
    windows += [(row.window_start.micros, row.window_end.micros) for row in picture.truth]
    windows += [(picture.span[0], picture.span[1])] if picture.span else []
    span = (min(start for start, _ in windows), max(end for _, end in windows)) if windows else None
    when = partial(picture.clocks.short, year=span is not None and picture.clocks.several_years(*span))
    with chart(stream, format, picture.clocks) as figure:
        axes = figure.add_subplot()
        labels: list[Label] = []
        for (colour, marker), rules in styles.items():
            shown = [rule for rule in rules if rule in of_rule]
            for known in filter(None, map(true.get, shown)):
                axes.plot(*zip(*known, strict=True), color=colour, linewidth=1, alpha=0.6)
            alerts = [of_rule[rule] for rule in shown]
            _thresholds(axes, alerts, colour)
            _points(axes, list(chain(*alerts)), colour, marker)
            labels += [label for rows in alerts for label in _beginnings(rows, colour, when)]
        if not picture.rows:
            axes.text(0.5, 0.5, "no alert", transform=axes.transAxes, ha="center", color=INK)
            axes.set_yticks([])
        _stop(axes, picture.rows, span)
        words: Any = {"values": picture.values, "title": picture.title, "caption": _caption(picture)}
        style_axes(figure, axes, span=span, starts=starts_of(picture.rows), **words)
        marks = [Line2D([], [], color=colour, marker=marker, markersize=4.5) for colour, marker in styles]
        firsts = short_names([first for first, *_ in styles.values()])
        more = [len(rules) for rules in styles.values()]
        silent = [": no alert" * bool(picture.rows and rules[0] not in of_rule) for rules in styles.values()]
        names = [
            f"{n:,} other rules" if n > 1 else f"{first}{none}"
            for first, n, none in zip(firsts, more, silent, strict=True)
        ]
        key_above(axes, marks, names)
        freeze_layout(figure)
        points = [(middle_day(row), number) for row in picture.rows if (number := row.estimate) is not None]
        place(axes, labels[:MOST_DAYS], points if len(points) <= MOST_POINTS else ())


def lasting(rows: Sequence[Alert]) -> dict[int, int]:
    """Return when each alert of one rule started, and when its last window ended, in microseconds since 1970."""
    return {row.since.micros: row.window_end.micros for row in rows if row.status != ENDED}


def _beginnings(rows: Sequence[Alert], colour: str, when: Callable[[float], str]) -> Iterator[Label]:
    """Yield when each alert of one rule began, in words, at its first number or, without one, at its threshold."""
    begun: set[int] = set()
    for row in rows:
        if row.status != ENDED and row.since.micros not in begun:
            begun.add(row.since.micros)
            number = row.estimate
            yield Label(
                when(row.since.micros), [(middle_day(row), row.threshold if number is None else number)], colour
            )


def _thresholds(axes: Axes, alerts: Sequence[Sequence[Alert]], colour: str) -> None:
    """Draw the thresholds of some rules, thick where an alert lasts."""
    axes.hlines(
        sorted({rows[0].threshold for rows in alerts}),
        *(0, 1),
        transform=axes.get_yaxis_transform(),
        color=colour,
        linewidth=1,
        linestyle=(0, (4, 3)),
        alpha=0.8,
        zorder=2,
    )
    spans = [(rows[0].threshold, start / DAY, end / DAY) for rows in alerts for start, end in lasting(rows).items()]
    thick: Any = {"linewidth": 7, "alpha": 0.3, "capstyle": "butt", "zorder": 2}
    axes.hlines(*np.array(spans).reshape(-1, 3).T, color=colour, **thick)


def _points(axes: Axes, rows: Sequence[Alert], colour: str, marker: str) -> None:
    """Draw numbers, hollow where an alert ends, with intervals or lines to bounds; where there is none, a note."""
    bars: list[tuple[float, float, float]] = []
    inside: dict[str, list[tuple[float, float]]] = {colour: [], "white": []}
    for row in rows:
        day, number = middle_day(row), row.estimate
        if number is None:
            note(axes, row.rule, [(day, row.threshold, row.window_start.micros, row.status)])
            continue
        ends = [end for end in (row.lower, row.upper) if end is not None]
        if ends:
            bars.append((day, min(*ends, number), max(*ends, number)))
        text = f"{told(number)}{''.join(f', {end:,.6g}' for end in ends)}"
        inside["white" if row.status == ENDED else colour].append((day, number))
        note(axes, row.rule, [(day, number, row.window_start.micros, f"{text}, {row.status}")])
    axes.vlines(*np.array(bars).reshape(-1, 3).T, color=colour, linewidth=1.6, alpha=0.55, capstyle="butt", zorder=2)
    for fill, points in inside.items():
        days, numbers = np.array(points).reshape(-1, 2).T
        axes.plot(days, numbers, marker, color=colour, markerfacecolor=fill, markersize=4.5, zorder=4)


def _stop(axes: Axes, rows: Sequence[Alert], span: tuple[int, int] | None) -> None:
    """Mark where tests have stopped, and the time after it, if nothing is tested in it."""
    for row in rows:
        if row.stopped and span is not None:
            axes.axvline(row.window_end.micros / DAY, color=ALARM, linewidth=1.2, linestyle=":")
            if row.epsilon_left is not None:
                axes.axvspan(row.window_end.micros / DAY, span[1] / DAY, facecolor="none", edgecolor=FAINT, hatch="//")


def _caption(picture: AlertPicture) -> str:
    """Say what is seen."""
    number = len({(row.rule, row.since) for row in picture.rows})
    parts = [
        f"Alerts: {number:,}, of {plural(len(picture.rules), 'rule')}; thick lines show how long they last. Points: "
        "numbers of people"
    ]
    if any(row.status == ENDED for row in picture.rows):
        parts.append(", hollow where an alert ends")
    if not picture.rows or any(row.lower is not None or row.upper is not None for row in picture.rows):
        parts.append(f"; bars: {picture.meaning} Dashed: thresholds")
    else:
        parts.append(". Dashed: thresholds")
    if picture.rows:
        parts.append(f"; days: when {'alerts' if number <= MOST_DAYS else f'{MOST_DAYS} of them'} begin")
    if picture.truth:
        parts.append(". Thin lines: the true numbers of all people")
    parts.append(".")
    stops = [row for row in picture.rows if row.stopped]
    if stops and stops[0].epsilon_left is None:
        parts.append(" From the dotted line on rules with at_most are no longer tested.")
    elif stops:
        parts.append(" At the dotted line the budget was spent: where it is hatched, nothing was tested.")
    elif picture.rows and (last := picture.rows[-1]).epsilon_left:
        parts.append(f" After the last alert its run has epsilon {last.epsilon_left:,.4g} left.")
    return "".join(parts)


PICTURE = PictureSpec(
    description="Draws how long alerts last, their confidence bounds and thresholds and, given the truth, the true "
    "numbers.",
    truth=RuleCount,
    shows="shows the true numbers as lines",
    prepare=prepare,
)
