"""`privstream plot alerts`: the alerts over time, each with its bound, and the truth where it is known."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from privstream.pipelines.plot.chart import (
    ALARM,
    COLOURS,
    DAY,
    FAINT,
    GREY,
    MARKERS,
    chart,
    key_above,
    moment,
    note,
    short,
    style_axes,
    told,
)
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.promise import percent
from privstream.pipelines.questions.alerts.simulation import RuleCount
from privstream.transforms import Alert
from privstream.transforms.rows import ENDED


@dataclass(frozen=True)
class AlertPicture:
    """What is drawn: the alerts of a stream, the truth about their rules, or about nothing, and how sure bounds are.

    Attributes:
        tested: names of all rules, as far as they are known.
        span: the time in which they were tested, in microseconds since 1970, as far as it is known.
    """

    stream: str
    rows: Sequence[Alert]
    truth: Sequence[RuleCount]
    certainty: str
    tested: Sequence[str] = ()
    span: Sequence[int] = ()

    @property
    def rules(self) -> list[str]:
        """The rules, those that gave an alert first, in the order of their first one."""
        return list(dict.fromkeys([*(row.rule for row in self.rows), *self.tested]))

    @property
    def styles(self) -> dict[str, tuple[str, str]]:
        """A colour and a marker for each rule; those beyond the last are grey."""
        known = list(zip(COLOURS, MARKERS, strict=True))
        return {rule: known[i] if i < len(known) else (GREY, ".") for i, rule in enumerate(self.rules)}


def prepare(given: Given) -> Drawing:
    """Return what draws the alerts."""
    rules, span = ((given.promise and given.promise.maybe("public", name)) or [] for name in ("rules", "span"))
    tested = [rule["name"] for rule in rules]
    sure = percent(given.promise)
    return partial(draw, AlertPicture(given.stream, given.rows, given.truth or [], sure, tested, span))


def draw(picture: AlertPicture, stream: BinaryIO, format: str) -> None:
    """Draw alerts as thick lines, points in the middle of windows with a line to their bound, thresholds as dashes."""
    styles = picture.styles
    with chart(stream, format) as (figure, axes):
        for rule, (colour, marker) in styles.items():
            mine = [row for row in picture.rows if row.rule == rule]
            if not mine:
                continue
            true = sorted((row.window_start.micros, row.people) for row in picture.truth if row.rule == rule)
            half = (mine[0].window_end.micros - mine[0].window_start.micros) / 2
            axes.plot([(t + half) / DAY for t, _ in true], [n for _, n in true], color=colour, linewidth=1, alpha=0.6)
            axes.axhline(mine[0].threshold, color=colour, linewidth=1, linestyle=(0, (4, 3)), alpha=0.8)
            _lasting(axes, mine, colour)
            _points(axes, mine, colour, marker, half)
        windows = [(row.window_start.micros, row.window_end.micros) for row in picture.rows]
        windows += [(row.window_start.micros, row.window_end.micros) for row in picture.truth]
        windows += [(picture.span[0], picture.span[1])] if picture.span else []
        span = (min(start for start, _ in windows), max(end for _, end in windows)) if windows else None
        if not picture.rows:
            axes.text(0.5, 0.5, "no alert", transform=axes.transAxes, ha="center", color=GREY)
        _stop(axes, picture.rows, span)
        title = "Alerts" + (f", {short(picture.stream)}" if picture.stream else "")
        style_axes(figure, axes, span=span, values="people in a window", title=title, caption=_caption(picture))
        marks = [Line2D([], [], color=colour, marker=marker, markersize=4.5) for colour, marker in styles.values()]
        key_above(axes, marks, [short(rule) for rule in styles])


def lasting(rows: Sequence[Alert]) -> dict[int, int]:
    """Return when each alert of one rule started, and when its last window ended, in microseconds since 1970."""
    return {row.since.micros: row.window_end.micros for row in rows if row.status != ENDED}


def _lasting(axes: Axes, rows: Sequence[Alert], colour: str) -> None:
    """Draw how long the alerts of one rule last, as thick lines at its threshold."""
    for start, end in lasting(rows).items():
        level = [rows[0].threshold] * 2
        axes.plot([start / DAY, end / DAY], level, color=colour, linewidth=7, alpha=0.3, solid_capstyle="butt")


def _points(axes: Axes, rows: Sequence[Alert], colour: str, marker: str, half: float) -> None:
    """Draw the numbers with noise of one rule, hollow where an alert ends; where there is none, only a note."""
    for row in rows:
        day = (row.window_start.micros + half) / DAY
        if row.estimate is None or row.gap is None or row.gap_lower_bound is None:
            note(axes, row.rule, [(day, row.threshold, f"{moment(row.window_start.micros)}: {row.status}")])
            continue
        sign = 1 if (row.estimate >= row.threshold) == (row.gap >= 0) else -1
        bound = row.threshold + sign * row.gap_lower_bound
        axes.plot([day, day], [bound, row.estimate], color=colour, linewidth=1.6, alpha=0.55, solid_capstyle="butt")
        inside = "white" if row.status == ENDED else colour
        axes.plot([day], [row.estimate], marker, color=colour, markerfacecolor=inside, markersize=4.5, zorder=4)
        words = "at least" if sign > 0 else "at most"
        text = f"{told(row.window_start.micros, row.estimate)}, {words} {bound:,.6g}, {row.status}"
        note(axes, row.rule, [(day, row.estimate, text)])


def _stop(axes: Axes, rows: Sequence[Alert], span: tuple[int, int] | None) -> None:
    """Mark where runs of tests have stopped, and the time after it, in which nothing is tested."""
    for row in rows:
        if row.stopped and span is not None:
            axes.axvline(row.window_end.micros / DAY, color=ALARM, linewidth=1.2, linestyle=":")
            axes.axvspan(row.window_end.micros / DAY, span[1] / DAY, facecolor="none", edgecolor=FAINT, hatch="//")


def _caption(picture: AlertPicture) -> str:
    """Say what is seen."""
    number = len({(row.rule, row.since) for row in picture.rows})
    parts = [
        f"Alerts: {number:,}, of {len(picture.rules):,} rules; thick lines show how long they last. Points: numbers of "
        "people with noise"
    ]
    if any(row.status == ENDED for row in picture.rows):
        parts.append(", hollow where an alert ends")
    parts.append(
        "; bars: where the true values are, from a bound that they are beyond with probability "
        f"{picture.certainty}, each by itself. Dashed: thresholds"
    )
    if picture.truth:
        parts.append(". Thin lines: the true numbers")
    parts.append(".")
    if any(row.stopped for row in picture.rows):
        parts.append(" At the dotted line the budget was spent: where it is hatched, nothing was tested.")
    elif picture.rows and (last := picture.rows[-1]).epsilon_left:
        parts.append(f" After the last alert its run has epsilon {last.epsilon_left:.3g} left.")
    return "".join(parts)


PICTURE = PictureSpec(
    description="Draws how long alerts last, their confidence bounds and thresholds and, given the truth, the true "
    "numbers.",
    truth=RuleCount,
    shows="shows the true numbers as lines",
    prepare=prepare,
)
