"""`privstream plot queries`: answers in the order of their queries, with bounds, and the truth where it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

import numpy as np
from matplotlib.ticker import MaxNLocator
from privstream.pipelines.plot.bands import NOTHING_SURE
from privstream.pipelines.plot.chart import ALARM, COLOURS, GREY, INK, chart, key_above, note, plural, style_axes
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec, row_intervals
from privstream.pipelines.simulate.truths import QueryTruth
from privstream.transforms import QueryAnswer

STYLES = {
    "hypothesis": (COLOURS[0], "o"),
    "measured": (COLOURS[1], "D"),
    "refused": (ALARM, "x"),
}


FEW = 200
"""Answers whose marks do not lie on each other."""


@dataclass(frozen=True)
class QueryPicture:
    """What is drawn: answers, the true numbers by query, perhaps none, and what error bounds mean."""

    rows: Sequence[QueryAnswer]
    truth: Mapping[str, int]
    meaning: str


def prepare(given: Given) -> Drawing:
    """Return what draws the answers."""
    rows = sorted(given.rows, key=lambda row: (row.time, row.query))
    people = {row.query: row.people for row in given.truth or ()}
    if people and not {row.query for row in rows} <= set(people):
        raise ValueError("truth must be about all queries of the rows")
    return partial(draw, QueryPicture(rows, people, given.sure_of_rows("Grey")))


def draw(picture: QueryPicture, stream: BinaryIO, format: str) -> None:
    """Draw the answers, or with the truth their errors, and a band for their bounds."""
    rows = picture.rows
    values = [row.estimate - picture.truth[row.query] if picture.truth else row.estimate for row in rows]
    low, high = row_intervals(rows).tolist()
    numbers = list(range(1, len(rows) + 1))
    with chart(stream, format) as figure:
        axes = figure.add_subplot()
        marks, size = [], 4.5 if len(rows) <= FEW else 2.0
        for source, (colour, marker) in STYLES.items():
            mine = [i for i, row in enumerate(rows) if row.source == source]
            if mine:
                at, of = [numbers[i] for i in mine], [values[i] for i in mine]
                marks += axes.plot(at, of, marker, color=colour, markersize=size, label=source, zorder=3)
        texts = [f"{row.query}: {_told(row, *ends)}" for row, *ends in zip(rows, low, high, strict=True)]
        note(axes, "", zip(numbers, values, [None] * len(rows), texts, strict=True))
        if rows:
            true = [picture.truth.get(row.query, 0) for row in rows]
            below, above = ([end - right for end, right in zip(each, true, strict=True)] for each in (low, high))
            if picture.truth:
                axes.axhline(0, color=GREY, linewidth=1, zorder=1)
            axes.vlines(numbers, below, above, color=GREY, linewidth=0.8, alpha=0.7, zorder=1)
            if len(marks) > 1:
                key_above(axes, marks, [str(mark.get_label()) for mark in marks])
        else:
            axes.text(0.5, 0.5, "no answers", transform=axes.transAxes, ha="center", color=INK)
        values_are = "error, people" if picture.truth else "people"
        style_axes(figure, axes, span=None, values=values_are, title="Answers to queries", caption=_caption(picture))
        if not rows:
            axes.set_yticks([])
            axes.set_xticks([])
            return
        axes.set_xlim(0.5, len(rows) + 0.5)
        axes.xaxis.set_major_locator(MaxNLocator(integer=True, min_n_ticks=1))
        axes.xaxis.set_major_formatter("{x:,.0f}")
        axes.set_xlabel("queries in the order in which they were asked")


def _told(row: QueryAnswer, lower: float, upper: float) -> str:
    """Return an answer in words, with its interval."""
    between = f" (between {lower:,.6g} and {upper:,.6g})" if math.isfinite(upper) else ""
    return f"{row.estimate:,.6g}{between}"


def _caption(picture: QueryPicture) -> str:
    """Say what is seen."""
    rows = picture.rows
    if not rows:
        return "There are no rows."
    count = {source: sum(row.source == source for row in rows) for source in STYLES}
    sources = (
        f"{count['hypothesis']:,} from the hypothesis, {count['measured']:,} measured, {count['refused']:,} refused"
    )
    text = f"{plural(len(rows), 'answer')}: {sources}. {picture.meaning}"
    if picture.truth:
        within = sum(
            lower <= picture.truth[row.query] <= upper
            for row, lower, upper in zip(rows, *row_intervals(rows).tolist(), strict=True)
        )
        worst = max(abs(row.estimate - picture.truth[row.query]) for row in rows)
        return f"{text} {within:,} are held. The largest error is {worst:,.0f} people."
    lower, upper = row_intervals(rows)
    if not np.isfinite(upper).any():
        return text
    widest = np.nanmax(upper - [row.estimate for row in rows])
    sure = bool((lower > 0).any())
    return f"{'' if sure else NOTHING_SURE}{text} It reaches up to {widest:,.10g} above the answer."


PICTURE = PictureSpec(
    description="Draws answers with their error bounds in the order of the queries or, given the truth, their errors.",
    truth=QueryTruth,
    shows="shows errors in place of answers",
    prepare=prepare,
)
