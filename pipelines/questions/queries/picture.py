"""`privstream plot queries`: answers in the order of their queries, with bounds, and the truth where it is known."""

from __future__ import annotations

import argparse
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from matplotlib.ticker import MaxNLocator
from privstream.pipelines.command import Command
from privstream.pipelines.plot.chart import ALARM, COLOURS, GREY, INK, chart, key_above, style_axes
from privstream.pipelines.plot.rows import add_plot, read_rows, write_picture
from privstream.pipelines.questions.queries.simulation import QueryTruth
from privstream.transforms import QueryAnswer

STYLES = {"hypothesis": (COLOURS[0], "o"), "measured": (COLOURS[1], "D"), "refused": (ALARM, "x")}


@dataclass(frozen=True)
class QueryPicture:
    """What is drawn: answers, and the true numbers by query, perhaps none."""

    rows: Sequence[QueryAnswer]
    truth: Mapping[str, int]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of the command."""
    add_plot(parser, rows="queries", truth="shows errors in place of answers")


def run(arguments: argparse.Namespace, others: list[str]) -> None:
    """Read the rows, draw, and write the picture."""
    write_picture(arguments.output, lambda: partial(draw, _read(arguments)))


def _read(arguments: argparse.Namespace) -> QueryPicture:
    """Read what is to be drawn."""
    if arguments.stream is not None:
        raise ValueError("stream must not be given: queries have none")
    rows = sorted(read_rows("--input", arguments.input, QueryAnswer), key=lambda row: (row.time, row.query))
    truth = [] if arguments.truth is None else read_rows("--truth", arguments.truth, QueryTruth)
    people = {row.query: row.people for row in truth}
    if people and not {row.query for row in rows} <= set(people):
        raise ValueError("truth must be about all queries of the rows")
    return QueryPicture(rows, people)


def draw(picture: QueryPicture, stream: BinaryIO, format: str) -> None:
    """Draw the answers, or with the truth their errors, and a band for their bounds."""
    rows = picture.rows
    values = [row.estimate - picture.truth[row.query] if picture.truth else row.estimate for row in rows]
    bounds = [row.error_bound if row.error_bound >= 0 else math.nan for row in rows]
    numbers = list(range(1, len(rows) + 1))
    with chart(stream, format) as (figure, axes):
        marks = []
        for source, (colour, marker) in STYLES.items():
            mine = [i for i, row in enumerate(rows) if row.source == source]
            if mine:
                at, of = [numbers[i] for i in mine], [values[i] for i in mine]
                marks += axes.plot(at, of, marker, color=colour, markersize=4.5, label=source, zorder=3)
        if rows:
            middles = [0.0] * len(rows) if picture.truth else values
            low = [middle - bound for middle, bound in zip(middles, bounds, strict=True)]
            high = [middle + bound for middle, bound in zip(middles, bounds, strict=True)]
            if picture.truth:
                axes.step(numbers, low, where="mid", color=GREY, linewidth=1)
                axes.step(numbers, high, where="mid", color=GREY, linewidth=1)
            else:
                axes.vlines(numbers, low, high, color=GREY, linewidth=0.8, alpha=0.7, zorder=1)
            key_above(axes, marks, [str(mark.get_label()) for mark in marks])
        else:
            axes.text(0.5, 0.5, "no answers", transform=axes.transAxes, ha="center", color=INK)
        values_are = "error, people" if picture.truth else "people"
        style_axes(figure, axes, span=None, values=values_are, title="Answers to queries", caption=_caption(picture))
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.set_xlabel("queries in the order in which they were asked")


def _caption(picture: QueryPicture) -> str:
    """Say what is seen."""
    rows = picture.rows
    count = {source: sum(row.source == source for row in rows) for source in STYLES}
    text = (
        f"{len(rows):,} answers: {count['hypothesis']:,} from the hypothesis, {count['measured']:,} measured, "
        f"{count['refused']:,} refused. Grey: error bounds"
    )
    if picture.truth and rows:
        within = sum(abs(row.estimate - picture.truth[row.query]) <= row.error_bound for row in rows)
        worst = max(abs(row.estimate - picture.truth[row.query]) for row in rows)
        return f"{text}; {within:,} answers are within them. The largest error is {worst:,.0f} people."
    return f"{text}."


COMMAND = Command(
    description="Draws answers with their error bounds in the order of the queries or, given the truth, their errors.",
    add_arguments=add_arguments,
    run=run,
)
