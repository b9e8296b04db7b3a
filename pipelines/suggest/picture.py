"""What each limit keeps, drawn against the limit."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import BinaryIO

from privstream.pipelines.plot.chart import ALARM, COLOURS, GREY, MARKERS, chart
from privstream.pipelines.plot.picture_spec import Drawing
from privstream.pipelines.plot.promise import Promise
from privstream.transforms.row_types import LimitShare

CAPTION = (
    "Bands: each point by itself is right with a probability of {:.0%}, about people with at most the largest limit "
    "that is drawn. Vertical lines: the limits that are suggested."
)


def prepare(rows: Sequence[LimitShare], promise: Promise) -> Drawing:
    """Return what draws the share that limits keep of what people have.

    Raises:
        ValueError: there is nothing to draw.
    """
    drawn = [row for row in rows if row.kept is not None and row.measure != "values" and row.limit is not None]
    if not drawn:
        raise ValueError("there must be a limit to draw: too few people can be seen")
    question = str(promise.number("parameters", "question"))
    confidence = 1 - float(promise.number("accuracy", "failure_probability"))
    return partial(draw, drawn, f"What limits of {question} keep", CAPTION.format(confidence))


def draw(rows: Sequence[LimitShare], title: str, caption: str, stream: BinaryIO, format: str) -> None:
    """Draw one line for each measure."""
    with chart(stream, format) as figure:
        axes = figure.add_subplot()
        for number, measure in enumerate(dict.fromkeys(row.measure for row in rows)):
            some = [row for row in rows if row.measure == measure]
            limits, colour = [row.limit or 0.0 for row in some], COLOURS[number]
            axes.plot(
                limits, [100 * (row.kept or 0) for row in some], marker=MARKERS[number], color=colour, label=measure
            )
            ends = [
                [100 * (end or 0) for end in column]
                for column in zip(*((r.kept_lower, r.kept_upper) for r in some), strict=True)
            ]
            axes.fill_between(limits, ends[0], ends[1], color=colour, alpha=0.15, linewidth=0)
            for row in some:
                if row.suggested:
                    at = float(row.suggested.split()[-1])
                    axes.axvline(at, color=ALARM, linewidth=1, linestyle=":")
                    axes.annotate(row.suggested, (at, 3), rotation=90, color=ALARM, ha="right")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("limit of a person")
        axes.set_ylabel("kept of what people have, %")
        axes.set_ylim(0, 102)
        axes.grid(color=GREY, alpha=0.3)
        axes.legend(frameon=False, loc="lower right", bbox_to_anchor=(1, 1), ncols=2)
        figure.say(title, caption)
