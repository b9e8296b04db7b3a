"""`privstream plot queries`: answers in the order of their queries, with bounds, and the truth where it is known."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from matplotlib.ticker import MaxNLocator
from privstream.pipelines.plot.bands import NOTHING_SURE
from privstream.pipelines.plot.chart import ALARM, COLOURS, GREY, INK, chart, key_above, note, plural, style_axes, told
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.simulate.truths import QueryTruth
from privstream.transforms import QueryAnswer

STYLES = {
    "counts": (COLOURS[0], "o"),
    "answers": (COLOURS[0], "o"),
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
    return partial(draw, QueryPicture(rows, people, given.sure("Grey")))


def draw(picture: QueryPicture, stream: BinaryIO, format: str) -> None:
    """Draw the answers, or with the truth their errors, and a band for their bounds."""
    rows = picture.rows
    values = [row.estimate - picture.truth[row.query] if picture.truth else row.estimate for row in rows]
    bounds = [row.error_bound if row.error_bound >= 0 else math.nan for row in rows]
    numbers = list(range(1, len(rows) + 1))
    with chart(stream, format) as figure:
        axes = figure.add_subplot()
        marks, size = [], 4.5 if len(rows) <= FEW else 2.0
        for source, (colour, marker) in STYLES.items():
            mine = [i for i, row in enumerate(rows) if row.source == source]
            if mine:
                at, of = [numbers[i] for i in mine], [values[i] for i in mine]
                marks += axes.plot(at, of, marker, color=colour, markersize=size, label=source, zorder=3)
        texts = [f"{row.query}: {told(row.estimate, bound)}" for row, bound in zip(rows, bounds, strict=True)]
        note(axes, "", zip(numbers, values, [None] * len(rows), texts, strict=True))
        if rows:
            middles = [0.0] * len(rows) if picture.truth else values
            low = [middle - bound for middle, bound in zip(middles, bounds, strict=True)]
            high = [middle + bound for middle, bound in zip(middles, bounds, strict=True)]
            if picture.truth:
                axes.step(numbers, low, where="mid", color=GREY, linewidth=1)
                axes.step(numbers, high, where="mid", color=GREY, linewidth=1)
            else:
                axes.vlines(numbers, low, high, color=GREY, linewidth=0.8, alpha=0.7, zorder=1)
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


def _caption(picture: QueryPicture) -> str:
    """Say what is seen."""
    rows = picture.rows
    if not rows:
        return "There are no rows."
    count = {source: sum(row.source == source for row in rows) for source in STYLES}
    if count["counts"]:
        sources = "sums of counts with noise"
    elif count["answers"]:
        sources = f"{count['answers']:,} with noise of their own, {count['refused']:,} refused"
    else:
        sources = (
            f"{count['hypothesis']:,} from the hypothesis, {count['measured']:,} measured, {count['refused']:,} refused"
        )
    text = f"{plural(len(rows), 'answer')}: {sources}. {picture.meaning}"
    if picture.truth:
        within = sum(abs(row.estimate - picture.truth[row.query]) <= row.error_bound for row in rows)
        worst = max(abs(row.estimate - picture.truth[row.query]) for row in rows)
        return f"{text} {within:,} answers are within their bounds. The largest error is {worst:,.0f} people."
    widest = max(row.error_bound for row in rows)
    if widest <= 0:
        return text
    sure = any(row.estimate > row.error_bound >= 0 for row in rows)
    return f"{'' if sure else NOTHING_SURE}{text} It reaches up to {widest:,.10g} to either side."


PICTURE = PictureSpec(
    description="Draws answers with their error bounds in the order of the queries or, given the truth, their errors.",
    truth=QueryTruth,
    shows="shows errors in place of answers",
    prepare=prepare,
)
