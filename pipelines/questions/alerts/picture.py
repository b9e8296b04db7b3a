"""`privstream plot alerts`: the alerts over time, each with its bound, and the truth where it is known."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from matplotlib.axes import Axes
from matplotlib.lines import Line2D
from privstream.pipelines.command import Command
from privstream.pipelines.plot.chart import ALARM, COLOURS, DAY, GREY, chart, key_above, short, style_axes
from privstream.pipelines.plot.rows import add_plot, choose_stream, read_rows, write_picture
from privstream.pipelines.questions.alerts.simulation import RuleCount
from privstream.transforms import Alert


@dataclass(frozen=True)
class AlertPicture:
    """What is drawn: the alerts of a stream, and the truth about their rules, or about nothing."""

    stream: str
    rows: Sequence[Alert]
    truth: Sequence[RuleCount]

    @property
    def rules(self) -> list[str]:
        """The rules that gave an alert, in the order of their first one."""
        return list(dict.fromkeys(row.rule for row in self.rows))

    @property
    def colours(self) -> dict[str, str]:
        """A colour for each rule; grey for those beyond the last."""
        return {rule: COLOURS[i] if i < len(COLOURS) else GREY for i, rule in enumerate(self.rules)}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_plot(parser, rows="alerts", truth="shows the true numbers as lines")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the rows, draw, and write the picture."""
    write_picture(arguments.output, lambda: partial(draw, _read(arguments)))


def _read(arguments: argparse.Namespace) -> AlertPicture:
    """Read what is to be drawn."""
    stream, rows = choose_stream(read_rows("--input", arguments.input, Alert), arguments.stream)
    truth = [] if arguments.truth is None else read_rows("--truth", arguments.truth, RuleCount)
    return AlertPicture(stream, rows, [row for row in truth if row.stream == stream])


def draw(picture: AlertPicture, stream: BinaryIO, format: str) -> None:
    """Draw alerts as points at the middle of their window, with a line to their bound, and thresholds as dashes."""
    colours = picture.colours
    with chart(stream, format) as (figure, axes):
        for rule, colour in colours.items():
            mine = [row for row in picture.rows if row.rule == rule]
            true = sorted((row.window_start.micros, row.people) for row in picture.truth if row.rule == rule)
            half = (mine[0].window_end.micros - mine[0].window_start.micros) / 2
            axes.plot([(t + half) / DAY for t, _ in true], [n for _, n in true], color=colour, linewidth=1, alpha=0.6)
            axes.axhline(mine[0].threshold, color=colour, linewidth=1, linestyle=(0, (4, 3)), alpha=0.8)
            _points(axes, mine, colour, half)
        windows = [(row.window_start.micros, row.window_end.micros) for row in picture.rows]
        windows += [(row.window_start.micros, row.window_end.micros) for row in picture.truth]
        span = (min(start for start, _ in windows), max(end for _, end in windows)) if windows else None
        if not picture.rows:
            axes.text(0.5, 0.5, "no alert", transform=axes.transAxes, ha="center", color=GREY)
        _stop(axes, picture.rows)
        title = "Alerts" + (f", {short(picture.stream)}" if picture.stream else "")
        style_axes(figure, axes, span=span, values="people in a window", title=title, caption=_caption(picture))
        marks = [Line2D([], [], color=colour, marker="o", markersize=4.5) for colour in colours.values()]
        key_above(axes, marks, [short(rule) for rule in colours])


def _points(axes: Axes, rows: Sequence[Alert], colour: str, half: float) -> None:
    """Draw the alerts of one rule."""
    for row in rows:
        day = (row.window_start.micros + half) / DAY
        sign = 1 if row.estimate >= row.threshold else -1
        bound = row.threshold + sign * row.gap_lower_bound
        axes.plot([day, day], [bound, row.estimate], color=colour, linewidth=1.6, alpha=0.55, solid_capstyle="butt")
        axes.plot([day], [row.estimate], "o", color=colour, markersize=4.5, zorder=4)


def _stop(axes: Axes, rows: Sequence[Alert]) -> None:
    """Mark where runs of tests have stopped."""
    for row in rows:
        if row.stopped:
            axes.axvline(row.window_end.micros / DAY, color=ALARM, linewidth=1.2, linestyle=":")


def _caption(picture: AlertPicture) -> str:
    """Say what is seen."""
    parts = [
        f"{len(picture.rows):,} alerts of {len(picture.rules):,} rules. Points: numbers of people with noise; bars "
        "end at their confidence bounds. Dashed: thresholds"
    ]
    if picture.truth:
        parts.append(". Thin lines: the true numbers")
    parts.append(".")
    if any(row.stopped for row in picture.rows):
        parts.append(" At the dotted line the budget was spent, and the tests stopped.")
    elif picture.rows and (last := picture.rows[-1]).epsilon_left:
        parts.append(f" After the last alert its run has epsilon {last.epsilon_left:.3g} left.")
    return "".join(parts)


COMMAND = Command(
    description="Draws alerts over time with their confidence bounds and thresholds and, given the truth, the true "
    "numbers.",
    add_arguments=add_arguments,
    run=run,
)
