"""`privstream plot flags`: when the flag of each category went up, and when its count passed the threshold in truth."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import BinaryIO

from matplotlib.lines import Line2D
from privstream.pipelines.plot.chart import COLOURS, DAY, FAINT, INK, chart, key_above, moment, note, short, style_axes
from privstream.pipelines.plot.picture_spec import Drawing, Given, PictureSpec
from privstream.pipelines.plot.promise import held, percent, without_limits
from privstream.pipelines.questions.histogram.simulation import CategoryCount
from privstream.transforms.rows import CategoryFlag

MOST = 40
"""Categories that fit into a picture."""


@dataclass(frozen=True)
class FlagPicture:
    """What is drawn: moments in microseconds since 1970 by category, the first flag first.

    Attributes:
        stream: its name, empty where there is but one.
        span: start of the first and end of the last window, or None if there are no rows.
        thresholds: of all categories, in the order in which they are drawn.
        raised: when flags went up, of those that did.
        passed: when counts had passed their thresholds in truth, of those that had; None if the truth is not known.
        error_bound: the largest of the rows.
        certainty: the probability with which it is right, such as 95%.
        counts: what counts are, as a part of a sentence.
    """

    stream: str
    span: tuple[int, int] | None
    thresholds: Mapping[str, int]
    raised: Mapping[str, int]
    passed: Mapping[str, int] | None
    error_bound: int
    certainty: str
    counts: str


def prepare(given: Given) -> Drawing:
    """Return what draws the flags."""
    promise = given.promise
    counts = f"{held(promise)} so far{without_limits(promise)}"
    return partial(draw, picture(given.stream, given.rows, given.truth, percent(promise), counts))


def picture(
    stream: str, rows: Sequence[CategoryFlag], truth: Sequence[CategoryCount] | None, certainty: str, counts: str
) -> FlagPicture:
    """Return when flags went up, and when they should have."""
    thresholds = {row.category: row.threshold for row in rows}
    raised: dict[str, int] = {}
    for row in sorted(rows, key=lambda row: row.window_end):
        if row.raised:
            raised.setdefault(row.category, int(row.window_end.micros))
    passed: dict[str, int] | None = None if truth is None else {}
    for count in sorted(truth or (), key=lambda count: count.window_end):
        if passed is not None and count.events >= thresholds.get(count.category, count.events + 1):
            passed.setdefault(count.category, int(count.window_end.micros))
    starts, ends = [int(row.window_start.micros) for row in rows], [int(row.window_end.micros) for row in rows]
    never = max(ends, default=0) + 1
    order = sorted(thresholds, key=lambda name: (raised.get(name, never), (passed or {}).get(name, never), name))
    return FlagPicture(
        stream=stream,
        span=(min(starts), max(ends)) if rows else None,
        thresholds={name: thresholds[name] for name in order},
        raised=raised,
        passed=passed,
        error_bound=max((row.error_bound for row in rows), default=0),
        certainty=certainty,
        counts=counts,
    )


def draw(found: FlagPicture, stream: BinaryIO, format: str) -> None:
    """Draw a line for each category, thick from when its flag went up."""
    names = list(found.thresholds)[:MOST]
    with chart(stream, format) as (figure, axes):
        for place, name in enumerate(names):
            axes.axhline(place, color=FAINT, linewidth=0.8, zorder=1)
            if name in found.raised and found.span is not None:
                days = [found.raised[name] / DAY, found.span[1] / DAY]
                axes.plot(days, [place, place], color=COLOURS[0], linewidth=5, solid_capstyle="butt", zorder=2)
                note(axes, name, [(days[0], place, f"up since {moment(found.raised[name])}")])
                axes.plot(days[:1], [place], "o", color=COLOURS[0], markersize=7, clip_on=False, zorder=3)
            if found.passed and name in found.passed:
                day = found.passed[name] / DAY
                axes.plot([day], [place], "D", color=COLOURS[1], markersize=5, clip_on=False, zorder=4)
        if not names:
            axes.text(0.5, 0.5, "no rows", transform=axes.transAxes, ha="center", color=INK)
        title = "Categories that have passed their thresholds" + (f", {short(found.stream)}" if found.stream else "")
        style_axes(figure, axes, span=found.span, values="", title=title, caption=caption(found))
        axes.grid(visible=False)
        axes.set_yticks(range(len(names)), [f"{short(name)} ({found.thresholds[name]:,})" for name in names])
        axes.set_ylim(max(len(names), 1) - 0.4, -0.6)
        marks = [Line2D([], [], color=COLOURS[0], linewidth=5, marker="o", markersize=7)]
        if found.passed is not None:
            marks.append(Line2D([], [], color=COLOURS[1], linewidth=0, marker="D", markersize=5))
        key_above(axes, marks, ["flag is up", "count passed the threshold"][: len(marks)])


def caption(found: FlagPicture) -> str:
    """Say what is seen."""
    if not found.thresholds:
        return "There are no rows."
    text = (
        f"In brackets: the thresholds, in events. {len(found.raised):,} of {len(found.thresholds):,} flags "
        f"went up, and stay up. With probability {found.certainty}, all of them together, each flag goes up at a count "
        f"that is at most {found.error_bound:,} events below or above its threshold. Counts are {found.counts}."
    )
    if found.passed is not None:
        early = sum(moment < found.passed.get(name, moment + 1) for name, moment in found.raised.items())
        never = len(found.passed.keys() - found.raised.keys())
        text += (
            f" In truth {len(found.passed):,} counts passed their thresholds: {early:,} flags were early, "
            f"{never:,} not up yet."
        )
    beyond = len(found.thresholds) - MOST
    return text if beyond <= 0 else f"{text} Not shown: {beyond:,} more categories."


PICTURE = PictureSpec(
    description="Draws when the flag of each category went up and, given the truth, when its count passed the "
    "threshold.",
    truth=CategoryCount,
    shows="marks when counts passed their thresholds",
    prepare=prepare,
)
